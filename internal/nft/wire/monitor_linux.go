package wire

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink"
)

// Monitor receives the kernel's notifications of foreign changes to tables of a family. The kernel
// filters out our own, by the number of the socket that made them.
type Monitor struct {
	sock    *Socket
	family  byte
	ours    func(table, object string) bool
	noticed func(typ uint16, body []byte)
	ended   func()
	missed  func()
	done    chan struct{}

	touched bool // by the transaction that is being received
	mu      sync.Mutex
	story   story
}

// story is who changed the table, and what.
type story struct{ who, what []string }

// Bounds of a story.
const (
	maxWriters = 3
	maxObjects = 4
)

const theTable = "the table"

// add adds a text to a list that is bounded.
func add(all []string, text string, most int) []string {
	switch {
	case slices.Contains(all, text) || len(all) > most:
		return all
	case len(all) == most:
		text = "more"
	}
	return append(all, text)
}

// Watch starts to listen, in the network namespace of the calling thread, to all writes except
// those of own, if that is not nil. It calls noticed with each message (NFT_MSG_*) about an object
// of a table, or with object "" the table itself, that ours selects; ended after the last one of a
// transaction, and missed if messages were lost; all from one goroutine.
func Watch(own *Socket, family byte, ours func(table, object string) bool,
	noticed func(typ uint16, body []byte), ended, missed func()) (*Monitor, error) {
	s, err := Open()
	if err != nil {
		return nil, err
	}
	m := &Monitor{sock: s, family: family, ours: ours, noticed: noticed, ended: ended, missed: missed,
		done: make(chan struct{})}
	if own != nil {
		err = s.ignore(own.port)
		own.moved = s.ignore
	}
	if err == nil {
		err = m.Listen(true)
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	go func() {
		defer close(m.done)
		s.Conn.Listen(m.notice, missed)
	}()
	return m, nil
}

// Listen starts or stops notifications of changes. With Missed it implements selfwrites.Listener.
func (m *Monitor) Listen(on bool) error { return m.sock.subscribe(on) }

// Missed reports that the table may have changed without a notification.
func (m *Monitor) Missed() { m.missed() }

// Close stops listening.
func (m *Monitor) Close() error {
	err := m.sock.Close()
	<-m.done
	return err
}

// notice passes on the messages about the table. The message of the new generation ends those of a
// transaction, and names the process.
func (m *Monitor) notice(msg netlink.Message) {
	if msg.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || len(msg.Body) < Header {
		return
	}
	body := msg.Body[Header:]
	switch typ := msg.Type & 0xff; typ {
	case unix.NFT_MSG_NEWGEN:
		if m.touched {
			m.touched = false
			m.record(fmt.Sprintf("%s (PID %d)", netlink.CStr(netlink.Attribute(body, unix.NFTA_GEN_PROC_NAME)),
				netlink.BE32(netlink.Attribute(body, unix.NFTA_GEN_PROC_PID))), "")
			m.ended()
		}
	case unix.NFT_MSG_NEWTABLE, unix.NFT_MSG_DELTABLE, unix.NFT_MSG_NEWSET, unix.NFT_MSG_DELSET, unix.NFT_MSG_NEWCHAIN,
		unix.NFT_MSG_DELCHAIN, unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE, unix.NFT_MSG_NEWSETELEM,
		unix.NFT_MSG_DELSETELEM:
		// In all of them attribute 1 is the table.
		kind, name := objectOf(typ, body)
		if msg.Body[0] == m.family && m.ours(netlink.CStr(netlink.Attribute(body, 1)), name) {
			m.touched = true
			m.record("", kind+name)
			m.noticed(typ, body)
		}
	}
}

// objectOf says what a message is about: the kind of object, and the name of the chain or set.
func objectOf(typ uint16, body []byte) (kind, name string) {
	second := netlink.CStr(netlink.Attribute(body, 2)) // of most the chain or set
	switch typ {
	case unix.NFT_MSG_NEWTABLE, unix.NFT_MSG_DELTABLE:
		return theTable, ""
	case unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_DELCHAIN:
		return "chain ", netlink.CStr(netlink.Attribute(body, unix.NFTA_CHAIN_NAME))
	case unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE:
		return "rules of chain ", second
	case unix.NFT_MSG_NEWSET, unix.NFT_MSG_DELSET:
		return "set ", second
	}
	return "elements of set ", second
}

// Of selects a table with all its objects, for Watch.
func Of(table string) func(t, _ string) bool { return func(t, _ string) bool { return t == table } }

// record adds a writer or an object to the story; "" is none.
func (m *Monitor) record(who, what string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case who != "":
		m.story.who = add(m.story.who, who, maxWriters)
	case what == theTable: // with all that it has
		m.story.what = []string{what}
	case !slices.Contains(m.story.what, theTable):
		m.story.what = add(m.story.what, what, maxObjects)
	}
}

// ChangedBy is part of plane.Witness: the processes by their names and by their PIDs in the first
// PID namespace, and the objects.
func (m *Monitor) ChangedBy() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.story.who) == 0 {
		return ""
	}
	s := strings.Join(m.story.who, ", ") + " changed " + strings.Join(m.story.what, ", ")
	m.story = story{}
	return s
}
