package engine

import (
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/lb"
	"kube-proxy/policy"
)

// large returns a Service of many ports with its slices: resolving it is more than one turn's work.
func large(i int) (*cluster.Service, []*cluster.Slice) {
	const ports, many, endpoints = 20, 2, 1000
	s := service(i)
	s.Name.Namespace, s.Ports = "tenant", nil
	for p := range ports {
		s.Ports = append(s.Ports, cluster.ServicePort{Name: fmt.Sprint("p", p), Protocol: cluster.TCP,
			Port: uint16(1000 + p)})
	}
	var slices []*cluster.Slice
	for n := range many {
		sl := slice(i, 1+n*endpoints, endpoints)
		sl.Name, sl.Service, sl.Ports = cluster.Name{Namespace: "tenant", Name: fmt.Sprint(s.Name.Name, "-", n)},
			s.Name, nil
		for p := range ports {
			sl.Ports = append(sl.Ports, cluster.SlicePort{Name: fmt.Sprint("p", p), Protocol: cluster.TCP,
				Port: uint16(1000 + p)})
		}
		sl.Endpoints = sl.Endpoints.Edited(func(k int, e *cluster.Endpoint) {
			e.Addr = netip.AddrFrom4([4]byte{10, byte(100 + i), byte(10*n + k>>8), byte(k)})
		})
		slices = append(slices, sl)
	}
	return s, slices
}

// idle is the slice with one more endpoint that does not serve: it changes no frontend.
func idle(sl *cluster.Slice) cluster.Event {
	more := *sl
	more.Endpoints = sl.Endpoints.With(cluster.Endpoint{Addr: svcIP(0)})
	return cluster.SliceSet{Slice: &more}
}

// fillLarge brings n large Services of a tenant and one small Service of another namespace in
// force, and returns a slice of each large one.
func (r *rig) fillLarge(n int) (first []*cluster.Slice) {
	services, slices := []*cluster.Service{service(0)}, []*cluster.Slice{slice(0, 1, 1)}
	for i := 1; i <= n; i++ {
		s, parts := large(i)
		services, slices, first = append(services, s), append(slices, parts...), append(first, parts[0])
	}
	r.do(cluster.ServicesListed{Services: services}, cluster.SlicesListed{Slices: slices})
	r.start()
	r.run()
	if s := r.engine.Stats(); s.Resets != 1 || s.Applies != 0 { // SV-05: the first Reset has all
		r.t.Errorf("%d Resets and %d writes at the start", s.Resets, s.Applies)
	}
	return first
}

// TN-03: any number of a tenant's large Services may be dirty, by his own changes, the node's or
// the configuration's: the work between another tenant's change and its write is the same.
func TestManyLargeServicesDelayNoService(t *testing.T) {
	for name, makeDirty := range map[string]func(*rig, []*cluster.Slice){
		"patches": func(r *rig, slices []*cluster.Slice) {
			for _, sl := range slices {
				r.do(idle(sl))
			}
		},
		"node": func(r *rig, _ []*cluster.Slice) {
			r.do(cluster.NodeSet{Node: &cluster.Node{Name: nodeName, Zone: "elsewhere"}})
		},
		"configuration": func(r *rig, _ []*cluster.Slice) { r.engine.ResolveAll() },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, nil, func(r *rig) {
				const n = 16
				slices := r.fillLarge(n)
				var written atomic.Pointer[Stats]
				r.engine.cfg.Observers = append(r.engine.cfg.Observers, observer(func(changes []lb.Change) {
					for _, c := range changes {
						if s := r.engine.Stats(); c.Key == svcKey(0) {
							written.CompareAndSwap(nil, &s)
						}
					}
				}))
				makeDirty(r, slices)
				r.do(cluster.SliceSet{Slice: slice(0, 7, 3)})
				before := r.engine.Stats() // the engine works on while the test waits for a processor
				r.run()
				s := written.Load()
				if s == nil || r.engine.Stats().Resolved < 2*n {
					t.Fatalf("the stranger's row is written: %v; %d services resolved, want all of %d again", s != nil,
						r.engine.Stats().Resolved, n)
				}
				if s.Resolved > before.Resolved && (s.Resolved-before.Resolved > 6 || s.Slices-before.Slices > 12 ||
					s.Ports-before.Ports > 400 || s.Backends-before.Backends > 6*40_000) {
					t.Errorf("the stranger's change came after %+v, and was written after %+v", before, s)
				}
				r.converged()
			})
		})
	}
}

