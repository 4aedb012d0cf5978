package relay

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
)

// A session whose backend has closed its port moves to another with its next datagram, and the
// relay reports the backend. A single backend is tried again, and serves as soon as it is back.
func TestUDPBackendDiesAndReturns(t *testing.T) {
	for _, at := range []netip.AddrPort{loopback, loopback6} {
		r := startUDP(t, Config{UDPIdle: time.Minute}, 0)
		deadAt := netip.AddrPortFrom(at.Addr(), 20_000) // the kernel gives no socket this port by itself
		b := to(boundAt(udpEcho(t, at, nil)), deadAt)
		l := listenUDP(t, r, at, b)
		c := dialUDP(t, l.Addr())
		c.Write([]byte("to the dead one"))
		refused := func() bool {
			b.mu.Lock()
			defer b.mu.Unlock()
			return slices.ContainsFunc(b.dialled, func(err error) bool { return errors.Is(err, unix.ECONNREFUSED) })
		}
		eventually(t, "the Balancer gets the report", refused)
		if !ask(t, c, "to the other", timeout) {
			t.Errorf("no answer from the other; %+v", r.Stats().UDP)
		}
		if s := r.Stats().UDP; s.Moved != 1 || s.Open != 1 || s.Dropped != (Dropped{}) {
			t.Errorf("%+v", s)
		}

		gone := to(deadAt)
		alone := listenUDP(t, r, at, gone)
		c = dialUDP(t, alone.Addr())
		eventually(t, "the client is sent there again", func() bool {
			if ask(t, c, "to the dead one", 20*time.Millisecond) {
				t.Fatal("a closed port answers")
			}
			gone.mu.Lock()
			defer gone.mu.Unlock()
			return len(gone.clients) > 2
		})
		gone.mu.Lock()
		if first := slices.IndexFunc(gone.clients, func(c Client) bool { return c.Again }); len(gone.clients) < 2 ||
			first != 1 {
			t.Errorf("a session that is sent there repeatedly begins more than once: %+v", gone.clients)
		}
		gone.mu.Unlock()
		back := udpEcho(t, deadAt, nil)
		if !ask(t, c, "to the one that is back", timeout) {
			t.Errorf("no answer from the backend that is back; %+v", r.Stats().UDP)
		}
		// It ends while it has many clients: one refusal moves all of them.
		var clients []*net.UDPConn
		for range 20 {
			clients = append(clients, dialUDP(t, alone.Addr()))
			if !ask(t, clients[len(clients)-1], "before", timeout) {
				t.Fatal("no answer")
			}
		}
		back.Close()
		alone.SetBalancer(to(b.backends[0]))
		moved := r.Stats().UDP.Moved
		eventually(t, "the refusal is noticed", func() bool {
			clients[0].Write([]byte("notice"))
			return r.Stats().UDP.Moved > moved
		})
		for i, c := range clients[1:] {
			if !ask(t, c, "after", timeout) {
				t.Fatalf("client %d: what it sent went to the dead backend; %+v", i, r.Stats().UDP)
			}
		}
	}
}

// A datagram to a backend without a route goes to another at once.
func TestUDPNoWayToBackend(t *testing.T) {
	r := startUDP(t, Config{}, 0)
	nowhere := netip.MustParseAddrPort("203.0.113.1:53")
	b := to(boundAt(udpEcho(t, loopback, nil)), nowhere, netip.MustParseAddrPort("203.0.113.2:53"))
	l := listenUDP(t, r, loopback, b)
	for range 6 {
		if c := dialUDP(t, l.Addr()); !ask(t, c, "at once", timeout) {
			t.Fatalf("no answer; %+v", r.Stats().UDP)
		}
	}
	only := listenUDP(t, r, loopback, to(nowhere))
	drops(t, r, dialUDP(t, only.Addr()), func(d Dropped) uint64 { return d.SendFailed })
}

