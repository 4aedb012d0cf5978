package wire

import (
	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink"
)

// Monitor hears the kernel's notifications of changes that others make to one table. Our own are filtered out in the kernel, by the
// number of the socket that made them.
type Monitor struct {
	sock   *Socket
	family byte
	table  string
	heard  func(typ uint16, body []byte)
	missed func()
	done   chan struct{}
}

// Watch begins to listen, in the network namespace of the calling thread, to all but what own writes. heard is called with each message
// (NFT_MSG_*) about the table or its objects, and missed where some were lost; both by one goroutine.
func Watch(own *Socket, family byte, table string, heard func(typ uint16, body []byte), missed func()) (*Monitor, error) {
	s, err := Open()
	if err != nil {
		return nil, err
	}
	m := &Monitor{sock: s, family: family, table: table, heard: heard, missed: missed, done: make(chan struct{})}
	if err = s.ignore(own.port); err == nil {
		err = m.Listen(true)
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	own.moved = s.ignore
	go func() {
		defer close(m.done)
		s.Conn.Listen(m.hear, missed)
	}()
	return m, nil
}

// Listen begins or ends to hear of changes. With Missed it makes the monitor an ownwrites.Listener.
func (m *Monitor) Listen(on bool) error { return m.sock.subscribe(on) }

// Missed says that others may have changed the table unheard.
func (m *Monitor) Missed() { m.missed() }

// Close ends the listening.
func (m *Monitor) Close() error {
	err := m.sock.Close()
	<-m.done
	return err
}

// hear sorts out what is about the table.
func (m *Monitor) hear(msg netlink.Message) {
	if msg.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || len(msg.Body) < Header || msg.Body[0] != m.family {
		return
	}
	body := msg.Body[Header:]
	switch typ := msg.Type & 0xff; typ {
	case unix.NFT_MSG_NEWTABLE, unix.NFT_MSG_DELTABLE, unix.NFT_MSG_NEWSET, unix.NFT_MSG_DELSET, unix.NFT_MSG_NEWCHAIN,
		unix.NFT_MSG_DELCHAIN, unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE, unix.NFT_MSG_NEWSETELEM, unix.NFT_MSG_DELSETELEM:
		if netlink.CStr(netlink.Attribute(body, 1)) == m.table { // in all of them attribute 1 is the table
			m.heard(typ, body)
		}
	}
}
