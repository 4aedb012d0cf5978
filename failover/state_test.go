package failover_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"kube-proxy/cluster"
	. "kube-proxy/failover"
	"kube-proxy/lb"
	"kube-proxy/test/seedtest"
)

const (
	b1, b2 = "10.0.2.1:80", "10.0.2.2:80"
	c1     = "10.0.3.1:80"
)

// three has Service x.web on nodes b and c, and y.other on both.
func three(t *testing.T) *world {
	w := newWorld(t)
	w.service("xweb", "10.0.2.1@node-2", "10.0.3.1@node-3")
	w.service("yother", "10.0.2.2@node-2", "10.0.3.2@node-3")
	return w
}

// TestVerdicts has one cause of silence each (FO-02 to FO-05).
func TestVerdicts(t *testing.T) {
	tests := []struct {
		name          string
		world         func(*world)
		own, byNode   bool
		other, byNote bool // the other endpoint on the node, by its own and with the node
	}{
		{"the node is dead", func(w *world) { w.dead["node-2"] = true }, false, true, false, true},
		{"nothing is wrong", func(*world) {}, false, false, false, false},
		{"a reset is an answer", func(w *world) { w.refusing[addr(b1)] = true }, false, false, false, false},
		{"the pod is gone, its node lives", func(w *world) { w.gone[addr(b1)] = true }, true, false, false, false},
		{"a policy drops this node's probes", func(w *world) { w.silent[addr(b1)] = true }, false, false, false, false},
		{"this node's own link is down", func(w *world) { w.cut = true }, false, false, false, false},
		{"the Node is unknown", func(w *world) { w.dead["node-2"], w.noNodes = true, true }, false, false, false,
			false},
		{"the ports of nodes are closed, an endpoint of another namespace answers", func(w *world) {
			w.silent[addr(b1)] = true
			w.silent[addr("192.168.0.2:10250")], w.silent[addr("192.168.0.2:10256")] = true, true
		}, false, false, false, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			w := three(t)
			test.world(w)
			w.notice("xweb", b1)
			w.run(3 * time.Second)
			own, byNode := w.is(b1)
			other, otherByNode := w.is(b2)
			if own != test.own || byNode != test.byNode || other != test.other || otherByNode != test.byNote {
				t.Errorf("%s: by itself %v, by its node %v, its neighbour %v, %v; want %v", b1, own, byNode, other,
					otherByNode, test)
			}
			if want := test.own || test.byNode; (len(w.rescued) > 0) != want {
				t.Errorf("rescued %v, want any: %v", w.rescued, want)
			}
		})
	}
}

// TestTimeToVerdict: a dead node is known within 750 ms of the first notice, however many follow
// (FO-03).
func TestTimeToVerdict(t *testing.T) {
	w := three(t)
	w.dead["node-2"] = true
	for range 75 {
		w.notice("xweb", b1)
		w.run(10 * time.Millisecond)
	}
	if _, byNode := w.is(b1); !byNode {
		t.Errorf("not known yet: %+v", w.state.Status(w.now))
	}
	if _, udp := w.isOn("10.0.2.2:53", "node-2", lb.UDP); !udp {
		t.Error("a UDP endpoint is not avoided with its node")
	}
	if s := w.state.Status(w.now); len(s.Nodes) != 1 || s.Nodes[0].Endpoints != 4 || !s.Nodes[0].Whole {
		t.Errorf("status %+v, want node-2 with 4 endpoints", s)
	}
}

// TestSilentAfterAnAnswer: an endpoint that answered a probe before needs no dead node (FO-04).
func TestSilentAfterAnAnswer(t *testing.T) {
	w := three(t)
	w.notice("xweb", b1)
	w.run(2 * time.Second)
	w.silent[addr(b1)] = true
	w.notice("xweb", b1)
	w.run(2 * time.Second)
	if own, _ := w.is(b1); !own {
		t.Errorf("it is reached: %+v", w.state.Status(w.now))
	}
	w.silent[addr(b1)] = false
	w.run(10 * time.Second)
	if own, _ := w.is(b1); own {
		t.Error("it answers, and is avoided")
	}
	// The same while this node's link is down is no verdict.
	w.cut = true
	w.notice("xweb", b1)
	w.run(5 * time.Second)
	if own, byNode := w.is(b1); own || byNode {
		t.Error("this node's link is down, and the endpoint is avoided")
	}
}

