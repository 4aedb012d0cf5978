package lb_test

import (
	"net/netip"
	"testing"

	. "kube-proxy/lb"
)

// Only external addresses within the service network have a provisional owner (SV-24).
func TestIsProvisional(t *testing.T) {
	n := Node{ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}}
	in, out := netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("192.0.2.1")
	for _, c := range []struct {
		kind Kind
		addr netip.Addr
		want bool
	}{
		{ExternalIP, in, true}, {LoadBalancer, in, true}, {ExternalIP, out, false}, {LoadBalancer, out, false},
		{ClusterIP, in, false}, {NodePort, in, false}, {HealthCheck, in, false},
	} {
		if got := n.IsProvisional(&Frontend{Kind: c.kind, Key: Key{Addr: c.addr}}); got != c.want {
			t.Errorf("%v %v: %t", c.kind, c.addr, got)
		}
	}
	if n.IsProvisional(nil) {
		t.Error("no frontend is provisional")
	}
}
