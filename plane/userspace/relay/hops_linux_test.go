package relay

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"kube-proxy/lb"
)

// Two relays whose backends are each other, as two nodes are for a Service whose endpoints are their NodePorts, pass on what comes as often
// as routers would, and not for ever.
func TestRelaysInALoop(t *testing.T) {
	const most = 256
	for _, p := range []lb.Proto{lb.TCP, lb.UDP} {
		for _, at := range []netip.AddrPort{loopback, netip.AddrPortFrom(netip.IPv6Loopback(), 0)} {
			t.Run(p.String()+"/"+lb.FamilyOf(at.Addr()).String(), func(t *testing.T) {
				cfg := Config{Descriptors: NewBudget(4000), UDPIdle: time.Minute}
				a, b := newRelay(t, cfg), newRelay(t, cfg)
				one, err := a.Listen(Listening{p, at}, leadsTo(at), nil)
				if err != nil {
					t.Fatal(err)
				}
				two, err := b.Listen(Listening{p, at}, leadsTo(one.Addr()), nil)
				if err != nil {
					t.Fatal(err)
				}
				one.SetBalancer(leadsTo(two.Addr()))
				c, err := net.Dial(map[lb.Proto]string{lb.TCP: "tcp", lb.UDP: "udp"}[p], one.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				if _, err := c.Write([]byte("x")); err != nil {
					t.Fatal(err)
				}
				passed, still := uint64(0), 0
				for deadline := time.Now().Add(10 * time.Second); still < 10; time.Sleep(20 * time.Millisecond) {
					s := a.Stats()
					n := s.TCP.Accepted + s.UDP.ToBackends.Datagrams
					if still++; n != passed || n == 0 {
						passed, still = n, 0
					}
					if passed > most || time.Now().After(deadline) {
						t.Fatalf("passed on %d times", passed)
					}
				}
				if passed < 2 {
					t.Error("it was not passed on at all")
				}
			})
		}
	}
}
