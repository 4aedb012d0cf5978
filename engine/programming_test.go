package engine

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/lb"
	"kube-proxy/policy"
)

// latencies collects the values of Config.Programmed.
type latencies struct {
	mu   sync.Mutex
	took []time.Duration
}

func (l *latencies) add(took []time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.took = append(l.took, took...)
}

// want takes the values since the last call, in any order.
func (l *latencies) want(t *testing.T, what string, want ...time.Duration) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	slices.Sort(l.took)
	if !slices.Equal(l.took, want) {
		t.Errorf("%s: programmed after %v, want %v", what, l.took, want)
	}
	l.took = nil
}

// triggered is a slice whose change was triggered at an earlier time.
func triggered(i, from, n int, ago time.Duration) cluster.SliceSet {
	s := slice(i, from, n)
	s.Trigger = time.Now().Add(-ago).UnixNano()
	return cluster.SliceSet{Slice: s}
}

func (r *rig) wantOwed(what string, services, slices uint64) {
	r.t.Helper()
	if got, want := r.engine.Stats().Owed, (cluster.Changes{Services: services, Slices: slices}); got != want {
		r.t.Errorf("%s: %+v wait, want %+v", what, got, want)
	}
}

func latencyBubble(t *testing.T, change func(*Config), f func(r *rig, l *latencies)) {
	t.Helper()
	l := &latencies{}
	bubble(t, func(c *Config) {
		c.Programmed = l.add
		if change != nil {
			change(c)
		}
	}, func(r *rig) { f(r, l) })
}

// SV-35, MT-04: from the trigger to the end of the write.
func TestProgrammedMT04(t *testing.T) {
	latencyBubble(t, nil, func(r *rig, l *latencies) {
		r.start()
		r.after(time.Hour)
		// The events of a first list happened before this process could act on them.
		r.do(cluster.ServicesListed{Services: []*cluster.Service{service(1), service(2)}})
		r.wantOwed("listed, not complete", 2, 0)
		r.do(cluster.SlicesListed{Slices: []*cluster.Slice{triggered(1, 1, 1, time.Minute).Slice, slice(2, 1, 1)}})
		r.run()
		r.wantOwed("written", 0, 0)
		l.want(t, "the first list")

		r.do(triggered(1, 1, 2, 1500*time.Millisecond), triggered(2, 1, 2, time.Second))
		r.run()
		l.want(t, "two endpoints more", time.Second, 1500*time.Millisecond)

		r.do(triggered(1, 1, 3, 2*time.Hour))
		r.run()
		l.want(t, "a trigger of before this process")
		r.do(triggered(1, 1, 4, -time.Minute))
		r.run()
		l.want(t, "a trigger of a clock that is ahead", 0)

		// A frontend that does not change is in force at once.
		unused := triggered(1, 1, 4, time.Second)
		unused.Slice.Endpoints = unused.Slice.Endpoints.With(cluster.Endpoint{Addr: unused.Slice.Endpoints.At(0).
			Addr.Next().Next().Next().Next()})
		applies := r.engine.Stats().Applies
		r.do(unused)
		r.run()
		if r.engine.Stats().Applies != applies {
			t.Error("an endpoint that does not serve was written")
		}
		l.want(t, "an endpoint that does not serve", time.Second)
		r.converged()
	})
}

