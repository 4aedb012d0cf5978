//go:build linux

package ipvs

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink/ipvs"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/test/ipvsfake"
	"kube-proxy/test/planetest"
)

// count makes planes of the lab count, on a separate connection.
func (k *lab) count(t testing.TB) {
	t.Helper()
	k.counters = connect(t, k.ipvs)
}

// startedCounting returns a lab with a plane that counts, and holds startTable.
func startedCounting(t testing.TB, f lb.Family) (*lab, *Plane, *lb.Table, planetest.World) {
	t.Helper()
	k, w := newLab(t), planetest.World{Family: f}
	k.count(t)
	table := startTable(w)
	return k, k.start(t, f, table), table, w
}

// connect adds n connections to each virtual server that has backends, also foreign ones. It
// returns the added connections for each service port, according to the frontends and the sets of
// marks.
func (k *lab) connect(t testing.TB, f lb.Family, table *lb.Table, n uint64, own []netip.Addr) map[string]uint64 {
	t.Helper()
	want, served := map[string]uint64{}, map[ipvs.ServiceID]bool{}
	for _, v := range k.ipvs.State() {
		served[v.ServiceID] = slices.ContainsFunc(v.Destinations, func(d ipvs.DestinationState) bool {
			return d.Weight > 0
		})
	}
	for id, is := range k.counted(t) {
		row := k.rowOf(f, table, id, own)
		if row != nil && !served[id] { // without a serving backend
			continue
		}
		must(t, k.ipvs.SetServiceStats(id, ipvs.Stats{Conns: is + n, InPackets: 7}))
		if id.Family == wireFamily(f) && row != nil {
			want[row.Service] += n
		}
	}
	return want
}

// counted returns the connections of each virtual server of the kernel.
func (k *lab) counted(t testing.TB) map[ipvs.ServiceID]uint64 {
	t.Helper()
	all := map[ipvs.ServiceID]uint64{}
	must(t, k.conn.Services(t.Context(), func(s ipvs.ServiceState) error {
		all[s.ServiceID] = s.Stats.Conns
		return nil
	}))
	return all
}

// rowOf returns a frontend that uses a virtual server.
func (k *lab) rowOf(f lb.Family, table *lb.Table, id ipvs.ServiceID, own []netip.Addr) *lb.Frontend {
	key := keyOf(id)
	if id.Mark != 0 {
		key = lb.Key{}
		for _, s := range []set{setMarksPods, setMarksHost} {
			for _, m := range k.sets[s.name(f)].members {
				if m.Mark == id.Mark {
					key = lb.Key{Addr: m.Addr, Port: m.Port, Proto: lb.Proto(m.Proto)}
				}
			}
		}
	}
	if row := table.Get(key); row != nil {
		return row
	}
	if slices.Contains(own, key.Addr) {
		return table.Get(lb.Key{Port: key.Port, Proto: key.Proto})
	}
	return nil
}

// bytesOf returns the bytes that a plane counted, by service port.
func bytesOf(t testing.TB, p *Plane) map[string]uint64 {
	t.Helper()
	all := map[string]uint64{}
	must(t, p.Traffic(t.Context(), func(c mode.Count) { all[c.ServicePort] += c.Bytes }))
	return all
}

func plus(sums ...map[string]uint64) map[string]uint64 {
	all := map[string]uint64{}
	for _, m := range sums {
		for k, n := range m {
			all[k] += n
		}
	}
	return all
}

