package policy

import (
	"net/netip"
	"testing"

	"kube-proxy/cluster"
	"kube-proxy/lb"
)

// PR-03: the primary family is that of the specific bind address, else that of the Node's first
// address, else that of the unspecified bind address.
func TestPrimaryFamilyPR03(t *testing.T) {
	v4, v6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	for _, c := range []struct {
		name string
		bind netip.Addr
		node []netip.Addr
		want lb.Family
	}{
		{"specific bind address", v6, []netip.Addr{v4}, lb.IPv6},
		{"the Node's first address", netip.IPv4Unspecified(), []netip.Addr{v6, v4}, lb.IPv6},
		{"the Node's first address, the other way", netip.IPv6Unspecified(), []netip.Addr{v4, v6}, lb.IPv4},
		{"no Node, unspecified bind address", netip.IPv6Unspecified(), nil, lb.IPv6},
		{"nothing is known", netip.Addr{}, nil, lb.IPv4},
	} {
		var s Settings
		s.NodePortAddrs.NodeIP = c.bind
		var f cluster.Facts
		if c.node != nil {
			f.Node = &cluster.Node{Name: "n1", Addrs: c.node}
		}
		if got := ResolveNodeIPs(f, s).Primary; got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
