package lb_test

import (
	"net/netip"
	"testing"

	. "kube-proxy/lb"
)

// Nodes are equal if all facts are: another one is a change for planes.
func TestNodeEqual(t *testing.T) {
	if !(Node{}).Equal(Node{}) {
		t.Error("a node differs from itself")
	}
	prefix := []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}
	for _, other := range []Node{{NodePorts: prefix}, {Localhost: IPv4.Loopback()}, {Pods: Detector{Prefixes: prefix}},
		{ServiceCIDRs: prefix}, {APIServers: []netip.Addr{prefix[0].Addr()}}} {
		if other.Equal(Node{}) || (Node{}).Equal(other) || !other.Equal(other) {
			t.Errorf("%+v equals an empty node, or differs from itself", other)
		}
	}
}

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
