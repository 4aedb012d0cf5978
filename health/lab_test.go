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
	"testing"
	"testing/synctest"
	"time"

	"kube-proxy/internal/listen"
	"kube-proxy/test/listentest"
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

// freePort returns a port without a listener on any address. It is outside the range of ephemeral
// ports, which connections may take first.
func freePort(t testing.TB) uint16 {
	t.Helper()
	for range 100 {
		port := uint16(10300 + rand.IntN(9000)) // nor one of the ports of other tests in this package
		if l, err := net.Listen("tcp", fmt.Sprintf(":%d", port)); err == nil && l.Close() == nil {
			return port
		}
	}
	t.Fatal("no port")
	return 0
}

// squat listens on an address that another listener needs.
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

// fakeOpener opens listeners that no client can reach, and fails on demand.
type fakeOpener struct{ listentest.Opener }

func (o *fakeOpener) listen(ctx context.Context, p listen.Address) (net.Listener, error) {
	return o.Open(ctx, p.Network, p.At)
}

// pass advances the fake clock, and waits for the results.
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
func (o *fakeOpener) kill() { o.Break(errors.New("the socket broke")) }