// A change that cannot be written stays owed, and does not delay other changes.
func TestProgrammedAfterFailures(t *testing.T) {
	latencyBubble(t, nil, func(r *rig, l *latencies) {
		r.begin(1, 2)
		r.faulty.Refuse(svcKey(1))
		r.do(triggered(1, 2, 3, 0))
		r.do(triggered(2, 2, 3, 0))
		r.after(10 * time.Second)
		l.want(t, "one of two rows", 0)
		r.wantOwed("one row fails", 0, 1)
		r.do(triggered(1, 3, 3, 0), triggered(1, 4, 3, 0))
		r.run()
		l.want(t, "more for the row that fails")
		r.wantOwed("more for the row that fails", 0, 3)
		// An hour of changes does not fill the memory.
		for i := range 3 * maxTriggers {
			r.do(triggered(1, i%200, 3, time.Duration(i)))
			r.run()
		}
		if n := len(r.engine.pending.programming.open[svcName(1)].triggers); n != maxTriggers {
			t.Errorf("%d triggers are remembered, want %d", n, maxTriggers)
		}
		r.faulty.Heal()
		r.after(time.Minute)
		if n := len(l.took); n != maxTriggers {
			t.Errorf("%d triggers were reported in the end, want %d", n, maxTriggers)
		}
		r.converged()
	})
}

// A Reset brings everything that was marked before it, except Services that could not be resolved.
func TestProgrammedByReset(t *testing.T) {
	var bad atomic.Bool
	bad.Store(true)
	resolve := func(v cluster.View) []*lb.Frontend {
		if bad.Load() && v.Name == svcName(3) && v.Slices[0].Trigger != 0 {
			panic("bad service")
		}
		return policy.Resolve(v, settings)
	}
	latencyBubble(t, func(c *Config) { c.Resolve = resolve }, func(r *rig, l *latencies) {
		r.start()
		r.list()
		for i := range 4 {
			r.add(i)
		}
		r.run()
		r.faulty.FailWith(1)
		r.do(triggered(1, 2, 3, 0), triggered(3, 2, 3, 0))
		r.run()
		r.plane.Lose(true)
		r.after(time.Second)
		r.do(triggered(2, 2, 3, 0))
		r.run()
		l.want(t, "a plane that lost its state")
		r.wantOwed("a plane that lost its state", 0, 3)
		r.faulty.Heal()
		r.after(time.Minute)
		if n := len(l.took); n != 2 {
			t.Errorf("after the Reset: %d changes are in force, want 2: %v", n, l.took)
		}
		l.took = nil
		r.wantOwed("a service that cannot be resolved", 0, 1)
		bad.Store(false)
		r.after(time.Minute)
		if n := len(l.took); n != 1 {
			t.Errorf("resolved: %d changes are in force, want 1: %v", n, l.took)
		}
		r.converged()
	})
}

// MT-05, MT-06: after an event the time of the last sync passes the time of the last event, whether
// or not a write was needed; else "queued > last" would alert forever.
func TestTimestampsMT05MT06(t *testing.T) {
	bubble(t, nil, func(r *rig) {
		r.start()
		if s := r.engine.Stats(); !s.LastSynced.IsZero() || !s.LastQueued.IsZero() {
			t.Errorf("before the first event: %v, %v", s.LastSynced, s.LastQueued)
		}
		r.list()
		r.add(1)
		r.run()
		for _, step := range []struct {
			what   string
			ev     cluster.Event
			writes uint64
		}{
			{"a new row", cluster.ServiceSet{Service: service(2)}, 1},
			{"a row as before", cluster.SliceSet{Slice: &cluster.Slice{Name: svcName(2), Service: svcName(2)}}, 0},
			{"a node", cluster.NodeSet{Node: &cluster.Node{Name: nodeName, Leaving: true}}, 0},
		} {
			r.after(time.Minute)
			before := r.engine.Stats()
			r.do(step.ev)
			r.run()
			s := r.engine.Stats()
			if s.Applies-before.Applies != step.writes {
				t.Errorf("%s: %d writes, want %d", step.what, s.Applies-before.Applies, step.writes)
			}
			if now := time.Now(); !s.LastQueued.Equal(now) || !s.LastSynced.Equal(now) {
				t.Errorf("%s: at %v the last event was at %v, the last sync at %v", step.what, now, s.LastQueued,
					s.LastSynced)
			}
		}
		r.faulty.FailWith(1)
		r.after(time.Minute)
		r.do(cluster.ServiceSet{Service: service(3)})
		r.after(time.Minute)
		if s := r.engine.Stats(); s.LastSynced.After(s.LastQueued) || time.Since(s.LastQueued) != time.Minute {
			t.Errorf("nothing can be written: last event at %v, last sync at %v", s.LastQueued, s.LastSynced)
		}
	})
}

