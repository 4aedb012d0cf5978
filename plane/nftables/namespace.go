package nftables

import (
	"errors"
	"sync"

	"golang.org/x/sys/unix"
)

// namespace is what the planes of this process share in one network namespace. For each element of a
// transaction the kernel writes a notification, and keeps it until the commit, 4 KiB each, as soon as anybody
// on the machine listens, in whatever namespace: with 100,000 services 5 GB for a moment, and twice the time. So
// while one plane writes a large batch none of our monitors may listen, those of the other family included.
//
// Its lock is held while a batch is written. The kernel too lets only one be written at a time in a network
// namespace, so this keeps nobody waiting any longer.
type namespace struct {
	sync.Mutex
	key      uint64
	monitors []*monitor
}

// namespaces are those in which this process has planes, by the number of the network namespace.
var namespaces struct {
	sync.Mutex
	byKey map[uint64]*namespace
}

// enterNamespace adds a monitor to those of the network namespace that the calling thread is in. Where there is
// no /proc to tell which that is, the monitor stays alone.
func enterNamespace(m *monitor) *namespace {
	var st unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &st); err != nil {
		return &namespace{monitors: []*monitor{m}}
	}
	namespaces.Lock()
	defer namespaces.Unlock()
	ns := namespaces.byKey[st.Ino]
	if ns == nil {
		ns = &namespace{key: st.Ino}
		if namespaces.byKey == nil {
			namespaces.byKey = map[uint64]*namespace{}
		}
		namespaces.byKey[st.Ino] = ns
	}
	ns.Lock()
	ns.monitors = append(ns.monitors, m)
	ns.Unlock()
	return ns
}

// leave takes a monitor out. Sockets keep a network namespace alive, so until the last one is out its number
// means no other.
func (ns *namespace) leave(m *monitor) {
	namespaces.Lock()
	defer namespaces.Unlock()
	ns.Lock()
	defer ns.Unlock()
	for i, x := range ns.monitors {
		if x == m {
			ns.monitors = append(ns.monitors[:i:i], ns.monitors[i+1:]...)
			break
		}
	}
	if len(ns.monitors) == 0 && namespaces.byKey[ns.key] == ns {
		delete(namespaces.byKey, ns.key)
	}
}

// unheard runs send, which writes one batch, while none of our monitors listens, and afterwards makes sure that
// nobody else changed the ruleset in that time. The caller holds the lock.
func (ns *namespace) unheard(s *socket, send func() error) error {
	before, err := s.generation()
	if err != nil {
		return err
	}
	var failed error
	for _, m := range ns.monitors {
		failed = errors.Join(failed, m.listen(false))
	}
	if failed == nil {
		failed = send()
	}
	for _, m := range ns.monitors {
		failed = errors.Join(failed, m.listen(true))
	}
	own := before
	if failed == nil {
		own++
	}
	if after, err := s.generation(); err != nil || after != own {
		for _, m := range ns.monitors {
			m.note(func(n *notes) { n.everything = true })
		}
	}
	return failed
}
