package relay

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
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

// unhurried makes sessions last as long as tests wait, except in tests of their end: on a machine
// that is busy for longer than DefaultUDPIdle between a datagram and its answer, the answer would
// be lost.
func unhurried(cfg Config) Config {
	if cfg.UDPIdle == 0 {
		cfg.UDPIdle = 2 * timeout
	}
	return cfg
}

// startUDP starts a relay with at most so many sessions; 0 means the default.
func startUDP(t testing.TB, cfg Config, sessions int64) *Relay {
	t.Helper()
	r, err := New(unhurried(cfg))
	if err != nil {
		t.Fatal(err)
	}
	if sessions > 0 {
		r.udp = newUDP(r, &Budget{max: sessions})
	}
	t.Cleanup(r.Close)
	return r
}

var loopback6 = netip.MustParseAddrPort("[::1]:0")

func udpSocketAt(t testing.TB, at netip.AddrPort) *net.UDPConn {
	t.Helper()
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetReadBuffer(4 << 20); err != nil {
		t.Fatal(err)
	}
	return c
}

func boundAt(c *net.UDPConn) netip.AddrPort { return c.LocalAddr().(*net.UDPAddr).AddrPort() }

// udpEcho runs a backend that returns each datagram, and calls seen, if not nil, with its source.
func udpEcho(t testing.TB, at netip.AddrPort, seen func(from netip.AddrPort, datagram []byte)) *net.UDPConn {
	t.Helper()
	c := udpSocketAt(t, at)
	go func() {
		for buf := make([]byte, datagramSize); ; {
			n, from, err := c.ReadFromUDPAddrPort(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				continue
			}
			if seen != nil {
				seen(from, buf[:n])
			}
			c.WriteToUDPAddrPort(buf[:n], from)
		}
	}()
	return c
}

func listenUDP(t testing.TB, r *Relay, at netip.AddrPort, b Balancer) *Listener {
	t.Helper()
	return listenAt(t, r, Listening{lb.UDP, at}, b)
}

func dialUDP(t testing.TB, to netip.AddrPort) *net.UDPConn {
	t.Helper()
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetReadBuffer(4 << 20); err != nil {
		t.Fatal(err)
	}
	return c
}

// ask sends a datagram, and reports whether it came back in time.
func ask(t testing.TB, c *net.UDPConn, datagram string, wait time.Duration) bool {
	t.Helper()
	if _, err := c.Write([]byte(datagram)); err != nil && !errors.Is(err, syscall.ECONNREFUSED) {
		t.Fatal(err)
	}
	c.SetReadDeadline(time.Now().Add(wait))
	buf := make([]byte, datagramSize)
	for {
		n, err := c.Read(buf)
		if err == nil && string(buf[:n]) == datagram {
			return true
		}
		if err != nil {
			return false
		}
	}
}

// eventuallyAsk repeats ask until an answer arrives: UDP guarantees none, and a backend that begins
// to listen may miss datagrams.
func eventuallyAsk(t testing.TB, c *net.UDPConn, datagram string) {
	t.Helper()
	eventually(t, fmt.Sprintf("%q is answered", datagram), func() bool {
		return ask(t, c, datagram, 50*time.Millisecond)
	})
}

// drops sends a datagram, and waits until it is dropped for the counter's reason.
func drops(t testing.TB, r *Relay, c *net.UDPConn, counter func(Dropped) uint64) {
	t.Helper()
	before := counter(r.Stats().UDP.Dropped)
	if _, err := c.Write([]byte("lost")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the datagram is dropped and counted", func() bool {
		return counter(r.Stats().UDP.Dropped) == before+1
	})
}

// sizes returns lengths of datagrams, from the shortest to the longest.
func sizes(rnd *rand.Rand) (n []int) {
	switch rnd.IntN(5) {
	case 0:
		return []int{0, 1, 65507, 0}
	case 1: // equal sizes, which the kernel may batch
		n = slices.Repeat([]int{1 + rnd.IntN(1400)}, 1+rnd.IntN(60))
		return append(n, rnd.IntN(n[0]))
	case 2:
		for range 20 {
			n = append(n, rnd.IntN(20))
		}
	default:
		for range 1 + rnd.IntN(20) {
			n = append(n, rnd.IntN(3000))
		}
	}
	return n
}

