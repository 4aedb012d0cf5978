package listen

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

var (
	one = netip.MustParseAddrPort("192.0.2.1:80")
	two = netip.MustParseAddrPort("192.0.2.2:80")
)

// config reports everything to the fake.
func config(f *fake) Config {
	return Config{
		Open: f.listen, Serve: acceptOnly,
		Broke: func(at netip.AddrPort, err error) { f.Say("broke", at.String()) },
		Failed: func(at netip.AddrPort, err error, again bool) {
			f.Say("failed", at.String(), err.Error(), fmt.Sprint(again))
		},
		Moved: func(from, to netip.AddrPort) { f.Say("moved", from.String(), to.String()) },
	}
}

// run runs a Mover until stop is called, which returns its error.
func run(t *testing.T, m *Mover) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	return func() error {
		cancel()
		return <-done
	}
}

// HT-07: a try every 5 s, reported once; a move is tried at once; the old address stays until the
// new one is bound.
func TestMover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		m := NewMover(config(f))
		stop := run(t, m)
		expect := func(at netip.AddrPort, want string) {
			t.Helper()
			synctest.Wait()
			if got := f.did(); got != want || m.Addr() != at {
				t.Errorf("at %s, did %s\nwant %s, %s", m.Addr(), got, at, want)
			}
		}
		nowhere := netip.AddrPort{}
		expect(nowhere, "")
		m.Move(one, false)
		expect(one, "open tcp 192.0.2.1:80, moved invalid AddrPort 192.0.2.1:80")
		m.Move(one, false)
		expect(one, "")
		f.Refuse(two.String(), "in use")
		before := len(f.Tried(time.Now()))
		begin := time.Now()
		m.Move(two, false)
		expect(one, "failed 192.0.2.2:80 in use true")
		pass(11 * time.Second)
		expect(one, "")
		f.Refuse(two.String(), "no such address")
		pass(5 * time.Second)
		expect(one, "failed 192.0.2.2:80 no such address true")
		if got, want := f.Tried(begin)[before:], []time.Duration{0, 5e9, 10e9, 15e9}; !slices.Equal(got, want) {
			t.Errorf("tried at %v, want %v", got, want)
		}
		f.Refuse("", "")
		m.Move(two, false)
		expect(two, "open tcp 192.0.2.2:80, close 192.0.2.1:80, moved 192.0.2.1:80 192.0.2.2:80")
		m.Move(nowhere, false)
		expect(nowhere, "close 192.0.2.2:80, moved 192.0.2.2:80 invalid AddrPort")
		m.Move(netip.MustParseAddrPort("192.0.2.1:0"), false)
		expect(netip.MustParseAddrPort("192.0.2.1:4000"), "open tcp 192.0.2.1:0, moved invalid AddrPort 192.0.2.1:4000")
		if err := stop(); err != nil {
			t.Error(err)
		}
		expect(nowhere, "close 192.0.2.1:0")
	})
}

// A conflicting listener that is opened again at each try did not move: nothing is reported.
func TestMoverInTheWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		m := NewMover(config(f))
		all := netip.MustParseAddrPort("0.0.0.0:80")
		m.Move(all, true)
		stop := run(t, m)
		synctest.Wait()
		f.did()
		f.Refuse(one.String(), "no such address")
		m.Move(one, false)
		pass(6 * time.Second)
		const again = "close 0.0.0.0:80, open tcp 0.0.0.0:80"
		if got, want := f.did(), again+", failed 192.0.2.1:80 no such address true, "+again; got != want ||
			m.Addr() != all {
			t.Errorf("at %s, did %s\nwant %s", m.Addr(), got, want)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// HT-07, CF-16: hard fail is about the first try of a move alone.
func TestMoverHardFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		m := NewMover(config(f))
		m.Move(one, true)
		f.Refuse("", "in use")
		if err := m.Run(t.Context()); err == nil || err.Error() != "in use" {
			t.Errorf("Run: %v", err)
		}
		if got, want := f.did(), "failed 192.0.2.1:80 in use false"; got != want {
			t.Errorf("did %s, want %s", got, want)
		}

		f.Refuse("", "")
		m = NewMover(config(f))
		m.Move(one, true)
		stop := run(t, m)
		synctest.Wait()
		f.did()
		f.Refuse("", "in use")
		f.Break(io.ErrUnexpectedEOF)
		pass(0)
		if m.Addr().IsValid() {
			t.Errorf("it broke, and is at %s", m.Addr())
		}
		pass(time.Minute)
		f.Refuse("", "")
		pass(RetryEvery)
		const want = "broke 192.0.2.1:80, close 192.0.2.1:80, failed 192.0.2.1:80 in use true, " +
			"open tcp 192.0.2.1:80, moved invalid AddrPort 192.0.2.1:80"
		if got := f.did(); got != want || m.Addr() != one {
			t.Errorf("at %s, did %s\nwant %s", m.Addr(), got, want)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// That the process ends while an address is bound is no failure.
func TestMoverEnds(t *testing.T) {
	f := &fake{}
	m := NewMover(config(f))
	m.Move(one, true)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.Run(ctx); err != nil || f.did() != "" {
		t.Errorf("Run: %v", err)
	}
}

// Run waits for Serve to return.
func TestMoverWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		cfg := config(f)
		cfg.Serve = func(l net.Listener) error {
			err := acceptOnly(l)
			time.Sleep(time.Hour)
			return err
		}
		m := NewMover(cfg)
		m.Move(one, false)
		stop := run(t, m)
		synctest.Wait()
		begin := time.Now()
		if err := stop(); err != nil || time.Since(begin) != time.Hour {
			t.Errorf("Run: %v after %v", err, time.Since(begin))
		}
	})
}

