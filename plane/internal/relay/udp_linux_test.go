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
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
)

// engineOf makes the engine of Linux with some loops, with or without the kernel's joining and cutting of datagrams.
func engineOf(loops int, offload bool) func(*Relay) (engine, error) {
	return func(r *Relay) (engine, error) {
		return newUDPEngine(r, newUDPShared(r.cfg.UDPIdle, loops, OpenFiles(), EphemeralPorts()), loops, offload)
	}
}

// sentIn returns how many messages the kernel was given, by how many calls.
func sentIn(r *Relay) (messages, calls uint64) {
	for _, l := range r.udp.(*udpEngine).loops {
		messages += l.sessions.count.messages.Load()
		calls += l.sessions.count.calls.Load()
	}
	return messages, calls
}

func TestUDPEveryDatagramWithoutOffload(t *testing.T) {
	everyDatagram(t, func(cfg Config) *Relay { return startUDP(t, cfg, engineOf(1, false)) })
}

// A train that a client sends arrives as the datagrams it is made of, and so do the replies, with and without the kernel's joining
// (UDP_GRO) and cutting (UDP_SEGMENT); with it they go in a fraction of the messages.
func TestUDPTrains(t *testing.T) {
	for _, offload := range []bool{true, false} {
		t.Run(fmt.Sprintf("offload=%v", offload), func(t *testing.T) {
			for _, at := range []netip.AddrPort{loopback, loopback6} {
				r := startUDP(t, Config{}, engineOf(1, offload))
				l := listenUDP(t, r, at, to(boundAt(udpEcho(t, at, nil))))
				c := dialUDP(t, l.Addr())
				sent := uint64(0)
				for _, train := range []struct{ size, bytes int }{{1, 60}, {100, 6400}, {100, 6399}, {1000, 60000}, {1300, 60001}, {9, 500}, {700, 701}, {1000, 64000}} {
					payload := make([]byte, train.bytes)
					for i := range payload {
						payload[i] = byte(i * 7 / 3)
					}
					control := make([]byte, sendControlSize)
					control = control[:putControl(control, nil, false, train.size, 0)]
					if _, _, err := c.WriteMsgUDP(payload, control, nil); err != nil {
						t.Fatal(err)
					}
					buf := make([]byte, messageSize)
					for want := range slices.Chunk(payload, train.size) {
						c.SetReadDeadline(time.Now().Add(patience))
						n, err := c.Read(buf)
						if err != nil || !bytes.Equal(buf[:n], want) {
							t.Fatalf("train of %d by %d: got %d bytes for %d: %v; %+v", train.bytes, train.size, n, len(want), err, r.Stats().UDP)
						}
						sent++
					}
				}
				eventually(t, "all is counted", func() bool { return r.Stats().UDP.ToClients.Datagrams == sent })
				s := r.Stats().UDP
				if s.ToBackends.Datagrams != sent || s.Dropped != (Dropped{}) {
					t.Errorf("%d datagrams, counted %+v", sent, s)
				}
				if m, _ := sentIn(r); offload && m > 3*sent/2 || !offload && m != 2*sent {
					t.Errorf("%d datagrams both ways in %d messages", sent, m)
				}
			}
		})
	}
}

// A train whose datagrams are longer than the way takes goes one by one, and the loop remembers it for a while.
func TestUDPTrainTooLongForTheWay(t *testing.T) {
	lab := netlab.ForTest(t, netlab.Options{NoNode2: true, NoClient: true})
	lab.On("pod1", func() { command(t, "ip", "link", "set", "eth0", "mtu", "1280") })
	lab.On(netlab.Node1, func() { command(t, "ip", "link", "set", "vethpod1", "mtu", "1280") })
	r, node := relayOn(t, lab, Config{})
	var backend *net.UDPConn
	pod1, _ := netlab.HostByName("pod1")
	lab.On("pod1", func() { backend = udpEcho(t, netip.AddrPortFrom(pod1.V4, 0), nil) })
	l := listenUDP(t, r, netip.AddrPortFrom(node.V4, 0), to(boundAt(backend)))
	var c *net.UDPConn
	lab.On("pod3", func() { c = dialUDP(t, l.Addr()) })
	for _, size := range []int{1400, 1000} {
		payload := bytes.Repeat([]byte{1, 2, 3, 4, 5, 6, 7, 8}, 20*size/8)
		control := make([]byte, sendControlSize)
		if _, _, err := c.WriteMsgUDP(payload, control[:putControl(control, nil, false, size, 0)], nil); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, messageSize)
		for range 20 {
			c.SetReadDeadline(time.Now().Add(patience))
			if n, err := c.Read(buf); n != size {
				t.Fatalf("got %d bytes for %d: %v; %+v", n, size, err, r.Stats().UDP)
			}
		}
	}
	if s := r.Stats().UDP; s.Dropped != (Dropped{}) {
		t.Errorf("%+v", s)
	}
}

