//go:build linux

package iptables

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/test/planetest"
)

// restricted returns a Service with a number of ports of a load-balancer address that all have the
// same source ranges.
func restricted(w planetest.World, i, ports int, sources []netip.Prefix, do lb.Action) (lb.Owner, []*lb.Frontend) {
	name := fmt.Sprintf("ns/restricted-%d", i)
	var fronts []*lb.Frontend
	for port := range ports {
		service := fmt.Sprintf("%s:p%d", name, port)
		route := lb.Route{From: lb.Anywhere, Do: do}
		if do == lb.Balance {
			route.To = w.Set(service, lb.Cluster, 1, 2)
		}
		fronts = append(fronts, &lb.Frontend{
			Key:     lb.Key{Addr: w.Addr(198, i), Port: uint16(1 + port), Proto: lb.TCP},
			Service: service, Kind: lb.LoadBalancer, Sources: sources, Routes: []lb.Route{route},
		})
	}
	return lb.Owner{Name: name}, fronts
}

// someRanges returns n addresses, different ones for each from.
func someRanges(w planetest.World, from, n int) (all []netip.Prefix) {
	for i := range n {
		a := w.Addr(11, from+i)
		all = append(all, netip.PrefixFrom(a, a.BitLen()))
	}
	return all
}

// The cost of a Service is its ports plus its ranges, not their product, with or without endpoints,
// also if its addresses are among the ranges. A Service that shares its ranges with another one
// costs only its ports.
func TestCostOfSourceRanges(t *testing.T) {
	for fam, do := range map[lb.Family]lb.Action{lb.IPv4: lb.Balance, lb.IPv6: lb.Reject} {
		w := planetest.World{Family: fam}
		p := newPlane(t, Config{Family: fam, Backend: xtables.NFT, Runner: &blackHole{}})
		tab := w.Table(3, 2)
		reset(t, p, tab)
		type cost struct{ rules, bytes, restores int }
		costOf := func(i, ports int, sources []netip.Prefix) cost {
			before := p.Stats()
			replace(t, p, tab)(restricted(w, i, ports, sources, do))
			after := p.Stats()
			return cost{after.Last.NAT + after.Last.Filter, int(after.Bytes - before.Bytes),
				int(after.Restores - before.Restores)}
		}
		ports, ranges := costOf(2, 300, someRanges(w, 0, 1)), costOf(3, 1, someRanges(w, 0, 300))
		both := cost{ports.rules + ranges.rules, ports.bytes + ranges.bytes, 1}
		for _, c := range []struct {
			what    string
			i       int
			sources []netip.Prefix
			base    cost // the limit is half more
		}{
			{"300 ranges", 4, someRanges(w, 1000, 300), both},
			{"ranges that another Service has", 5, someRanges(w, 1000, 300), ports},
			{"its own address beside", 6, append(someRanges(w, 1000, 300), netip.PrefixFrom(w.Addr(198, 6),
				w.Addr(198, 6).BitLen())), ports},
			{"one range more", 4, someRanges(w, 1000, 301), both},
		} {
			got := costOf(c.i, 300, c.sources)
			if got.rules > 3*c.base.rules/2 || got.bytes > 3*c.base.bytes/2 || got.restores != 1 {
				t.Errorf("%s, 300 ports and %s: %+v, want at most half more than %+v", fam, c.what, got, c.base)
			}
		}
		if p.st.Rules[xtables.NAT] > 20_000 || p.st.Rules[xtables.Filter] > 20_000 {
			t.Errorf("%v rules, of 1,201 ports and 902 ranges", p.st.Rules)
		}
	}
}

// The chain of a list is created for its first user and deleted after its last, in the right order
// for the kernel: in nat for Services with endpoints, in filter for those without. A process that
// starts in between takes them over.
func TestSourceListsComeAndGo(t *testing.T) {
	eachOnce(t, func(t *testing.T, w planetest.World, cfg Config) {
		p := newPlane(t, cfg)
		tab := w.Table(2, 2)
		reset(t, p, tab)
		one, other := someRanges(w, 0, 3), someRanges(w, 100, 3)
		for _, step := range []struct {
			what        string
			i           int
			ranges      []netip.Prefix
			do          lb.Action
			NAT, filter int // lists afterwards
		}{
			{"the first user", 1, one, lb.Balance, 1, 0},
			{"another user", 2, one, lb.Balance, 1, 0},
			{"another list", 3, other, lb.Balance, 2, 0},
			{"endpoints that go", 1, one, lb.Reject, 2, 1},
			{"endpoints of all that go", 2, one, lb.Reject, 1, 1},
			{"another list without endpoints", 2, other, lb.Reject, 1, 2},
			{"endpoints that come", 1, one, lb.Balance, 2, 1},
			{"no restriction", 1, nil, lb.Balance, 1, 1},
			{"one list for another", 3, one, lb.Balance, 1, 1},
		} {
			replace(t, p, tab)(restricted(w, step.i, 2, step.ranges, step.do))
			for tb, want := range map[xtables.Table]int{xtables.NAT: step.NAT, xtables.Filter: step.filter} {
				out := run(t, "", p.Tool.Program+"-save", "-t", tb.String())
				if n := strings.Count(out, "\n:"+xtables.SourceList); n != want {
					t.Errorf("%s: %d lists in %s, want %d:\n%s", step.what, n, tb, want, out)
				}
			}
			if len(p.st.lists) != step.NAT+step.filter {
				t.Errorf("%s: %d lists are known", step.what, len(p.st.lists))
			}
			repairs(t, p, 0, step.what)
			before := dump(t, p)
			p = newPlane(t, cfg)
			reset(t, p, tab)
			if n := p.Stats().Restores; n != 0 || dump(t, p) != before {
				t.Errorf("%s: a new process ran %d restores:\n%s\nbefore:\n%s", step.what, n, dump(t, p), before)
			}
		}
		for i := 1; i <= 3; i++ {
			replace(t, p, tab)(lb.Owner{Name: fmt.Sprintf("ns/restricted-%d", i)}, nil)
		}
		if out := run(t, "", p.Tool.Program+"-save"); strings.Contains(out, xtables.SourceList) || len(p.st.lists) > 0 {
			t.Errorf("lists without users:\n%s", out)
		}
		if s := p.Stats(); s.Failures > 0 || len(s.Stuck) > 0 {
			t.Errorf("%d restores failed, stuck are %q", s.Failures, s.Stuck)
		}
	})
}
