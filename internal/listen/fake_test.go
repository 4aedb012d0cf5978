package listen

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// fake opens listeners that nobody can reach, and fails as told. It works where time is made up.
type fake struct {
	mu      sync.Mutex
	refused map[string]string // errors by address; "" stands for all
	tries   []time.Time
	open    []*fakeListener
	log     []string
}

func (f *fake) refuse(at, err string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refused = map[string]string{at: err}
}

func (f *fake) accept() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refused = nil
}

func (f *fake) listen(ctx context.Context, p Place) (net.Listener, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tries = append(f.tries, time.Now())
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	for at, err := range f.refused {
		if at == "" || at == p.At.String() {
			return nil, errors.New(err)
		}
	}
	l := &fakeListener{f: f, p: p, end: make(chan error, 2)}
	f.open = append(f.open, l)
	f.log = append(f.log, "open "+p.Network+" "+p.At.String())
	return l, nil
}

// did returns what was opened, closed and told since it was asked last. The order of closes one after the other is
// that of a map, so they come sorted.
func (f *fake) did() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	log := f.log
	f.log = nil
	for i := 0; i < len(log); i++ {
		end := i
		for end < len(log) && strings.HasPrefix(log[end], "close") {
			end++
		}
		slices.Sort(log[i:end])
	}
	return strings.Join(log, ", ")
}

func (f *fake) say(words ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.log = append(f.log, strings.Join(words, " "))
}

// last returns the listener that was opened last.
func (f *fake) last() *fakeListener {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.open[len(f.open)-1]
}

// since returns the times of all tries, and forgets them.
func (f *fake) since(start time.Time) []time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []time.Duration
	for _, t := range f.tries {
		out = append(out, t.Sub(start))
	}
	f.tries = nil
	return out
}

type fakeListener struct {
	f    *fake
	p    Place
	end  chan error
	once sync.Once
}

func (l *fakeListener) Accept() (net.Conn, error) { return nil, <-l.end }

func (l *fakeListener) Close() error {
	l.once.Do(func() {
		l.f.say("close", l.p.At.String())
		l.end <- net.ErrClosed
	})
	return nil
}

func (l *fakeListener) Addr() net.Addr {
	at := l.p.At
	if at.Port() == 0 {
		at = netip.AddrPortFrom(at.Addr(), 4000)
	}
	return net.TCPAddrFromAddrPort(at)
}

// acceptOnly serves nobody, until the listener ends.
func acceptOnly(l net.Listener) error {
	_, err := l.Accept()
	return err
}

// pass lets made-up time pass, and what happens then be done.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// places are made from words as "tcp4 192.0.2.1:80".
func places(t *testing.T, words string) []Place {
	t.Helper()
	f := strings.Fields(words)
	var out []Place
	for i := 0; i+1 < len(f); i += 2 {
		out = append(out, Place{f[i], netip.MustParseAddrPort(f[i+1])})
	}
	return out
}