// A session whose backend has no such port goes to another with its next datagram, and the Balancer is told. With one
// backend alone it is tried again, and serves as soon as it is back.
func TestUDPBackendDiesAndReturns(t *testing.T) {
	for _, at := range []netip.AddrPort{loopback, loopback6} {
		r := startUDP(t, Config{UDPIdle: time.Minute}, newUDP)
		dead := udpSocketAt(t, at)
		deadAt := boundAt(dead)
		dead.Close()
		b := to(boundAt(udpEcho(t, at, nil)), deadAt)
		l := listenUDP(t, r, at, b)
		c := dialUDP(t, l.Addr())
		c.Write([]byte("to the dead one"))
		refused := func() bool {
			b.mu.Lock()
			defer b.mu.Unlock()
			return slices.ContainsFunc(b.dialled, func(err error) bool { return errors.Is(err, unix.ECONNREFUSED) })
		}
		eventually(t, "the Balancer is told", refused)
		if !ask(t, c, "to the other", patience) {
			t.Errorf("no answer from the other; %+v", r.Stats().UDP)
		}
		if s := r.Stats().UDP; s.Moved != 1 || s.Open != 1 || s.Dropped != (Dropped{}) {
			t.Errorf("%+v", s)
		}

		nobody := to(deadAt)
		alone := listenUDP(t, r, at, nobody)
		c = dialUDP(t, alone.Addr())
		eventually(t, "the client is led there again", func() bool {
			if ask(t, c, "nobody", 20*time.Millisecond) {
				t.Fatal("the dead answer")
			}
			nobody.mu.Lock()
			defer nobody.mu.Unlock()
			return len(nobody.clients) > 2
		})
		nobody.mu.Lock()
		if first := slices.IndexFunc(nobody.clients, func(c Client) bool { return c.Again }); len(nobody.clients) < 2 || first != 1 {
			t.Errorf("a session that is led again and again begins more than once: %+v", nobody.clients)
		}
		nobody.mu.Unlock()
		back := udpEcho(t, deadAt, nil)
		if !ask(t, c, "somebody", patience) {
			t.Errorf("no answer from the backend that is back; %+v", r.Stats().UDP)
		}
		// It dies under many clients: one refusal tells for all of them.
		var clients []*net.UDPConn
		for range 20 {
			clients = append(clients, dialUDP(t, alone.Addr()))
			if !ask(t, clients[len(clients)-1], "before", patience) {
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
			if !ask(t, c, "after", patience) {
				t.Fatalf("client %d: what it sent went to the dead backend; %+v", i, r.Stats().UDP)
			}
		}
	}
}

// A datagram to a backend to which there is no way goes to another at once.
func TestUDPNoWayToBackend(t *testing.T) {
	r := startUDP(t, Config{}, newUDP)
	nowhere := netip.MustParseAddrPort("203.0.113.1:53")
	b := to(boundAt(udpEcho(t, loopback, nil)), nowhere, netip.MustParseAddrPort("203.0.113.2:53"))
	l := listenUDP(t, r, loopback, b)
	for range 6 {
		if c := dialUDP(t, l.Addr()); !ask(t, c, "at once", patience) {
			t.Fatalf("no answer; %+v", r.Stats().UDP)
		}
	}
	only := listenUDP(t, r, loopback, to(nowhere))
	drops(t, r, dialUDP(t, only.Addr()), func(d Dropped) uint64 { return d.SendFailed })
}

// The answer comes from the address that was asked, which the Balancer is told.
func TestUDPAnswersFromTheAddressThatWasAsked(t *testing.T) {
	r := startUDP(t, Config{}, newUDP)
	b := to(boundAt(udpEcho(t, loopback, nil)))
	l := listenUDP(t, r, netip.MustParseAddrPort("0.0.0.0:0"), b)
	for i, asked := range []string{"127.0.0.1", "127.0.0.7", "127.9.9.9"} {
		at := netip.AddrPortFrom(netip.MustParseAddr(asked), l.Addr().Port())
		c := dialUDP(t, at) // takes answers from there alone
		if !ask(t, c, asked, patience) {
			t.Fatalf("%s does not answer", asked)
		}
		b.mu.Lock()
		if b.clients[i].Local != at {
			t.Errorf("the Balancer was told %v for %v", b.clients[i].Local, at)
		}
		b.mu.Unlock()
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
		if r, err = New(unhurried(cfg)); err != nil {
			t.Fatal(err)
		}
	})
	t.Cleanup(r.Close)
	node, _ := netlab.HostByName(netlab.Node1)
	return r, node
}

