package engine

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/lb"
	"kube-proxy/policy"
)

// withSettings makes the engine use other settings than those of the rig.
func withSettings(s policy.Settings) func(*Config) {
	return func(c *Config) {
		s.Family = lb.IPv4
		c.Resolve = func(v cluster.View) []*lb.Frontend { return policy.Resolve(v, s) }
		c.ResolveNode = func(f cluster.Facts) lb.Node { return policy.ResolveNode(f, s) }
	}
}

// wantNode compares the node's facts in the plane: the addresses of NodePorts and the pod networks,
// one each or "".
func (r *rig) wantNode(what, nodePorts, pods string) {
	r.t.Helper()
	var want lb.Node
	if nodePorts != "" {
		want.NodePorts = []netip.Prefix{netip.MustParsePrefix(nodePorts)}
	}
	if pods != "" {
		want.Pods.Prefixes = []netip.Prefix{netip.MustParsePrefix(pods)}
	}
	dump := r.plane.Dump()
	if line := fmt.Sprintf("node %+v\n", want); !strings.HasSuffix(dump, line) {
		r.t.Errorf("%s: want %s in\n%s", what, line, dump)
	}
}

func nodeOf(change func(*cluster.Node)) cluster.Event {
	n := &cluster.Node{Name: nodeName, Zone: "a", Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}}
	if change != nil {
		change(n)
	}
	return cluster.NodeSet{Node: n}
}

// PR-05: nothing is written before the node has pod CIDRs, then at once; a later change takes
// effect live, and the deletion of the Node changes nothing.
func TestPodCIDRsLivePR05(t *testing.T) {
	bubble(t, withSettings(policy.Settings{DetectLocal: policy.NodeCIDR}), func(r *rig) {
		r.store.WaitForPodCIDRs()
		r.start()
		r.list()
		r.add(1)
		r.do(nodeOf(func(n *cluster.Node) { n.PodCIDRs = nil }))
		r.after(4 * time.Minute)
		if c := r.plane.Counts(); c.Resets != 0 || c.Applies != 0 {
			t.Fatalf("written without pod CIDRs: %+v", c)
		}
		r.do(nodeOf(nil))
		r.run()
		if !r.plane.Has(svcKey(1)) {
			t.Fatal("not written when the pod CIDRs came")
		}
		r.wantNode("at the start", "0.0.0.0/0", "10.0.0.0/24")
		r.do(nodeOf(func(n *cluster.Node) { n.PodCIDRs = []netip.Prefix{netip.MustParsePrefix("10.0.7.0/24")} }))
		r.run()
		r.wantNode("changed", "0.0.0.0/0", "10.0.7.0/24")
		r.do(cluster.NodeGone{Name: nodeName})
		r.run()
		r.wantNode("the Node is gone", "0.0.0.0/0", "10.0.7.0/24")
		r.do(nodeOf(nil))
		r.run()
		r.wantNode("the Node is back", "0.0.0.0/0", "10.0.0.0/24")
		if c := r.plane.Counts(); c.Resets != 1 {
			t.Errorf("%d Resets, want the first alone", c.Resets)
		}
	})
}