// TestLinkReturns: this node's link is down for a while, and comes back while an inquiry looks for
// an address that answers. The silence before proves nothing (FO-07).
func TestLinkReturns(t *testing.T) {
	for cut := 100 * time.Millisecond; cut < 6*time.Second; cut += 50 * time.Millisecond {
		w := newWorld(t)
		var all []string
		for n := 2; n < 30; n++ {
			all = append(all, fmt.Sprintf("10.0.%d.1@node-%d", n, n))
		}
		w.service("xweb", all...)
		w.notice("xweb", b1) // it answers a probe
		w.run(2 * time.Second)
		w.cut = true
		w.notice("xweb", b1)
		w.run(cut)
		w.cut = false
		for range 50 {
			if own, byNode := w.is(b1); own || byNode || len(w.downs) > 0 {
				t.Fatalf("after a cut of %s: unreachable by itself %v, by its node %v; down: %v", cut, own, byNode,
					w.downs)
			}
			w.run(100 * time.Millisecond)
		}
		w.dead["node-2"] = true
		for range 10 {
			w.notice("xweb", b1)
			w.run(time.Second)
		}
		if len(w.downs) == 0 {
			t.Fatalf("after a cut of %s a dead node is not found: %+v", cut, w.state.Status(w.now))
		}
	}
}

// TestOwnControls: an address on this node answers also while this node's link is down, and proves
// nothing, whatever node a slice names for it; nor does an API server there (FO-07).
func TestOwnControls(t *testing.T) {
	for name, endpoints := range map[string][]string{
		"endpoints": {"10.0.2.1@node-2", "10.0.1.7@node-3"},
		"servers":   {"10.0.2.1@node-2"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			server := netip.MustParseAddr("192.168.0.1")
			w.homes[netip.MustParseAddr("10.0.1.7")], w.homes[server] = self, self
			w.store.Fold(cluster.NodeSet{Node: &cluster.Node{Name: self, Addrs: []netip.Addr{server},
				PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24")}}})
			w.service("xweb", endpoints...)
			w.store.Fold(cluster.APIServerAt{Addrs: []netip.AddrPort{netip.AddrPortFrom(server, 6443)}})
			w.cut = true
			for range 20 {
				w.notice("xweb", b1)
				w.run(time.Second)
				if len(w.downs) > 0 {
					t.Fatalf("this node's link is down, and %v became unreachable", w.downs)
				}
			}
		})
	}
}

// TestReturn: the first answer of a node ends its avoidance, at most 10 s later; meanwhile a node
// costs two addresses each 8 s (FO-09).
func TestReturn(t *testing.T) {
	for name, alive := range map[string]func(*world){
		"all of it": func(w *world) { w.dead["node-2"] = false },
		"ports are closed, endpoints answer": func(w *world) {
			w.silent[addr("192.168.0.2:10250")], w.silent[addr("192.168.0.2:10256")] = true, true
			w.dead["node-2"] = false
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := three(t)
			w.dead["node-2"] = true
			w.notice("xweb", b1)
			w.notice("yother", b2)
			w.run(time.Minute)
			w.probes = nil
			w.run(time.Minute)
			if n := len(w.probes); n < 2*6 || n > 2*10 {
				t.Errorf("%d probes in a minute, want two each 8 s", n)
			}
			alive(w)
			w.run(10 * time.Second)
			for _, at := range []string{b1, b2} {
				if own, byNode := w.is(at); own || byNode {
					t.Errorf("%s is still avoided", at)
				}
			}
		})
	}
}

// TestTenantsWord: nodes in slices of one Service move the traffic of no other (FO-08).
func TestTenantsWord(t *testing.T) {
	w := three(t)
	w.dead["node-9"] = true
	// z lists the endpoint of x as if on a dead node, and drops its own clients' packets to it.
	w.service("zevil", "10.0.2.1@node-9", "10.0.3.9@node-3")
	w.silent[addr(b1)] = true // its policy drops probes of nodes
	for range 20 {
		w.notice("zevil", b1)
		w.run(time.Second)
	}
	if own, byNode := w.is(b1); own || byNode {
		t.Error("the endpoint is avoided for its own Service")
	}
	w.notice("xweb", b1)
	w.run(3 * time.Second)
	if own, byNode := w.is(b1); own || byNode {
		t.Error("the endpoint is avoided for its own Service after a notice")
	}
	if _, byNode := w.is("10.0.2.2:80"); byNode {
		t.Error("node-2 counts as down")
	}
}

// TestFlood: 10,000 silent endpoints of one namespace cost 20 probes a second, and delay no
// other namespace (FO-10).
func TestFlood(t *testing.T) {
	w := three(t)
	var all []string
	for i := range 10_000 {
		all = append(all, fmt.Sprintf("10.9.%d.%d@node-%d", i/250, i%250, 100+i%100))
	}
	w.service("zflood", all...)
	for i := range 10_000 {
		w.silent[addr(fmt.Sprintf("10.9.%d.%d:80", i/250, i%250))] = true
	}
	for s := range 5 {
		for i := range 400 {
			i += s * 400
			w.notice("zflood", fmt.Sprintf("10.9.%d.%d:80", i/250, i%250))
		}
		w.run(time.Second)
	}
	w.limits(20)
	w.dead["node-2"] = true
	w.notice("xweb", b1)
	w.run(time.Second)
	if _, byNode := w.is(b1); !byNode {
		t.Errorf("another namespace waits: %+v", w.state.Status(w.now).Nodes)
	}
	if w.state.Status(w.now).Ignored == 0 {
		t.Error("no notice was ignored")
	}
}

// TestAllNamespaces: all together send 200 probes a second at most.
func TestAllNamespaces(t *testing.T) {
	w := newWorld(t)
	for ns := range 50 {
		svc := string(rune('A'+ns)) + "web"
		var all []string
		for i := range 20 {
			all = append(all, fmt.Sprintf("10.%d.0.%d@node-%d", ns, i, 2+i))
		}
		w.service(svc, all...)
		for i := range 20 {
			at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(ns), 0, byte(i)}), 80)
			w.silent[at] = true
			w.notice(svc, at.String())
		}
	}
	w.run(5 * time.Second)
	w.limits(200)
	if len(w.probes) < 600 {
		t.Errorf("%d probes in 5 s, want use of the budget", len(w.probes))
	}
}

