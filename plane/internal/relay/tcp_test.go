package relay

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"kube-proxy/lb"
)

// engines are the engines for TCP: the one of this host, and the portable one.
var engines = map[string]func(*Relay) (connEngine, error){
	"host":     newConns,
	"portable": func(r *Relay) (connEngine, error) { return newPortable(r), nil },
}

// eachEngine runs a test with each engine.
func eachEngine(t *testing.T, test func(t *testing.T, cfg Config, start func(Config) *Relay)) {
	for name, make := range engines {
		t.Run(name, func(t *testing.T) {
			test(t, Config{}, func(cfg Config) *Relay {
				t.Helper()
				return startWith(t, cfg, make)
			})
		})
	}
}

// startWith makes a relay with an engine for TCP.
func startWith(t testing.TB, cfg Config, make func(*Relay) (connEngine, error)) *Relay {
	t.Helper()
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r.conns.stop()
	r.conns, err = make(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// turns is a Balancer that chooses the backends in turn, and tried ones last.
type turns struct {
	mu       sync.Mutex
	backends []netip.AddrPort
	next     int
	clients  []Client
	dialled  []error
	reached  []netip.AddrPort
	gone     []netip.AddrPort // backends that do not serve
}

func to(backends ...netip.AddrPort) *turns { return &turns{backends: backends} }

func (b *turns) Pick(c Client, tried []netip.AddrPort) netip.AddrPort {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(tried) == 0 {
		b.clients = append(b.clients, c)
	}
	for range b.backends {
		b.next = (b.next + 1) % len(b.backends)
		if backend := b.backends[b.next]; !slices.Contains(tried, backend) {
			return backend
		}
	}
	return netip.AddrPort{}
}

func (b *turns) Dialled(_ Client, backend netip.AddrPort, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil {
		b.reached = append(b.reached, backend)
	}
	b.dialled = append(b.dialled, err)
}

func (b *turns) Serves(backend netip.AddrPort) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !slices.Contains(b.gone, backend)
}

// leave sets the backends that do not serve.
func (b *turns) leave(gone ...netip.AddrPort) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.gone = gone
}

var loopback = netip.MustParseAddrPort("127.0.0.1:0")

// serve runs a backend, which handles each connection in a goroutine of its own.
func serve(t testing.TB, handle func(*net.TCPConn)) netip.AddrPort {
	t.Helper()
	ln, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(loopback))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.AcceptTCP()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				handle(c)
			}()
		}
	}()
	return ln.Addr().(*net.TCPAddr).AddrPort()
}

// echo returns every byte, and then ends the stream.
func echo(c *net.TCPConn) {
	io.Copy(c, c)
	c.CloseWrite()
}

func listen(t testing.TB, r *Relay, b Balancer) *Listener {
	t.Helper()
	return listenAt(t, r, Listening{lb.TCP, loopback}, b)
}

func listenAt(t testing.TB, r *Relay, at Listening, b Balancer) *Listener {
	t.Helper()
	l, err := r.Listen(at, b, nil)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func dial(t testing.TB, at netip.AddrPort) *net.TCPConn {
	t.Helper()
	c, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(at))
	if err != nil {
		t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(timeout))
	t.Cleanup(func() { c.Close() })
	return c
}

// wantReset connects, and fails the test if the connection is not reset.
func wantReset(t testing.TB, at netip.AddrPort) {
	t.Helper()
	c, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(at))
	if errors.Is(err, syscall.ECONNRESET) { // before Dial returned
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	wasReset(t, "the client", c)
}

// wasReset fails the test if the connection ends otherwise.
func wasReset(t testing.TB, what string, c net.Conn) {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(timeout))
	if n, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("%s read %d bytes, %v, want a reset", what, n, err)
	}
}

// timeout is how long a test waits for an expected event.
const timeout = 20 * time.Second

// eventually waits until ok.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(timeout); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("still not so after %v: %s", timeout, what)
		}
	}
}

// Every byte arrives in both directions, whatever the chunks, and the end of one direction leaves
// the other open.
func TestTCPEveryByte(t *testing.T) {
	eachEngine(t, func(t *testing.T, cfg Config, start func(Config) *Relay) { everyByte(t, start(cfg)) })
}

