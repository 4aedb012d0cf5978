package failover_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"kube-proxy/test/seedtest"
)

// TestWalk: nodes and pods die and return, policies and this node's link change, at random, while
// clients wait. The model is the simulated network itself. Whatever happens,
//
//   - an endpoint is not unreachable 14 s after it and its node answer again (FO-09);
//   - no node becomes unreachable unless it was dead within 5 s, and no endpoint unless it or its
//     node was: a failure of the link changes nothing (FO-03, FO-04, FO-07);
//   - the limits hold, and only addresses of the Services and nodes are probed (FO-10).
func TestWalk(t *testing.T) {
	seed := seedtest.Of(t)
	for round := range uint64(20) {
		t.Run(fmt.Sprint(round), func(t *testing.T) { walk(t, rand.New(rand.NewPCG(seed, round))) })
	}
}

// fact is since when something holds.
type fact map[string]time.Duration

func walk(t *testing.T, random *rand.Rand) {
	w := newWorld(t)
	const nodes = 6 // node-2 to node-7
	var endpoints []string
	for s := range 4 {
		var all []string
		for n := 2; n < 2+nodes; n++ {
			a := fmt.Sprintf("10.%d.%d.1", s, n)
			all = append(all, fmt.Sprintf("%s@node-%d", a, n))
			endpoints = append(endpoints, a+":80")
		}
		w.service(fmt.Sprintf("%cweb", 'a'+s), all...)
	}
	alive, nodeAlive, lastDead, lastSilent := fact{}, fact{}, fact{}, fact{}
	blamed := fact{}
	node := func() string { return fmt.Sprintf("node-%d", 2+random.IntN(nodes)) }
	for range 400 {
		n, at := node(), endpoints[random.IntN(len(endpoints))]
		switch random.IntN(12) {
		case 0:
			w.dead[n] = !w.dead[n]
			if !w.dead[n] {
				nodeAlive[n] = w.now
			}
		case 1:
			w.silent[addr(at)] = !w.silent[addr(at)]
		case 2:
			w.gone[addr(at)] = !w.gone[addr(at)]
		case 3:
			w.cut = random.IntN(2) == 0
		case 4: // for as long as a few probes
			w.run(time.Duration(random.IntN(1000)) * time.Millisecond)
			was := w.cut
			w.cut = true
			w.run(time.Duration(random.IntN(1000)) * time.Millisecond)
			w.cut = was
			clear(alive)
		}
		downs := len(w.downs)
		for range 5 { // clients of a second
			for _, at := range endpoints {
				own, byNode := w.is(at)
				if r := w.answer(addr(at)); !r.Reached() && !own && !byNode && random.IntN(2) == 0 {
					w.notice(fmt.Sprintf("%cweb", 'a'+at[3]-'0'), at)
				}
			}
			w.run(200 * time.Millisecond)
		}
		for n := 2; n < 2+nodes; n++ {
			if name := fmt.Sprintf("node-%d", n); w.dead[name] {
				lastDead[name] = w.now
			}
		}
		for _, name := range w.downs[downs:] {
			if was := lastDead[name]; was == 0 || was < w.now-5*time.Second { // looked at once a second
				t.Fatalf("%s: %s became unreachable; it was last dead at %s", w.now, name, was)
			}
		}
		for _, at := range endpoints {
			home := w.homes[addr(at).Addr()]
			own, byNode := w.is(at)
			if w.answer(addr(at)).Reached() {
				if alive[at] == 0 {
					alive[at] = w.now
				}
			} else {
				delete(alive, at)
			}
			if w.silent[addr(at)] || w.gone[addr(at)] || w.dead[home] {
				lastSilent[at] = w.now
			}
			since := alive[at]
			if since > 0 && w.now > since+14*time.Second && w.now > nodeAlive[home]+14*time.Second && (own || byNode) {
				t.Fatalf("%s: %s answers since %s, and is unreachable: by itself %v, by its node %v", w.now, at, since,
					own, byNode)
			}
		}
		for _, e := range w.state.Status(w.now).Endpoints {
			at, since := e.Address.String(), w.now-e.For
			if e.Unreachable && blamed[at] != since && lastSilent[at] < since-5*time.Second {
				t.Fatalf("%s: %s became unreachable by itself at %s; it was last silent at %s", w.now, at, since,
					lastSilent[at])
			}
			if e.Unreachable {
				blamed[at] = since
			}
		}
	}
	w.limits(200)
	for _, p := range w.probes {
		a := p.to.Addr()
		if _, ours := w.homes[a]; !ours && !netip.MustParsePrefix("192.168.0.0/24").Contains(a) {
			t.Fatalf("probed %s", p.to)
		}
	}
}
