//go:build linux

package ipvs

import (
	"context"
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"testing"

	"kube-proxy/lb"
	"kube-proxy/test/planetest"
)

// ranged returns frontends of a Service that share a list of ranges, on consecutive ports from 80
// on.
func ranged(w planetest.World, service string, addr, ports, ranges int) (all []*lb.Frontend) {
	var sources []netip.Prefix
	for i := range ranges {
		a := w.Addr(172, 2*i)
		sources = append(sources, netip.PrefixFrom(a, a.BitLen()))
	}
	for i := range ports {
		name := fmt.Sprintf("%s:p%d", service, i)
		all = append(all, &lb.Frontend{Key: lb.Key{Addr: w.Addr(198, addr), Port: uint16(80 + i), Proto: lb.TCP},
			Service: name, Kind: lb.LoadBalancer,
			Sources: sources, Routes: []lb.Route{{From: lb.Anywhere, Do: lb.Balance, Masq: true,
				To: w.Set(name, lb.Cluster, 100*addr, 2)}}})
	}
	return all
}

// held is the kernel's state of a key.
type held struct {
	ranges          int
	firewalled      bool // only clients of the ranges pass
	drops, balances bool
}

func (h held) open() bool { return h.balances && !h.firewalled && !h.drops }

func (k *lab) held(p *Plane, key lb.Key) (h held) {
	at := func(s set) (n int, mark uint32) {
		for m, is := range k.sets[s.name(lb.FamilyOf(key.Addr))].members {
			if m.Addr == key.Addr && m.Port == key.Port {
				n, mark = n+1, is.Mark
			}
		}
		return n, mark
	}
	h.ranges, _ = at(setSourceCIDR)
	n, _ := at(setFirewall)
	h.firewalled = n > 0
	_, mark := at(setMarksAnywhere)
	h.drops = mark == p.l.mark.drop()
	serve, _ := k.weights(key)
	h.balances = serve > 0
	return h
}

// A Service whose ranges, counted for each of its keys, exceed the limit is reported. Its other
// keys drop all clients, so no client outside its ranges passes, and other Services are served
// (SV-61, SV-25).
func TestTooManySourceRangesSV61(t *testing.T) {
	if maxRanges < 1000*50 {
		t.Error("1,000 ports with 50 ranges each, a common configuration, exceed the limit")
	}
	const many = maxRanges/2 + 1 // fits once, not twice
	k, w := newLab(t), planetest.World{Family: lb.IPv4}
	table := w.Table(0, 0)
	greedy, other := lb.Owner{Name: "a/greedy"}, lb.Owner{Name: "b/other"}
	table.Replace(greedy, ranged(w, greedy.Name, 1, 2, 2))
	p := k.start(t, lb.IPv4, table)
	first, second := lb.Key{Addr: w.Addr(198, 1), Port: 80, Proto: lb.TCP}, lb.Key{Addr: w.Addr(198, 1), Port: 81,
		Proto: lb.TCP}
	third := lb.Key{Addr: w.Addr(198, 2), Port: 80, Proto: lb.TCP}
	served := func(ranges int) held { return held{ranges: ranges, firewalled: true, balances: true} }
	dropped := held{drops: true}
	expect := func(when string, want map[lb.Key]held) {
		t.Helper()
		for key, want := range want {
			if got := k.held(p, key); got != want {
				t.Errorf("%s: the kernel has %+v of %s, want %+v", when, got, key, want)
			}
		}
	}
	apply := func(changes []lb.Change) error {
		_, err := p.Apply(context.Background(), changes)
		return err
	}
	expect("in the beginning", map[lb.Key]held{first: served(2), second: served(2)})

	looks := 0
	k.refuse = func(what string) error {
		// The announced next operation changes nothing.
		looks++
		if looks%4000 == 0 || !strings.Contains(what, setSourceCIDR.name(lb.IPv4)) {
			if h := k.held(p, second); h.open() {
				t.Errorf("before %s: all may come: %+v", what, h)
			}
		}
		return nil
	}
	changes, _ := table.Replace(greedy, ranged(w, greedy.Name, 1, 2, many))
	more, _ := table.Replace(other, ranged(w, other.Name, 2, 1, 3))
	err := apply(append(changes, more...))
	if err == nil || !strings.Contains(err.Error(), greedy.Name) ||
		!strings.Contains(err.Error(), fmt.Sprint(maxRanges)) || !strings.Contains(err.Error(), second.String()) {
		t.Errorf("%d ranges for two keys: %v, want an error that names the key, the Service, and the bound", many, err)
	}
	after := map[lb.Key]held{first: served(many), second: dropped, third: served(3)}
	expect("with too many", after)
	k.refuse = nil

	offer := lb.Change{Key: second, New: table.Get(second)}
	if err := apply([]lb.Change{offer}); err == nil {
		t.Error("the row that is too much is taken when it comes again")
	}
	expect("when it comes again", after)
	again := k.plane(t, lb.IPv4)
	res, err := again.Reset(t.Context(), table)
	if err != nil || len(res.Later) != 1 || res.Later[0] != second {
		t.Errorf("a Reset left %v for later, %v, want %s", res.Later, err, second)
	}
	p = again
	expect("after a restart", after)

	must(t, apply([]lb.Change{{Key: first}}))
	if err := apply([]lb.Change{offer}); err != nil {
		t.Errorf("when there is room: %v", err)
	}
	expect("when there is room", map[lb.Key]held{first: {}, second: served(many), third: served(3)})
	for _, o := range []lb.Owner{greedy, other} {
		changes, _ := table.Replace(o, nil)
		must(t, apply(changes))
	}
	if len(p.l.ranges) > 0 || len(k.ipvs.State()) > 0 {
		t.Errorf("with no Service: ranges of %v, and %v", p.l.ranges, k.ipvs.State())
	}
}

// Refused ranges of a Service take no memory, also not at a restart.
func TestTooManySourceRangesTakeNoMemory(t *testing.T) {
	const ports, ranges = 100, 20000
	k, w := newLab(t), planetest.World{Family: lb.IPv4}
	table := w.Table(0, 0)
	table.Replace(lb.Owner{Name: "a/a"}, ranged(w, "a/a", 1, ports, ranges))
	for _, when := range []string{"the first start", "a restart"} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		p := k.plane(t, lb.IPv4)
		res, err := p.Reset(t.Context(), table)
		must(t, err)
		for _, key := range res.Later {
			// The plane refuses most.
			p.Apply(t.Context(), []lb.Change{{Key: key, New: table.Get(key)}})
		}
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; took > maxRanges*4000 {
			t.Errorf("%s allocated %d MB for %d ranges, want as much as for %d", when, took>>20, ports*ranges,
				maxRanges)
		}
		if len(res.Later) < ports-maxRanges/ranges {
			t.Errorf("%s left %d of %d rows", when, len(res.Later), ports)
		}
	}
}
