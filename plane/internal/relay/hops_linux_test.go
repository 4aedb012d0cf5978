package relay

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/test/seedtest"
)

// withHops dials with packets that may pass so many routers. It returns nil if the connection is
// already reset.
func withHops(t *testing.T, at netip.AddrPort, hops int) net.Conn {
	t.Helper()
	d := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) (err error) {
		raw.Control(func(fd uintptr) {
			if at.Addr().Is4() {
				err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TTL, hops)
			} else {
				err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, hops)
			}
		})
		return err
	}}
	c, err := d.Dial("tcp", at.String())
	if errors.Is(err, syscall.ECONNRESET) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// withoutBackend returns how many clients of a relay have no backend yet.
func withoutBackend(r *Relay) (n int) {
	e, counts := r.conns.(*conns), make(chan int)
	e.each(func(l *loop) {
		n := 0
		for _, c := range l.conns {
			if c != nil && c.dial != nil {
				n++
			}
		}
		counts <- n
	})
	for range e.loops {
		n += <-counts
	}
	return n
}

// Relays forward to each other and to backends that reset, refuse or stay silent. One client costs
// at most one accepted connection for each of its hops, and for each of these one failed attempt
// per backend (TN-40).
func TestRelaysOfRandomGraphs(t *testing.T) {
	random := rand.New(rand.NewPCG(seedtest.Of(t), 40))
	backends := []netip.AddrPort{
		serve(t, echo), serve(t, func(c *net.TCPConn) { c.SetLinger(0) }), serve(t, func(c *net.TCPConn) {
			c.Read(make([]byte, 1))
		}),
		netip.MustParseAddrPort("127.0.0.1:1"), netip.MustParseAddrPort("127.0.0.2:1"),
	}
	longest := uint64(0)
	for range 40 {
		longest = max(longest, costOfOneClient(t, random, backends))
	}
	if longest < 10 {
		t.Errorf("no client came through more than %d relays: nothing was proven", longest)
	}
}

// costOfOneClient makes relays that lead to each other and to backends at random, connects once,
// and returns how many relays accepted it.
func costOfOneClient(t *testing.T, random *rand.Rand, backends []netip.AddrPort) uint64 {
	relays := make([]*Relay, 1+random.IntN(4))
	listeners, leads := make([]*Listener, len(relays)), make([]*turns, len(relays))
	for i := range relays {
		relays[i] = newRelay(t, Config{Descriptors: NewBudget(8000)})
		defer relays[i].Close()
		listeners[i] = listen(t, relays[i], to())
	}
	for i, l := range listeners {
		leads[i] = to()
		for range 1 + random.IntN(5) {
			a := backends[random.IntN(len(backends))]
			if random.IntN(3) > 0 {
				a = listeners[random.IntN(len(listeners))].Addr()
			}
			if !slices.Contains(leads[i].backends, a) {
				leads[i].backends = append(leads[i].backends, a)
			}
		}
		l.SetBalancer(leads[i])
	}
	hops := uint64(2 + random.IntN(40))
	c := withHops(t, listeners[0].Addr(), int(hops))
	if c != nil && random.IntN(2) == 0 {
		c.Write([]byte("x"))
	}
	accepted := uint64(0)
	eventually(t, "the client has a backend, or is reset", func() bool {
		accepted = 0
		failed, reached, busy := uint64(0), uint64(1), 0
		for i, r := range relays {
			s := r.Stats().TCP
			accepted, failed, busy = accepted+s.Accepted, failed+s.DialsFailed, busy+withoutBackend(r)
			leads[i].mu.Lock()
			for _, a := range leads[i].reached {
				if slices.ContainsFunc(listeners, func(l *Listener) bool { return l.Addr() == a }) {
					reached++
				}
			}
			leads[i].mu.Unlock()
		}
		if accepted > hops || failed > hops*5 {
			t.Fatalf("%d relays: a client with %d hops was accepted %d times, and %d attempts failed", len(relays),
				hops, accepted, failed)
		}
		return busy == 0 && accepted == reached
	})
	return accepted
}