// TestBlockedClient: notices of a client that a policy drops cost one probe a second (FO-10).
func TestBlockedClient(t *testing.T) {
	w := three(t)
	for range 100 {
		w.notice("xweb", b1)
		w.run(100 * time.Millisecond)
	}
	if n := w.probed(b1); n < 5 || n > 11 {
		t.Errorf("%d probes in 10 s, want one each second", n)
	}
	if len(w.probes) != w.probed(b1) {
		t.Errorf("probes of others: %v", w.probes)
	}
}

// TestNothingElse: refused addresses and endpoints without waiting clients are not probed.
func TestNothingElse(t *testing.T) {
	w := three(t)
	w.service("zbad", "10.0.2.7@node-2")
	w.refused[addr("10.0.2.7:80")] = true
	w.dead["node-2"] = true
	w.notice("xweb", b1)
	w.run(time.Minute)
	if n := w.probed("10.0.2.7:80"); n != 0 {
		t.Errorf("%d probes to an address that policy does not serve", n)
	}
	if n := w.probed("10.0.3.2:80"); n != 0 {
		t.Errorf("%d probes to a living endpoint of another Service", n)
	}
}

// TestHalfOfTheNodes: five of ten nodes are cut: all five are avoided. Then the others are, too:
// nothing is (FO-07).
func TestHalfOfTheNodes(t *testing.T) {
	w := newWorld(t)
	var all []string
	for n := 2; n < 12; n++ {
		all = append(all, fmt.Sprintf("10.0.%d.1@node-%d", n, n))
	}
	w.service("xweb", all...)
	at := func(n int) string { return fmt.Sprintf("10.0.%d.1:80", n) }
	for n := 2; n < 7; n++ {
		w.dead[fmt.Sprintf("node-%d", n)] = true
	}
	for range 5 {
		for n := 2; n < 7; n++ {
			w.notice("xweb", at(n))
		}
		w.run(time.Second)
	}
	for n := 2; n < 12; n++ {
		if _, byNode := w.is(at(n)); byNode != (n < 7) {
			t.Errorf("node %d: avoided %v", n, byNode)
		}
	}
	w.cut = true
	for range 20 {
		for n := 7; n < 12; n++ {
			w.notice("xweb", at(n))
		}
		w.run(time.Second)
	}
	for n := 7; n < 12; n++ {
		if _, byNode := w.is(at(n)); byNode {
			t.Errorf("node %d is avoided while this node's link is down", n)
		}
	}
}