// MT-13: service ports that drop because of policy Local are counted as frontends change.
func TestNoLocalMT13(t *testing.T) {
	bubble(t, nil, func(r *rig) {
		r.start()
		events := func(i int, internal, external cluster.TrafficPolicy, node string) []cluster.Event {
			svc, sl := service(i), slice(i, 1, 1)
			svc.Type, svc.InternalPolicy, svc.ExternalPolicy = cluster.TypeNodePort, internal, external
			svc.ExternalIPs = append(svc.ExternalIPs, svcIP(i+1000))
			svc.Ports[0].NodePort = uint16(30000 + i)
			sl.Endpoints = sl.Endpoints.Edited(func(_ int, e *cluster.Endpoint) { e.Where = cluster.At(node, "") })
			return []cluster.Event{cluster.ServiceSet{Service: svc}, cluster.SliceSet{Slice: sl}}
		}
		want := func(what string, internal, external int) {
			t.Helper()
			r.run()
			if got := r.engine.Stats().NoLocal; got != (NoLocal{internal, external}) {
				t.Errorf("%s: %+v, want %d internal, %d external", what, got, internal, external)
			}
			r.converged()
		}
		const c, l = cluster.PolicyCluster, cluster.PolicyLocal
		r.do(events(1, l, l, "n2")...)
		r.list()
		want("a list without the Service", 0, 0)
		r.do(events(1, l, l, "n2")...)
		want("both Local, elsewhere", 1, 1)
		r.do(events(2, l, c, "n2")...)
		want("internal Local, elsewhere", 2, 1)
		r.do(events(3, c, l, "n2")...)
		want("external Local, elsewhere", 2, 2)
		r.do(events(4, l, l, nodeName)...)
		want("both Local, here", 2, 2)
		r.do(events(3, c, l, nodeName)...)
		want("an endpoint comes here", 2, 1)
		r.do(cluster.SliceGone{Name: slice(1, 1, 1).Name})
		want("no endpoint anywhere is another matter", 1, 0)
		r.plane.Lose(true)
		r.do(events(5, l, l, "n2")...)
		want("a Reset", 2, 1)
		r.do(cluster.ServiceGone{Name: svcName(2)}, cluster.ServiceGone{Name: svcName(5)})
		want("all gone", 0, 0)
	})
}

// slow is an observer that takes its time.
type slow struct{}

func (slow) Applied([]lb.Change) { time.Sleep(time.Second) }

// The latency ends with the write, not with later work.
func TestProgrammedBeforeObservers(t *testing.T) {
	latencyBubble(t, func(c *Config) { c.Observers = append(c.Observers, slow{}) }, func(r *rig, l *latencies) {
		r.start()
		r.list()
		r.add(1)
		r.after(time.Minute)
		r.do(triggered(1, 2, 3, time.Second))
		r.after(time.Minute)
		l.want(t, "a write with a slow observer", time.Second)
		r.plane.Lose(true)
		r.do(triggered(1, 3, 3, time.Second))
		r.after(time.Minute)
		l.want(t, "a Reset with a slow observer", time.Second)
	})
}

// A Service whose frontends could not be computed is reported by itself, even if a Reset counts the
// others together.
func TestUnresolvedIsNotCountedTogether(t *testing.T) {
	p := programming{taking: true}
	p.unresolved(cluster.Name{Name: "web"}, notice{learned: 1})
	if u := p.open[cluster.Name{Name: "web"}]; u == nil || u.counted || !u.unresolved {
		t.Errorf("%+v", u)
	}
}
