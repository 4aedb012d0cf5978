package engine

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/debug/changes"
	"kube-proxy/lb"
	"kube-proxy/policy"
	"kube-proxy/test/cputest"
)

// ringReported formats the entries of a Ring, one a line: event, frontends, and the times since the
// API server and since Mark.
type ringReported struct {
	*changes.Ring
	seen uint64
}

func (o *ringReported) want(t *testing.T, what string, want ...string) {
	t.Helper()
	entries, newest := o.After(o.seen)
	o.seen = newest
	var got []string
	for _, e := range entries {
		api, learned := e.Latency()
		line := fmt.Sprintf("%s: %s; rows %d", e.Object(), e.Words(), e.Frontends)
		if api >= 0 {
			line += fmt.Sprintf(", api %v", api)
		}
		if learned > 0 {
			line += fmt.Sprintf(", learned %v", learned)
		}
		if e.Family != 4 {
			t.Errorf("%s: family %v", what, e.Family)
		}
		got = append(got, line)
	}
	if g, w := strings.Join(got, "\n"), strings.Join(want, "\n"); g != w {
		t.Errorf("%s: reported\n%s\nwant\n%s", what, g, w)
	}
}

func changesBubble(t *testing.T, change func(*Config), f func(*rig, *ringReported)) {
	t.Helper()
	o := &ringReported{Ring: changes.New()}
	bubble(t, func(c *Config) {
		c.Changes = o.Ring
		if change != nil {
			change(c)
		}
	}, func(r *rig) { f(r, o) })
}

func TestChangesAreReported(t *testing.T) {
	changesBubble(t, nil, func(r *rig, o *ringReported) {
		r.start()
		r.after(time.Hour)
		r.do(cluster.ServicesListed{Services: []*cluster.Service{service(1)}},
			cluster.SlicesListed{Slices: []*cluster.Slice{slice(1, 1, 1)}})
		r.run()
		o.want(t, "the start", "node: compared and wrote everything; rows 1",
			"shop/s1: Service created, 1 EndpointSlice created; rows 1")

		r.do(triggered(1, 1, 2, 1500*time.Millisecond))
		r.run()
		o.want(t, "an endpoint more", "shop/s1: 1 EndpointSlice changed; rows 1, api 1.5s")

		r.do(triggered(1, 1, 3, 3*time.Second), triggered(1, 1, 4, time.Second))
		r.run()
		o.want(t, "two changes at once", "shop/s1: 2 EndpointSlices changed; rows 1, api 3s")

		fresh := service(2)
		fresh.Created = time.Now().Add(-5 * time.Second).Unix()
		r.do(cluster.ServiceSet{Service: fresh})
		r.run()
		o.want(t, "a new Service", "shop/s2: Service created; rows 1, api 5s")
		r.do(cluster.ServiceGone{Name: svcName(2)})
		r.run()
		o.want(t, "it goes", "shop/s2: Service deleted; rows 1")

		other := service(1)
		other.Ports = append(other.Ports, cluster.ServicePort{Name: "admin", Protocol: cluster.TCP, Port: 81})
		r.do(cluster.ServiceSet{Service: other})
		r.run()
		o.want(t, "a port more", "shop/s1: Service changed; rows 1")

		r.engine.ResolveAll()
		r.run()
		o.want(t, "the configuration is read again, to no effect")
	})
}

// A failure is reported once, when it happens; when the change is in force, its entry has the
// number of failures.
func TestFailuresAreReported(t *testing.T) {
	changesBubble(t, nil, func(r *rig, o *ringReported) {
		r.begin(1, 2)
		_, o.seen = o.After(0)
		r.faulty.Refuse(svcKey(1))
		r.do(triggered(1, 2, 3, 0), triggered(2, 2, 3, 0))
		r.after(10 * time.Second)
		entries, _ := o.After(o.seen)
		if len(entries) != 2 || entries[0].Kind != changes.Service && entries[1].Kind != changes.Service {
			t.Errorf("reported %v", entries)
		}
		for _, e := range entries {
			switch {
			case e.Kind == changes.Failed && e.Service == svcName(1) && e.Key == svcKey(1) && e.Why != "":
			case e.Kind == changes.Service && e.Service == svcName(2) && e.Failures == 1:
			default:
				t.Errorf("reported %+v", e)
			}
		}
		_, o.seen = o.After(0)
		r.after(time.Hour)
		o.want(t, "it goes on failing")
		r.faulty.Heal()
		r.after(time.Hour)
		entries, o.seen = o.After(o.seen)
		if len(entries) != 1 || entries[0].Service != svcName(1) || entries[0].Failures < 3 ||
			entries[0].Frontends != 1 {
			t.Errorf("healed: reported %+v", entries)
		}
		if api, learned := entries[0].Latency(); api < time.Hour || learned < time.Hour {
			t.Errorf("healed after an hour: reported %v, %v", api, learned)
		}
	})
}

