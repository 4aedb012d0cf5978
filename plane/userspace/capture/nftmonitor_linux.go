package capture

import (
	"sync"

	"golang.org/x/sys/unix"

	nlconn "kube-proxy/internal/netlink/conn"
	"kube-proxy/internal/nft/wire"
)

// monitor hears what others do to our table. It notes no more than that something was done: the table is small to read, and
// nobody else has anything to do there.
type monitor struct {
	sock   *wire.Socket
	proto  byte
	signal chan<- struct{}
	done   chan struct{}

	mu    sync.Mutex
	heard bool
}

// startMonitor listens in the network namespace of the calling thread. own is the port of the socket whose changes are ours.
func startMonitor(f family, signal chan<- struct{}, own uint32) (*monitor, error) {
	s, err := wire.Open()
	if err != nil {
		return nil, err
	}
	m := &monitor{sock: s, proto: f.proto, signal: signal, done: make(chan struct{})}
	if err = s.Ignore(own); err == nil {
		err = m.Listen(true)
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	go func() {
		defer close(m.done)
		s.Conn.Listen(m.hear, m.Missed)
	}()
	return m, nil
}

// Listen begins or ends to hear of changes. With Missed it makes the monitor an ownwrites.Listener.
func (m *monitor) Listen(on bool) error { return m.sock.Subscribe(on) }

// Missed notes that something may have been done.
func (m *monitor) Missed() {
	m.mu.Lock()
	m.heard = true
	m.mu.Unlock()
	wake(m.signal)
}

func wake(signal chan<- struct{}) {
	select {
	case signal <- struct{}{}:
	default:
	}
}

// take reports whether anything was heard since the last take.
func (m *monitor) take() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	was := m.heard
	m.heard = false
	return was
}

// silent reports whether nothing was heard since the last take.
func (m *monitor) silent() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.heard
}

func (m *monitor) hear(msg nlconn.Message) {
	if msg.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || len(msg.Body) < wire.Header || msg.Body[0] != m.proto {
		return
	}
	switch msg.Type & 0xff {
	case unix.NFT_MSG_NEWTABLE, unix.NFT_MSG_DELTABLE, unix.NFT_MSG_NEWSET, unix.NFT_MSG_DELSET, unix.NFT_MSG_NEWCHAIN,
		unix.NFT_MSG_DELCHAIN, unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE, unix.NFT_MSG_NEWSETELEM, unix.NFT_MSG_DELSETELEM:
		if nlconn.CStr(nlconn.Attribute(msg.Body[wire.Header:], 1)) == TableName { // in all of them attribute 1 is the table
			m.Missed()
		}
	}
}

func (m *monitor) close() error {
	err := m.sock.Close()
	<-m.done
	return err
}