func everyByte(t *testing.T, r *Relay) {
	l := listen(t, r, to(serve(t, echo)))
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			c := dial(t, l.Addr())
			random := rand.New(rand.NewPCG(1, uint64(i)))
			sent := make([]byte, 3<<20)
			for j := range sent {
				sent[j] = byte(random.Uint32())
			}
			var got []byte
			var read sync.WaitGroup
			read.Go(func() { got = readSlowly(c, i) })
			for rest := sent; len(rest) > 0; {
				n := min(1+random.IntN(1<<(1+random.IntN(18))), len(rest))
				if _, err := c.Write(rest[:n]); err != nil {
					t.Error(err)
					return
				}
				rest = rest[n:]
			}
			c.CloseWrite()
			read.Wait()
			if !bytes.Equal(got, sent) {
				t.Errorf("connection %d: %d bytes came back of %d, or others", i, len(got), len(sent))
			}
		})
	}
	all.Wait()
	eventually(t, "no connection is open", func() bool { return r.Stats().TCP.Open == 0 })
	if s := r.Stats().TCP; s.Accepted != 8 || s.ToBackends != 8*3<<20 || s.ToClients != 8*3<<20 {
		t.Errorf("%+v", s)
	}
}

// readSlowly reads everything, in chunks and with pauses derived from seed.
func readSlowly(r io.Reader, seed int) (got []byte) {
	random := rand.New(rand.NewPCG(2, uint64(seed)))
	buf := make([]byte, 1<<17)
	for {
		n, err := r.Read(buf[:1+random.IntN(len(buf))])
		got = append(got, buf[:n]...)
		if err != nil {
			return got
		}
		if random.IntN(8) == 0 {
			time.Sleep(time.Duration(random.IntN(5)) * time.Millisecond)
		}
	}
}

// A client does not notice a backend that refuses, if another one serves.
func TestTCPRetry(t *testing.T) {
	eachEngine(t, func(t *testing.T, cfg Config, start func(Config) *Relay) {
		r := start(cfg)
		refuses := netip.MustParseAddrPort("127.0.0.1:1")
		b := to(refuses, netip.MustParseAddrPort("127.0.0.2:1"), serve(t, echo))
		l := listen(t, r, b)
		for range 12 {
			c := dial(t, l.Addr())
			c.Write([]byte("x"))
			c.CloseWrite()
			if got, err := io.ReadAll(c); string(got) != "x" || err != nil {
				t.Fatalf("got %q, %v", got, err)
			}
		}
		if s := r.Stats().TCP; s.DialsFailed == 0 || s.Retried == 0 || s.Refused != 0 {
			t.Errorf("%+v", s)
		}

		l.SetBalancer(to(refuses))
		wantReset(t, l.Addr())
		if s := r.Stats().TCP; s.Refused != 1 {
			t.Errorf("%+v", s)
		}
	})
}

// Bytes of a client still arrive after the backend has ended its direction. TestTCPEveryByte proves
// the reverse.
func TestTCPHalfClose(t *testing.T) {
	eachEngine(t, func(t *testing.T, cfg Config, start func(Config) *Relay) {
		r := start(cfg)
		noticed := make(chan string, 1)
		l := listen(t, r, to(serve(t, func(c *net.TCPConn) {
			c.Write([]byte("first"))
			c.CloseWrite()
			got, _ := io.ReadAll(c)
			noticed <- string(got)
		})))
		c := dial(t, l.Addr())
		if got, err := io.ReadAll(c); string(got) != "first" || err != nil {
			t.Fatalf("got %q, %v", got, err)
		}
		c.Write([]byte("second"))
		c.CloseWrite()
		if got := <-noticed; got != "second" {
			t.Errorf("the backend got %q", got)
		}
	})
}

// A reset of one side resets the other, instead of ending it cleanly.
func TestTCPReset(t *testing.T) {
	eachEngine(t, func(t *testing.T, cfg Config, start func(Config) *Relay) {
		r := start(cfg)
		ended := make(chan error, 1)
		l := listen(t, r, to(serve(t, func(c *net.TCPConn) {
			c.Write([]byte("x"))
			_, err := io.Copy(io.Discard, c)
			ended <- err
		})))
		c := dial(t, l.Addr())
		io.ReadFull(c, make([]byte, 1))
		c.SetLinger(0)
		c.Close()
		if err := <-ended; !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the client resets: the backend sees %v", err)
		}

		for _, first := range []string{"", "some bytes before it"} {
			l.SetBalancer(to(serve(t, func(c *net.TCPConn) {
				io.ReadFull(c, make([]byte, 1))
				io.WriteString(c, first)
				c.SetLinger(0)
			})))
			c = dial(t, l.Addr())
			c.Write([]byte("x"))
			if got, err := io.ReadAll(c); string(got) != first || !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("the backend resets after %q: the client sees %q, %v", first, got, err)
			}
		}
		eventually(t, "no connection is open", func() bool { return r.Stats().TCP.Open == 0 })
	})
}

// unanswered returns an address without any answer, even a reset: that of a listener whose queue is
// full.
func unanswered(t testing.TB) netip.AddrPort {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(fd) })
	if err := errors.Join(syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}),
		syscall.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	sa, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	at := netip.AddrPortFrom(loopback.Addr(), uint16(sa.(*syscall.SockaddrInet4).Port))
	for {
		c, err := net.DialTimeout("tcp", at.String(), 100*time.Millisecond)
		if err != nil {
			return at
		}
		t.Cleanup(func() { c.Close() })
	}
}