// Every datagram of any size arrives once and unchanged, in both directions and in each client's
// order, with many clients and several backends.
func TestUDPEveryDatagram(t *testing.T) {
	for _, at := range []netip.AddrPort{loopback, loopback6} {
		r := startUDP(t, Config{}, 0)
		var backends []netip.AddrPort
		for range 3 {
			backends = append(backends, boundAt(udpEcho(t, at, nil)))
		}
		l := listenUDP(t, r, at, to(backends...))
		var clients sync.WaitGroup
		var sent, bytesSent uint64
		var mu sync.Mutex
		for client := range 8 {
			c := dialUDP(t, l.Addr())
			clients.Go(func() {
				rnd := rand.New(rand.NewPCG(uint64(client), 7))
				buf := make([]byte, datagramSize)
				for round := range 30 {
					var want [][]byte
					for i, size := range sizes(rnd) {
						d := make([]byte, size)
						for j := range d {
							d[j] = byte(rnd.Uint32())
						}
						if size >= 8 {
							binary.BigEndian.PutUint32(d, uint32(round))
							binary.BigEndian.PutUint32(d[4:], uint32(i))
						}
						want = append(want, d)
						if _, err := c.Write(d); err != nil {
							t.Errorf("client %d: %v", client, err)
							return
						}
					}
					for i, d := range want {
						c.SetReadDeadline(time.Now().Add(timeout))
						n, err := c.Read(buf)
						if err != nil || !bytes.Equal(buf[:n], d) {
							t.Errorf("client %d, round %d, datagram %d of %d: sent %d bytes, got %d that are not the "+
								"same, or: %v", client, round, i, len(want), len(d), n, err)
							return
						}
						mu.Lock()
						sent++
						bytesSent += uint64(len(d))
						mu.Unlock()
					}
				}
			})
		}
		clients.Wait()
		if t.Failed() {
			t.Logf("%+v", r.Stats().UDP)
			return
		}
		want := Datagrams{sent, bytesSent}
		eventually(t, "all is counted", func() bool {
			s := r.Stats().UDP
			return s.ToBackends == want && s.ToClients == want && s.Dropped == (Dropped{})
		})
	}
}