// A list counts with the first write even if another event wakes the loop after the store has the
// list and before Mark.
func TestListIsMarkedBeforeItIsWritten(t *testing.T) {
	changesBubble(t, nil, func(r *rig, o *ringReported) {
		r.start()
		var services []*cluster.Service
		var slices []*cluster.Slice
		for i := range 2 * manyTogether {
			services, slices = append(services, service(i)), append(slices, slice(i, 1, 1))
		}
		r.do(cluster.ServicesListed{Services: services})
		dirty := r.store.Fold(cluster.SlicesListed{Slices: slices})
		r.engine.ResolveAll()
		r.run()
		if s := r.engine.Stats(); !s.LastSynced.IsZero() {
			t.Error("it writes before the list is complete")
		}
		r.engine.Mark(dirty)
		r.run()
		entries, _ := o.After(0)
		if len(entries) != 1 || entries[0].Kind != changes.Reset || entries[0].Services != 2*manyTogether ||
			entries[0].Slices != 2*manyTogether {
			t.Errorf("a list of %d Services became %d entries: %+v", len(services), len(entries),
				entries[:min(3, len(entries))])
		}
		r.converged()
	})
}

// A whole cluster at the start is one entry, or two if it arrives in pieces; so is a Reset after
// the plane lost its state.
func TestManyAreCounted(t *testing.T) {
	changesBubble(t, func(c *Config) { c.AuditPeriod = -1 }, func(r *rig, o *ringReported) {
		r.plane.Slow(200, 200)
		r.start()
		r.fill(1000)
		r.after(time.Minute)
		entries, newest := o.After(0)
		o.seen = newest
		var services, slices uint32
		for _, e := range entries {
			services, slices = services+e.Services, slices+e.Slices
		}
		if len(entries) != 2 || entries[0].Kind != changes.Reset || entries[1].Kind != changes.Loaded ||
			services != 1000 || slices != 1000 {
			t.Errorf("a list of 1000 Services became %d entries, %d Services, %d slices: %+v", len(entries), services,
				slices, entries[:min(5, len(entries))])
		}
		// Changes that arrive during that write are reported one by one.
		r.plane.Lose(true)
		r.after(time.Second)
		r.do(triggered(7, 5, 5, 0))
		r.after(time.Minute)
		entries, o.seen = o.After(o.seen)
		named := false
		for _, e := range entries {
			named = named || e.Service == svcName(7)
		}
		if !named || len(entries) > 5 {
			t.Errorf("after the plane's state was lost: %+v", entries)
		}
		why := ""
		for _, e := range entries {
			if e.Kind == changes.Reset {
				why = e.Why
			}
		}
		if !strings.HasPrefix(why, "audit: ") {
			t.Errorf("the Reset says as its reason %q", why)
		}
	})
}

// A frontend that is refused while the work that a Reset postponed is done, and accepted later, is
// reported by itself.
func TestRefusedIsNotCountedTogether(t *testing.T) {
	changesBubble(t, func(c *Config) { c.AuditPeriod = -1 }, func(r *rig, o *ringReported) {
		const services, refused = 1000, 700
		r.plane.Slow(200, 200)
		r.faulty.Refuse(svcKey(refused))
		r.fill(services)
		r.start()
		r.after(time.Minute)
		entries, newest := o.After(0)
		o.seen = newest
		if last := entries[len(entries)-1]; last.Kind != changes.Loaded && last.Kind != changes.Failed {
			t.Errorf("the last entry is %+v", last)
		}
		r.faulty.Heal()
		r.after(time.Hour)
		entries, _ = o.After(o.seen)
		if len(entries) != 1 || entries[0].Service != svcName(refused) || entries[0].Failures == 0 {
			t.Errorf("reported %+v, want the Service that was refused", entries)
		}
		r.converged()
	})
}