// A backend that does not answer costs the client DialTimeout, and after DialTotal no other attempt
// begins.
func TestTCPBackendDoesNotAnswer(t *testing.T) {
	silent := unanswered(t)
	eachEngine(t, func(t *testing.T, cfg Config, start func(Config) *Relay) {
		cfg.DialTimeout, cfg.DialTotal = 50*time.Millisecond, 10*time.Minute
		r := start(cfg)
		b := to(serve(t, echo), silent)
		l := listen(t, r, b)
		for range 2 {
			c := dial(t, l.Addr())
			c.Write([]byte("x"))
			c.CloseWrite()
			if got, err := io.ReadAll(c); string(got) != "x" || err != nil {
				t.Fatalf("got %q, %v", got, err)
			}
		}
		b.mu.Lock()
		if n := slices.IndexFunc(b.dialled, func(err error) bool {
			var e net.Error
			return errors.As(err, &e) &&
				e.Timeout()
		}); n < 0 {
			t.Errorf("the balancer's reports are %v", b.dialled)
		}
		b.mu.Unlock()

		cfg.DialTotal = cfg.DialTimeout
		r = start(cfg)
		wantReset(t, listen(t, r, to(serve(t, echo), silent)).Addr())
		if s := r.Stats().TCP; s.Refused != 1 || s.DialsFailed != 1 {
			t.Errorf("%+v", s)
		}
	})
}

// A client that leaves while its backend is being dialled is released.
func TestTCPClientGoesWhileDialling(t *testing.T) {
	silent := unanswered(t)
	eachEngine(t, func(t *testing.T, cfg Config, start func(Config) *Relay) {
		cfg.DialTimeout, cfg.DialTotal = 10*time.Minute, 10*time.Minute
		if t.Name() == "TestTCPClientGoesWhileDialling/portable" {
			cfg.DialTimeout = 100 * time.Millisecond // package net does not report a reset before a read
		}
		r := start(cfg)
		l := listen(t, r, to(silent))
		c := dial(t, l.Addr())
		eventually(t, "the client is accepted", func() bool { return r.Stats().TCP.Open == 1 })
		c.SetLinger(0)
		c.Close()
		eventually(t, "no connection is open", func() bool { return r.Stats().TCP.Open == 0 })
	})
}

// After the handshake no other attempt begins, whatever the backend does. Its reset is passed to
// the client, and proves nothing about the backend (TN-40, TN-41).
func TestTCPResetAfterTheHandshake(t *testing.T) {
	eachEngine(t, func(t *testing.T, cfg Config, start func(Config) *Relay) {
		r := start(cfg)
		b := to(serve(t, func(c *net.TCPConn) { c.SetLinger(0) }), serve(t, func(c *net.TCPConn) { c.SetLinger(0) }))
		l := listen(t, r, b)
		const clients = 20
		for range clients {
			wantReset(t, l.Addr())
		}
		eventually(t, "no connection is open", func() bool { return r.Stats().TCP.Open == 0 })
		if s := r.Stats().TCP; s.DialsFailed != 0 || s.Retried != 0 || len(b.reached) != clients ||
			len(b.dialled) != clients {
			t.Errorf("%+v; the balancer's reports are %v", s, b.dialled)
		}
	})
}

