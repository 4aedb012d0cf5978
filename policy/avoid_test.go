package policy_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"kube-proxy/cluster"
	"kube-proxy/lb"
	"kube-proxy/policy"
	"kube-proxy/test/seedtest"
)

// placed has each endpoint on the node of the third part of its address: 10.1.3.7 on node-3.
func placed(s *scene) {
	for _, sl := range s.slices {
		sl.Endpoints = sl.Endpoints.Edited(func(_ int, e *cluster.Endpoint) {
			e.Where = cluster.At(fmt.Sprintf("node-%d", e.Addr.As4()[2]), "")
		})
	}
}

// unreachable has these endpoints at port 8080, or nodes, as unreachable.
func unreachable(what ...string) func(*scene) {
	return func(s *scene) {
		u := &s.facts.Unreachable
		u.Endpoints, u.Nodes = map[netip.AddrPort]bool{}, map[string]bool{}
		for _, w := range what {
			if a, err := netip.ParseAddr(w); err == nil {
				u.Endpoints[netip.AddrPortFrom(a, 8080)] = true
			} else {
				u.Nodes[w] = true
			}
		}
	}
}

func members(t *lb.Table, scope lb.Scope) (all []string) {
	for f := range t.All() {
		if s := f.Set(scope); s != nil && all == nil {
			for b := range s.Backends.All() {
				all = append(all, b.Addr.Addr().String())
			}
		}
	}
	return all
}

// TestAvoid has what is left of a set (FO-06, FO-07).
func TestAvoid(t *testing.T) {
	for _, c := range []struct {
		name           string
		endpoints      string
		out            string
		cluster, local string
	}{
		{"nothing", "10.1.1.1 10.1.2.1 10.1.3.1", "", "10.1.1.1 10.1.2.1 10.1.3.1", "10.1.1.1"},
		{"one", "10.1.1.1 10.1.2.1 10.1.3.1", "10.1.2.1", "10.1.1.1 10.1.3.1", "10.1.1.1"},
		{"at most half", "10.1.1.1 10.1.2.1 10.1.3.1 10.1.4.1 10.1.5.1", "10.1.2.1 10.1.3.1 10.1.4.1 10.1.5.1",
			"10.1.1.1 10.1.2.1 10.1.3.1", "10.1.1.1"},
		{"more than half, of dead nodes", "10.1.1.1 10.1.2.1 10.1.3.1 10.1.4.1", "node-2 node-3 node-4", "10.1.1.1",
			"10.1.1.1"},
		{"dead nodes count for the half", "10.1.1.1 10.1.2.1 10.1.3.1 10.1.4.1", "node-2 node-3 10.1.4.1",
			"10.1.1.1 10.1.4.1", "10.1.1.1"},
		{"never the last", "10.1.2.1 10.1.3.1", "node-2 node-3", "10.1.2.1 10.1.3.1", ""},
		{"never the only one", "10.1.2.1", "10.1.2.1", "10.1.2.1", ""},
		{"never the last of this node", "10.1.1.1 10.1.2.1 10.1.3.1", "10.1.1.1", "10.1.2.1 10.1.3.1", "10.1.1.1"},
		{"a terminating one before an unreachable one", "10.1.2.1 10.1.3.1_terminating", "node-2", "10.1.3.1", ""},
		{"this node is reached", "10.1.1.1 10.1.2.1", "node-1", "10.1.1.1 10.1.2.1", "10.1.1.1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			eps := strings.Fields(c.endpoints)
			for i := range eps {
				eps[i] = strings.ReplaceAll(eps[i], "_", " ")
			}
			s := newScene().external(cluster.PolicyLocal).endpoints(eps...).with(placed).with(
				unreachable(strings.Fields(c.out)...))
			table := s.resolve()
			if got := strings.Join(members(table, lb.Cluster), " "); got != c.cluster {
				t.Errorf("of the cluster: %s, want %s", got, c.cluster)
			}
			if got := strings.Join(members(table, lb.Local), " "); got != c.local {
				t.Errorf("of this node: %s, want %s", got, c.local)
			}
			explained(t, s, c.cluster)
		})
	}
}

// One usable entry at a reachable node is enough for an address, whichever entries of it are merged
// first: here one that is not ready, one that terminates, and one of an unreachable node (SV-32,
// FO-06).
func TestAvoidMergedEntries(t *testing.T) {
	const addr = "10.1.2.1"
	entries := []string{addr + " unready", addr + " terminating", addr}
	for _, order := range [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		s := newScene().endpoints(entries[order[0]], entries[order[1]], entries[order[2]], "10.1.3.1")
		s.with(placed).with(unreachable("node-2")).with(edited(func(e *cluster.Endpoint) {
			if e.Terminating {
				e.Where = cluster.At("node-4", "")
			}
		}))
		if got := strings.Join(members(s.resolve(), lb.Cluster), " "); got != addr+" 10.1.3.1" {
			t.Errorf("entries in the order %v: %s", order, got)
		}
		explained(t, s, addr+" 10.1.3.1")
	}
}