// The connections of virtual servers, by address, at each address of a NodePort and by mark, count
// for their service port. Foreign virtual servers do not count, and neither do connections from
// before a virtual server was found.
func TestCounters(t *testing.T) {
	for _, f := range []lb.Family{lb.IPv4, lb.IPv6} {
		k, p, table, w := startedCounting(t, f)
		own := p.l.nodePorts
		if !p.Counts() || len(own) == 0 {
			t.Fatalf("counts %t, NodePorts at %v", p.Counts(), own)
		}
		other := planetest.World{Family: lb.IPv4 + lb.IPv6 - f}
		foreign := []ipvs.ServiceID{
			ipvs.ByAddr(netip.AddrPortFrom(w.Addr(55, 1), 30010), uint8(lb.TCP)), // the port of a NodePort
			ipvs.ByAddr(netip.AddrPortFrom(w.Addr(55, 1), 80), uint8(lb.TCP)),
			ipvs.ByAddr(netip.AddrPortFrom(other.Addr(10, 1), 80), uint8(lb.TCP)),
			ipvs.ByMark(wireFamily(f), 7),
			probeID(f),
		}
		for _, id := range foreign {
			must(t, k.conn.Do(t.Context(),
				[]ipvs.Op{{Verb: ipvs.NewService, Service: ipvs.Service{ServiceID: id, Scheduler: "rr",
					Netmask: id.Family.WholeAddress()}}}, nil))
		}
		planetest.WantCounted(t, p, "before anybody came", map[string]uint64{})
		one := k.connect(t, f, table, 3, own)
		// Cluster IP, external IP, load balancer, NodePort at each address, and by marks.
		if full := one["ns/svc-10:http"]; full < 3*(3+uint64(len(own))+1) || one["ns/svc-0:http"] != 3 {
			t.Errorf("%s: the table leads to too little: %v", f, one)
		}
		planetest.WantCounted(t, p, "at first", one)
		planetest.WantCounted(t, p, "once more", one)
		two := k.connect(t, f, table, 1, own)
		planetest.WantCounted(t, p, "more", plus(one, two))

		again := k.start(t, f, table)
		planetest.WantCounted(t, again, "a process that finds them", map[string]uint64{})
		since := k.connect(t, f, table, 5, own)
		planetest.WantCounted(t, again, "more since", since)
		// Another program recreates a virtual server that was found with four connections.
		for i, conns := range []uint64{2, 6} {
			must(t, k.ipvs.SetServiceStats(serviceOf(lb.Key{Addr: w.Addr(10, 1), Port: 80, Proto: lb.TCP}),
				ipvs.Stats{Conns: conns}))
			delete(since, "ns/svc-0:http")
			if i > 0 {
				since["ns/svc-0:http"] = conns - 2
			}
			planetest.WantCounted(t, again, "recreated", since)
		}

		silent := newLab(t).plane(t, f)
		if silent.Counts() || len(planetest.Counted(t, silent)) != 0 {
			t.Error("it counts unasked")
		}
	}
}