// Clients that the balancer refuses, such as those outside a Service's source ranges, hold no
// descriptor (TN-43).
func TestTCPRefusedClients(t *testing.T) {
	eachEngine(t, func(t *testing.T, cfg Config, start func(Config) *Relay) {
		cfg.Descriptors = NewBudget(20)
		r := start(cfg)
		l := listen(t, r, to())
		for range 50 {
			wantReset(t, l.Addr())
		}
		// the portable listener reserves those of its next client
		eventually(t, "no descriptor is counted", func() bool { return cfg.Descriptors.Used() <= 2 })
		if s := r.Stats().TCP; s.Refused != 50 || s.OutOfDescriptors != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// A connection to a backend that has left ends after its grace, unless the backend returns; those
// to others continue.
func TestTCPLeave(t *testing.T) {
	eachEngine(t, func(t *testing.T, cfg Config, start func(Config) *Relay) {
		cfg.Grace = 300 * time.Millisecond
		r := start(cfg)
		stays, goes, returns := serve(t, echo), serve(t, echo), serve(t, echo)
		b := to(stays, goes, returns)
		l := listen(t, r, b)
		conns := map[netip.AddrPort]*net.TCPConn{}
		for range b.backends {
			c := dial(t, l.Addr())
			roundTrip(t, c)
			b.mu.Lock()
			conns[b.reached[len(b.reached)-1]] = c
			b.mu.Unlock()
		}
		b.leave(goes, returns)
		time.Sleep(cfg.Grace / 2)
		for _, c := range conns {
			roundTrip(t, c)
		}
		b.leave(goes)
		wasReset(t, "after its grace, the client", conns[goes])
		time.Sleep(cfg.Grace)
		roundTrip(t, conns[stays])
		roundTrip(t, conns[returns])
		eventually(t, "two are open", func() bool { return r.Stats().TCP.Open == 2 })
	})
}

// roundTrip sends a byte and fails the test if it does not come back.
func roundTrip(t testing.TB, c net.Conn) {
	t.Helper()
	if _, err := c.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
}

// A listener that closes leaves its connections open, including those that the relay has not
// accepted yet. They still end when their backend has gone; those of other listeners to that
// backend continue. The error for a port in use says so, and the port is free after Close.
func TestTCPClose(t *testing.T) {
	eachEngine(t, func(t *testing.T, cfg Config, start func(Config) *Relay) {
		cfg.Grace = time.Millisecond
		r := start(cfg)
		backend := serve(t, echo)
		b := to(backend)
		l, other := listen(t, r, b), listen(t, r, to(backend))
		c, d := dial(t, l.Addr()), dial(t, other.Addr())
		roundTrip(t, c)
		roundTrip(t, d)
		again := Listening{lb.TCP, l.Addr()}
		if _, err := r.Listen(again, to(), nil); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("a port in use: %v", err)
		}
		l.Close()
		if _, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(l.Addr())); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("after Close: %v", err)
		}
		roundTrip(t, c)
		b.leave(backend)
		wasReset(t, "after the backend left, the client", c)
		roundTrip(t, d)
		l.Close()
		listenAt(t, r, again, to())
	})
}

// Drain waits for connections until ctx ends, and then closes them.
func TestTCPDrain(t *testing.T) {
	eachEngine(t, func(t *testing.T, cfg Config, start func(Config) *Relay) {
		r := start(cfg)
		backend := serve(t, echo)
		l := listen(t, r, to(backend))
		closed := listen(t, r, to(backend))
		c, d := dial(t, l.Addr()), dial(t, closed.Addr())
		roundTrip(t, c)
		roundTrip(t, d)
		closed.Close()
		drained := make(chan struct{})
		ctx, cancel := context.WithCancel(context.Background())
		go func() {
			r.Drain(ctx)
			close(drained)
		}()
		eventually(t, "the port is closed", func() bool {
			e, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(l.Addr()))
			if err == nil {
				e.Close()
			}
			return err != nil
		})
		roundTrip(t, c)
		select {
		case <-drained:
			t.Fatal("drained with two connections open")
		default:
		}
		cancel()
		<-drained
		wasReset(t, "after Drain, a client", c)
		wasReset(t, "after Drain, the client of a closed listener", d)
		if _, err := r.Listen(Listening{lb.TCP, loopback}, to(), nil); !errors.Is(err, ErrClosed) {
			t.Errorf("Listen after Drain: %v", err)
		}

		r = start(cfg)
		c = dial(t, listen(t, r, to(backend)).Addr())
		roundTrip(t, c)
		c.Close()
		r.Drain(t.Context()) // must return: nothing is open
	})
}

// IPv6 works, and a listener at an unspecified address knows the address that a client connected
// to.
func TestTCPAddresses(t *testing.T) {
	eachEngine(t, func(t *testing.T, cfg Config, start func(Config) *Relay) {
		r := start(cfg)
		for _, tc := range []struct{ at, ask string }{
			{"127.0.0.1:0", "127.0.0.1"}, {"0.0.0.0:0", "127.0.0.3"}, {"[::1]:0", "::1"}, {"[::]:0", "::1"},
		} {
			b := to(serve(t, echo))
			l := listenAt(t, r, Listening{lb.TCP, netip.MustParseAddrPort(tc.at)}, b)
			asked := netip.AddrPortFrom(netip.MustParseAddr(tc.ask), l.Addr().Port())
			c := dial(t, asked)
			roundTrip(t, c)
			b.mu.Lock()
			if want := (Client{Addr: c.LocalAddr().(*net.TCPAddr).AddrPort(), Local: asked}); len(b.clients) != 1 ||
				b.clients[0] != want {
				t.Errorf("listening at %s: the balancer's clients are %+v, want %+v", tc.at, b.clients, want)
			}
			b.mu.Unlock()
			if l.Addr().Addr() != netip.MustParseAddrPort(tc.at).Addr() {
				t.Errorf("%s: listens at %v", tc.at, l.Addr())
			}
		}
	})
}