func TestDriftNodeAndConfigurationAreReported(t *testing.T) {
	var empty atomic.Bool
	changesBubble(t, func(c *Config) {
		c.Resolve = func(v cluster.View) []*lb.Frontend {
			if empty.Load() {
				v.Slices = nil
			}
			return policy.Resolve(v, settings)
		}
		c.ResolveNode = func(f cluster.Facts) (n lb.Node) {
			if f.Node != nil {
				n.NodePorts = []netip.Prefix{netip.PrefixFrom(f.Node.Addrs[0], 32)}
			}
			return n
		}
		c.AuditPeriod = -1
	}, func(r *rig, o *ringReported) {
		r.start()
		r.list()
		for i := range 3 {
			r.add(i + 1)
		}
		r.run()
		_, o.seen = o.After(0)
		r.plane.Steal(svcKey(1), true)
		r.after(time.Second)
		o.want(t, "another program removed a frontend", "node: repaired objects that other programs had changed: 1 "+
			"object; rows 1")
		for range 50 {
			r.plane.Steal(svcKey(1), true)
			r.after(time.Second)
		}
		o.want(t, "fifty times", "node: repaired objects that other programs had changed: 51 objects, 51 times; "+
			"rows 51, learned 50s")

		empty.Store(true)
		r.engine.ResolveAll()
		r.run()
		o.want(t, "the configuration has it otherwise", "node: node or configuration changed; rows 3")
		r.do(cluster.NodeSet{Node: &cluster.Node{Name: nodeName, Addrs: []netip.Addr{svcIP(9)}}})
		r.run()
		entries, _ := o.After(o.seen)
		if len(entries) != 1 || entries[0].Kind != changes.Node {
			t.Errorf("the node has an address: reported %+v", entries)
		}
		_, o.seen = o.After(0)

		r.faulty.FailNext(errors.New("no buffer space"))
		r.engine.ResolveAll()
		r.do(cluster.NodeSet{Node: &cluster.Node{Name: nodeName, Addrs: []netip.Addr{svcIP(10)}}})
		r.run()
		o.want(t, "the node is not taken", "node: not written: setnode: fake: set node: no buffer space; rows 0")
	})
}

// A change causes the same number of allocations with a Ring as without. A reader's poll of a full
// Ring costs no more than 30 changes: ten readers that poll ten times a second are not noticed.
func TestTellingIsFree(t *testing.T) {
	changer := func(ring *changes.Ring) func() {
		r := newRig(t, func(c *Config) { c.Changes, c.Observers = ring, nil })
		r.fill(10)
		forms, i := [2]cluster.SliceSet{{Slice: slice(1, 3, 10)}, {Slice: slice(1, 4, 10)}}, 0
		return func() {
			r.do(forms[i%2])
			i++
			r.engine.absorb()
			for worked := true; worked; {
				_, worked = r.engine.step(t.Context())
			}
			r.engine.publish()
		}
	}
	ring := changes.New()
	change := changer(ring)
	without, with := testing.AllocsPerRun(5000, changer(nil)), testing.AllocsPerRun(5000, change)
	if with != without {
		t.Errorf("a change costs %v allocations with a Ring, %v without", with, without)
	}
	_, newest := ring.After(0)
	if ratio := cputest.Ratio(change, func() { ring.After(newest - 10) }); ratio > 30 {
		t.Errorf("a reader's poll costs as much as %.0f changes", ratio)
	}
}

// A Service has and had no address of a family: the entry of that family is reported to readers
// that show Services, and marked for readers that ask for changes.
func TestElsewhereIsMarked(t *testing.T) {
	changesBubble(t, nil, func(r *rig, o *ringReported) {
		r.begin()
		_, o.seen = o.After(0)
		elsewhere := func(what string, want ...bool) {
			t.Helper()
			r.run()
			entries, newest := o.After(o.seen)
			o.seen = newest
			var got []bool
			for _, e := range entries {
				got = append(got, e.Elsewhere)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s: %v, want %v: %+v", what, got, want, entries)
			}
		}
		six, none := service(1), service(2)
		six.ClusterIPs, none.ClusterIPs = []netip.Addr{netip.MustParseAddr("fd00::1")}, nil
		r.do(cluster.ServiceSet{Service: six})
		elsewhere("a Service of the other family comes", true)
		r.do(cluster.ServiceSet{Service: none})
		elsewhere("a headless one comes", true)
		both := service(1)
		both.ClusterIPs = append(both.ClusterIPs, six.ClusterIPs...)
		r.do(cluster.ServiceSet{Service: both})
		elsewhere("it gets an address of this family", false)
		r.do(cluster.SliceSet{Slice: slice(1, 1, 1)})
		elsewhere("its endpoints come", false)
		r.do(cluster.ServiceSet{Service: six})
		elsewhere("it loses that address", false)
		r.do(cluster.ServiceGone{Name: svcName(1)})
		elsewhere("it goes", true)
		r.do(cluster.ServiceSet{Service: service(3)}, cluster.ServiceGone{Name: svcName(3)})
		elsewhere("one comes and goes before anybody looks", true)
		r.do(cluster.ServiceSet{Service: service(4)})
		elsewhere("one of this family comes", false)
		r.do(cluster.ServiceGone{Name: svcName(4)})
		elsewhere("it goes too", false)
	})
}