// explained fails the test unless the explanation has the endpoints in use, and a reason for
// others.
func explained(t *testing.T, s *scene, want string) {
	t.Helper()
	var in []string
	for _, e := range policy.Explain(s.view(), s.settings).Ports[0].Endpoints {
		if e.InCluster {
			in = append(in, e.Address.Addr().String())
		} else if e.WhyNotCluster == "" {
			t.Errorf("no reason why %s is not used", e.Address)
		}
	}
	if got := strings.Join(in, " "); got != want {
		t.Errorf("explained: %s, want %s", got, want)
	}
}

// TestAvoidedIsNotReady: while others of each set are left, unreachable nodes have the effect of
// endpoints that are not ready, whatever topology, policies, ports and slices are (FO-06).
func TestAvoidedIsNotReady(t *testing.T) {
	seed := seedtest.Of(t)
	random := rand.New(rand.NewPCG(seed, 7))
	compared := 0
	for range 3000 {
		var eps []string
		for range 2 + random.IntN(8) {
			e := fmt.Sprintf("10.1.%d.%d", 1+random.IntN(4), 1+random.IntN(3))
			e += []string{"", "", "", " terminating", " unready", " zone=a", " zone=b"}[random.IntN(7)]
			eps = append(eps, e)
		}
		down := []string{"node-2", "node-3", "node-4"}[random.IntN(3)]
		build := func() *scene {
			s := newScene().external(cluster.TrafficPolicy(0))
			if len(eps)%2 == 0 {
				s.external(cluster.PolicyLocal)
			}
			s.svc.HealthCheckNodePort = 30099
			return s.endpoints(eps[:len(eps)/2]...).endpoints(eps[len(eps)/2:]...).with(placed)
		}
		left := slices.ContainsFunc(eps, func(e string) bool { // of each set
			return !strings.HasPrefix(e, "10.1."+down[5:]) && !strings.Contains(e, " ")
		})
		if !left {
			continue
		}
		compared++
		avoided := build().with(unreachable(down)).resolve().String()
		unready := build()
		for _, sl := range unready.slices {
			sl.Endpoints = sl.Endpoints.Edited(func(_ int, e *cluster.Endpoint) {
				if e.Place().Node == down {
					e.Ready, e.Serving, e.Terminating = false, false, false
				}
			})
		}
		if want := unready.resolve().String(); avoided != want {
			t.Fatalf("%q without %s:\n%s\nwant\n%s", eps, down, avoided, want)
		}
	}
	if compared < 1000 {
		t.Errorf("compared %d", compared)
	}
}

// TestAvoidPort: an endpoint that is silent at one port serves the others, and a UDP port is
// avoided only with the node.
func TestAvoidPort(t *testing.T) {
	s := newScene().endpoints("10.1.2.1", "10.1.3.1").with(placed).with(unreachable("10.1.2.1"))
	s.svc.Ports = []cluster.ServicePort{{Name: "http", Protocol: cluster.TCP, Port: 80},
		{Name: "admin", Protocol: cluster.TCP, Port: 81}, {Name: "dns", Protocol: cluster.UDP, Port: 80}}
	s.slices[0].Ports = append(s.slices[0].Ports, cluster.SlicePort{Name: "admin", Protocol: cluster.TCP, Port: 8081},
		cluster.SlicePort{Name: "dns", Protocol: cluster.UDP, Port: 8080})
	for f := range s.resolve().All() {
		want := 2
		if f.Key.Port == 80 && f.Key.Proto == lb.TCP {
			want = 1
		}
		if n := f.Set(lb.Cluster).Backends.Len(); n != want {
			t.Errorf("%s has %d backends, want %d", f.Key, n, want)
		}
	}
}

// TestAvoidHealthCheck: an unreachable endpoint on this node does not count, unless it is the last
// (FO-06).
func TestAvoidHealthCheck(t *testing.T) {
	for out, want := range map[string]int{"": 2, "10.1.1.1": 1, "10.1.1.1 10.1.1.2": 2} {
		s := newScene().loadBalancer("192.0.2.1").external(cluster.PolicyLocal).
			endpoints("10.1.1.1", "10.1.1.2", "10.1.2.1").with(placed).with(unreachable(strings.Fields(out)...))
		s.svc.HealthCheckNodePort = 30099
		for f := range s.resolve().All() {
			if f.Kind == lb.HealthCheck && f.LocalEndpoints != want {
				t.Errorf("without %q: %d, want %d", out, f.LocalEndpoints, want)
			}
		}
	}
}