// Datagrams that a packet filter redirects are answered as if the service address did, of both families; those to a broadcast
// address are not.
func TestUDPRedirected(t *testing.T) {
	lab := netlab.ForTest(t, netlab.Options{NoNode2: true})
	r, node := relayOn(t, lab, Config{})
	pod1, _ := netlab.HostByName("pod1")
	for _, six := range []bool{false, true} {
		family, service, every := "ip", netip.MustParseAddr("10.96.0.53"), netip.IPv4Unspecified()
		if six {
			family, service, every = "ip6", netip.MustParseAddr("fd00:10:96::53"), netip.IPv6Unspecified()
		}
		var backend *net.UDPConn
		lab.On("pod1", func() { backend = udpEcho(t, netip.AddrPortFrom(pod1.Addr(six), 0), nil) })
		l := listenUDP(t, r, netip.AddrPortFrom(every, 0), to(boundAt(backend)))
		lab.On(netlab.Node1, func() {
			command(t, "nft", fmt.Sprintf(`table %s kp { chain pre { type nat hook prerouting priority dstnat; %s daddr %v udp dport 53 dnat to %v; }; }`,
				family, family, service, netip.AddrPortFrom(node.Addr(six), l.Addr().Port())))
		})
		for _, from := range []string{"pod3", netlab.Client} {
			if from == netlab.Client {
				lab.On(from, func() {
					command(t, "ip", "route", "replace", netip.PrefixFrom(service, service.BitLen()).String(), "via", node.Addr(six).String())
				})
			}
			var c *net.UDPConn
			lab.On(from, func() { c = dialUDP(t, netip.AddrPortFrom(service, 53)) })
			for i := range 5 {
				if !ask(t, c, fmt.Sprint(i), patience) {
					t.Fatalf("IPv6 %v: %s gets no answer; %+v", six, from, r.Stats().UDP)
				}
			}
		}
		if six {
			continue
		}
		lab.On(netlab.Client, func() {
			c, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "udp4", ":0")
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			raw, _ := c.(*net.UDPConn).SyscallConn()
			raw.Control(func(fd uintptr) { unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BROADCAST, 1) })
			if _, err := c.WriteTo([]byte("all"), &net.UDPAddr{IP: net.IPv4(172, 18, 0, 255), Port: int(l.Addr().Port())}); err != nil {
				t.Fatal(err)
			}
		})
		eventually(t, "the broadcast is dropped", func() bool { return r.Stats().UDP.Dropped.Malformed == 1 })
	}
}

// many is a socket with as many clients as it likes: any source of 127.0.0.0/8.
type many struct {
	fd    int
	to    udpAddr
	batch *udpBatch
}

func newMany(t testing.TB, to netip.AddrPort) *many {
	t.Helper()
	fd, err := openUDP(netip.MustParseAddrPort("0.0.0.0:0"), false, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20)
	m := &many{fd: fd, to: packAddr(to), batch: newUDPBatch()}
	m.batch.waiting = nil
	return m
}

func sourceOf(client int) (ip [16]byte) {
	mapInto(&ip, []byte{127, byte(64 + client>>16), byte(client >> 8), byte(client)})
	return ip
}

