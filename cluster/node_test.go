package cluster_test

import (
	"net/netip"
	"testing"

	"kube-proxy/cluster"
)

// PR-05: the wait for pod CIDRs lasts until the node has had some, whatever comes in between, and
// no longer.
func TestWaitForPodCIDRsPR05(t *testing.T) {
	s := cluster.NewStore("node-1")
	s.WaitForPodCIDRs()
	cidrs := []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}
	for _, step := range []struct {
		what   string
		ev     cluster.Event
		synced bool
	}{
		{"all is listed", cluster.Batch{cluster.ServicesListed{}, cluster.SlicesListed{}, cluster.CIDRsListed{}},
			false},
		{"a Node without pod CIDRs", cluster.NodeSet{Node: &cluster.Node{Name: "node-1"}}, false},
		{"another Node's", cluster.NodeSet{Node: &cluster.Node{Name: "node-2", PodCIDRs: cidrs}}, false},
		{"the Node goes", cluster.NodeGone{Name: "node-1"}, false},
		{"it has some", cluster.NodeSet{Node: &cluster.Node{Name: "node-1", PodCIDRs: cidrs}}, true},
		{"it loses them", cluster.NodeSet{Node: &cluster.Node{Name: "node-1"}}, true},
		{"the Node goes again", cluster.NodeGone{Name: "node-1"}, true},
	} {
		s.Fold(step.ev)
		if s.Synced() != step.synced {
			t.Errorf("%s: synced %v, want %v", step.what, s.Synced(), step.synced)
		}
		if missing := s.PodCIDRsMissing(); missing == step.synced {
			t.Errorf("%s: missing %v", step.what, missing)
		}
	}
	// The store waits only if WaitForPodCIDRs was called.
	unasked := cluster.NewStore("node-1")
	fold(unasked, cluster.ServicesListed{}, cluster.SlicesListed{})
	if !unasked.Synced() || unasked.PodCIDRsMissing() {
		t.Error("a store waits for pod CIDRs unasked")
	}
	// Both waits at once need both.
	both := cluster.NewStore("node-1")
	both.WaitForPodCIDRs()
	both.WaitForFacts(true)
	fold(both, cluster.ServicesListed{}, cluster.SlicesListed{},
		cluster.NodeSet{Node: &cluster.Node{Name: "node-1", PodCIDRs: cidrs}})
	if both.Synced() {
		t.Error("synced without the service network")
	}
	fold(both, cluster.CIDRsAbsent{})
	if !both.Synced() {
		t.Error("not synced with all that was asked for")
	}
}

// PN-71: a missing Node is reported once, so that the proxy can log it; each deletion of a Node is
// a change.
func TestNoNodePN71(t *testing.T) {
	s := cluster.NewStore("node-1")
	for _, step := range []struct {
		what  string
		ev    cluster.Event
		facts bool
	}{
		{"another Node is missing", cluster.NodeGone{Name: "node-2"}, false},
		{"the Node is missing", cluster.NodeGone{Name: "node-1"}, true},
		{"still", cluster.NodeGone{Name: "node-1"}, false},
		{"it comes", cluster.NodeSet{Node: &cluster.Node{Name: "node-1"}}, true},
		{"it goes", cluster.NodeGone{Name: "node-1"}, true},
		{"still gone", cluster.NodeGone{Name: "node-1"}, false},
	} {
		if d := s.Fold(step.ev); d.Facts != step.facts || len(d.Services) > 0 {
			t.Errorf("%s: dirty %+v, want facts %v", step.what, d, step.facts)
		}
	}
}

// PR-06: the last facts of the machine stay in force while the Node object is gone, however the
// source learns of it, and while a new object lacks them. Only values of the new object replace
// them.
func TestNodeLastsPR06(t *testing.T) {
	addrs, others := []netip.Addr{netip.MustParseAddr("172.18.0.2"), netip.MustParseAddr("fd00::2")},
		[]netip.Addr{netip.MustParseAddr("172.18.0.9")}
	cidrs, otherCIDRs := []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")},
		[]netip.Prefix{netip.MustParsePrefix("10.2.0.0/24")}
	node := func(zone string, a []netip.Addr, c []netip.Prefix) cluster.Event {
		return cluster.NodeSet{Node: &cluster.Node{Name: "node-1", Zone: zone, Addrs: a, PodCIDRs: c}}
	}
	gone := cluster.NodeGone{Name: "node-1"}
	ranged := service("ranged")
	ranged.SourceRanges = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	s := cluster.NewStore("node-1")
	fold(s, cluster.ServiceSet{Service: service("web")}, cluster.ServiceSet{Service: ranged})
	for _, step := range []struct {
		what     string
		ev       cluster.Event
		want     cluster.Node
		gone     bool
		services []cluster.Ref
	}{
		{"there", node("a", addrs, cidrs), cluster.Node{Zone: "a", Addrs: addrs, PodCIDRs: cidrs}, false,
			[]cluster.Ref{both("ranged"), both("web")}},
		{"gone", gone, cluster.Node{Zone: "a", Addrs: addrs, PodCIDRs: cidrs}, true, nil},
		{"still gone", gone, cluster.Node{Zone: "a", Addrs: addrs, PodCIDRs: cidrs}, true, nil},
		{"back as it was", node("a", addrs, cidrs), cluster.Node{Zone: "a", Addrs: addrs, PodCIDRs: cidrs}, false, nil},
		{"without addresses", node("a", nil, cidrs), cluster.Node{Zone: "a", Addrs: addrs, PodCIDRs: cidrs}, false,
			nil},
		{"gone again", gone, cluster.Node{Zone: "a", Addrs: addrs, PodCIDRs: cidrs}, true, nil},
		{"back, said nothing", node("a", nil, nil), cluster.Node{Zone: "a", Addrs: addrs, PodCIDRs: cidrs}, false, nil},
		{"another address", node("a", others, nil), cluster.Node{Zone: "a", Addrs: others, PodCIDRs: cidrs}, false,
			[]cluster.Ref{both("ranged")}},
		{"another pod CIDR", node("a", others, otherCIDRs), cluster.Node{Zone: "a", Addrs: others,
			PodCIDRs: otherCIDRs}, false, nil},
		{"without a zone", node("", others, otherCIDRs), cluster.Node{Addrs: others, PodCIDRs: otherCIDRs}, false,
			[]cluster.Ref{both("ranged"), both("web")}},
	} {
		refs, _ := fold(s, step.ev)
		wantDirty(t, step.what, refs, step.services...)
		step.want.Name = "node-1"
		if f := s.Facts(); !f.Node.Equal(&step.want) || f.NodeGone != step.gone {
			t.Errorf("%s: %+v gone %v, want %+v, %v", step.what, f.Node, f.NodeGone, step.want, step.gone)
		}
		if known, eligible := s.NodeEligible(); known == step.gone || eligible == step.gone {
			t.Errorf("%s: known %v, eligible %v", step.what, known, eligible)
		}
	}
}
