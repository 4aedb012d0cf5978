package ipvs

import (
	"errors"
	"net/netip"
	"testing"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
)

// An endpoint at a service address gives no client access to a program of the node, which would
// bypass the node's firewall; the client is refused (TN-62). Clients of an external IP that another
// tenant names as an endpoint are still served (TN-61).
func TestIPVSEndpointAtServiceAddress(t *testing.T) {
	inVM(t)
	k := newPackets(t, lb.IPv4)
	const program = 9999
	k.Serve(netlab.TCP, program, netlab.Node1)
	external := netip.MustParseAddrPort("192.0.2.77:80")
	set := func(service string, at ...netip.AddrPort) *lb.BackendSet {
		s := &lb.BackendSet{ID: lb.SetID{Service: service, Proto: lb.TCP, Scope: lb.Cluster}}
		var all []lb.Backend
		for _, a := range at {
			all = append(all, lb.Backend{Addr: a})
		}
		s.Backends = lb.BackendsOf(all...)
		return s
	}
	row := func(to netip.AddrPort, kind lb.Kind, s *lb.BackendSet) *lb.Frontend {
		return &lb.Frontend{Key: lb.Key{Addr: to.Addr(), Port: to.Port(), Proto: lb.TCP}, Service: s.ID.Service,
			Kind: kind, Routes: []lb.Route{{From: lb.Anywhere, Do: lb.Balance, Masq: true, To: s}}}
	}
	apply := func(owner string, rows ...*lb.Frontend) {
		changes, _ := k.table.Replace(lb.Owner{Name: owner}, rows)
		k.On(netlab.Node1, func() {
			must(t, only(k.p.Apply(t.Context(), changes)))
		})
	}
	apply("other/web", row(external, lb.ExternalIP, set("other/web:http", netip.MustParseAddrPort("10.1.1.11:8080"))))
	for i, at := range []netip.Addr{k.vip.Addr(), external.Addr(), netip.MustParseAddr("10.96.0.99")} {
		to := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 0, byte(70 + i)}), 80)
		apply("tenant/"+at.String(), row(to, lb.ClusterIP, set("tenant/"+at.String(), netip.AddrPortFrom(at, program))))
		for _, from := range []string{"pod3", netlab.Client, netlab.Node1} {
			if r, err := k.Dial(from, netlab.TCP, to, netlab.DialOptions{}); !errors.Is(err, netlab.ErrRefused) {
				t.Errorf("%s to a Service with an endpoint at %s: %v, %v: want it refused", from, at, r, err)
			}
		}
	}
	if r, err := k.Dial(netlab.Client, netlab.TCP, external, netlab.DialOptions{}); err != nil || r.Server != "pod1" {
		t.Errorf("the external IP that a tenant names as an endpoint: %v, %v", r, err)
	}
}