// TestFlapping: a node that comes and goes is avoided for longer each time.
func TestFlapping(t *testing.T) {
	w := three(t)
	avoided := 0
	for i := range 120 {
		w.dead["node-2"] = i%6 < 3
		if _, byNode := w.is(b1); byNode {
			avoided++
		}
		for range 10 {
			if _, byNode := w.is(b1); !byNode && w.dead["node-2"] {
				w.notice("xweb", b1)
			}
			w.run(100 * time.Millisecond)
		}
	}
	if avoided < 40 {
		t.Errorf("avoided in %d of 120 s", avoided)
	}
	if len(w.downs) > 30 {
		t.Errorf("%d verdicts in two minutes", len(w.downs))
	}
}

// TestVanished: an endpoint that the API no longer has is probed no more, and a dead node without
// endpoints is forgotten.
func TestVanished(t *testing.T) {
	w := three(t)
	w.gone[addr(b1)] = true
	w.notice("xweb", b1)
	w.run(time.Second)
	w.dead["node-2"] = true
	w.notice("yother", b2)
	w.run(3 * time.Second)
	w.service("xweb", "10.0.3.1@node-3")
	w.service("yother", "10.0.3.2@node-3")
	w.run(20 * time.Second)
	if !w.verdict.Unreachable.IsZero() {
		t.Errorf("still unreachable: %+v", w.verdict.Unreachable)
	}
	w.probes = nil
	w.run(time.Minute)
	if len(w.probes) > 0 {
		t.Errorf("probes go on: %v", w.probes)
	}
}

// TestManyServices: among 100,000 Services, a dead node costs the usual probes, and
// the new resolution of those that have an endpoint there alone.
func TestManyServices(t *testing.T) {
	w := newWorld(t)
	const services, nodes = 100_000, 1000
	for i := range services {
		w.service(fmt.Sprintf("%cweb%d", 'a'+i%26, i), fmt.Sprintf("10.%d.%d.%d@node-%d", 1+i/65536, i/256%256, i%256,
			i%nodes), fmt.Sprintf("10.%d.%d.%d@node-%d", 11+i/65536, i/256%256, i%256, (i+1)%nodes))
	}
	w.dead["node-7"] = true
	w.notice("hweb7", "10.1.0.7:80")
	w.run(time.Second)
	if !slices.Equal(w.downs, []string{"node-7"}) {
		t.Fatalf("down: %v; %+v", w.downs, w.state.Status(w.now))
	}
	if n := len(w.probes); n > 20 {
		t.Errorf("%d probes for one dead node", n)
	}
	dirty := w.store.Fold(cluster.UnreachableSet{Unreachable: w.verdict.Unreachable})
	if n := len(dirty.Services); n != 2*services/nodes {
		t.Errorf("%d Services are resolved, want the %d with an endpoint there", n, 2*services/nodes)
	}
}

// TestThreeAtOnce: three of six nodes die at once, and clients of one namespace wait for all three.
// Each verdict comes before its client repeats the packet again, 2 s after the notice, as inquiries
// share controls: the 20 probes a second of the namespace suffice (FO-03, FO-10).
func TestThreeAtOnce(t *testing.T) {
	seed := seedtest.Of(t)
	for run := range 100 {
		w := newWorld(t)
		random := rand.New(rand.NewPCG(seed, uint64(run)))
		w.state = New(table{w}, random.Float64)
		var endpoints []string
		waiting := map[string]time.Duration{} // endpoints on dead nodes, and the first notice
		for n := 2; n < 8; n++ {
			endpoints = append(endpoints, fmt.Sprintf("10.0.%d.1@node-%d", n, n))
			if n < 5 {
				w.dead[fmt.Sprintf("node-%d", n)] = true
				waiting[fmt.Sprintf("10.0.%d.1:80", n)] = 0
			}
		}
		w.service("xweb", endpoints...)
		for end := w.now + 10*time.Second; len(waiting) > 0 && w.now < end; w.run(10 * time.Millisecond) {
			for _, at := range slices.Sorted(maps.Keys(waiting)) {
				noticed := waiting[at]
				switch _, byNode := w.is(at); {
				case byNode:
					if w.now-noticed > 1500*time.Millisecond {
						t.Errorf("run %d: the node of %s is found after %s", run, at, w.now-noticed)
					}
					delete(waiting, at)
				case random.IntN(10) == 0:
					if noticed == 0 {
						waiting[at] = w.now
					}
					w.notice("xweb", at)
				}
			}
		}
		if len(waiting) > 0 {
			t.Errorf("run %d: not found: %v", run, waiting)
		}
		w.limits(200)
	}
}
