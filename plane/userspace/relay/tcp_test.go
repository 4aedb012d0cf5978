package relay

import (
	"bytes"
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

// engines are what serves TCP: that of this host, and that of hosts with nothing better.
var engines = map[string]func(*Relay) (engine, error){
	"host":     newConns,
	"portable": func(r *Relay) (engine, error) { return newPortable(r), nil },
}

// eachEngine runs a test with each of them.
func eachEngine(t *testing.T, test func(t *testing.T, cfg Config, start func(Config) *Relay)) {
	for name, make := range engines {
		t.Run(name, func(t *testing.T) {
			test(t, Config{}, func(cfg Config) *Relay {
				t.Helper()
				r, err := New(cfg)
				if err != nil {
					t.Fatal(err)
				}
				r.conns.stop()
				if r.conns, err = make(r); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(r.Close)
				return r
			})
		})
	}
}

// turns is a Balancer that leads to one backend after the other, those last that were tried.
type turns struct {
	mu       sync.Mutex
	backends []netip.AddrPort
	next     int
	clients  []Client
	dialled  []error
}

func to(backends ...netip.AddrPort) *turns { return &turns{backends: backends} }

func (b *turns) Pick(c Client, tried []netip.AddrPort) (netip.AddrPort, Answer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(tried) == 0 {
		b.clients = append(b.clients, c)
	}
	for range b.backends {
		b.next = (b.next + 1) % len(b.backends)
		if backend := b.backends[b.next]; !slices.Contains(tried, backend) {
			return backend, Forward
		}
	}
	return netip.AddrPort{}, Refuse
}

func (b *turns) Dialled(_ Client, _ netip.AddrPort, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.dialled = append(b.dialled, err)
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

// echo sends back what it gets, and then the end.
func echo(c *net.TCPConn) {
	io.Copy(c, c)
	c.CloseWrite()
}

func listen(t testing.TB, r *Relay, b Balancer) *Listener {
	t.Helper()
	l, err := r.Listen(Listening{lb.TCP, loopback}, b)
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
	c.SetDeadline(time.Now().Add(patience))
	t.Cleanup(func() { c.Close() })
	return c
}

// wantReset connects, and fails the test if that is not reset.
func wantReset(t testing.TB, at netip.AddrPort) {
	t.Helper()
	c, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(at))
	if err == nil { // else the reset was there before the client looked
		defer c.Close()
		c.SetDeadline(time.Now().Add(patience))
		_, err = c.Read(make([]byte, 1))
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got %v, want a reset", err)
	}
}

// patience is how long a test waits for what must happen.
const patience = 20 * time.Second

// eventually waits until ok.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("still not so after %v: %s", patience, what)
		}
	}
}

// Every byte arrives, both ways, whatever the chunks, and the end of one way leaves the other open.
func TestTCPEveryByte(t *testing.T) {
	eachEngine(t, func(t *testing.T, cfg Config, start func(Config) *Relay) {
		r := start(cfg)
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
	})
}

// readSlowly reads all, in chunks and with pauses that follow from seed.
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

// A backend that refuses is not what the client sees, if there is another.
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

// The error of a port in use says so.
func TestTCPPortInUse(t *testing.T) {
	eachEngine(t, func(t *testing.T, cfg Config, start func(Config) *Relay) {
		r := start(cfg)
		l := listen(t, r, to())
		again := Listening{lb.TCP, l.Addr()}
		if _, err := r.Listen(again, to()); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("got %v", err)
		}
		l.Close()
		if _, err := r.Listen(again, to()); err != nil {
			t.Errorf("after Close: %v", err)
		}
	})
}