// PR-03, PR-06: the node's address arrives, changes, outlives the Node and changes again; a bind
// address stays.
func TestNodeAddressLivePR06(t *testing.T) {
	addr := func(a string) cluster.Event {
		return nodeOf(func(n *cluster.Node) {
			n.Addrs = []netip.Addr{netip.MustParseAddr(a), netip.MustParseAddr("fd00::2")}
		})
	}
	ranged := service(1)
	ranged.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr("198.51.100.1")}
	ranged.SourceRanges = []netip.Prefix{netip.MustParsePrefix("192.0.2.9/32")}
	vip := lb.Key{Addr: ranged.LoadBalancerIPs[0], Port: 80, Proto: lb.TCP}
	primary := policy.NodePortAddrs{Primary: true}
	bubble(t, withSettings(policy.Settings{NodePortAddrs: primary}), func(r *rig) {
		sources := func() string {
			var s string
			r.engine.Query(func(table *lb.Table) { s = joined(table.Get(vip).Sources) })
			return s
		}
		r.start()
		r.list()
		r.do(cluster.SliceSet{Slice: slice(1, 1, 3)}, cluster.ServiceSet{Service: ranged})
		r.run()
		r.wantNode("before the Node", "", "")
		for _, step := range []struct {
			what          string
			ev            cluster.Event
			node, sources string
		}{
			{"the Node comes", addr("192.0.2.1"), "192.0.2.1/32", "192.0.2.9/32"},
			{"its address changes", addr("192.0.2.9"), "192.0.2.9/32", "192.0.2.9/32 198.51.100.1/32"}, // SV-16
			{"only IPv6 is left", addr("fd00::9"), "", "192.0.2.9/32"},
			{"another again", addr("192.0.2.3"), "192.0.2.3/32", "192.0.2.9/32"},
			{"the Node goes", cluster.NodeGone{Name: nodeName}, "192.0.2.3/32", "192.0.2.9/32"},
			{"and comes back", addr("192.0.2.9"), "192.0.2.9/32", "192.0.2.9/32 198.51.100.1/32"},
		} {
			r.do(step.ev)
			r.run()
			r.wantNode(step.what, step.node, "")
			if got := sources(); got != step.sources {
				t.Errorf("%s: sources %q, want %q", step.what, got, step.sources)
			}
		}
		if c := r.plane.Counts(); c.Resets != 1 {
			t.Errorf("%d Resets, want the first alone", c.Resets)
		}
	})
	bubble(t, withSettings(policy.Settings{NodePortAddrs: policy.NodePortAddrs{Primary: true,
		NodeIP: netip.MustParseAddr("192.0.2.7")}}), func(r *rig) {
		r.start()
		r.list()
		for _, ev := range []cluster.Event{addr("192.0.2.1"), addr("192.0.2.2"), cluster.NodeGone{Name: nodeName}} {
			r.do(ev)
			r.run()
			r.wantNode("with a bind address", "192.0.2.7/32", "")
		}
	})
}

func joined(ps []netip.Prefix) string {
	var words []string
	for _, p := range ps {
		words = append(words, p.String())
	}
	return strings.Join(words, " ")
}

// SV-40, PR-06: a change of the node's zone selects endpoints again, and so does the loss of the
// label, but not of the Node.
func TestZoneLiveSV40(t *testing.T) {
	bubble(t, nil, func(r *rig) {
		backends := func() string {
			var words []string
			r.engine.Query(func(table *lb.Table) {
				for b := range table.Get(svcKey(1)).Set(lb.Cluster).Backends.All() {
					words = append(words, b.Addr.Addr().String())
				}
			})
			return strings.Join(words, " ")
		}
		sl := slice(1, 1, 2)
		sl.Endpoints = sl.Endpoints.Edited(func(i int, e *cluster.Endpoint) {
			e.Hints, e.Where = &cluster.Hints{Zones: []string{[]string{"a", "b"}[i]}}, cluster.At("elsewhere", "")
		})
		zone := func(z string) cluster.Event { return nodeOf(func(n *cluster.Node) { n.Zone = z }) }
		r.start()
		r.list()
		r.do(zone("a"), cluster.SliceSet{Slice: sl}, cluster.ServiceSet{Service: service(1)})
		r.run()
		for _, step := range []struct {
			what string
			ev   cluster.Event
			want string
		}{
			{"zone a", zone("a"), "10.0.1.1"},
			{"zone b", zone("b"), "10.0.1.2"},
			{"a zone without endpoints", zone("c"), "10.0.1.1 10.0.1.2"},
			{"back", zone("a"), "10.0.1.1"},
			{"no label", zone(""), "10.0.1.1 10.0.1.2"},
			{"back again", zone("b"), "10.0.1.2"},
			{"no Node", cluster.NodeGone{Name: nodeName}, "10.0.1.2"},
		} {
			r.do(step.ev)
			r.run()
			if got := backends(); got != step.want {
				t.Errorf("%s: %s, want %s", step.what, got, step.want)
			}
			r.converged()
		}
	})
}
