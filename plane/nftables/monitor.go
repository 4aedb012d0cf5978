//go:build linux

package nftables

import (
	"sync"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink"
	"kube-proxy/internal/nft/wire"
)

// monitor records the changes that other programs make to our table.
type monitor struct {
	*wire.Monitor
	index map[string]setIndex
	defs  *[setCount]wire.Set

	signal chan struct{} // has a value when notes exist

	mu    sync.Mutex
	notes notes
}

// notes are the foreign changes since the last take.
type notes struct {
	// Notifications were lost, or the table was removed: only a full comparison finds the
	// differences.
	everything bool
	structure  bool // a set, chain or rule was added or removed, or the table's flags changed
	elements   map[elementKey]elementNote
}

type elementKey struct {
	set setIndex
	key string // result of appendElementKey: a record without data
}

// elementNote is the last notification about an element.
type elementNote struct {
	present bool
	data    string
}

func (n *notes) empty() bool { return !n.everything && !n.structure && len(n.elements) == 0 }

// manyNotes is the number of notes from which comparing everything is cheaper than tracking single
// elements.
const manyNotes = 4096

// startMonitor listens in the network namespace of the calling thread. It ignores changes that the
// socket own makes.
func startMonitor(l *layout, own *wire.Socket) (m *monitor, err error) {
	m = &monitor{defs: l.sets, index: map[string]setIndex{}, signal: make(chan struct{}, 1)}
	for i := range m.defs {
		m.index[m.defs[i].Name] = setIndex(i)
	}
	m.Monitor, err = wire.Watch(own, l.Proto, wire.Of(TableName), m.notice, m.ended, func() {
		m.note(func(n *notes) { n.everything = true })
		m.wake()
	})
	return m, err
}

func (m *monitor) note(f func(*notes)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f(&m.notes)
}

// ended wakes the engine after a foreign transaction, when all of it and its writer are known.
func (m *monitor) ended() {
	if !m.silent() {
		m.wake()
	}
}

func (m *monitor) wake() {
	select {
	case m.signal <- struct{}{}:
	default:
	}
}

// take returns the notes so far and clears them.
func (m *monitor) take() notes {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.notes
	m.notes = notes{}
	return n
}

// silent reports whether no notification arrived since the last take.
func (m *monitor) silent() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.notes.empty()
}

// giveBack undoes a take whose notes could not be processed. Newer notes take precedence.
func (m *monitor) giveBack(old notes) {
	if old.empty() {
		return
	}
	m.note(func(n *notes) {
		n.everything = n.everything || old.everything
		n.structure = n.structure || old.structure
		if n.elements == nil {
			n.elements = old.elements
			return
		}
		for k, was := range old.elements {
			if _, newer := n.elements[k]; !newer {
				n.elements[k] = was
			}
		}
	})
	m.wake()
}

// notice sorts one notification into the notes.
func (m *monitor) notice(typ uint16, body []byte) {
	switch typ {
	case unix.NFT_MSG_DELTABLE:
		m.note(func(n *notes) { n.everything = true })
	case unix.NFT_MSG_NEWSETELEM, unix.NFT_MSG_DELSETELEM:
		m.noticeElements(typ == unix.NFT_MSG_NEWSETELEM, body)
	default:
		m.note(func(n *notes) { n.structure = true })
	}
}

func (m *monitor) noticeElements(present bool, body []byte) {
	i, ok := m.index[netlink.CStr(netlink.Attribute(body, unix.NFTA_SET_ELEM_LIST_SET))]
	if !ok {
		return // of a foreign set, which has its own note
	}
	d := &m.defs[i]
	switch {
	case d.Dynamic(): // clients come and go
		return
	case d.Verdict: // small: compare them whole
		m.note(func(n *notes) { n.structure = true })
		return
	}
	m.note(func(n *notes) {
		if n.elements == nil {
			n.elements = map[elementKey]elementNote{}
		}
		wire.ElementsIn(body, func(el []byte) {
			rec := d.Record(nil, el)
			k := len(rec) - d.DataLen()
			n.elements[elementKey{i, string(rec[:k])}] = elementNote{present, string(rec[k:])}
		})
		if len(n.elements) > manyNotes {
			n.everything, n.elements = true, nil
		}
	})
}