// A session keeps its backend and its source port as long as it lasts, and ends when it is idle
// (CF-45).
func TestUDPSession(t *testing.T) {
	r := startUDP(t, Config{UDPIdle: 100 * time.Millisecond}, 0)
	var mu sync.Mutex
	ports := map[netip.AddrPort]int{}
	seen := func(from netip.AddrPort, _ []byte) {
		mu.Lock()
		ports[from]++
		mu.Unlock()
	}
	b := to(boundAt(udpEcho(t, loopback, seen)), boundAt(udpEcho(t, loopback, seen)))
	l := listenUDP(t, r, loopback, b)
	c := dialUDP(t, l.Addr())
	lost := 0
	for i := range 200 {
		// On a busy machine a session may end before its answer arrives.
		for !ask(t, c, fmt.Sprint(i), timeout/4) {
			lost++
			if lost > 3 || r.Stats().UDP.Opened < uint64(lost) {
				t.Fatalf("no answer; %+v", r.Stats().UDP)
			}
		}
	}
	mu.Lock()
	// On a busy machine a session may have been idle between two of them.
	if s := r.Stats().UDP; len(ports) != int(s.Opened) {
		t.Errorf("backends saw %d ports of %d sessions", len(ports), s.Opened)
	}
	mu.Unlock()
	eventually(t, "the session ends", func() bool { return r.Stats().UDP.Open == 0 })
	if s := r.Stats().UDP; s.Expired != s.Opened || s.Opened == 0 {
		t.Errorf("%+v", s)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.clients[0] != (Client{Addr: boundAt(c), Local: l.Addr()}) {
		t.Errorf("the Balancer was asked for %v", b.clients[0])
	}
	if slices.ContainsFunc(b.dialled, func(err error) bool { return err != nil }) || len(b.dialled) > len(b.clients) ||
		len(b.dialled) < len(b.clients)-lost {
		t.Errorf("the Balancer's reports are %v", b.dialled)
	}
}

// Datagrams without a backend are dropped and counted, and cost no session. A backend that appears
// later serves.
func TestUDPNoBackend(t *testing.T) {
	r := startUDP(t, Config{}, 0)
	l := listenUDP(t, r, loopback, to())
	c := dialUDP(t, l.Addr())
	drops(t, r, c, func(d Dropped) uint64 { return d.NoBackend })
	if s := r.Stats().UDP; s.Open != 0 || s.ToBackends.Datagrams != 0 {
		t.Errorf("%+v", s)
	}
	l.SetBalancer(to(boundAt(udpEcho(t, loopback, nil))))
	if !ask(t, c, "now", timeout) {
		t.Error("no answer when there is a backend")
	}
}

// A session to a backend that left ends at its next datagram, which goes to another; the other
// sessions stay. Replies of the backend that left reach no client.
func TestUDPLeave(t *testing.T) {
	r := startUDP(t, Config{UDPIdle: time.Minute}, 0)
	ports := make(chan netip.AddrPort, 2)
	leaving := udpEcho(t, loopback, func(from netip.AddrPort, _ []byte) { ports <- from })
	stays, leaves := boundAt(udpEcho(t, loopback, nil)), boundAt(leaving)
	l := listenUDP(t, r, loopback, to(leaves))
	c, silent := dialUDP(t, l.Addr()), dialUDP(t, l.Addr())
	if !ask(t, c, "first", timeout) || !ask(t, silent, "first", timeout) {
		t.Fatal("no answer")
	}
	b := to(stays)
	l.SetBalancer(b)
	other := dialUDP(t, l.Addr())
	if !ask(t, other, "other", timeout) {
		t.Fatal("no answer")
	}
	b.leave(leaves)
	if !ask(t, c, "second", timeout) {
		t.Error("no answer from the backend that stays")
	}
	if s := r.Stats().UDP; s.Open != 3 || s.Opened != 4 {
		t.Errorf("%+v", s)
	}
	const answers = 4
	eventually(t, "all answers are counted", func() bool { return r.Stats().UDP.ToClients.Datagrams == answers })
	<-ports // the first session's, which has ended
	if _, err := leaving.WriteToUDPAddrPort([]byte("late"), <-ports); err != nil {
		t.Fatal(err)
	}
	eventually(t, "what who left sends ends the session", func() bool { return r.Stats().UDP.Open == 2 })
	if n := r.Stats().UDP.ToClients.Datagrams; n != answers {
		t.Errorf("%d datagrams of a backend that left went to clients", n-answers)
	}
}

// A port can be bound once, a second attempt fails with a clear error, and it is free when Close
// returns. Sessions end with their listener.
func TestUDPCloseAndPortInUse(t *testing.T) {
	r := startUDP(t, Config{UDPIdle: time.Minute}, 0)
	b := to(boundAt(udpEcho(t, loopback, nil)))
	l := listenUDP(t, r, loopback, b)
	c := dialUDP(t, l.Addr())
	if !ask(t, c, "open", timeout) {
		t.Fatal("no answer")
	}
	if _, err := r.Listen(Listening{lb.UDP, l.Addr()}, b, nil); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a port in use is %v", err)
	}
	l.Close()
	if n := r.Stats().UDP.Open; n != 0 {
		t.Errorf("%d sessions are left", n)
	}
	l.Close()
	again := listenUDP(t, r, l.Addr(), b)
	if !ask(t, c, "again", timeout) {
		t.Error("no answer at a port that was given up and taken again")
	}
	again.Close()
	if n := r.Stats().UDP.Open; n != 0 {
		t.Errorf("%d sessions are left", n)
	}
	r.Close()
	if s := r.Stats().UDP; s.Open != 0 {
		t.Errorf("%+v after Close", s)
	}
}

// A stranger that guesses the port of a session reaches no client: the kernel accepts datagrams
// only from the session's backend.
func TestUDPStranger(t *testing.T) {
	r := startUDP(t, Config{UDPIdle: time.Minute}, 0)
	ports := make(chan netip.AddrPort, 2)
	b := to(boundAt(udpEcho(t, loopback, func(from netip.AddrPort, _ []byte) { ports <- from })))
	l := listenUDP(t, r, loopback, b)
	c := dialUDP(t, l.Addr())
	if !ask(t, c, "open", timeout) {
		t.Fatal("no answer")
	}
	stranger := dialUDP(t, <-ports)
	refused := func() bool {
		stranger.Write([]byte("I am your backend"))
		stranger.SetReadDeadline(time.Now().Add(timeout))
		_, err := stranger.Read(make([]byte, 1))
		return errors.Is(err, syscall.ECONNREFUSED)
	}
	if !refused() {
		t.Error("the port of a session takes what a stranger sends")
	}
	l.Close()
	if !refused() {
		t.Error("the port of a session that has ended takes what a stranger sends")
	}
	eventually(t, "one datagram went to the client", func() bool { return r.Stats().UDP.ToClients.Datagrams == 1 })
}
