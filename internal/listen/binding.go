package listen

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Address is one to listen at.
type Address struct {
	Network string // tcp, or tcp4 or tcp6 for an unspecified address of that family alone
	At      netip.AddrPort
}

// inTheWay reports whether a listener at p can keep one from being opened at q.
func (p Address) inTheWay(q Address) bool {
	return p.At.Port() == q.At.Port() &&
		(p.At.Addr() == q.At.Addr() || p.At.Addr().IsUnspecified() || q.At.Addr().IsUnspecified())
}

// Open opens a listener. An error names the address.
func Open(ctx context.Context, p Address) (net.Listener, error) {
	var c net.ListenConfig
	return c.Listen(ctx, p.Network, p.At.String())
}

// ReopenAfter is how long a listener that broke stays closed: its cause, such as a lack of memory,
// may last.
const ReopenAfter = time.Second

// Binding is a set of served listeners; the zero one, with its functions set, has none. It is used
// by one goroutine, and calls Serve, Broke and Reopen in others. It must not be copied after it has
// listened.
type Binding struct {
	// Open opens a listener; usually it is [Open].
	Open func(context.Context, Address) (net.Listener, error)
	// Serve accepts until the listener is closed or breaks, and returns why it ended.
	Serve func(net.Listener) error
	// Broke is called at once when Serve ends without the listener being closed.
	Broke func(at netip.AddrPort, err error)
	// Reopen is called [ReopenAfter] after a listener broke. The next Rebind opens it again.
	Reopen func()

	open    map[Address]*listener
	serving sync.WaitGroup
}

// listener is a listener that is being served.
type listener struct {
	net.Listener
	at     netip.AddrPort // as requested, but a port 0 is replaced by the system's choice
	closed atomic.Bool    // by us
	dead   atomic.Bool    // it ended without our close
}

// addr returns the address of l; not valid if l broke or is nil.
func (l *listener) addr() netip.AddrPort {
	if l == nil || l.dead.Load() {
		return netip.AddrPort{}
	}
	return l.at
}

// Rebind listens at these addresses and no others. If it cannot listen at all of them, it keeps the
// old ones: never a part of the new ones (HT-14). New listeners open before old ones close, unless
// they conflict.
func (b *Binding) Rebind(ctx context.Context, want []Address) error {
	for p, l := range b.open {
		if l.dead.Load() {
			b.closeAt([]Address{p})
		}
	}
	var add, drop, first []Address
	for _, p := range want {
		if b.open[p] == nil {
			add = append(add, p)
		}
	}
	for p := range b.open {
		if !slices.Contains(want, p) {
			drop = append(drop, p)
		}
	}
	for _, p := range drop {
		if slices.ContainsFunc(add, p.inTheWay) {
			first = append(first, p)
		}
	}
	err := b.openAt(ctx, add)
	if err != nil && len(first) > 0 && !errors.Is(err, syscall.EADDRNOTAVAIL) { // else not caused by our listeners
		b.closeAt(first)
		err = b.openAt(ctx, add)
		if err != nil {
			// A closed conflicting listener is opened again; if that fails too, the first error is
			// reported.
			_ = b.openAt(ctx, first)
		}
	}
	if err != nil {
		return err
	}
	b.closeAt(drop)
	return nil
}

// openAt opens listeners at all of the addresses or at none.
func (b *Binding) openAt(ctx context.Context, addresses []Address) error {
	opened := make([]net.Listener, 0, len(addresses))
	for _, p := range addresses {
		l, err := b.Open(ctx, p)
		if err != nil {
			for _, l := range opened {
				_ = l.Close() // it was never used
			}
			return err
		}
		opened = append(opened, l)
	}
	for i, l := range opened {
		b.serve(addresses[i], l)
	}
	return nil
}

func (b *Binding) serve(p Address, opened net.Listener) {
	l := &listener{Listener: opened, at: p.At}
	if a, ok := l.Addr().(*net.TCPAddr); ok {
		l.at = netip.AddrPortFrom(p.At.Addr(), a.AddrPort().Port())
	}
	if b.open == nil {
		b.open = map[Address]*listener{}
	}
	b.open[p] = l
	b.serving.Go(func() {
		err := b.Serve(opened)
		if l.closed.Load() {
			return
		}
		l.dead.Store(true)
		b.Broke(p.At, err)
		time.AfterFunc(ReopenAfter, b.Reopen)
	})
}

func (b *Binding) closeAt(addresses []Address) {
	for _, p := range addresses {
		if l := b.open[p]; l != nil {
			l.closed.Store(true)
			_ = l.Close() // it is gone in any case
			delete(b.open, p)
		}
	}
}

// Close closes all listeners. It does not wait for calls of Serve to return.
func (b *Binding) Close() {
	for p := range b.open {
		b.closeAt([]Address{p})
	}
}

// only returns the only listener; nil without exactly one.
func (b *Binding) only() *listener {
	for _, l := range b.open {
		return l
	}
	return nil
}
