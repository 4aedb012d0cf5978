package hns_test

import (
	"fmt"
	"maps"
	"testing"

	"kube-proxy/lb"
	"kube-proxy/plane/hns"
	"kube-proxy/test/hnsfake"
	"kube-proxy/test/planetest"
)

// backendsEach is the number of backends of a Service in cost tests: one on this node, two
// elsewhere.
const backendsEach = 3

// large returns a node with that many Services, and its plane.
func large(t *testing.T, f lb.Family, kind hns.NetworkType, services int) (*windowsNode, testPlane, *lb.Table) {
	t.Helper()
	w, n := planetest.World{Family: f}, newNode(kind, hnsfake.Everything)
	cfg := n.config(f)
	if kind == hns.Overlay {
		n.SetNetwork(n.network, func(net *hns.Network) {
			net.Policies = []hns.Policy{route(w.Node().Pods.Prefixes[0].String(), w.Addr(192, 2).String())}
		})
		cfg.SourceVIP = w.Addr(100, 1<<23)
	}
	p, table := newPlane(t, cfg), w.Table(services, backendsEach)
	n.Counts()
	reset(t, p, table)
	return n, p, table
}

// A change costs the same calls among 100 and 2,000 Services (DP-47).
func TestCostFollowsTheChange(t *testing.T) {
	for _, f := range []lb.Family{lb.IPv4, lb.IPv6} {
		for _, kind := range []hns.NetworkType{hns.L2Bridge, hns.Overlay} {
			t.Run(fmt.Sprintf("%s/%s", f, kind), func(t *testing.T) {
				few, many := costs(t, f, kind, 100), costs(t, f, kind, 2000)
				for what, cost := range few {
					if !maps.Equal(cost, many[what]) || len(cost) == 0 {
						t.Errorf("%s: %v among 100 Services, %v among 2,000", what, cost, many[what])
					}
					if n := cost["Endpoints"] + cost["LoadBalancers"] + cost["Networks"]; n > 0 {
						t.Errorf("%s: HNS was listed %d times", what, n)
					}
				}
			})
		}
	}
}

// costs returns the cost of each change among n Services.
func costs(t *testing.T, f lb.Family, kind hns.NetworkType, services int) map[string]map[string]int {
	t.Helper()
	n, p, table := large(t, f, kind, services)
	w := planetest.World{Family: f}
	all := map[string]map[string]int{}
	for _, c := range []struct {
		what              string
		service, first, n int // n backends from pod first on; -1 removes the Service
	}{
		{"an endpoint more", 7, 7 * backendsEach, 4},
		{"an endpoint less", 7, 7 * backendsEach, 2},
		{"other endpoints", 7, 7 * backendsEach, 3},
		{"no endpoints", 7, 0, 0},
		{"endpoints again", 7, 7 * backendsEach, 3},
		{"a Service more", 50000, 7 * backendsEach, 3},
		{"a Service less", 50000, 0, -1},
	} {
		owner, fronts := w.ClusterIP(c.service, c.first, max(0, c.n))
		if c.n < 0 {
			fronts = nil
		}
		changes, _ := table.Replace(owner, fronts)
		n.Counts()
		apply(t, p, changes)
		all[c.what] = n.Counts()
	}
	return all
}

// The first sync makes one call for each load balancer and each remote endpoint, and one list of
// each kind. A restart finds everything and writes nothing.
func TestFirstSync(t *testing.T) {
	const services = 1000
	n, _, table := large(t, lb.IPv4, hns.L2Bridge, services)
	cost := n.Counts()
	for call, want := range map[string]int{"CreateLoadBalancer": services,
		"CreateEndpoint": (backendsEach - 1) * services,
		"Endpoints":      1, "LoadBalancers": 1, "Networks": 1} {
		if got := cost[call]; got != want {
			t.Errorf("%d calls of %s, want %d", got, call, want)
		}
	}
	reset(t, n.plane(t, lb.IPv4), table)
	cost = n.Counts()
	if want := map[string]int{"Features": 1, "Networks": 1, "Endpoints": 1, "LoadBalancers": 1}; !maps.Equal(cost,
		want) {
		t.Errorf("a restart makes the calls %v, want %v", cost, want)
	}
}
