package nodecheck_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/config/nodecheck"
	"kube-proxy/lb"
	"kube-proxy/policy"
)

// TestCheck: each case changes a dual-stack node without findings.
func TestCheck(t *testing.T) {
	type setup = nodecheck.Setup
	type facts = cluster.Facts
	only := func(fam lb.Family) func(*setup, *facts) {
		return func(s *setup, f *facts) {
			s.Families, f.Node.Addrs = []lb.Family{fam}, addrs("172.18.0.2")
			if fam == lb.IPv6 {
				f.Node.Addrs, s.Healthz = addrs("fd00::2"), netip.MustParseAddrPort("[::]:10256")
			}
		}
	}
	for _, test := range []struct {
		name   string
		change []func(*setup, *facts)
		want   string // row, fatal, text; a line for each
	}{
		{"nothing to say", nil, ""},
		{"CF-63 cluster CIDR, dual-stack host", []func(*setup, *facts){func(s *setup, _ *facts) {
			s.Settings.ClusterCIDRs = prefixes("fd00:1::/48")
		}},
			"CF-63 clusterCIDR fd00:1::/48 has no IPv4 network, but the node is IPv4 first"},
		{"CF-63 cluster CIDR, single-stack host", []func(*setup, *facts){only(lb.IPv6), func(s *setup, _ *facts) {
			s.Settings.ClusterCIDRs = prefixes("10.1.0.0/16")
		}},
			"CF-63 fatal clusterCIDR 10.1.0.0/16 has no IPv6 network, but the node is IPv6 only"},
		{"CF-63 the same without a reader", []func(*setup, *facts){only(lb.IPv6), func(s *setup, _ *facts) {
			s.Settings.ClusterCIDRs, s.Settings.DetectLocal = prefixes("10.1.0.0/16"), policy.InterfaceNamePrefix
		}}, "CF-63 clusterCIDR 10.1.0.0/16 has no IPv6 network, but the node is IPv6 only"},
		{"CF-63 a second family does no harm", []func(*setup, *facts){only(lb.IPv6)}, ""},
		{"CF-63 pod CIDRs", []func(*setup, *facts){func(_ *setup, f *facts) {
			f.Node.PodCIDRs = prefixes("fd00:1:0:7::/64")
		}},
			`CF-63 the Node "node-1" has spec.podCIDRs fd00:1:0:7::/64, none of IPv4, but the node is IPv4 first`},
		{"CF-67 the cluster CIDR is the node's own", []func(*setup, *facts){func(s *setup, f *facts) {
			s.Settings.ClusterCIDRs = f.Node.PodCIDRs
		}}, ""},
		{"CF-63 pod CIDRs in mode NodeCIDR", []func(*setup, *facts){func(s *setup, f *facts) {
			f.Node.PodCIDRs, s.Settings.DetectLocal = prefixes("fd00:1:0:7::/64"), policy.NodeCIDR
		}}, `CF-63 fatal the Node "node-1" has spec.podCIDRs fd00:1:0:7::/64, none of IPv4, but the node is IPv4 ` +
			"first"},
		{"CF-63 CF-65 nodeport addresses", []func(*setup, *facts){func(s *setup, _ *facts) {
			s.Settings.NodePortAddrs = policy.NodePortAddrs{Prefixes: prefixes("fd00:18::/64")}
		}}, "CF-63 nodePortAddresses fd00:18::/64 has no IPv4 address, which means every one, but the node is IPv4 " +
			"first"},
		{"CF-63 primary is of every family", []func(*setup, *facts){func(s *setup, _ *facts) {
			s.Settings.NodePortAddrs.Prefixes = prefixes("fd00:18::/64")
		}}, ""},
		{"CF-63 sourceVip", []func(*setup, *facts){func(s *setup, _ *facts) {
			s.Addresses = map[string]netip.Addr{"winkernel.sourceVip": netip.MustParseAddr("fd00::9")}
		}},
			"CF-63 winkernel.sourceVip fd00::9 is not an address of IPv4, but the node is IPv4 first"},
		{"CF-63 excluded CIDRs and servers, dual-stack", []func(*setup, *facts){func(s *setup, _ *facts) {
			s.Networks, s.Healthz = map[string][]netip.Prefix{"ipvs.excludeCIDRs": prefixes("fd00::/8")},
				netip.MustParseAddrPort("[::]:10256")
		}}, ""},
		{"CF-63 excluded CIDRs and servers, single-stack", []func(*setup, *facts){only(lb.IPv4),
			func(s *setup, _ *facts) {
				s.Networks, s.Healthz, s.Metrics = map[string][]netip.Prefix{"ipvs.excludeCIDRs": prefixes("fd00::/8")},
					netip.MustParseAddrPort("[::]:10256"), netip.MustParseAddrPort("[::1]:10249")
			}}, "CF-63 ipvs.excludeCIDRs fd00::/8 has no IPv4 network, but the node is IPv4 only\n" +
			"CF-63 healthzBindAddress [::]:10256 is not an address of IPv4, but the node is IPv4 only\n" +
			"CF-63 metricsBindAddress [::1]:10249 is not an address of IPv4, but the node is IPv4 only"},
		{"CF-64 not configured", []func(*setup, *facts){func(s *setup, _ *facts) {
			s.NodePortsUnset, s.Settings.NodePortAddrs = true,
				policy.NodePortAddrs{Prefixes: prefixes("0.0.0.0/0", "::/0")}
		}}, "CF-64 nodePortAddresses is not set: NodePorts answer on every address of this machine; primary would " +
			"leave that to the node's own"},
		{"CF-64 not configured, and the mode's default is primary",
			[]func(*setup, *facts){func(s *setup, _ *facts) { s.NodePortsUnset = true }}, ""},
		{"CF-64 CF-65 one family of two", []func(*setup, *facts){func(s *setup, _ *facts) {
			s.Settings.NodePortAddrs = policy.NodePortAddrs{Prefixes: prefixes("10.0.0.0/8")}
		}}, "CF-64 nodePortAddresses 10.0.0.0/8 has no IPv6 address: NodePorts answer on every IPv6 address of this " +
			"machine"},
		{"CF-64 one family where the cluster has no other", []func(*setup, *facts){func(s *setup, f *facts) {
			s.Settings.NodePortAddrs = policy.NodePortAddrs{Prefixes: prefixes("10.0.0.0/8")}
			s.Settings.ClusterCIDRs, f.CIDRs = s.Settings.ClusterCIDRs[:1], f.CIDRs[:1]
			f.Node.Addrs, f.Node.PodCIDRs = f.Node.Addrs[:1], f.Node.PodCIDRs[:1]
		}}, ""},
		{"CF-65 everything and more", []func(*setup, *facts){func(s *setup, _ *facts) {
			s.Settings.NodePortAddrs = policy.NodePortAddrs{Prefixes: prefixes("10.0.0.0/8", "0.0.0.0/0",
				"192.0.2.0/24", "::/0")}
		}}, "CF-65 nodePortAddresses: 0.0.0.0/0 makes 10.0.0.0/8,192.0.2.0/24 needless"},
		{"CF-66 no cluster CIDR", []func(*setup, *facts){func(s *setup, _ *facts) { s.Settings.ClusterCIDRs = nil }},
			"CF-66 clusterCIDR is not set: the proxy cannot distinguish traffic of pods from other traffic"},
		{"CF-66 no cluster CIDR of a family", []func(*setup, *facts){func(s *setup, _ *facts) {
			s.Settings.DetectLocal, s.Settings.ClusterCIDRs = policy.ClusterCIDR, prefixes("10.1.0.0/16")
		}}, "CF-66 clusterCIDR 10.1.0.0/16 has no IPv6 network: in IPv6 the proxy cannot distinguish traffic of " +
			"pods from other traffic"},
		{"CF-66 in a cluster without the family", []func(*setup, *facts){func(s *setup, f *facts) {
			s.Settings.ClusterCIDRs, f.CIDRs = prefixes("10.1.0.0/16"), f.CIDRs[:1]
			f.Node.Addrs, f.Node.PodCIDRs = f.Node.Addrs[:1], f.Node.PodCIDRs[:1]
		}}, ""},
		{"CF-66 no pod CIDR", []func(*setup, *facts){func(s *setup, f *facts) {
			s.Settings.DetectLocal, f.Node.PodCIDRs = policy.NodeCIDR, nil
		}},
			`CF-66 the Node "node-1" has no spec.podCIDRs, which detectLocalMode NodeCIDR needs: the proxy cannot ` +
				`distinguish traffic of pods from other traffic`},
		{"CF-66 no pod CIDR of a family", []func(*setup, *facts){func(s *setup, f *facts) {
			s.Settings.DetectLocal, f.Node.PodCIDRs = policy.NodeCIDR, prefixes("10.1.7.0/24")
		}}, `CF-66 the Node "node-1" has spec.podCIDRs 10.1.7.0/24, none of IPv6: in IPv6 the proxy cannot ` +
			`distinguish ` +
			`traffic of pods from other traffic`},
		{"CF-67 pods outside", []func(*setup, *facts){func(s *setup, f *facts) {
			f.Node.PodCIDRs = prefixes("10.1.7.0/24", "10.9.7.0/24", "10.0.0.0/8")
		}}, `CF-67 clusterCIDR 10.1.0.0/16,fd00:1::/48 does not contain the pod CIDR 10.9.7.0/24 of the Node ` +
			`"node-1": the proxy treats these pods as outside clients` + "\n" +
			`CF-67 clusterCIDR 10.1.0.0/16,fd00:1::/48 does not contain the pod CIDR 10.0.0.0/8 of the Node ` +
			`"node-1": the proxy treats these pods as outside clients`},
		{"CF-67 by the Node's networks", []func(*setup, *facts){func(s *setup, f *facts) {
			f.Node.PodCIDRs, s.Settings.DetectLocal = prefixes("10.9.7.0/24", "fd00:9:7::/64"), policy.NodeCIDR
		}}, ""},
		{"CF-66 interfaces are of every family", []func(*setup, *facts){func(s *setup, f *facts) {
			s.Settings.DetectLocal, s.Settings.PodInterface, s.Settings.ClusterCIDRs,
				f.Node.PodCIDRs = policy.BridgeInterface, "cbr0", nil, nil
		}}, ""},
		{"PR-02 the node is IPv6 first, so IPv6 is what counts", []func(*setup, *facts){func(s *setup, f *facts) {
			f.Node.Addrs, s.Settings.ClusterCIDRs = addrs("fd00::2"), prefixes("10.1.0.0/16")
		}}, "CF-63 clusterCIDR 10.1.0.0/16 has no IPv6 network, but the node is IPv6 first"},
		{"PR-02 a bind address of a family that is not served", []func(*setup, *facts){only(lb.IPv4),
			func(s *setup, _ *facts) {
				s.Settings.NodePortAddrs.NodeIP = netip.MustParseAddr("2001:db8::1")
			}}, "PR-02 the node's first address 2001:db8::1 is of IPv6, which is not served here"},
		{"PN-71 SV-33 no Node", []func(*setup, *facts){func(_ *setup, f *facts) { f.Node = nil }},
			`PN-71 there is no Node "node-1", or none that the proxy may read (hostnameOverride): NodePorts on its ` +
				`primary address do not answer, ` +
				"zone hints do not count, load balancers skip this node; bindAddress can name its address"},
		{"PN-71 no Node, where a folder of manifests needs none", []func(*setup, *facts){func(s *setup, f *facts) {
			f.Node, s.Manifests = nil, true
		}},
			`PN-71 there is no Node "node-1", or none that the proxy may read (hostnameOverride): NodePorts on its ` +
				`primary address do not answer, ` +
				"zone hints do not count; bindAddress can name its address"},
		{"PN-71 PR-03 no Node, but a bind address", []func(*setup, *facts){func(s *setup, f *facts) {
			f.Node, s.Settings.NodePortAddrs.NodeIP = nil, netip.MustParseAddr("172.18.0.9")
		}}, `PN-71 there is no Node "node-1", or none that the proxy may read (hostnameOverride): zone hints do not ` +
			`count, load balancers skip this node`},
		{"PR-06 a Node that was deleted", []func(*setup, *facts){func(_ *setup, f *facts) { f.NodeGone = true }},
			`PR-06 the Node "node-1" was deleted: its last addresses, pod CIDRs and zone stay in force, and load ` +
				`balancers skip this node`},
		{"PR-03 a Node without addresses", []func(*setup, *facts){func(_ *setup, f *facts) { f.Node.Addrs = nil }},
			`PR-03 the Node "node-1" has no address: NodePorts on its primary address do not answer; bindAddress can ` +
				`name its address`},
		{"PR-03 a Node without addresses, where no NodePort needs one",
			[]func(*setup, *facts){func(s *setup, f *facts) {
				f.Node.Addrs, s.NodePortsUnset, s.Settings.NodePortAddrs = nil, true, policy.NodePortAddrs{}
			}}, `PR-03 the Node "node-1" has no address: source ranges count as if it were in none; bindAddress can ` +
				`name ` +
				`its address` + "\n" +
				"CF-64 nodePortAddresses is not set: NodePorts answer on every " +
				"address of this machine; primary would " +
				"leave that to the node's own"},
		{"PN-71 no Node, where no NodePort needs one", []func(*setup, *facts){func(s *setup, f *facts) {
			f.Node, s.Settings.NodePortAddrs = nil, policy.NodePortAddrs{Prefixes: prefixes("0.0.0.0/0", "::/0")}
		}}, `PN-71 there is no Node "node-1", or none that the proxy may read (hostnameOverride): source ranges ` +
			`count as if it were in none, ` +
			"zone hints do not count, load balancers skip this node; bindAddress can name its address"},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := cluster.Facts{NodeName: "node-1", CIDRs: prefixes("10.96.0.0/16", "fd00:96::/112"),
				Node: &cluster.Node{
					Name: "node-1", Addrs: addrs("172.18.0.2", "fd00::2"), PodCIDRs: prefixes("10.1.7.0/24",
						"fd00:1:0:7::/64"),
				}}
			s := nodecheck.Setup{
				Families: []lb.Family{lb.IPv4, lb.IPv6},
				Settings: policy.Settings{ClusterCIDRs: prefixes("10.1.0.0/16", "fd00:1::/48"),
					NodePortAddrs: policy.NodePortAddrs{Primary: true}},
				Healthz: netip.MustParseAddrPort("0.0.0.0:10256"),
				Name:    func(field string) string { return field },
			}
			for _, change := range test.change {
				change(&s, &f)
			}
			var got []string
			for _, x := range nodecheck.Check(f, s) {
				fatal := ""
				if x.Fatal {
					fatal = "fatal "
				}
				got = append(got, x.Row+" "+fatal+x.Text)
			}
			if strings.Join(got, "\n") != test.want {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), test.want)
			}
		})
	}
}