// ask sends a datagram of each client from first on, which is its number.
func (m *many) ask(t testing.TB, first, n int) {
	t.Helper()
	b := m.batch
	for i := range n {
		binary.BigEndian.PutUint64(b.bufs[i*messageSize:], uint64(first+i))
		b.sendIov[i].Base = &b.bufs[i*messageSize]
		b.sendIov[i].SetLen(8)
		h := &b.send[i].hdr
		h.Iov = &b.sendIov[i]
		h.SetIovlen(1)
		h.Namelen = putName(&b.sendName[i], &m.to, false)
		source := sourceOf(first + i)
		h.Control = &b.sendControl[i][0]
		h.SetControllen(putControl(b.sendControl[i], &source, false, 0, 0))
	}
	for sent := 0; sent < n; {
		k, errno := sendmmsg(m.fd, b.send[sent:n])
		if errno != 0 && errno != unix.EINTR && errno != unix.EAGAIN {
			t.Fatal(errno)
		}
		sent += max(k, 0)
	}
}

// askAgain waits until each of n clients from first on has had its answer. What the queue of a loaded machine dropped on its way (each CPU
// has one for all links) they send again after a second, and it returns how many did; but not for ever.
func (m *many) askAgain(t testing.TB, first, n int, why func() string) (again int) {
	t.Helper()
	missing := map[int]bool{}
	for i := range n {
		missing[first+i] = true
	}
	end, next := time.Now().Add(patience), time.Now().Add(time.Second)
	for len(missing) > 0 {
		if m.answers(t, func(client int) { delete(missing, client) }) > 0 {
			continue
		}
		switch now := time.Now(); {
		case now.After(end):
			t.Fatalf("%d of the clients %d to %d got no answer; %s", len(missing), first, first+n-1, why())
		case now.After(next):
			for client := range missing {
				m.ask(t, client, 1)
			}
			again += len(missing)
			next = now.Add(time.Second)
		}
		unix.Poll([]unix.PollFd{{Fd: int32(m.fd), Events: unix.POLLIN}}, 100)
	}
	return again
}

// answers takes what has come, tells whose it is, and returns how many; each must have reached the client that asked.
func (m *many) answers(t testing.TB, got func(client int)) (n int) {
	t.Helper()
	b := m.batch
	for i := range b.recv {
		b.recv[i].hdr.Namelen = nameSize
		b.recv[i].hdr.SetControllen(recvControlSize)
	}
	n, errno := recvmmsg(m.fd, b.recv[:])
	if errno != 0 {
		return 0
	}
	for i := range n {
		from, _ := getName(b.recvName[i][:])
		info := parseControl(b.recvControl[i][:b.recv[i].hdr.Controllen])
		client := int(binary.BigEndian.Uint64(b.bufs[i*messageSize:]))
		if b.recv[i].length != 8 || info.local != sourceOf(client) || from != m.to {
			t.Fatalf("client %v got %d bytes, the answer to client %d, from %v", info.local, b.recv[i].length, client, from.addrPort())
		}
		got(client)
	}
	return n
}

// round leads to one backend after the other, and remembers nothing.
type round struct {
	backends []netip.AddrPort
	next     atomic.Uint32
}

func (r *round) Pick(Client, []netip.AddrPort) (netip.AddrPort, Answer) {
	return r.backends[int(r.next.Add(1))%len(r.backends)], Forward
}
func (*round) Dialled(Client, netip.AddrPort, error) {}

// processMemory is what the process has, in bytes: the heap of Go, and resident pages.
type processMemory struct{ heap, resident int64 }

func measure(t testing.TB) (m processMemory) {
	t.Helper()
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	m.heap = int64(stats.HeapAlloc)
	var size, pages int64
	statm, _ := os.ReadFile("/proc/self/statm")
	if _, err := fmt.Sscan(string(statm), &size, &pages); err != nil {
		t.Fatal(err)
	}
	m.resident = pages * int64(os.Getpagesize())
	return m
}