// The answer comes from the address that the client sent to; the Balancer gets that address too. A
// datagram to a broadcast address has no answer.
func TestUDPAnswersFromTheAddressThatWasAsked(t *testing.T) {
	r := startUDP(t, Config{}, 0)
	has(t, netip.MustParseAddr("fd00::7"))
	for _, tc := range []struct {
		every, from string
		asked       []string
	}{
		{"[::]:0", "[::1]:0", []string{"::1", "fd00::7"}},
		{"0.0.0.0:0", "127.0.0.1:0", []string{"127.0.0.1", "127.0.0.7", "127.9.9.9"}},
	} {
		b := to(boundAt(udpEcho(t, loopback, nil)))
		l := listenUDP(t, r, netip.MustParseAddrPort(tc.every), b)
		for _, asked := range tc.asked {
			at := netip.AddrPortFrom(netip.MustParseAddr(asked), l.Addr().Port())
			// A socket that connects before Linux has the route of a new address keeps a wrong one.
			eventually(t, asked+" answers", func() bool {
				c, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(tc.from)),
					net.UDPAddrFromAddrPort(at)) // takes answers only from there
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				return ask(t, c, asked, 50*time.Millisecond)
			})
			b.mu.Lock()
			if last := b.clients[len(b.clients)-1]; last.Local != at {
				t.Errorf("the Balancer's clients have %v for %v", last.Local, at)
			}
			b.mu.Unlock()
		}
		if l.Addr().Addr().Is4() {
			c := dialUDP(t, netip.AddrPortFrom(netip.MustParseAddr("127.255.255.255"), l.Addr().Port()))
			drops(t, r, c, func(d Dropped) uint64 { return d.Malformed })
		}
	}
}

func command(t testing.TB, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
}

func relayOn(t testing.TB, lab *netlab.TestLab, cfg Config) (*Relay, netlab.Host) {
	t.Helper()
	var r *Relay
	lab.On(netlab.Node1, func() {
		var err error
		r, err = New(unhurried(cfg))
		if err != nil {
			t.Fatal(err)
		}
	})
	t.Cleanup(r.Close)
	node, _ := netlab.HostByName(netlab.Node1)
	return r, node
}

// many is a socket that sends as any client of 127.0.0.0/8.
type many struct {
	fd      int
	to      netip.AddrPort
	control [recvControlSize]byte
}

