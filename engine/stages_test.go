package engine

import (
	"context"
	"testing"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/test/fake"
)

// stages is a plane that accepts frontends with many backends in ten stages.
type stages struct {
	*fake.Faulty
	stage map[lb.Key]int
}

const manyBackends = 50

func (p *stages) Apply(ctx context.Context, changes []lb.Change) (plane.ApplyResult, error) {
	res, err := p.Faulty.Apply(ctx, changes)
	for _, c := range changes {
		if err != nil || max(backendsOf(c.Old), backendsOf(c.New)) < manyBackends {
			continue
		}
		p.stage[c.Key]++
		if p.stage[c.Key]%10 > 0 {
			res.Later = append(res.Later, c.Key)
		}
	}
	return res, err
}

func backendsOf(f *lb.Frontend) int {
	if f == nil || f.Set(lb.Cluster) == nil {
		return 0
	}
	return f.Set(lb.Cluster).Backends.Len()
}

// staged runs f in a bubble with such a plane. at is called after each write with its number,
// before the next one.
func staged(t *testing.T, at func(r *rig, n int), f func(r *rig)) {
	bubble(t, func(c *Config) { c.Plane = &stages{c.Plane.(*fake.Faulty), map[lb.Key]int{}} }, func(r *rig) {
		n := 0
		r.engine.cfg.Written = func(w Write) {
			n++
			at(r, n)
		}
		r.list()
		r.start()
		r.run()
		f(r)
	})
}

// A frontend that a plane accepts in stages is reported when it is complete, and changes that
// arrive meanwhile are in the next call (TN-30).
func TestStagesDelayNoService(t *testing.T) {
	const huge, small = 1, 2
	writes, began := 0, 0
	came := map[lb.Key]int{}
	staged(t, func(r *rig, n int) {
		writes = n
		if began > 0 && n == began+3 {
			r.add(small)
		}
	}, func(r *rig) {
		r.engine.cfg.Observers = append(r.engine.cfg.Observers, observer(func(changes []lb.Change) {
			for _, c := range changes {
				came[c.Key] = writes
			}
		}))
		began = writes
		// The slice first: without its Service it changes nothing, so all backends come at once.
		r.do(cluster.SliceSet{Slice: slice(huge, 0, manyBackends)}, cluster.ServiceSet{Service: service(huge)})
		r.run()
		if n := came[svcKey(small)] - began; n != 4 {
			t.Errorf("the small row, marked after write 3, came with write %d", n)
		}
		if n := came[svcKey(huge)] - began; n != 10 {
			t.Errorf("the frontend of ten stages was reported with write %d", n)
		}
		if s := r.engine.Stats(); s.Pending > 0 || s.Failures > 0 {
			t.Errorf("%+v", s)
		}
		r.converged()
	})
}

// If the old frontend is desired again half-way, the engine offers it to the plane; a failure
// half-way is retried (TN-30).
func TestStagesAreTurnedBack(t *testing.T) {
	began := 0
	var at func(r *rig)
	writes := 0
	staged(t, func(r *rig, n int) {
		writes = n
		if began > 0 && n == began+3 {
			at(r)
		}
	}, func(r *rig) {
		r.do(cluster.ServiceSet{Service: service(1)}, cluster.SliceSet{Slice: slice(1, 0, 5)})
		r.run()
		for what, f := range map[string]func(r *rig){
			"the old row":   func(r *rig) { r.do(cluster.SliceSet{Slice: slice(1, 0, 5)}) },
			"no row":        func(r *rig) { r.do(cluster.ServiceGone{Name: service(1).Name}) },
			"another row":   func(r *rig) { r.do(cluster.SliceSet{Slice: slice(1, 3, manyBackends)}) },
			"it is refused": func(r *rig) { r.faulty.FailNext(fake.ErrInjected) },
		} {
			began, at = writes, f
			r.do(cluster.ServiceSet{Service: service(1)}, cluster.SliceSet{Slice: slice(1, 0, manyBackends)})
			r.run()
			r.after(time.Minute)
			if writes < began+4 {
				t.Errorf("%s: %d writes", what, writes-began)
			}
			r.converged()
			began = 0
			r.do(cluster.ServiceSet{Service: service(1)}, cluster.SliceSet{Slice: slice(1, 0, 5)})
			r.run()
			r.after(time.Minute)
			r.converged()
		}
	})
}

// Unfinished frontends take turns by namespace, as all others do: many large Services have one
// share (TN-30).
func TestRowsUnderWayTakeTurnsByNamespace(t *testing.T) {
	p, table := newPending(), &lb.Table{}
	key := func(i int) lb.Key { return svcKey(i) }
	for i, service := range []string{"tenant/a:http", "tenant/b:http", "tenant/c:http", "stranger/d:http"} {
		front := &lb.Frontend{Key: key(i), Service: service, Kind: lb.ClusterIP,
			Routes: []lb.Route{{From: lb.Anywhere, Do: lb.Reject}}}
		changes, _ := table.Replace(lb.Owner{Name: service[:len(service)-len(":http")]}, []*lb.Frontend{front})
		p.add(changes[0])
	}
	one := func(*lb.Frontend) int { return 1 }
	for _, k := range p.take(100, one, table) {
		p.goOn(k, table)
	}
	p.take(1, one, table)
	if got := p.take(1, one, table); len(got) != 1 || got[0] != key(3) {
		t.Errorf("the second turn is of %v, want the stranger's %v", got, key(3))
	}
}
