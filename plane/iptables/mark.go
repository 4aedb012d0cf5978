package iptables

import (
	"context"
	"fmt"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/kernel"
	"kube-proxy/lb"
)

// mark is a cheap sign of what all tables hold: while it stays, nobody else has changed a rule. The zero mark is never
// that of anything.
type mark [2 * tables]uint32

// marker tells the mark of the network namespace in which it was made.
type marker interface {
	// own runs a change of ours that has so many transactions if it succeeds. before is the mark of what is known;
	// the answer is the mark of what is known then, zero if others may have come between.
	own(before mark, transactions int, change func() error) (mark, error)
	// now returns the mark.
	now() (mark, error)
	close()
}

// newMarker returns a marker for the network namespace of the calling thread, nil where the kernel does not tell.
func newMarker(f lb.Family, b Backend) marker {
	var m marker
	var err error
	if b == Legacy {
		m, err = newInfoMarker(f)
	} else {
		m, err = newGenerationMarker()
	}
	if err == nil {
		if _, err = m.now(); err == nil {
			return m
		}
		m.close()
	}
	return nil
}

// generationMarker counts the transactions of others. nftables count all; what is left when ours are taken off, those
// of the other family's plane included, is theirs.
type generationMarker struct {
	nf   *kernel.Netfilter
	ours *ledger
}

// ledger counts the transactions of this process in a network namespace. Who changes something holds it for reading.
type ledger struct {
	sync.RWMutex
	mu    sync.Mutex
	count uint32
}

var ledgers struct {
	sync.Mutex
	byNamespace map[uint64]*ledger
}

func newGenerationMarker() (*generationMarker, error) {
	var st unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &st); err != nil {
		return nil, os.NewSyscallError("stat", err)
	}
	nf, err := kernel.OpenNetfilter()
	if err != nil {
		return nil, err
	}
	ledgers.Lock()
	defer ledgers.Unlock()
	if ledgers.byNamespace == nil {
		ledgers.byNamespace = map[uint64]*ledger{}
	}
	l := ledgers.byNamespace[st.Ino]
	if l == nil { // kept for good: of the next namespace with that number only the difference counts
		l = &ledger{}
		ledgers.byNamespace[st.Ino] = l
	}
	return &generationMarker{nf, l}, nil
}

func (m *generationMarker) close() { m.nf.Close() }

func (m *generationMarker) own(before mark, transactions int, change func() error) (mark, error) {
	m.ours.RLock()
	defer m.ours.RUnlock()
	if err := change(); err != nil {
		return mark{}, err
	}
	m.ours.mu.Lock()
	m.ours.count += uint32(transactions)
	m.ours.mu.Unlock()
	return before, nil
}

func (m *generationMarker) now() (mark, error) {
	m.ours.Lock() // until no change of ours is half done
	defer m.ours.Unlock()
	g, err := m.nf.Generation()
	return mark{1, g - m.ours.count}, err
}

// infoMarker knows the number of entries and the size of each legacy table, which the kernel tells without a copy of the
// table. A rule that is exchanged for another of the same size is not noticed.
type infoMarker struct {
	fd    int
	level int
}

func newInfoMarker(f lb.Family) (*infoMarker, error) {
	domain, level := unix.AF_INET, unix.SOL_IP
	if f == lb.IPv6 {
		domain, level = unix.AF_INET6, unix.SOL_IPV6
	}
	fd, err := unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	return &infoMarker{fd, level}, nil
}

func (m *infoMarker) close() { unix.Close(m.fd) }

// tableInfo is struct ipt_getinfo, and struct ip6t_getinfo.
type tableInfo struct {
	name      [32]byte
	hooks     uint32
	entry     [5]uint32
	underflow [5]uint32
	entries   uint32
	size      uint32
}

func (m *infoMarker) now() (mark, error) {
	var out mark
	for t := range tables {
		var info tableInfo
		copy(info.name[:], t.String())
		size := uint32(unsafe.Sizeof(info))
		const getInfo = 64 // IPT_SO_GET_INFO, IP6T_SO_GET_INFO
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(m.fd), uintptr(m.level), getInfo,
			uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
		if errno != 0 {
			return mark{}, fmt.Errorf("ask for the size of table %s: %w", t, errno)
		}
		out[2*t], out[2*t+1] = info.entries, info.size
	}
	return out, nil
}

func (m *infoMarker) own(before mark, _ int, change func() error) (mark, error) {
	is, unknown := m.now()
	if err := change(); err != nil || unknown != nil || is != before {
		return mark{}, err
	}
	is, unknown = m.now()
	if unknown != nil {
		return mark{}, nil
	}
	return is, nil
}

// restoreOwn runs a change of ours, and keeps the mark up to date.
func (p *Plane) restoreOwn(ctx context.Context, transactions int, change func(context.Context) error) error {
	if p.marker == nil {
		return change(ctx)
	}
	var err error
	p.seen, err = p.marker.own(p.seen, transactions, func() error { return change(ctx) })
	return err
}

// look returns the mark of all tables, zero if it cannot be told.
func (p *Plane) look() mark {
	if p.marker == nil {
		return mark{}
	}
	m, err := p.marker.now()
	if err != nil {
		return mark{}
	}
	return m
}