func newMany(t testing.TB, to netip.AddrPort) *many {
	t.Helper()
	fd, err := bindUDP(netip.MustParseAddrPort("0.0.0.0:0"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20)
	return &many{fd: fd, to: to}
}

func sourceOf(client int) netip.Addr {
	return netip.AddrFrom4([4]byte{127, byte(64 + client>>16), byte(client >> 8), byte(client)})
}

// ask sends a datagram of a client that contains the client's number.
func (m *many) ask(t testing.TB, client int) {
	t.Helper()
	for {
		_, err := unix.SendmsgN(m.fd, binary.BigEndian.AppendUint64(nil, uint64(client)),
			sourceControl(sourceOf(client)), sockaddr(m.to), unix.MSG_DONTWAIT)
		if err == nil {
			return
		}
		if err != unix.EINTR && err != unix.EAGAIN {
			t.Fatal(err)
		}
	}
}

// answer waits for the next answer, and checks that it reached the client that asked.
func (m *many) answer(t testing.TB, why func() string) (client int) {
	t.Helper()
	var buf [16]byte
	for end := time.Now().Add(timeout); ; {
		n, controlled, _, _, err := unix.Recvmsg(m.fd, buf[:], m.control[:], unix.MSG_DONTWAIT)
		if err == nil {
			client = int(binary.BigEndian.Uint64(buf[:]))
			if at := parseControl(m.control[:controlled]).local; n != 8 || at != sourceOf(client) {
				t.Fatalf("client %v got %d bytes, the answer to client %d", at, n, client)
			}
			return client
		}
		if time.Now().After(end) {
			t.Fatalf("no answer: %v; %s", err, why())
		}
		unix.Poll([]unix.PollFd{{Fd: int32(m.fd), Events: unix.POLLIN}}, 100)
	}
}

func openDescriptors(t testing.TB) (n int) {
	t.Helper()
	for _, ofKind := range openFDs(t) {
		n += ofKind
	}
	return n
}

// The largest number of sessions, each answered, takes the memory and descriptors that
// docs/adr/0037 states, and all of it is returned.
func TestUDPManySessions(t *testing.T) {
	const sessions = 2000
	t.Run("memory that the runtime keeps", func(t *testing.T) {
		ask(t, dialUDP(t, boundAt(udpEcho(t, loopback, nil))), "", timeout)
	})
	goroutines, descriptors := runtime.NumGoroutine(), openDescriptors(t)
	t.Run("relay", func(t *testing.T) {
		r := startUDP(t, Config{UDPIdle: 5 * time.Minute}, 2*sessions)
		l := listenUDP(t, r, loopback, leadsTo(boundAt(udpEcho(t, loopback, nil))))
		clients := newMany(t, l.Addr())
		before, _ := memoryInUse()
		filesBefore := openDescriptors(t)
		for client := range sessions {
			clients.ask(t, client)
			if clients.answer(t, func() string { return fmt.Sprintf("%+v", r.Stats().UDP) }) != client {
				t.Fatalf("client %d", client)
			}
		}
		filesAfter := openDescriptors(t)
		s := r.Stats().UDP
		if s.Open != sessions || s.Opened != sessions || s.Evicted != 0 || s.Dropped != (Dropped{}) {
			t.Fatalf("%+v", s)
		}
		// Those of an earlier test may close meanwhile.
		if files := filesAfter - filesBefore; files > sessions {
			t.Errorf("%d descriptors for %d sessions", files, sessions)
		}
		// A session that has just answered holds a buffer of 64 KiB until its goroutine runs again.
		eventually(t, "a session takes at most 1500 bytes of heap", func() bool {
			after, _ := memoryInUse()
			t.Logf("%d sessions: %d bytes of heap each", sessions, (after-before)/sessions)
			return after-before <= 1500*sessions
		})
		l.Close()
		if n := r.Stats().UDP.Open; n != 0 {
			t.Errorf("%d sessions are left", n)
		}
	})
	eventually(t, fmt.Sprintf("no more than %d goroutines and %d descriptors are left", goroutines, descriptors),
		func() bool {
			return runtime.NumGoroutine() <= goroutines && openDescriptors(t) <= descriptors
		})
}

// A session that waits refers to no buffer: the pool may have dropped the one that it read into
// last, and then the session would keep 64 KiB.
func TestUDPWaitsWithoutBuffer(t *testing.T) {
	const sessions = 40
	r := startUDP(t, Config{UDPIdle: 5 * time.Minute}, 2*sessions)
	l := listenUDP(t, r, loopback, leadsTo(boundAt(udpEcho(t, loopback, nil))))
	clients := newMany(t, l.Addr())
	before, _ := memoryInUse()
	for client := range sessions {
		clients.ask(t, client)
		if clients.answer(t, func() string { return fmt.Sprintf("%+v", r.Stats().UDP) }) != client {
			t.Fatalf("client %d", client)
		}
		memoryInUse() // empties the pool, so that the next session has a buffer of its own
	}
	eventually(t, "a session takes at most a tenth of a buffer", func() bool {
		after, _ := memoryInUse()
		t.Logf("%d sessions: %d bytes of heap each", sessions, (after-before)/sessions)
		return after-before <= sessions*datagramSize/10
	})
}

// A flood with more clients than the relay has room for takes nothing from a Service of another
// namespace: that Service loses no datagram and no session, and the sum stays below the bound
// (TN-54).
func TestUDPFloodBesideAServiceTN54(t *testing.T) {
	const bound = 1 << 10
	r := startUDP(t, Config{UDPIdle: 5 * time.Minute}, bound)
	flooded := listenUDP(t, r, loopback, to(boundAt(udpSocketAt(t, loopback)))) // never read
	var seen sync.Map
	polite := listenUDP(t, r, loopback, to(boundAt(udpEcho(t, loopback, func(from netip.AddrPort, _ []byte) {
		seen.Store(from, true)
	}))))
	c := dialUDP(t, polite.Addr())
	done := make(chan struct{})
	var flood sync.WaitGroup
	flood.Go(func() {
		m := newMany(t, flooded.Addr())
		for client := 0; ; client = (client + 1) % (4 << 20) {
			select {
			case <-done:
				return
			default:
				m.ask(t, client)
			}
		}
	})
	asked, lost, before := 0, uint64(0), netlab.Overflows(t)
	for full := false; !full || asked < 200; asked++ {
		for !ask(t, c, fmt.Sprint(asked), timeout/4) {
			// The flood also goes through a CPU's queue, which may be full.
			lost++
			if lost > netlab.Overflows(t)-before {
				t.Fatalf("datagram %d is lost; %+v", asked, r.Stats().UDP)
			}
		}
		s := r.Stats().UDP
		full = full || s.Evicted > 4*bound
		if s.Open > bound {
			t.Fatalf("%+v", s)
		}
	}
	close(done)
	flood.Wait()
	ports := 0
	seen.Range(func(any, any) bool { ports++; return true })
	if ports != 1 {
		t.Errorf("the backend beside saw %d sessions of one client", ports)
	}
}

// Without a free descriptor, new sessions are dropped and counted, and open ones continue. New ones
// begin when descriptors are free again.
func TestUDPOutOfDescriptors(t *testing.T) {
	r := startUDP(t, Config{UDPIdle: time.Minute}, 0)
	backend := boundAt(udpEcho(t, loopback, nil))
	l := listenUDP(t, r, loopback, to(backend))
	six := listenUDP(t, r, loopback, to(boundAt(udpEcho(t, loopback6, nil))))
	open, later := dialUDP(t, l.Addr()), dialUDP(t, six.Addr())
	if !ask(t, open, "open", timeout) {
		t.Fatal("no answer")
	}
	giveBack, _ := noFiles(t, 0)
	drops(t, r, later, func(d Dropped) uint64 { return d.NoSocket })
	if !ask(t, open, "still open", timeout) {
		t.Error("an open session gets no answer")
	}
	giveBack()
	eventuallyAsk(t, later, "later")
}

// Listeners open and close while clients send to them, from many goroutines.
func TestUDPComeAndGo(t *testing.T) {
	r := startUDP(t, Config{UDPIdle: 2 * time.Millisecond}, 0)
	b := to(boundAt(udpEcho(t, loopback, nil)), boundAt(udpEcho(t, loopback, nil)))
	var work sync.WaitGroup
	for range 4 {
		work.Go(func() {
			for range 60 {
				l, err := r.Listen(Listening{lb.UDP, loopback}, b, nil)
				if err != nil {
					t.Error(err)
					return
				}
				c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(l.Addr()))
				if err != nil {
					t.Error(err)
					return
				}
				for i := range 20 {
					c.Write([]byte{byte(i)})
					if i == 10 {
						b.leave(b.backends[:1]...)
					}
				}
				l.Close()
				b.leave()
				l.Close()
				c.Close()
				r.Stats()
			}
		})
	}
	work.Wait()
	eventually(t, "no session is left", func() bool { return r.Stats().UDP.Open == 0 })
}

