package redirect

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink"
	"kube-proxy/internal/netlink/route"
)

// byRules is the common part of redirectors by rules. It chooses the address of the node to which
// packets are redirected: a permanent one, on any interface.
type byRules struct {
	proto        byte
	unguarded    error // see Unguarded
	conn, events *netlink.Conn
	drift        chan struct{}
	done         chan struct{}

	mu     sync.Mutex
	chosen netip.Addr
}

// watchAddresses listens in the network namespace of the calling thread.
func watchAddresses(proto byte, unguarded error) (*byRules, error) {
	w := &byRules{proto: proto, unguarded: unguarded, drift: make(chan struct{}, 1), done: make(chan struct{})}
	var err error
	w.conn, w.events, err = route.Open(proto)
	if err != nil {
		return nil, err
	}
	go func() {
		defer close(w.done)
		w.events.Listen(w.notice, func() { wake(w.drift) })
	}()
	return w, nil
}

// Unguarded is part of [Redirector].
func (w *byRules) Unguarded() error { return w.unguarded }

// Drift is part of [Redirector].
func (w *byRules) Drift() <-chan struct{} { return w.drift }

// notice signals drift if the chosen address was removed, or if none was chosen.
func (w *byRules) notice(m netlink.Message) {
	a, ok := route.ParseAddress(m.Body)
	w.mu.Lock()
	chosen := w.chosen
	w.mu.Unlock()
	if ok && (m.Type == unix.RTM_DELADDR && a.Addr == chosen || m.Type == unix.RTM_NEWADDR && !chosen.IsValid()) {
		wake(w.drift)
	}
}

// choose returns the address to redirect to, not valid if the node has no suitable one. It keeps
// the previous one while that exists.
func (w *byRules) choose(ctx context.Context, prefer []netip.Prefix) (netip.Addr, error) {
	all, err := route.Addresses(ctx, w.conn, w.proto)
	if err != nil {
		return netip.Addr{}, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.chosen = chooseAddress(all, w.chosen, prefer)
	return w.chosen, nil
}

// current returns the chosen address.
func (w *byRules) current() netip.Addr {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.chosen
}

// chooseAddress prefers the previous address, then those that answer NodePorts, because they are
// the node's own, then those of other interfaces than lo, then the first interface.
func chooseAddress(all []route.Address, before netip.Addr, prefer []netip.Prefix) netip.Addr {
	const temporary = unix.IFA_F_DEPRECATED | unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED | unix.IFA_F_TEMPORARY
	usable := slices.DeleteFunc(slices.Clone(all), func(a route.Address) bool {
		// Only permanent addresses that are valid everywhere: a link-local address needs the name
		// of its link.
		if a.Addr.Is6() && a.Flags&temporary != 0 {
			return true
		}
		return a.Scope >= unix.RT_SCOPE_LINK || a.Addr.IsLoopback()
	})
	rank := func(a route.Address) int {
		switch {
		case a.Addr == before:
			return 0
		case len(prefer) > 0 && slices.ContainsFunc(prefer, func(p netip.Prefix) bool {
			return p.Bits() > 0 && p.Contains(a.Addr)
		}):
			return 1
		case a.Index != route.Loopback:
			return 2
		}
		return 3
	}
	if len(usable) == 0 {
		return netip.Addr{}
	}
	return slices.MinFunc(usable, func(a, b route.Address) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Index, b.Index), a.Addr.Compare(b.Addr))
	}).Addr
}

func (w *byRules) close() error {
	err := w.events.Close()
	<-w.done
	return cmp.Or(err, w.conn.Close())
}