// Counters continue through all changes of their virtual servers: no connection counts for another
// Service, twice, or not at all.
func TestCountersGoOn(t *testing.T) {
	k, p, table, w := startedCounting(t, lb.IPv4)
	id := ipvs.ByAddr(netip.AddrPortFrom(w.Addr(10, 1), 80), uint8(lb.TCP))
	const one = "ns/svc-0:http"
	connect := func(n uint64) {
		t.Helper()
		must(t, k.ipvs.SetServiceStats(id, ipvs.Stats{Conns: n}))
	}
	do := func(o lb.Owner, f []*lb.Frontend) {
		t.Helper()
		must(t, only(p.Apply(t.Context(), replaced(table, o, f))))
	}
	number := func() (n uint64) {
		t.Helper()
		must(t, p.Traffic(t.Context(), func(c mode.Count) { n = c.N }))
		return n
	}
	connect(10)
	planetest.WantCounted(t, p, "10", map[string]uint64{one: 10})
	first := number()
	do(w.ClusterIP(0, 7, 2))
	do(w.ClusterIP(0, 0, 0))
	planetest.WantCounted(t, p, "without endpoints", map[string]uint64{one: 10})
	do(w.ClusterIP(0, 7, 2))
	connect(12)
	planetest.WantCounted(t, p, "with some again", map[string]uint64{one: 12})
	must(t, k.ipvs.SetServiceStats(id, ipvs.Stats{Conns: 12, InBytes: 400, OutBytes: 1 << 40}))
	if got := bytesOf(t, p)[one]; got != 400+1<<40 {
		t.Errorf("%d bytes counted, want those of both directions", got)
	}

	must(t, only(planetest.ResetAll(t.Context(), p, table)))
	connect(13)
	planetest.WantCounted(t, p, "after a repair", map[string]uint64{one: 13})
	if got := number(); got != first {
		t.Errorf("the counter has the number %d now, before %d", got, first)
	}
	connect(4)
	planetest.WantCounted(t, p, "set to zero by others", map[string]uint64{one: 4})

	// A Service that is removed during a connection drains, and its virtual server stays ours.
	k.connections(always(1))
	connect(9)
	do(lb.Owner{Name: "ns/svc-0"}, nil)
	planetest.WantCounted(t, p, "it drains", map[string]uint64{one: 9})
	k.connections(always(0))
	hasten(p)
	must(t, only(p.Audit(t.Context(), false)))
	planetest.WantCounted(t, p, "it is gone", map[string]uint64{})
	do(w.ClusterIP(0, 7, 2))
	connect(100)
	planetest.WantCounted(t, p, "it comes again", map[string]uint64{one: 100})
	second := number()
	if second == first {
		t.Error("a counter that began again has the number of the one before")
	}

	// The address moves to another Service: earlier connections do not count for that.
	_, f := w.ClusterIP(0, 7, 2)
	moved := *f[0]
	moved.Service = "ns/other:http"
	moved.Routes = []lb.Route{{From: lb.Anywhere, Do: lb.Balance, To: w.Set(moved.Service, lb.Cluster, 7, 2)}}
	must(t, only(p.Apply(t.Context(), []lb.Change{{Key: moved.Key, Old: f[0], New: &moved}})))
	if got := number(); got != second {
		t.Errorf("an address that moves has the counter %d, before %d: what was counted would count again", got, second)
	}

	// Another program deletes it, and the audit recreates it; or that program recreates it, and its
	// count at that time is the base.
	remove := []ipvs.Op{{Verb: ipvs.DelService, Service: ipvs.Service{ServiceID: id}}}
	add := ipvs.Op{Verb: ipvs.NewService, Service: ipvs.Service{ServiceID: id, Scheduler: "rr",
		Netmask: id.Family.WholeAddress()}}
	must(t, k.conn.Do(t.Context(), remove, nil))
	must(t, only(p.Audit(t.Context(), true)))
	connect(3)
	planetest.WantCounted(t, p, "repaired", map[string]uint64{"ns/other:http": 3})
	must(t, k.conn.Do(t.Context(), append(remove, add), nil))
	connect(2)
	must(t, only(p.Audit(t.Context(), true)))
	connect(5)
	planetest.WantCounted(t, p, "recreated by others", map[string]uint64{"ns/other:http": 5})

	// A Reset recreates a deleted virtual server: it gets a new counter.
	third := number()
	must(t, k.conn.Do(t.Context(), remove, nil))
	table.Replace(lb.Owner{Name: "ns/svc-0"}, nil)
	table.Replace(lb.Owner{Name: "ns/other"}, []*lb.Frontend{&moved})
	must(t, only(planetest.ResetAll(t.Context(), p, table)))
	connect(50)
	planetest.WantCounted(t, p, "recreated by a Reset", map[string]uint64{"ns/other:http": 50})
	if number() == third {
		t.Error("a counter that a Reset began again has the number of the one before")
	}

	// The plane could not create a virtual server and another program then does: its count at that
	// time is the base.
	key := lb.Key{Addr: w.Addr(10, 31), Port: 80, Proto: lb.TCP}
	theirs := add
	theirs.Service.ServiceID = serviceOf(key)
	k.refuses(ipvsfake.NewService, theirs.Service.ServiceID, unix.EPERM)
	if _, err := p.Apply(t.Context(), replacedBy(t, table, w, 30)); err == nil {
		t.Fatal("a virtual server that cannot be made is no error")
	}
	k.ipvs.Before = nil
	must(t, k.conn.Do(t.Context(), []ipvs.Op{theirs}, nil))
	must(t, k.ipvs.SetServiceStats(theirs.Service.ServiceID, ipvs.Stats{Conns: 40}))
	must(t, only(p.Audit(t.Context(), true)))
	must(t, k.ipvs.SetServiceStats(theirs.Service.ServiceID, ipvs.Stats{Conns: 45}))
	planetest.WantCounted(t, p, "made by others", map[string]uint64{"ns/other:http": 50, "ns/svc-30:http": 5})
}

// replacedBy adds a Service i with two endpoints.
func replacedBy(t *testing.T, table *lb.Table, w planetest.World, i int) []lb.Change {
	t.Helper()
	o, f := w.ClusterIP(i, 7, 2)
	return replaced(table, o, f)
}

// disturbed is a list that lacks entries, or takes longer than a change.
type disturbed struct {
	Counters
	lacks func(ipvs.ServiceID) bool
	then  func()
}