// FuzzUDPControl reads control messages that no kernel would write: nothing panics.
func FuzzUDPControl(f *testing.F) {
	f.Add(sourceControl(netip.MustParseAddr("10.1.2.3")))
	f.Add(bytes.Repeat([]byte{0xff}, 40))
	f.Add(make([]byte, 16))
	f.Fuzz(func(t *testing.T, b []byte) {
		parseControl(b)
		unreachable(b)
	})
}

// A pod that forges "port closed" for another pod moves at most one session. The Balancer, which
// would keep all clients away from the other pod, gets no report.
func TestUDPForgedRefusal(t *testing.T) {
	lab := netlab.ForTest(t, netlab.Options{NoNode2: true, NoClient: true})
	r, node := relayOn(t, lab, Config{UDPIdle: time.Minute})
	pod1, _ := netlab.HostByName("pod1")
	var mu sync.Mutex
	var from netip.AddrPort
	var backend *net.UDPConn
	lab.On("pod1", func() {
		backend = udpEcho(t, netip.AddrPortFrom(pod1.V4, 0), func(a netip.AddrPort, _ []byte) {
			mu.Lock()
			from = a
			mu.Unlock()
		})
	})
	b := to(boundAt(backend))
	l := listenUDP(t, r, netip.AddrPortFrom(node.V4, 0), b)
	var c *net.UDPConn
	lab.On("pod3", func() { c = dialUDP(t, l.Addr()) })
	if !ask(t, c, "before", timeout) {
		t.Fatal("no answer")
	}
	mu.Lock()
	source := from
	mu.Unlock()
	quoted := make([]byte, 28) // the header of IP and of UDP that the relay would have sent
	quoted[0], quoted[3], quoted[8], quoted[9] = 0x45, 28, 64, unix.IPPROTO_UDP
	copy(quoted[12:], source.Addr().Unmap().AsSlice())
	copy(quoted[16:], pod1.V4.AsSlice())
	binary.BigEndian.PutUint16(quoted[20:], source.Port())
	binary.BigEndian.PutUint16(quoted[22:], boundAt(backend).Port())
	message := append([]byte{3, 3, 0, 0, 0, 0, 0, 0}, quoted...) // destination unreachable, port
	sum := uint32(0)
	for i := 0; i < len(message); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(message[i:]))
	}
	binary.BigEndian.PutUint16(message[2:], ^uint16(sum>>16+sum&0xffff))
	// An answer that the relay reads after a refusal proves that the backend serves.
	eventually(t, "the session moves", func() bool {
		lab.On("pod2", func() {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMP)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(fd)
			if err := unix.Sendto(fd, message, 0, &unix.SockaddrInet4{Addr: source.Addr().Unmap().As4()}); err != nil {
				t.Fatal(err)
			}
		})
		return ask(t, c, "after", timeout/10) && r.Stats().UDP.Moved == 1
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	if slices.ContainsFunc(b.dialled, func(err error) bool { return err != nil }) {
		t.Errorf("the Balancer's reports are %v", b.dialled)
	}
}