// TN-04, HT-04: while a tenant's Services are resolved, which takes minutes, whether or not
// frontends change, no event waits for a write long enough to fail health checks; and a resolution
// that does not end is noticed.
func TestLongResolutionKeepsHealth(t *testing.T) {
	slow := time.Duration(0)
	resolve := func(v cluster.View) []*lb.Frontend {
		if v.Name.Namespace == "tenant" {
			time.Sleep(slow)
		}
		return policy.Resolve(v, settings)
	}
	bubble(t, func(c *Config) { c.Resolve = resolve }, func(r *rig) {
		const services, each = 8, 10 * time.Second
		large := r.fillLarge(services)
		waited := func(during time.Duration, again func()) (longest time.Duration) {
			for range during / time.Second {
				again()
				time.Sleep(time.Second)
				if since := r.engine.Stats().QueuedSince; !since.IsZero() {
					longest = max(longest, time.Since(since))
				}
			}
			return longest
		}
		slow = each
		for _, sl := range large {
			r.do(idle(sl))
		}
		n := 0
		flood := func() { // and he marks them repeatedly
			sl := large[n%services]
			n++
			if n/services%2 == 0 {
				r.do(idle(sl))
			} else {
				r.do(cluster.SliceSet{Slice: sl})
			}
		}
		if longest := waited(services*each, flood); longest > 3*each {
			t.Errorf("an event seems to wait for %v", longest)
		}
		slow = 0
		r.after(time.Hour)
		r.converged()
		slow = 2 * time.Minute
		r.do(idle(large[0]), cluster.SliceSet{Slice: large[0]})
		if longest := waited(time.Minute, func() {}); longest < 50*time.Second {
			t.Errorf("a resolution that does not end is noticed as a wait of %v", longest)
		}
		slow = 0
		r.after(time.Hour)
	})
}

// TN-03, DP-60: Services that are dirty together are written without the minimum period between two
// writes, also where they take several turns to resolve; later ones wait for it. Each change is
// reported once as in force.
func TestTurnsAreOneWrite(t *testing.T) {
	const services = 8
	var writes []time.Time
	triggers := 0
	bubble(t, func(c *Config) {
		c.MinSyncPeriod = time.Minute
		c.Written = func(w Write) {
			if w.Verb == "apply" {
				writes = append(writes, time.Now())
			}
		}
		c.Programmed = func(took []time.Duration) { triggers += len(took) }
	}, func(r *rig) {
		large := r.fillLarge(services)
		r.after(time.Hour)
		start := time.Now()
		var batch cluster.Batch
		for _, before := range large {
			sl := *before
			sl.Endpoints, sl.Trigger = cluster.EndpointsOf(slices.Collect(sl.Endpoints.All())[:10]...), start.UnixNano()
			batch = append(batch, cluster.SliceSet{Slice: &sl})
		}
		r.do(batch)
		r.run()
		if len(writes) < 2 || triggers != services {
			t.Errorf("%d writes, %d of %d changes in force; want several at once", len(writes), triggers, services)
		}
		n := len(writes)
		r.do(cluster.SliceSet{Slice: slice(0, 7, 3)})
		r.after(59 * time.Second)
		if len(writes) != n {
			t.Errorf("a later change was written %v after the others", writes[n].Sub(start))
		}
		r.after(2 * time.Second)
		if len(writes) != n+1 {
			t.Errorf("%d writes, want %d", len(writes), n+1)
		}
		r.converged()
	})
}