// freePort returns a port without a listener on any address, outside the range of ephemeral ports.
func freePort(t *testing.T) uint16 {
	t.Helper()
	for range 100 {
		port := uint16(10300 + rand.IntN(20000))
		if l, err := net.Listen("tcp", fmt.Sprintf(":%d", port)); err == nil {
			l.Close()
			return port
		}
	}
	t.Fatal("no port")
	return 0
}

// Real sockets: one address, all addresses of both families with the same port, and back.
func TestMoverOverTCP(t *testing.T) {
	h := &http.Server{Handler: http.NotFoundHandler()}
	moved := make(chan netip.AddrPort, 10)
	m := NewMover(Config{
		Open: Open, Serve: h.Serve,
		Broke: func(at netip.AddrPort, err error) { t.Errorf("%s broke: %v", at, err) },
		Failed: func(at netip.AddrPort, err error, again bool) {
			t.Errorf("%s: %v", at, err)
			moved <- netip.AddrPort{}
		},
		Moved: func(_, to netip.AddrPort) { moved <- to },
	})
	stop := run(t, m)
	loopback := netip.AddrFrom4([4]byte{127, byte(1 + rand.IntN(250)), byte(rand.IntN(256)), 1})
	m.Move(netip.AddrPortFrom(loopback, 0), true)
	first := <-moved
	if first.Addr() != loopback || first.Port() == 0 {
		t.Fatalf("moved to %s", first)
	}
	if _, err := Open(t.Context(), Address{"tcp", first}); err == nil {
		t.Errorf("%s is free", first)
	}
	port := freePort(t)
	for _, at := range []netip.AddrPort{netip.AddrPortFrom(netip.IPv4Unspecified(), port),
		netip.AddrPortFrom(loopback, port)} {
		m.Move(at, false)
		if got := <-moved; got != at || m.Addr() != at {
			t.Errorf("moved to %s, is at %s, want %s", got, m.Addr(), at)
		}
		c, err := net.Dial("tcp", netip.AddrPortFrom(loopback, port).String())
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		if c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port)); (err == nil) != at.Addr().IsUnspecified() {
			t.Errorf("at %s: %v", at, err)
		} else if err == nil {
			c.Close()
		}
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	ShutDown(h, time.Minute)
}

// A request in hand may be finished; when the limit has passed it is cut off.
func TestShutDown(t *testing.T) {
	for _, test := range []struct {
		limit    time.Duration
		answered bool
	}{{time.Hour, true}, {10 * time.Millisecond, false}} {
		begun, release := make(chan struct{}), make(chan struct{})
		h := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			close(begun)
			select {
			case <-release:
			case <-r.Context().Done():
			}
		})}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		served, asked, ended := make(chan error, 1), make(chan error, 1), make(chan struct{})
		go func() { served <- h.Serve(l) }()
		go func() {
			resp, err := http.Get("http://" + l.Addr().String())
			if err == nil {
				resp.Body.Close()
			}
			asked <- err
		}()
		<-begun
		go func() { ShutDown(h, test.limit); close(ended) }()
		<-served // it listens no more
		if test.answered {
			close(release)
		}
		if err := <-asked; (err == nil) != test.answered {
			t.Errorf("limit %v: %v", test.limit, err)
		}
		<-ended
	}
}
