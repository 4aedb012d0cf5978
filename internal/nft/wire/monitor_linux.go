package wire

import (
	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink"
)

// Monitor receives the kernel's notifications of foreign changes to one table. The kernel filters
// out our own, by the number of the socket that made them.
type Monitor struct {
	sock   *Socket
	family byte
	table  string
	heard  func(typ uint16, body []byte)
	missed func()
	done   chan struct{}
}

// Watch starts to listen, in the network namespace of the calling thread, to everything except
// writes of own. It calls heard with each message (NFT_MSG_*) about the table or its objects, and
// missed when some were lost; both from one goroutine.
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

// Listen starts or stops notifications of changes. With Missed it implements ownwrites.Listener.
func (m *Monitor) Listen(on bool) error { return m.sock.subscribe(on) }

// Missed reports that the table may have changed without a notification.
func (m *Monitor) Missed() { m.missed() }

// Close stops listening.
func (m *Monitor) Close() error {
	err := m.sock.Close()
	<-m.done
	return err
}

// hear passes on the messages about the table.
func (m *Monitor) hear(msg netlink.Message) {
	if msg.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || len(msg.Body) < Header || msg.Body[0] != m.family {
		return
	}
	body := msg.Body[Header:]
	switch typ := msg.Type & 0xff; typ {
	case unix.NFT_MSG_NEWTABLE, unix.NFT_MSG_DELTABLE, unix.NFT_MSG_NEWSET, unix.NFT_MSG_DELSET, unix.NFT_MSG_NEWCHAIN,
		unix.NFT_MSG_DELCHAIN, unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE, unix.NFT_MSG_NEWSETELEM, unix.NFT_MSG_DELSETELEM:
		// In all of them attribute 1 is the table.
		if netlink.CStr(netlink.Attribute(body, 1)) == m.table {
			m.heard(typ, body)
		}
	}
}
