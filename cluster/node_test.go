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