// A host reports itself that it cannot reach a neighbour, and the Balancer gets the report.
func TestUDPNoNeighbour(t *testing.T) {
	lab := netlab.ForTest(t, netlab.Options{NoNode2: true})
	r, node := relayOn(t, lab, Config{UDPIdle: time.Minute})
	lab.On(netlab.Node1, func() { // else the node searches for three seconds
		for _, family := range []string{"ipv4", "ipv6"} {
			files, _ := filepath.Glob("/proc/sys/net/" + family + "/neigh/*/mcast_solicit")
			for _, file := range files {
				if err := os.WriteFile(file, []byte("1"), 0); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
	for i, absent := range []netip.Addr{netip.MustParseAddr("172.18.0.77"), netip.MustParseAddr("fd00:18::77")} {
		b := to(netip.AddrPortFrom(absent, 53))
		l := listenUDP(t, r, netip.AddrPortFrom(node.Addr(i == 1), 0), b)
		var c *net.UDPConn
		lab.On(netlab.Client, func() { c = dialUDP(t, l.Addr()) })
		if _, err := c.Write([]byte("anybody?")); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the Balancer gets the report", func() bool {
			b.mu.Lock()
			defer b.mu.Unlock()
			return slices.ContainsFunc(b.dialled, func(err error) bool { return errors.Is(err, unix.EHOSTUNREACH) })
		})
	}
}
