package capture

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/nlconn"
)

// ifaddr is an address of an interface, as the kernel tells it.
type ifaddr struct {
	addr  netip.Addr
	bits  int
	index int32
	scope byte
	flags uint32
	// metric is IFA_RT_PRIORITY, by which addresses are known to be ours.
	metric uint32
}

// parseIfaddr reads struct ifaddrmsg and what follows.
func parseIfaddr(body []byte) (a ifaddr, ok bool) {
	if len(body) < unix.SizeofIfAddrmsg {
		return a, false
	}
	a = ifaddr{bits: int(body[1]), flags: uint32(body[2]), scope: body[3], index: int32(nlconn.Order.Uint32(body[4:]))}
	var local, peer []byte
	nlconn.Attributes(body[unix.SizeofIfAddrmsg:], func(typ uint16, v []byte) bool {
		switch typ {
		case unix.IFA_LOCAL:
			local = v
		case unix.IFA_ADDRESS:
			peer = v
		case unix.IFA_FLAGS:
			if len(v) >= 4 {
				a.flags = nlconn.Order.Uint32(v)
			}
		case unix.IFA_RT_PRIORITY:
			if len(v) >= 4 {
				a.metric = nlconn.Order.Uint32(v)
			}
		}
		return true
	})
	if local == nil { // IPv6 has only the other, unless there is a peer
		local = peer
	}
	a.addr, ok = netip.AddrFromSlice(local)
	return a, ok
}

// listAddresses lists the addresses of a family.
func listAddresses(ctx context.Context, conn *nlconn.Conn, f family) (all []ifaddr, err error) {
	request := nlconn.Request(unix.RTM_GETADDR, unix.NLM_F_DUMP, append([]byte{f.proto}, make([]byte, unix.SizeofIfAddrmsg-1)...))
	for range 10 {
		all = nil
		err = conn.Do(ctx, request, func(m nlconn.Message) error {
			if a, ok := parseIfaddr(m.Body); ok && m.Type == unix.RTM_NEWADDR && m.Body[0] == f.proto {
				all = append(all, a)
			}
			return nil
		})
		if err != nlconn.ErrInterrupted {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("list the addresses of this node: %w", err)
	}
	return all, nil
}

// addressWatch knows which address of the node packets to service addresses are led to: one that will stay, on whatever interface.
type addressWatch struct {
	family
	conn, events *nlconn.Conn
	signal       chan<- struct{}
	done         chan struct{}

	mu     sync.Mutex
	chosen netip.Addr
}

// watchAddresses listens in the network namespace of the calling thread.
func watchAddresses(f family, signal chan<- struct{}) (*addressWatch, error) {
	w := &addressWatch{family: f, signal: signal, done: make(chan struct{})}
	group := uint32(unix.RTNLGRP_IPV4_IFADDR)
	if f.proto == unix.NFPROTO_IPV6 {
		group = unix.RTNLGRP_IPV6_IFADDR
	}
	var err error
	if w.conn, err = nlconn.Open(nlconn.Config{Protocol: unix.NETLINK_ROUTE}); err != nil {
		return nil, fmt.Errorf("ask for addresses: %w", err)
	}
	if w.events, err = nlconn.Open(nlconn.Config{Protocol: unix.NETLINK_ROUTE, ReceiveBuffer: 1 << 20}); err == nil {
		if err = w.events.Join(group); err != nil {
			w.events.Close()
		}
	}
	if err != nil {
		w.conn.Close()
		return nil, fmt.Errorf("listen for changes of addresses: %w", err)
	}
	go func() {
		defer close(w.done)
		w.events.Listen(w.hear, func() { wake(w.signal) })
	}()
	return w, nil
}

// hear wakes whoever leads packets if the chosen address went, or if there was none.
func (w *addressWatch) hear(m nlconn.Message) {
	a, ok := parseIfaddr(m.Body)
	w.mu.Lock()
	chosen := w.chosen
	w.mu.Unlock()
	if ok && (m.Type == unix.RTM_DELADDR && a.addr == chosen || m.Type == unix.RTM_NEWADDR && !chosen.IsValid()) {
		wake(w.signal)
	}
}

// choose returns the address to lead packets to; not valid if the node has none that will do. It stays with the one before while
// that is there.
func (w *addressWatch) choose(ctx context.Context, prefer []netip.Prefix) (netip.Addr, error) {
	all, err := listAddresses(ctx, w.conn, w.family)
	if err != nil {
		return netip.Addr{}, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.chosen = chooseAddress(all, w.chosen, prefer)
	return w.chosen, nil
}

// loopbackIndex is the interface lo of every network namespace.
const loopbackIndex = 1

// chooseAddress prefers the address of before; then those that answer NodePorts, for they are the node's own; then those of other
// interfaces than lo; then the interface that came first.
func chooseAddress(all []ifaddr, before netip.Addr, prefer []netip.Prefix) netip.Addr {
	const temporary = unix.IFA_F_DEPRECATED | unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED | unix.IFA_F_TEMPORARY
	usable := slices.DeleteFunc(slices.Clone(all), func(a ifaddr) bool {
		// Only addresses that are valid everywhere: a link's are not without its name, and temporary ones go.
		if a.addr.Is6() && a.flags&temporary != 0 {
			return true
		}
		return a.scope >= unix.RT_SCOPE_LINK || a.addr.IsLoopback() || a.metric == ourMetric
	})
	rank := func(a ifaddr) int {
		switch {
		case a.addr == before:
			return 0
		case len(prefer) > 0 && slices.ContainsFunc(prefer, func(p netip.Prefix) bool { return p.Bits() > 0 && p.Contains(a.addr) }):
			return 1
		case a.index != loopbackIndex:
			return 2
		}
		return 3
	}
	if len(usable) == 0 {
		return netip.Addr{}
	}
	return slices.MinFunc(usable, func(a, b ifaddr) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.index, b.index), a.addr.Compare(b.addr))
	}).addr
}

func (w *addressWatch) close() error {
	err := w.events.Close()
	<-w.done
	return cmp.Or(err, w.conn.Close())
}

// ourMetric marks addresses as ours: it is "kpus" as a number.
const ourMetric = 0x6b707573