func openDescriptors(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// 100,000 sessions of as many clients, each answered, take the memory and the descriptors that docs/adr/0038 states, and all of it
// is given back.
func TestUDPHundredThousandSessions(t *testing.T) {
	const sessions, backends = 100_000, 100
	t.Run("what the runtime keeps for good", func(t *testing.T) { ask(t, dialUDP(t, boundAt(udpEcho(t, loopback, nil))), "", patience) })
	goroutines, descriptors := runtime.NumGoroutine(), openDescriptors(t)
	t.Run("relay", func(t *testing.T) {
		b := &round{}
		for range backends {
			b.backends = append(b.backends, boundAt(udpEcho(t, loopback, nil)))
		}
		r := startUDP(t, Config{UDPIdle: 5 * time.Minute}, newUDP)
		l := listenUDP(t, r, loopback, b)
		clients := newMany(t, l.Addr())
		before, filesBefore := measure(t), openDescriptors(t)
		begun, again := time.Now(), 0
		for first := 0; first < sessions; {
			n := min(batchSize, sessions-first)
			clients.ask(t, first, n)
			first += n
			again += clients.askAgain(t, first-n, n, func() string { return fmt.Sprintf("%+v", r.Stats().UDP) })
		}
		took := time.Since(begun)
		after, filesAfter := measure(t), openDescriptors(t)
		s := r.Stats().UDP
		if again > sessions/100 {
			t.Errorf("%d datagrams were sent again", again)
		}
		if s.Open != sessions || s.Opened != sessions || s.Evicted != 0 || s.Dropped != (Dropped{}) {
			t.Fatalf("%+v", s)
		}
		if files := filesAfter - filesBefore; int64(files) != s.Sockets || files > maxUDPSockets {
			t.Errorf("%d descriptors for %d sockets", files, s.Sockets)
		}
		t.Logf("%d sessions in %v: %.1f MB of heap (%d bytes each), %.1f MB resident, %d sockets",
			sessions, took.Round(time.Millisecond), float64(after.heap-before.heap)/1e6, (after.heap-before.heap)/sessions, float64(after.resident-before.resident)/1e6, s.Sockets)
		if heap := after.heap - before.heap; heap > 320*sessions {
			t.Errorf("%d bytes of heap", heap)
		}
		l.Leave(b.backends[:backends/2], 0)
		if n := r.Stats().UDP.Open; n < sessions/2-backends || n > sessions/2+backends {
			t.Errorf("%d sessions are left to half of the backends", n)
		}
		l.Close()
		if n := r.Stats().UDP.Open; n != 0 {
			t.Errorf("%d sessions are left", n)
		}
	})
	eventually(t, fmt.Sprintf("no more than %d goroutines and %d descriptors are left", goroutines, descriptors), func() bool {
		return runtime.NumGoroutine() <= goroutines && openDescriptors(t) <= descriptors
	})
}

func overflows(t testing.TB) uint64 {
	t.Helper()
	n, err := netlab.Overflows()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A flood of more clients than there is room for takes nothing from the Service beside: none of its datagrams is lost, nor its
// session, and the sum stays below the bound.
func TestUDPFloodBesideAService(t *testing.T) {
	const bound = 1 << 13
	for _, loops := range []int{1, 2} {
		r := startUDP(t, Config{UDPIdle: 5 * time.Minute}, func(r *Relay) (engine, error) {
			shared := newUDPShared(r.cfg.UDPIdle, loops, OpenFiles(), EphemeralPorts())
			shared.limits.sessions, shared.limits.share = bound, bound/int64(loops)
			return newUDPEngine(r, shared, loops, true)
		})
		sink := &round{}
		for range 64 {
			sink.backends = append(sink.backends, boundAt(udpSocketAt(t, loopback))) // never read
		}
		flooded := listenUDP(t, r, loopback, sink)
		var seen sync.Map
		polite := listenUDP(t, r, loopback, to(boundAt(udpEcho(t, loopback, func(from netip.AddrPort, _ []byte) { seen.Store(from, true) }))))
		c := dialUDP(t, polite.Addr())
		done := make(chan struct{})
		var flood sync.WaitGroup
		flood.Go(func() {
			m := newMany(t, flooded.Addr())
			for first := 0; ; first = (first + batchSize) % (4 << 20) {
				select {
				case <-done:
					return
				default:
					m.ask(t, first, batchSize)
				}
			}
		})
		asked, lost, before := 0, uint64(0), overflows(t)
		for full := false; !full || asked < 500; asked++ {
			for !ask(t, c, fmt.Sprint(asked), patience/4) {
				// The flood goes through the queue of a CPU too, which may be full.
				if lost++; lost > overflows(t)-before {
					t.Fatalf("%d loops: datagram %d is lost; %+v", loops, asked, r.Stats().UDP)
				}
			}
			s := r.Stats().UDP
			full = full || s.Evicted > 4*bound
			if s.Open > 2*bound {
				t.Fatalf("%+v", s)
			}
		}
		close(done)
		flood.Wait()
		ports := 0
		seen.Range(func(any, any) bool { ports++; return true })
		if ports != 1 {
			t.Errorf("%d loops: the backend beside saw %d sessions of one client", loops, ports)
		}
		r.Close()
	}
}

// Without a descriptor new sessions are dropped and counted, those that are open go on, and all is well when there are some again.
func TestUDPOutOfDescriptors(t *testing.T) {
	r := startUDP(t, Config{UDPIdle: time.Minute}, engineOf(1, true))
	backend := boundAt(udpEcho(t, loopback, nil))
	l := listenUDP(t, r, loopback, to(backend))
	six := listenUDP(t, r, loopback, to(boundAt(udpEcho(t, loopback6, nil))))
	open, later := dialUDP(t, l.Addr()), dialUDP(t, six.Addr())
	if !ask(t, open, "open", patience) {
		t.Fatal("no answer")
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	none := limit
	none.Cur = 3
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	drops(t, r, later, func(d Dropped) uint64 { return d.NoSocket })
	if !ask(t, open, "still open", patience) {
		t.Error("an open session gets no answer")
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	eventuallyAsk(t, later, "later")
}

// A datagram that is passed on, and its reply, allocate nothing.
func TestUDPAllocs(t *testing.T) {
	r := startUDP(t, Config{UDPIdle: time.Minute}, engineOf(1, true))
	backend := newMany(t, loopback)
	at, err := boundTo(backend.fd)
	if err != nil {
		t.Fatal(err)
	}
	l := listenUDP(t, r, loopback, to(netip.AddrPortFrom(loopback.Addr(), at.Port())))
	client := newMany(t, l.Addr())
	exchange := func() {
		client.ask(t, 1, 1)
		b := backend.batch
		for {
			b.recv[0].hdr.Namelen = nameSize
			b.recv[0].hdr.SetControllen(recvControlSize)
			if n, _ := recvmmsg(backend.fd, b.recv[:1]); n == 1 {
				break
			}
		}
		from, _ := getName(b.recvName[0][:])
		backend.to = from
		h := &b.send[0].hdr
		b.sendIov[0].Base = &b.bufs[0]
		b.sendIov[0].SetLen(int(b.recv[0].length))
		h.Iov = &b.sendIov[0]
		h.SetIovlen(1)
		h.Namelen = putName(&b.sendName[0], &from, false)
		h.Control = nil
		h.SetControllen(0)
		sendmmsg(backend.fd, b.send[:1])
		for client.answers(t, func(int) {}) == 0 {
		}
	}
	exchange()
	if n := testing.AllocsPerRun(500, exchange); n != 0 {
		t.Errorf("%v allocations for a datagram and its reply", n)
	}
}

// Neither goroutines nor descriptors are left, however often a relay begins and ends.
func TestUDPLeavesNothing(t *testing.T) {
	eachUDP(t, func(t *testing.T, start func(Config) *Relay) {
		backend := boundAt(udpEcho(t, loopback, nil))
		var goroutines, descriptors int
		for i := range 6 {
			r := start(Config{})
			for range 3 {
				l := listenUDP(t, r, loopback, to(backend))
				c := dialUDP(t, l.Addr())
				if !ask(t, c, "x", patience) {
					t.Fatal("no answer")
				}
				c.Close()
			}
			r.Close()
			if i == 0 {
				goroutines, descriptors = runtime.NumGoroutine(), openDescriptors(t)
			}
		}
		eventually(t, "nothing is left", func() bool {
			return runtime.NumGoroutine() <= goroutines && openDescriptors(t) <= descriptors
		})
	})
}

// Listeners come and go while clients send to them, from many goroutines.
func TestUDPComeAndGo(t *testing.T) {
	eachUDP(t, func(t *testing.T, start func(Config) *Relay) {
		r := start(Config{UDPIdle: 2 * time.Millisecond})
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
							l.Leave(b.backends[:1], 0)
						}
					}
					l.Close()
					l.Leave(b.backends, 0)
					l.Close()
					c.Close()
					r.Stats()
				}
			})
		}
		work.Wait()
		eventually(t, "no session is left", func() bool { return r.Stats().UDP.Open == 0 })
	})
}