func (d *disturbed) Services(ctx context.Context, f func(ipvs.ServiceState) error) error {
	var all []ipvs.ServiceState
	if err := d.Counters.Services(ctx, func(s ipvs.ServiceState) error {
		all = append(all, s)
		return nil
	}); err != nil {
		return err
	}
	d.then()
	for _, s := range all {
		if !d.lacks(s.ServiceID) {
			if err := f(s); err != nil {
				return err
			}
		}
	}
	return nil
}

// The kernel's list may lack virtual servers, and show the previous ones: no connection counts
// twice.
func TestCountersOfADisturbedList(t *testing.T) {
	w := planetest.World{Family: lb.IPv4}
	k := newLab(t)
	k.count(t)
	id := ipvs.ByAddr(netip.AddrPortFrom(w.Addr(10, 1), 80), uint8(lb.TCP))
	d := &disturbed{Counters: k.counters, lacks: func(ipvs.ServiceID) bool { return false }, then: func() {}}
	k.counters = d
	table := w.Table(3, 2)
	p := k.start(t, lb.IPv4, table)
	want := k.connect(t, lb.IPv4, table, 50, nil)
	planetest.WantCounted(t, p, "whole", want)
	d.lacks = func(is ipvs.ServiceID) bool { return is == id }
	planetest.WantCounted(t, p, "one is not listed", want)
	d.lacks = func(ipvs.ServiceID) bool { return false }
	d.then = func() {
		for _, n := range []int{0, 2} {
			o, f := w.ClusterIP(0, 3, n)
			if n == 0 {
				f = nil
			}
			must(t, only(p.Apply(t.Context(), replaced(table, o, f))))
		}
		d.then = func() {}
	}
	delete(want, "ns/svc-0:http")
	planetest.WantCounted(t, p, "recreated during the list", want)
	planetest.WantCounted(t, p, "the next time", want)
}

// Whatever fails, the plane knows the owner of each virtual server that it has, and records no
// other.
func TestCountersFollow(t *testing.T) {
	for _, seed := range walks(30) {
		f := familyOf(seed)
		rnd := rand.New(rand.NewPCG(seed, 99))
		k, p, table, w := startedCounting(t, f)
		for range 12 {
			k.ipvs.Before = func(r ipvsfake.Request) error {
				if r.Command.Writes() && rnd.IntN(20) == 0 {
					if rnd.IntN(2) == 0 {
						return ipvsfake.ErrLost
					}
					return unix.EPERM
				}
				return nil
			}
			all := moves()
			changes := all[rnd.IntN(len(all))].make(table, w)
			_, err := p.Apply(t.Context(), changes)
			k.ipvs.Before = nil
			if rnd.IntN(4) == 0 {
				must(t, k.damage(f, rnd))
			}
			if err != nil || rnd.IntN(4) == 0 {
				must(t, only(planetest.ResetAll(t.Context(), p, table)))
			} else if _, err := p.Audit(t.Context(), true); err != nil {
				t.Fatal(err)
			}
			for id, s := range p.l.servers {
				is := p.counters.of[id]
				if (is != nil) != s.has || is != nil && s.set != nil && is.port != s.set.ID.Service {
					t.Fatalf("walk %d: %s: there %t, its counter %+v, it leads to %v", seed, id, s.has, is, s.set)
				}
			}
			if n := len(p.counters.of); n > len(p.l.servers) {
				t.Fatalf("walk %d: %d counters of %d virtual servers", seed, n, len(p.l.servers))
			}
		}
		before := planetest.Counted(t, p)
		more := k.connect(t, f, table, 2, p.l.nodePorts)
		if len(more) == 0 {
			t.Fatal("no connection arrived")
		}
		got := planetest.Counted(t, p)
		for port, n := range more {
			if got[port]-before[port] != n {
				t.Errorf("walk %d: %s: %d more, want %d", seed, port, got[port]-before[port], n)
			}
		}
	}
}

// Recording a change allocates no memory.
func TestCountersCost(t *testing.T) {
	_, p, _, w := startedCounting(t, lb.IPv4)
	s := p.l.servers[ipvs.ByAddr(netip.AddrPortFrom(w.Addr(10, 1), 80), uint8(lb.TCP))]
	if n := testing.AllocsPerRun(1000, func() { p.counters.follow(s) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
