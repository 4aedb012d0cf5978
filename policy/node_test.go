package policy_test

import (
	"net/netip"
	"strings"
	"testing"

	"kube-proxy/cluster"
	"kube-proxy/lb"
	"kube-proxy/policy"
)

// TestResolveNode compares with the node's line in a table's text. The node has the addresses
// 172.18.0.2, 203.0.113.2 and fd00::2 in this order, internal ones first.
func TestResolveNode(t *testing.T) {
	nodeIP := netip.MustParseAddr
	for _, test := range []struct {
		name   string
		family lb.Family
		change func(*cluster.Facts, *policy.Settings)
		want   string
	}{
		{"CF-65 no address asked for: all", lb.IPv4, func(*cluster.Facts, *policy.Settings) {}, "nodeports 0.0.0.0/0"},
		{"CF-65 IPv6", lb.IPv6, func(*cluster.Facts, *policy.Settings) {}, "nodeports ::/0"},
		{"CF-65 only the other family asked for: all", lb.IPv6, func(_ *cluster.Facts, s *policy.Settings) {
			s.NodePortAddrs.Prefixes = prefixes("10.0.0.0/8")
		}, "nodeports ::/0"},
		{"CF-65 of this family", lb.IPv4, func(_ *cluster.Facts, s *policy.Settings) {
			s.NodePortAddrs.Prefixes = prefixes("192.168.1.7/24", "fd00::/64", "10.1.0.0/16", "10.0.0.0/8")
		}, "nodeports 10.0.0.0/8,192.168.1.0/24"},
		{"CF-65 a /0 makes the others irrelevant", lb.IPv4, func(_ *cluster.Facts, s *policy.Settings) {
			s.NodePortAddrs = policy.NodePortAddrs{Primary: true, Prefixes: prefixes("10.0.0.0/8", "0.0.0.0/0")}
		}, "nodeports 0.0.0.0/0"},
		{"PR-03 SV-65 primary is the first internal address", lb.IPv4, func(_ *cluster.Facts, s *policy.Settings) {
			s.NodePortAddrs.Primary = true
		}, "nodeports 172.18.0.2/32"},
		{"PR-03 primary, IPv6", lb.IPv6, func(_ *cluster.Facts, s *policy.Settings) {
			s.NodePortAddrs.Primary = true
		}, "nodeports fd00::2/128"},
		{"primary and prefixes", lb.IPv4, func(_ *cluster.Facts, s *policy.Settings) {
			s.NodePortAddrs = policy.NodePortAddrs{Primary: true, Prefixes: prefixes("127.0.0.0/8", "fd00::/64")}
		}, "nodeports 127.0.0.0/8,172.18.0.2/32 localhost 127.0.0.1"},
		{"TN-56 everything and the loopback address", lb.IPv4, func(_ *cluster.Facts, s *policy.Settings) {
			s.NodePortAddrs.Prefixes = prefixes("0.0.0.0/0", "127.0.0.1/32")
		}, "nodeports 0.0.0.0/0 localhost 127.0.0.1"},
		{"TN-56 everything alone", lb.IPv6, func(_ *cluster.Facts, s *policy.Settings) {
			s.NodePortAddrs.Prefixes = prefixes("0.0.0.0/0", "::/0", "127.0.0.0/8")
		}, "nodeports ::/0"},
		{"TN-56 IPv6", lb.IPv6, func(_ *cluster.Facts, s *policy.Settings) {
			s.NodePortAddrs = policy.NodePortAddrs{Primary: true, Prefixes: prefixes("127.0.0.0/8", "::1/128")}
		}, "nodeports ::1/128,fd00::2/128 localhost ::1"},
		{"TN-56 another loopback address", lb.IPv4, func(_ *cluster.Facts, s *policy.Settings) {
			s.NodePortAddrs.Prefixes = prefixes("127.0.0.2/32")
		}, "nodeports 127.0.0.2/32"},
		{"primary inside a prefix", lb.IPv4, func(_ *cluster.Facts, s *policy.Settings) {
			s.NodePortAddrs = policy.NodePortAddrs{Primary: true, Prefixes: prefixes("172.18.0.0/16")}
		}, "nodeports 172.18.0.0/16"},
		{"primary with a bind address", lb.IPv4, func(_ *cluster.Facts, s *policy.Settings) {
			s.NodePortAddrs = policy.NodePortAddrs{Primary: true, NodeIP: nodeIP("203.0.113.2")}
		}, "nodeports 203.0.113.2/32"},
		{"primary with a bind address of the other family", lb.IPv6, func(_ *cluster.Facts, s *policy.Settings) {
			s.NodePortAddrs = policy.NodePortAddrs{Primary: true, NodeIP: nodeIP("203.0.113.2")}
		}, "nodeports fd00::2/128"},
		{"primary with an unspecified bind address", lb.IPv4, func(_ *cluster.Facts, s *policy.Settings) {
			s.NodePortAddrs = policy.NodePortAddrs{Primary: true, NodeIP: nodeIP("0.0.0.0")}
		}, "nodeports 172.18.0.2/32"},
		{"primary, no address known: nowhere", lb.IPv4, func(f *cluster.Facts, s *policy.Settings) {
			f.Node, s.NodePortAddrs.Primary = nil, true
		}, ""},
		{"primary, no address known, but a prefix", lb.IPv4, func(f *cluster.Facts, s *policy.Settings) {
			f.Node, s.NodePortAddrs = nil, policy.NodePortAddrs{Primary: true, Prefixes: prefixes("10.0.0.0/8")}
		}, "nodeports 10.0.0.0/8"},
		{"3.5 ClusterCIDR: all CIDRs of the family", lb.IPv4, func(_ *cluster.Facts, s *policy.Settings) {
			s.ClusterCIDRs = prefixes("10.2.0.0/16", "fd00:1::/48", "10.1.0.0/16")
		}, "nodeports 0.0.0.0/0 pods 10.1.0.0/16,10.2.0.0/16"},
		{"CF-66 ClusterCIDR: none of the family", lb.IPv6, func(_ *cluster.Facts, s *policy.Settings) {
			s.DetectLocal, s.ClusterCIDRs = policy.ClusterCIDR, prefixes("10.1.0.0/16")
		}, "nodeports ::/0"},
		{"CF-63 a wrong family beside the right one does no harm", lb.IPv6, func(_ *cluster.Facts, s *policy.Settings) {
			s.ClusterCIDRs = prefixes("10.1.0.0/16", "fd00:1::/48")
		}, "nodeports ::/0 pods fd00:1::/48"},
		{"3.5 NodeCIDR", lb.IPv4, func(_ *cluster.Facts, s *policy.Settings) {
			s.DetectLocal, s.ClusterCIDRs = policy.NodeCIDR, prefixes("10.1.0.0/16")
		}, "nodeports 0.0.0.0/0 pods 10.1.7.0/24"},
		{"CF-66 NodeCIDR: no pod CIDR of the family", lb.IPv6, func(_ *cluster.Facts, s *policy.Settings) {
			s.DetectLocal = policy.NodeCIDR
		}, "nodeports ::/0"},
		{"CF-66 NodeCIDR: no Node", lb.IPv4, func(f *cluster.Facts, s *policy.Settings) {
			f.Node, s.DetectLocal = nil, policy.NodeCIDR
		}, "nodeports 0.0.0.0/0"},
		{"3.5 BridgeInterface", lb.IPv6, func(_ *cluster.Facts, s *policy.Settings) {
			s.DetectLocal, s.PodInterface, s.ClusterCIDRs = policy.BridgeInterface, "cbr0", prefixes("fd00:1::/48")
		}, "nodeports ::/0 pods-interface cbr0"},
		{"3.5 InterfaceNamePrefix", lb.IPv4, func(_ *cluster.Facts, s *policy.Settings) {
			s.DetectLocal, s.PodInterface = policy.InterfaceNamePrefix, "veth"
		}, "nodeports 0.0.0.0/0 pods-interface-prefix veth"},
		{"SV-63 service network of the family", lb.IPv4, func(f *cluster.Facts, _ *policy.Settings) {
			f.CIDRs = prefixes("10.96.4.0/24", "10.96.0.0/12", "fd00:96::/112", "10.8.0.0/16")
		}, "nodeports 0.0.0.0/0 services 10.8.0.0/16,10.96.0.0/12"},
	} {
		t.Run(test.name, func(t *testing.T) {
			facts := cluster.Facts{NodeName: "node-1", Node: &cluster.Node{
				Name: "node-1", Addrs: addrs("172.18.0.2", "203.0.113.2", "fd00::2"), PodCIDRs: prefixes("10.1.7.0/24"),
			}}
			settings := policy.Settings{Family: test.family}
			test.change(&facts, &settings)
			table := lb.Table{Node: policy.ResolveNode(facts, settings)}
			got := strings.TrimPrefix(strings.TrimSpace(table.String()), "node ")
			if got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}