// FuzzUDPControl reads what a kernel would never write: nothing panics, and what putControl writes is read as it was meant.
func FuzzUDPControl(f *testing.F) {
	good := make([]byte, sendControlSize)
	from := [16]byte{10: 0xff, 11: 0xff, 12: 10, 13: 1, 14: 2, 15: 3}
	f.Add(good[:putControl(good, &from, false, 0, 0)], 0, 0)
	f.Add(bytes.Repeat([]byte{0xff}, 40), 65507, 1)
	f.Add(make([]byte, 16), 0, 1000)
	f.Fuzz(func(t *testing.T, b []byte, length, segment int) {
		parseControl(b)
		unreachable(b)
		getName(b)
		if a, ok := getName(b); ok {
			var name [nameSize]byte
			n := putName(&name, &a, binary.NativeEndian.Uint16(b) == unix.AF_INET6)
			if again, ok := getName(name[:n]); !ok || again != a {
				t.Fatalf("%v is read back as %v", a, again)
			}
		}
		// Segments: as many as it takes to send all bytes, each in one piece.
		if length < 0 || length > messageSize {
			return
		}
		n := segments(length, segment)
		pieces := 0
		for off := 0; off == 0 || off < length; off += max(segment, 1) {
			pieces++
			if segment <= 0 {
				break
			}
		}
		if n != pieces {
			t.Fatalf("%d bytes by %d are %d datagrams, counted as %d", length, segment, pieces, n)
		}
	})
}