// Packets that may pass only a few routers do not reach an endpoint behind more of them. Neither
// the router's answer nor its silence proves anything about the endpoint (TN-41). A client with
// enough hops proves that the endpoint is gone.
func TestClientsTTL(t *testing.T) {
	lab := netlab.ForTest(t, netlab.Options{NoClient: true})
	lab.Serve(netlab.TCP, 8080, "pod4")
	pod4, _ := netlab.HostByName("pod4")
	r, node := relayOn(t, lab, Config{DialTimeout: 200 * time.Millisecond})
	for _, silent := range []bool{false, true} {
		if silent {
			lab.On(netlab.Node2, func() {
				command(t, "nft", "table inet quiet { chain out { type filter hook output priority 0; icmp type "+
					"time-exceeded drop; icmpv6 type time-exceeded drop; }; }")
			})
		}
		for _, six := range []bool{false, true} {
			t.Run(fmt.Sprintf("silent=%v/six=%v", silent, six), func(t *testing.T) {
				b := to(netip.AddrPortFrom(pod4.Addr(six), 8080))
				l := listenAt(t, r, Listening{lb.TCP, netip.AddrPortFrom(node.Addr(six), 0)}, b)
				dialledWith := func(hops int) (failed uint64, reported []error) {
					before := r.Stats().TCP.DialsFailed
					lab.On("pod1", func() {
						if c := withHops(t, l.Addr(), hops); c != nil {
							c.SetDeadline(time.Now().Add(timeout))
							c.Write([]byte("x\n"))
							c.Read(make([]byte, 1))
						}
					})
					b.mu.Lock()
					defer b.mu.Unlock()
					reported, b.dialled = b.dialled, nil
					return r.Stats().TCP.DialsFailed - before, reported
				}
				if failed, reported := dialledWith(2); failed != 1 || len(reported) != 0 {
					t.Errorf("with 2 hops %d attempts failed, and the balancer's reports are %v", failed, reported)
				}
				if failed, reported := dialledWith(64); failed != 0 || len(reported) != 1 || reported[0] != nil {
					t.Errorf("with 64 hops %d attempts failed, and the balancer's reports are %v", failed, reported)
				}
				lab.On(netlab.Node2, func() {
					command(t, "nft", "table inet gone { chain forward { type filter hook forward priority 0; tcp "+
						"dport 8080 drop; }; }")
				})
				if failed, reported := dialledWith(64); failed != 1 || len(reported) != 1 || reported[0] == nil {
					t.Errorf("gone: %d attempts failed, and the balancer's reports are %v", failed, reported)
				}
				lab.On(netlab.Node2, func() { command(t, "nft", "delete table inet gone") })
			})
		}
	}
}

// The same for UDP (TN-41). The endpoint is a port that another node translates, so the router's
// answer comes from the endpoint's address.
func TestClientsTTLUDP(t *testing.T) {
	lab := netlab.ForTest(t, netlab.Options{NoClient: true})
	lab.Serve(netlab.UDP, 8080, "pod4")
	pod4, _ := netlab.HostByName("pod4")
	node2, _ := netlab.HostByName(netlab.Node2)
	r, node := relayOn(t, lab, Config{})
	for _, six := range []bool{false, true} {
		family := map[bool]string{false: "ip", true: "ip6"}[six]
		lab.On(netlab.Node2, func() {
			command(t, "nft", fmt.Sprintf("table %s kp { chain pre { type nat hook prerouting priority dstnat; udp "+
				"dport 30080 dnat to %v; }; }",
				family, netip.AddrPortFrom(pod4.Addr(six), 8080)))
		})
		b := to(netip.AddrPortFrom(node2.Addr(six), 30080))
		l := listenUDP(t, r, netip.AddrPortFrom(node.Addr(six), 0), b)
		lab.On("pod1", func() {
			c := dialUDP(t, l.Addr())
			c.Write([]byte("arrives\n"))
			eventually(t, "the endpoint has answered", func() bool { return r.Stats().UDP.ToClients.Datagrams > 0 })
			raw, _ := c.SyscallConn()
			raw.Control(func(fd uintptr) {
				unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TTL, 2)
				unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, 2)
			})
			for range 5 {
				ask(t, c, "does not", 20*time.Millisecond)
			}
		})
		b.mu.Lock()
		if slices.ContainsFunc(b.dialled, func(err error) bool { return err != nil }) {
			t.Errorf("IPv6 %v: the balancer's reports are %v", six, b.dialled)
		}
		b.mu.Unlock()
	}
}
