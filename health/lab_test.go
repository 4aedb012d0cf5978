package health

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"kube-proxy/internal/listen"
)

// lonely returns an address of this machine that no other test uses: Linux has all of 127.0.0.0/8.
func lonely(t testing.TB) netip.Addr {
	t.Helper()
	for range 100 {
		a := netip.AddrFrom4([4]byte{127, byte(1 + rand.IntN(250)), byte(rand.IntN(256)), byte(1 + rand.IntN(250))})
		l, err := net.Listen("tcp4", netip.AddrPortFrom(a, 0).String())
		if err != nil {
			t.Skipf("this system has no addresses to spare: %v", err)
		}
		if err := l.Close(); err == nil {
			return a
		}
	}
	t.Fatal("no address")
	return netip.Addr{}
}

// freePort returns a port that nobody listens on, on any address. It is none of those that connections get, which may
// take it before we do.
func freePort(t testing.TB) uint16 {
	t.Helper()
	for range 100 {
		port := uint16(10300 + rand.IntN(9000)) // nor one of those that other tests here use
		if l, err := net.Listen("tcp", fmt.Sprintf(":%d", port)); err == nil && l.Close() == nil {
			return port
		}
	}
	t.Fatal("no port")
	return 0
}

// squat listens where others want to.
func squat(t testing.TB, at netip.AddrPort) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", at.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() }) // most tests have closed it
	return l
}

func eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// fresh is a client that makes a new connection for each request.
func fresh() *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 30 * time.Second}
}

func get(t testing.TB, method, url string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequest(method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := fresh().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	return resp, drain(resp)
}

func drain(resp *http.Response) string {
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// fakeOpener opens listeners that nobody can reach, and fails as told. It works where time is made up.
type fakeOpener struct {
	mu    sync.Mutex
	err   string
	only  string // the address to which err applies; "" for all
	tries []time.Time
	open  []*fakeListener
	log   []string // "open ADDRESS", "close ADDRESS"
}

func newFakeOpener() *fakeOpener { return &fakeOpener{} }

func (o *fakeOpener) refuse(err string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.err, o.only = err, ""
}

// refuseAt makes one address fail.
func (o *fakeOpener) refuseAt(addr, err string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.err, o.only = err, addr
}

func (o *fakeOpener) listen(_ context.Context, p listen.Place) (net.Listener, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.tries = append(o.tries, time.Now())
	if o.err != "" && (o.only == "" || o.only == p.At.String()) {
		return nil, errors.New(o.err)
	}
	l := &fakeListener{o: o, place: p, end: make(chan error, 2)}
	o.open = append(o.open, l)
	o.log = append(o.log, "open "+p.At.String())
	return l, nil
}

// since returns when it was tried.
func (o *fakeOpener) since(start time.Time) []time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	var out []time.Duration
	for _, t := range o.tries {
		out = append(out, t.Sub(start))
	}
	return out
}

// pass lets made-up time pass, and what happens then be done.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func seconds(n ...time.Duration) []time.Duration {
	for i := range n {
		n[i] *= time.Second
	}
	return n
}

// kill makes the last listener fail.
func (o *fakeOpener) kill() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.open[len(o.open)-1].end <- errors.New("the socket broke")
}

func (o *fakeOpener) events() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	log := o.log
	o.log = nil
	return log
}

type fakeListener struct {
	o     *fakeOpener
	place listen.Place
	end   chan error
	once  sync.Once
}

func (l *fakeListener) Accept() (net.Conn, error) { return nil, <-l.end }

func (l *fakeListener) Close() error {
	l.once.Do(func() {
		l.o.mu.Lock()
		defer l.o.mu.Unlock()
		l.o.log = append(l.o.log, "close "+l.place.At.String())
		l.end <- net.ErrClosed
	})
	return nil
}

func (l *fakeListener) Addr() net.Addr { return net.TCPAddrFromAddrPort(l.place.At) }
