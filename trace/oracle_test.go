package trace_test

import (
	"net/netip"
	"slices"
	"testing"

	"kube-proxy/cluster"
	"kube-proxy/internal/netlab"
	"kube-proxy/internal/oracle"
	"kube-proxy/internal/scenario"
	"kube-proxy/lb"
	"kube-proxy/trace"
)

// verdicts are those of the table's actions; a row that accepts leaves the packet to a server of this node.
var verdicts = map[lb.Action]trace.Verdict{lb.Balance: trace.Balance, lb.Reject: trace.Reject, lb.Drop: trace.Drop, lb.Accept: trace.Pass}

// agree compares the answer with the oracle's. Where no Service has to do with a packet, the oracle has nothing to say.
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
	if got.Service != want.Service || got.Verdict != verdicts[want.Do] || !slices.Equal(backends, want.Backends) || got.Masquerade != want.Masq {
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

// Every packet of every scenario, in every state: the answer is the oracle's, which has read the behaviour book and not the table.
func TestScenarios(t *testing.T) {
	dir, err := scenario.Dir()
	if err != nil {
		t.Fatal(err)
	}
	all, err := scenario.LoadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	asked := map[trace.Verdict]int{}
	for _, sc := range all {
		for _, f := range []lb.Family{lb.IPv4, lb.IPv6} {
			replay(t, sc, f, asked)
		}
	}
	t.Logf("asked: %v", asked)
	for _, v := range verdicts {
		if asked[v] < 20 {
			t.Errorf("only %d packets are to %s", asked[v], v)
		}
	}
}

func replay(t *testing.T, sc *scenario.Scenario, f lb.Family, asked map[trace.Verdict]int) {
	t.Helper()
	r := sc.Replay(f)
	store := cluster.NewStore(sc.Settings.NodeName)
	for {
		step, ok, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			return
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
			shots, err := r.Resolve(p, hostAddr)
			if err != nil {
				t.Fatalf("%s:%d: %v", sc.Name, p.Line, err)
			}
			for _, shot := range shots {
				if shot.Proto == 0 {
					continue
				}
				from := shot.Local
				if !from.IsValid() {
					from = hostAddr(p.From, f == lb.IPv6)
				}
				what := sc.Name + " " + step.State.Name + ": " + p.Text
				got := trace.Ask(step.Table, trace.Mode{}, packet(store.Facts(), from, shot))
				asked[got.Verdict]++
				agree(t, got, world.Ask(oracle.Packet{From: from, To: shot.To, Proto: shot.Proto}), what)
			}
		}
	}
}

// packet is a shot as the node would see it that the oracle knows: it has the addresses of its Node object.
func packet(facts cluster.Facts, from netip.Addr, shot scenario.Shot) trace.Packet {
	here := func(a netip.Addr) bool { return facts.Node != nil && slices.Contains(facts.Node.Addrs, a) }
	return trace.Packet{From: netip.AddrPortFrom(from, 0), Host: here(from), To: shot.To, Here: here(shot.To.Addr()), Proto: shot.Proto}
}

func hostAddr(host string, six bool) netip.Addr {
	h, _ := netlab.HostByName(host)
	return h.Addr(six)
}