// A port that a socket to backends has by chance is given up for a listener: a Service may have any port. The sessions of the
// socket go on from another port; a port that somebody else has stays in use.
func TestUDPListensAtAPortOfItsOwnSockets(t *testing.T) {
	r := startUDP(t, Config{UDPIdle: time.Minute}, engineOf(2, true))
	var mu sync.Mutex
	ports := map[uint16]bool{}
	b := to(boundAt(udpEcho(t, loopback, func(from netip.AddrPort, _ []byte) {
		mu.Lock()
		ports[from.Port()] = true
		mu.Unlock()
	})))
	var clients []*net.UDPConn
	for range 2 { // one for each loop
		l := listenUDP(t, r, loopback, b)
		clients = append(clients, dialUDP(t, l.Addr()))
	}
	for _, c := range clients {
		if !ask(t, c, "before", patience) {
			t.Fatal("no answer")
		}
	}
	mu.Lock()
	taken := ports
	ports = map[uint16]bool{}
	mu.Unlock()
	for port := range taken {
		l := listenUDP(t, r, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.9"), port), b)
		if !ask(t, dialUDP(t, l.Addr()), "at the port", patience) {
			t.Error("no answer at the port")
		}
		if _, err := r.Listen(Listening{lb.UDP, l.Addr()}, b, nil); !errors.Is(err, unix.EADDRINUSE) {
			t.Errorf("a port of a listener is %v", err)
		}
	}
	for _, c := range clients {
		if !ask(t, c, "after", patience) {
			t.Errorf("no answer to a session that was there before; %+v", r.Stats().UDP)
		}
	}
	if s := r.Stats().UDP; s.Opened != 4 || s.Dropped != (Dropped{}) {
		t.Errorf("%+v", s)
	}
	other := udpSocketAt(t, loopback)
	if _, err := r.Listen(Listening{lb.UDP, boundAt(other)}, b, nil); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("a port of somebody else is %v", err)
	}
}