// PR-05: the error has the Node, the time, and what to check.
func TestNoPodCIDRs(t *testing.T) {
	name := func(field string) string { return "--" + field }
	for node, want := range map[*cluster.Node]string{
		nil:         `--detectLocalMode NodeCIDR: the Node "n" is not known after 5m0s: `,
		{Name: "n"}: `--detectLocalMode NodeCIDR: the Node "n" has no spec.podCIDRs after 5m0s: `,
	} {
		err := nodecheck.NoPodCIDRs(cluster.Facts{NodeName: "n", Node: node}, 5*time.Minute, name)
		if !strings.HasPrefix(err.Error(), want) || !strings.HasSuffix(err.Error(), "and check --hostnameOverride") {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// PR-02, PR-03, CF-13: which addresses represent the node, and which family comes first.
func TestNodeIPs(t *testing.T) {
	for _, test := range []struct {
		name, bind, node string
		want             string
	}{
		{"the Node's, of each family the first", "", "172.18.0.2 fd00::2 203.0.113.2 fd00::3",
			"IPv4 [172.18.0.2 fd00::2] dual-stack"},
		{"IPv6 first", "", "fd00::2 172.18.0.2", "IPv6 [fd00::2 172.18.0.2] dual-stack"},
		{"one family", "", "172.18.0.2 203.0.113.2", "IPv4 [172.18.0.2]"},
		{"IPv6 only", "0.0.0.0", "fd00::2", "IPv6 [fd00::2]"},
		{"the bind address beats the Node's", "203.0.113.2", "172.18.0.2", "IPv4 [203.0.113.2]"},
		{"in its family, and chooses the first", "2001:db8::1", "172.18.0.2 fd00::2",
			"IPv6 [2001:db8::1 172.18.0.2] dual-stack"},
		{"unspecified says nothing", "::", "172.18.0.2 fd00::2", "IPv4 [172.18.0.2 fd00::2] dual-stack"},
		{"no Node, but a bind address", "2001:db8::1", "none", "IPv6 [2001:db8::1]"},
		{"nothing known: loopback", "", "none", "IPv4 [127.0.0.1] guessed"},
		{"nothing known, IPv6 meant", "::", "", "IPv6 [::1] guessed"},
	} {
		facts := cluster.Facts{NodeName: "n", Node: &cluster.Node{Name: "n"}}
		if test.node == "none" {
			facts.Node = nil
		} else {
			facts.Node.Addrs = addrs(strings.Fields(test.node)...)
		}
		var s policy.Settings
		if test.bind != "" {
			s.NodePortAddrs.NodeIP = netip.MustParseAddr(test.bind)
		}
		n := policy.ResolveNodeIPs(facts, s)
		got := fmt.Sprintf("%s %v", n.Primary, n.Addrs)
		if len(n.Addrs) == 2 {
			got += " dual-stack"
		}
		if n.Guessed {
			got += " guessed"
		}
		if got != test.want {
			t.Errorf("%s: got %s, want %s", test.name, got, test.want)
		}
	}
}

func all[T any](parse func(string) T, words []string) []T {
	var out []T
	for _, w := range words {
		out = append(out, parse(w))
	}
	return out
}

func addrs(words ...string) []netip.Addr { return all(netip.MustParseAddr, words) }

func prefixes(words ...string) []netip.Prefix { return all(netip.MustParsePrefix, words) }

// CF-64: whatever shows that the cluster uses a second family is enough for advice about it.
func TestSecondFamily(t *testing.T) {
	for name, change := range map[string]func(*nodecheck.Setup, *cluster.Facts){
		"nothing":           nil,
		"a service network": func(_ *nodecheck.Setup, f *cluster.Facts) { f.CIDRs = prefixes("fd00:96::/112") },
		"a cluster CIDR": func(s *nodecheck.Setup, _ *cluster.Facts) {
			s.Settings.ClusterCIDRs = prefixes("10.1.0.0/16", "fd00:1::/48")
		},
		"an address of the Node": func(_ *nodecheck.Setup, f *cluster.Facts) {
			f.Node.Addrs = addrs("172.18.0.2", "fd00::2")
		},
		"a pod CIDR": func(_ *nodecheck.Setup, f *cluster.Facts) {
			f.Node.PodCIDRs = prefixes("10.1.7.0/24", "fd00:1:0:7::/64")
		},
	} {
		f := cluster.Facts{NodeName: "n", Node: &cluster.Node{Name: "n", Addrs: addrs("172.18.0.2")}}
		s := nodecheck.Setup{Families: []lb.Family{lb.IPv4, lb.IPv6},
			Settings: policy.Settings{NodePortAddrs: policy.NodePortAddrs{Prefixes: prefixes("172.18.0.0/16")}},
			Name:     func(field string) string { return field }}
		if change != nil {
			change(&s, &f)
		}
		advice := 0
		for _, x := range nodecheck.Check(f, s) {
			if strings.Contains(x.Text, "NodePorts answer on every IPv6 address") {
				advice++
			}
		}
		if (advice == 1) != (change != nil) {
			t.Errorf("%s: %d findings", name, advice)
		}
	}
}
