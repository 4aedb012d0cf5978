package health

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"
)

// place is where to listen.
type place struct {
	network string // tcp, or tcp4 or tcp6 for an unspecified address of that family alone
	at      netip.AddrPort
}

// inTheWay reports whether a listener at p can keep one from being opened at q.
func (p place) inTheWay(q place) bool {
	return p.at.Port() == q.at.Port() &&
		(p.at.Addr() == q.at.Addr() || p.at.Addr().IsUnspecified() || q.at.Addr().IsUnspecified())
}

// binding is a set of listeners that are served. It is used by one goroutine.
type binding struct {
	by   *opener
	lost func() // called a while after a listener has ended though nobody closed it; rebind opens it again
	open map[place]*listener
	port *port // that the listeners are for, in Services
}

// opener opens and serves listeners.
type opener struct {
	listen func(context.Context, place) (net.Listener, error)
	serve  func(net.Listener) error // accepts until the listener is closed
	log    *slog.Logger
}

// reopenAfter is how long a listener that broke stays closed: its cause, such as a lack of memory, may last.
const reopenAfter = time.Second

type listener struct {
	net.Listener
	port *port
	dead atomic.Bool // it has ended by itself
}

func listen(ctx context.Context, p place) (net.Listener, error) {
	var c net.ListenConfig
	return c.Listen(ctx, p.network, p.at.String()) // an error names the address
}

// rebind listens at these places and no others. If it cannot at all of them, it listens where it did before:
// never at a part of the new ones (HT-14). New listeners open before old ones close, but where one is in the
// way of the other.
func (b *binding) rebind(ctx context.Context, want []place) error {
	for p, l := range b.open {
		if l.dead.Load() {
			b.closeAt([]place{p})
		}
	}
	var add, drop, first []place
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
	b.closeAt(first)
	if err := b.openAt(ctx, add); err != nil {
		// What was in the way is opened again; if that fails too, the first error is the one to tell.
		_ = b.openAt(ctx, first)
		return err
	}
	b.closeAt(drop)
	return nil
}

// openAt opens listeners at all of the places or at none.
func (b *binding) openAt(ctx context.Context, places []place) error {
	opened := make([]*listener, 0, len(places))
	for _, p := range places {
		l, err := b.by.listen(ctx, p)
		if err != nil {
			for _, l := range opened {
				_ = l.Close() // nobody has used it
			}
			return err
		}
		opened = append(opened, &listener{Listener: l, port: b.port})
	}
	for i, l := range opened {
		if b.open == nil {
			b.open = make(map[place]*listener, len(places))
		}
		b.open[places[i]] = l
		go func() {
			err := b.by.serve(l)
			if errors.Is(err, net.ErrClosed) || errors.Is(err, http.ErrServerClosed) {
				return
			}
			l.dead.Store(true)
			b.by.log.Error("a listener broke, opening it again", "address", places[i].at.String(), "err", err)
			time.AfterFunc(reopenAfter, b.lost)
		}()
	}
	return nil
}

func (b *binding) closeAt(places []place) {
	for _, p := range places {
		if l := b.open[p]; l != nil {
			_ = l.Close() // it is gone whatever it says
			delete(b.open, p)
		}
	}
}

func (b *binding) close() {
	for p := range b.open {
		b.closeAt([]place{p})
	}
}

// first returns an address that is listened at, the one if there is but one, with the port that port 0 became.
func (b *binding) first() netip.AddrPort {
	for p, l := range b.open {
		if a, ok := l.Addr().(*net.TCPAddr); ok {
			return netip.AddrPortFrom(p.at.Addr(), a.AddrPort().Port())
		}
	}
	return netip.AddrPort{}
}
