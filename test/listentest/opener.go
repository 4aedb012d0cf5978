// Package listentest opens TCP listeners without the network, for tests with fake time: it never
// waits.
package listentest

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Opener opens listeners, and fails on request. Like the system it refuses listeners that conflict.
// The zero Opener is ready to use, from several goroutines.
type Opener struct {
	mu     sync.Mutex
	err    error
	only   string // the address to which err applies; "" for all
	tries  []time.Time
	opened []*listener
	log    []string
}

// Refuse makes addresses fail with a text from now on, all of them if at is empty; an empty text
// ends that.
func (o *Opener) Refuse(at, text string) {
	var err error
	if text != "" {
		err = errors.New(text)
	}
	o.Fail(at, err)
}

// Fail makes addresses fail with an error from now on, all of them if at is empty; a nil error ends
// that.
func (o *Opener) Fail(at string, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.err, o.only = err, at
}

// Open opens a listener. Port 0 becomes 4000.
func (o *Opener) Open(ctx context.Context, network string, at netip.AddrPort) (net.Listener, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	refused := o.err != nil && (o.only == "" || o.only == at.String())
	if refused && errors.Is(o.err, syscall.EADDRNOTAVAIL) { // the system checks this first
		return nil, o.err
	}
	for _, l := range o.opened {
		a, b := l.at.Addr(), at.Addr()
		if !l.closed && l.at.Port() == at.Port() && (a == b || a.IsUnspecified() || b.IsUnspecified()) {
			return nil, syscall.EADDRINUSE
		}
	}
	o.tries = append(o.tries, time.Now())
	if refused {
		return nil, o.err
	}
	l := &listener{o: o, at: at, end: make(chan error, 2)}
	o.opened = append(o.opened, l)
	o.log = append(o.log, "open "+network+" "+at.String())
	return l, nil
}

// Tried returns the times after start of all attempts to open an address without a conflict.
func (o *Opener) Tried(start time.Time) []time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	var out []time.Duration
	for _, t := range o.tries {
		out = append(out, t.Sub(start))
	}
	return out
}

// Say adds a line to those of [Opener.Did].
func (o *Opener) Say(words ...string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.log = append(o.log, strings.Join(words, " "))
}

// Did returns the events since the last call: "open tcp 192.0.2.1:80", "close 192.0.2.1:80", and
// the words of Say. Consecutive closes are sorted.
func (o *Opener) Did() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	log := o.log
	o.log = nil
	for i := 0; i < len(log); i++ {
		end := i
		for end < len(log) && strings.HasPrefix(log[end], "close ") {
			end++
		}
		slices.Sort(log[i:end])
	}
	return log
}

// Break makes the listener that was opened last end by itself.
func (o *Opener) Break(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.opened[len(o.opened)-1].end <- err
}

type listener struct {
	o      *Opener
	at     netip.AddrPort
	end    chan error
	closed bool // guarded by o.mu
}

func (l *listener) Accept() (net.Conn, error) { return nil, <-l.end }

func (l *listener) Close() error {
	l.o.mu.Lock()
	defer l.o.mu.Unlock()
	if !l.closed {
		l.closed = true
		l.o.log = append(l.o.log, "close "+l.at.String())
		l.end <- net.ErrClosed
	}
	return nil
}

func (l *listener) Addr() net.Addr {
	at := l.at
	if at.Port() == 0 {
		at = netip.AddrPortFrom(at.Addr(), 4000)
	}
	return net.TCPAddrFromAddrPort(at)
}
