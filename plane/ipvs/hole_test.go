//go:build linux

package ipvs

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"testing"

	"kube-proxy/internal/netlink/ipvs"
	"kube-proxy/lb"
	"kube-proxy/test/ipvsfake"
	"kube-proxy/test/planetest"
)

// moment is the state that clients meet between two writes.
type moment struct {
	serving map[ipvs.ServiceID]bool   // with a real server for new connections
	ways    map[string]ipvs.ServiceID // the virtual servers of members, by mark
	addrs   map[netip.Addr]bool
	what    string // the next write
}

func (k *lab) moment(f lb.Family, what string) moment {
	m := moment{map[ipvs.ServiceID]bool{}, map[string]ipvs.ServiceID{}, maps.Clone(k.devs[f].addrs), what}
	for _, v := range k.ipvs.State() {
		for _, d := range v.Destinations {
			if d.Weight > 0 {
				m.serving[v.ServiceID] = true
			}
		}
	}
	for _, s := range []set{setMarksPods, setMarksHost, setMarksAnywhere} {
		if set := k.sets[s.name(f)]; set != nil {
			for key, is := range set.members {
				if is.Mask == wholeMark {
					m.ways[s.name(f)+" "+key.String()] = ipvs.ByMark(wireFamily(f), is.Mark)
				}
			}
		}
	}
	return m
}

// Without transactions: between any two messages of a change or restart, each client that was
// served before and is served afterwards has a real server, by address and by mark.
func TestNoHole(t *testing.T) {
	for _, seed := range walks(20) {
		f := familyOf(seed)
		rnd := rand.New(rand.NewPCG(seed, 3))
		k, p, table, w := started(t, f)
		for step := range 10 {
			before := k.moment(f, "")
			var moments []moment
			k.ipvs.Before = func(r ipvsfake.Request) error {
				moments = append(moments,
					k.moment(f, fmt.Sprintf("command %d %v %v", r.Command, r.Service, r.Destination)))
				return nil
			}
			k.refuse = func(what string) error { moments = append(moments, k.moment(f, what)); return nil }
			m := moves()[rnd.IntN(len(moves()))]
			changes := m.make(table, w)
			var err error
			if restart := rnd.IntN(3) == 0; restart {
				p = k.plane(t, f)
				_, err = planetest.ResetAll(t.Context(), p, table)
			} else {
				_, err = p.Apply(t.Context(), changes)
			}
			k.ipvs.Before, k.refuse = nil, nil
			must(t, err)
			after := k.moment(f, "")
			for _, at := range moments {
				if hole := hole(before, at, after, p.l.mark.drop()); hole != "" {
					t.Fatalf("seed %d, step %d, %s: %s before %s", seed, step, m.name, hole, at.what)
				}
			}
		}
	}
}

// hole names a client that is not served at a moment, but is served before and after.
func hole(before, at, after moment, drop uint32) string {
	for id := range before.serving {
		if id.Mark == 0 && after.serving[id] && !at.serving[id] {
			return fmt.Sprintf("%v has no real server", id)
		}
	}
	for name, id := range at.ways {
		if before.serving[before.ways[name]] && after.serving[after.ways[name]] && !at.serving[id] && id.Mark != drop {
			return fmt.Sprintf("%s leads to %v, which has no real server", name, id)
		}
	}
	for a := range before.addrs {
		if after.addrs[a] && !at.addrs[a] {
			return fmt.Sprintf("address %s is gone", a)
		}
	}
	return ""
}

// A change that gives a key endpoints and source ranges, or endpoints and a drop, blocks clients
// before it admits any (TN-65).
func TestGuardsComeFirst(t *testing.T) {
	w := planetest.World{Family: lb.IPv4}
	owner, key := lb.Owner{Name: "ns/web"}, lb.Key{Addr: w.Addr(198, 1), Port: 80, Proto: lb.TCP}
	row := func(sources []netip.Prefix, routes ...lb.Route) *lb.Frontend {
		return &lb.Frontend{Key: key, Service: "ns/web:http", Kind: lb.LoadBalancer, Routes: routes, Sources: sources}
	}
	reject := row(nil, lb.Route{From: lb.Anywhere, Do: lb.Reject})
	guarded := row([]netip.Prefix{netip.PrefixFrom(w.Addr(100, 0), 8)}, lb.Route{From: lb.Anywhere, Do: lb.Balance,
		To: w.Set("ns/web:http", lb.Cluster, 1, 2)})
	k := newLab(t)
	table := w.Table(0, 0)
	table.Replace(owner, []*lb.Frontend{reject})
	p := k.start(t, lb.IPv4, table)
	asked := 0
	k.ipvs.Before = func(r ipvsfake.Request) error {
		if r.Command == ipvsfake.NewDest {
			asked++
			if n := len(k.sets[setFirewall.name(lb.IPv4)].members); n != 1 {
				t.Errorf("a real server comes while %d keys have source ranges", n)
			}
		}
		return nil
	}
	must(t, only(p.Apply(t.Context(), replaced(table, owner, []*lb.Frontend{guarded}))))
	if asked == 0 {
		t.Error("no real server came")
	}
}