// FuzzUDPCollect joins any datagrams to messages: what the kernel cuts each into is what was received, in its order, and the kernel
// takes each message.
func FuzzUDPCollect(f *testing.F) {
	f.Add([]byte{0, 100, 1, 0, 100, 1, 0, 50, 1, 0, 100, 1, 0, 0, 1, 0, 0, 1}, uint16(1400))
	f.Add(bytes.Repeat([]byte{4, 0, 2}, batchSize), uint16(1024))
	f.Add([]byte{255, 227, 9, 0, 1, 1, 0, 2, 2, 200, 0, 129, 0, 100, 1}, uint16(0))
	b := newUDPBatch()
	f.Fuzz(func(t *testing.T, ops []byte, limit uint16) {
		s := &udpSocket{}
		b.waiting = b.waiting[:0]
		type piece struct {
			client uint32
			length int
		}
		var want []piece
		slot := 0
		for ; len(ops) >= 3 && slot < batchSize; ops = ops[3:] {
			d := &b.datagrams[slot]
			*d = datagram{length: min(int(binary.BigEndian.Uint16(ops)), 65507), session: uint32(ops[2] % 4)}
			d.to.port = d.session
			if ops[2] >= 128 && d.length > 1 { // the kernel joined it
				d.segment = 1 + d.length/(2+int(ops[2]%30))
				if segments(d.length, d.segment) < 2 {
					d.segment = 0
				}
			}
			left := d.length
			for range segments(d.length, d.segment) {
				n := left
				if d.segment > 0 {
					n = min(left, d.segment)
				}
				want = append(want, piece{d.session, n})
				left -= n
			}
			b.queue(s, slot)
			slot++
		}
		b.collect(s, int(limit))
		var got []piece
		for i := range b.out {
			o, h := &b.out[i], &b.send[i].hdr
			if o.parts > trainLength || o.parts > 1 && (o.bytes > trainBytes || o.segment > int(limit)) {
				t.Fatalf("%d datagrams, %d bytes, %d each at most %d in a message", o.parts, o.bytes, o.segment, limit)
			}
			total := 0
			for part := o.iov; part < o.iov+o.parts; part++ {
				total += int(b.sendIov[part].Len)
			}
			if total != o.bytes || int(h.Iovlen) != o.parts || h.Iov != &b.sendIov[o.iov] {
				t.Fatalf("%d bytes in %d parts, counted as %d in %d", total, h.Iovlen, o.bytes, o.parts)
			}
			size := o.trainSegment()
			if control := int(h.Controllen); (control > 0) != (size > 0) {
				t.Fatalf("%d bytes of control for segments of %d", control, size)
			}
			if size == 0 { // the kernel sends it as it is
				got = append(got, piece{o.session, total})
				if o.parts != 1 {
					t.Fatalf("%d parts are one datagram", o.parts)
				}
				continue
			}
			for ; total > 0; total -= min(total, size) {
				got = append(got, piece{o.session, min(total, size)})
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("sent %v for %v", got, want)
		}
	})
}

// A pod that claims for another that its port is closed moves one session at most: the Balancer, which would keep everybody away
// from the other, is not told.
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
	if !ask(t, c, "before", patience) {
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
	eventually(t, "the session moves", func() bool { return ask(t, c, "after", patience) && r.Stats().UDP.Moved == 1 })
	b.mu.Lock()
	defer b.mu.Unlock()
	if slices.ContainsFunc(b.dialled, func(err error) bool { return err != nil }) {
		t.Errorf("the Balancer was told %v", b.dialled)
	}
}

// What a host itself cannot reach it says itself, and the Balancer is told.
func TestUDPNoNeighbour(t *testing.T) {
	lab := netlab.ForTest(t, netlab.Options{NoNode2: true})
	r, node := relayOn(t, lab, Config{UDPIdle: time.Minute})
	for i, nobody := range []netip.Addr{netip.MustParseAddr("172.18.0.77"), netip.MustParseAddr("fd00:18::77")} {
		b := to(netip.AddrPortFrom(nobody, 53))
		l := listenUDP(t, r, netip.AddrPortFrom(node.Addr(i == 1), 0), b)
		var c *net.UDPConn
		lab.On(netlab.Client, func() { c = dialUDP(t, l.Addr()) })
		if _, err := c.Write([]byte("anybody?")); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the Balancer is told", func() bool {
			b.mu.Lock()
			defer b.mu.Unlock()
			return slices.ContainsFunc(b.dialled, func(err error) bool { return errors.Is(err, unix.EHOSTUNREACH) })
		})
	}
}
