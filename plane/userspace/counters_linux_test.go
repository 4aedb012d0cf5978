package userspace

import (
	"net/netip"
	"testing"
	"time"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/plane/internal/relay"
	"kube-proxy/plane/userspace/redirect"
	"kube-proxy/test/planetest"
)

// Real connections and sessions to a cluster IP and to a NodePort, from pods, the node and outside,
// count once each, with every redirector.
func TestCountersOfALab(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			l := netlab.ForTest(t, netlab.Options{})
			l.Serve(netlab.TCP, 8080, "pod1", "pod4")
			l.Serve(netlab.UDP, 8080, "pod1", "pod4")
			tab, clusterIP, nodePort := planetest.Shop(lb.IPv4)
			dns := netip.MustParseAddrPort("10.96.0.53:53")
			set := &lb.BackendSet{ID: lb.SetID{Service: "shop/dns", Proto: lb.UDP, Scope: lb.Cluster},
				Backends: tab.Get(lb.Key{Addr: clusterIP.Addr(), Port: clusterIP.Port(), Proto: lb.TCP}).
					Routes[0].To.Backends}
			tab.Replace(lb.Owner{Name: "shop/dns"},
				[]*lb.Frontend{{Key: lb.Key{Addr: dns.Addr(), Port: dns.Port(), Proto: lb.UDP}, Service: "shop/dns",
					Kind: lb.ClusterIP, Routes: []lb.Route{{From: lb.Anywhere, Do: lb.Balance, Masq: true, To: set}}}})
			none := lb.Key{Addr: netip.MustParseAddr("10.96.0.99"), Port: 80, Proto: lb.TCP}
			tab.Replace(lb.Owner{Name: "shop/none"},
				[]*lb.Frontend{{Key: none, Service: "shop/none", Kind: lb.ClusterIP,
					Routes: []lb.Route{{From: lb.Anywhere, Do: lb.Reject}}}})
			var p *Plane
			l.On("node1", func() {
				c, err := k.make(redirect.Config{Family: lb.IPv4, Mark: mark})
				if err != nil {
					t.Fatal(err)
				}
				if p, err = New(Config{Family: lb.IPv4, Redirector: c, CountServices: true,
					Relay: relay.Config{Mark: mark, UDPIdle: time.Minute}}); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					if err := p.Close(); err != nil {
						t.Error(err)
					}
				})
				if _, err := planetest.ResetAll(t.Context(), p, tab); err != nil {
					t.Fatal(err)
				}
			})
			dial := func(from string, proto netlab.Proto, to netip.AddrPort) {
				t.Helper()
				if _, err := l.Dial(from, proto, to, netlab.DialOptions{}); err != nil {
					t.Fatalf("%s to %s: %v", from, to, err)
				}
			}
			for range 4 {
				dial("pod2", netlab.TCP, clusterIP)
				dial("client", netlab.TCP, nodePort)
				dial("node1", netlab.TCP, clusterIP)
				dial("pod1", netlab.TCP, clusterIP) // sometimes its own backend
				dial("pod2", netlab.UDP, dns)
			}
			if _, err := l.Dial("pod2", netlab.TCP, netip.AddrPortFrom(none.Addr, none.Port),
				netlab.DialOptions{}); err == nil {
				t.Error("a Service without endpoints answers")
			}
			planetest.WantCounted(t, p, "all", map[string]uint64{"shop/web:http": 16, "shop/dns": 4})
		})
	}
}
