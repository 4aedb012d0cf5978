package trace_test

import (
	"net/netip"
	"slices"
	"testing"

	"kube-proxy/cluster"
	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/test/oracle"
	"kube-proxy/test/scenario"
	"kube-proxy/trace"
)

// verdicts are those of the table's actions; a row that accepts leaves the packet to a server of
// this node.
var verdicts = map[lb.Action]trace.Verdict{lb.Balance: trace.Balance, lb.Reject: trace.Reject, lb.Drop: trace.Drop,
	lb.Accept: trace.Pass}

// agree compares the answer with the oracle's. Where no Service has to do with a packet, the oracle
// has nothing to say.
func agree(t *testing.T, got trace.Answer, want oracle.Answer, what string) {
	t.Helper()
	if want.Do == 0 {
		if got.Service != "" || got.Verdict == trace.Balance || len(got.Backends) > 0 {
			t.Errorf("%s: %+v, but no Service has to do with it", what, got)
		}
		return
	}
	var backends []netip.AddrPort
	sum := 0.0
	for _, b := range got.Backends {
		backends = append(backends, b.Address)
		sum += b.Share
	}
	if got.Service != want.Service || got.Verdict != verdicts[want.Do] || !slices.Equal(backends, want.Backends) ||
		got.Masquerade != want.Masq {
		t.Errorf("%s:\ntrace says  %s %s %v masquerade %t\noracle says %s %s %v masquerade %t", what,
			got.Service, got.Verdict, backends, got.Masquerade, want.Service, want.Do, want.Backends, want.Masq)
	}
	if len(backends) > 0 && (sum < 0.999 || sum > 1.001) {
		t.Errorf("%s: shares add up to %v", what, sum)
	}
	if len(got.Why) == 0 {
		t.Errorf("%s: no reason", what)
	}
}

// Every packet of every scenario, in every state: the answer is the oracle's, which has read the
// specification and not the table.
func TestScenarios(t *testing.T) {
	dir, err := scenario.Dir()
	if err != nil {
		t.Fatal(err)
	}
	all, err := scenario.LoadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	asked, strangers := map[trace.Verdict]int{}, 0
	for _, sc := range all {
		for _, f := range []lb.Family{lb.IPv4, lb.IPv6} {
			strangers += replay(t, sc, f, asked)
		}
	}
	t.Logf("queries: %v, for addresses and ports of no Service %d", asked, strangers)
	if strangers < 40 {
		t.Errorf("only %d packets are for addresses and ports of no Service", strangers)
	}
	for _, v := range verdicts {
		if asked[v] < 20 {
			t.Errorf("only %d packets are to %s", asked[v], v)
		}
	}
}

// outcomes are what lines expect of packets that no backend gets.
var outcomes = map[scenario.Verdict]trace.Verdict{scenario.Refused: trace.Reject, scenario.Dropped: trace.Drop}

func inNetwork(facts cluster.Facts, a netip.Addr) bool {
	return slices.ContainsFunc(facts.CIDRs, func(p netip.Prefix) bool { return p.Contains(a) })
}

func replay(t *testing.T, sc *scenario.Scenario, f lb.Family, asked map[trace.Verdict]int) (strangers int) {
	t.Helper()
	r := sc.Replay(f)
	store := cluster.NewStore(sc.Settings.NodeName)
	store.Fold(sc.Settings.Held())
	for {
		step, ok, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			return strangers
		}
		for _, ev := range step.Events {
			store.Fold(ev)
		}
		var views []cluster.View
		for _, n := range store.Names() {
			views = append(views, store.View(n))
		}
		world := oracle.New(store.Facts(), sc.Settings.For(f), views)
		for _, p := range step.State.Packets {
			if p.Verb != scenario.Send && p.Verb != scenario.Open {
				continue
			}
			shots, err := r.Resolve(p, netlab.Addr)
			if err != nil {
				t.Fatalf("%s:%d: %v", sc.Name, p.Line, err)
			}
			for _, shot := range shots {
				from := shot.Local
				if !from.IsValid() {
					from = netlab.Addr(p.From, f == lb.IPv6)
				}
				what := sc.Name + " " + step.State.Name + ": " + p.Text
				if shot.Proto == 0 {
					shot.Proto = map[lb.Family]lb.Proto{lb.IPv4: trace.ICMPv4, lb.IPv6: trace.ICMPv6}[f]
				}
				got := trace.Ask(step.Table, trace.Mode{}, packet(store.Facts(), from, shot.To, shot.Proto))
				asked[got.Verdict]++
				// What no Service has in the service network, the oracle leaves to the line (SV-62,
				// SV-63, SV-66).
				want, known := outcomes[p.Want.Verdict]
				if unknown := got.Service == "" && inNetwork(store.Facts(), shot.To.Addr()); unknown && known &&
					got.Verdict != want {
					t.Errorf("%s: %s, want %s: %v", what, got.Verdict, want, got.Why)
				} else if unknown {
					strangers++
				}
				agree(t, got, world.Ask(oracle.Packet{From: from, To: shot.To, Proto: shot.Proto}), what)
			}
		}
	}
}

// packet is one as the node would see it that the oracle knows: it has the addresses of its Node
// object.
func packet(facts cluster.Facts, from netip.Addr, to netip.AddrPort, proto lb.Proto) trace.Packet {
	here := func(a netip.Addr) bool { return facts.Node != nil && slices.Contains(facts.Node.Addrs, a) }
	return trace.Packet{From: netip.AddrPortFrom(from, 0), Host: here(from), To: to, Here: here(to.Addr()),
		Proto: proto}
}
