package engine

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/test/fake"
)

// syncPeriod is the period of HT-04: an event that waits for twice as long makes a family
// unhealthy.
const syncPeriod = 30 * time.Second

// HT-04: one frontend that the kernel refuses, in a family in which nothing else changes, does not
// count as a waiting event: a probe, which changes nothing, shows that the kernel takes writes. The
// frontend is retried and logged as usual.
func TestOneRefusedRowHT04(t *testing.T) {
	var written []Write
	change := func(c *Config) { c.Written = func(w Write) { written = append(written, w) } }
	bubble(t, change, func(r *rig) {
		r.begin(1)
		before := r.engine.Stats()
		if before.Probes != 0 {
			t.Errorf("%d probes while all is well", before.Probes)
		}
		r.after(time.Second)
		r.faulty.Refuse(svcKey(2))
		r.add(2)
		r.run()
		s := r.engine.Stats()
		if !s.QueuedSince.IsZero() || s.Probes != 1 || len(s.Failing) != 1 || s.Settled {
			t.Errorf("the row is refused, the probe accepted: %+v", s)
		}
		if !s.LastSuccess.Equal(before.LastSuccess) || !s.LastSynced.Before(s.LastQueued) ||
			s.Owed == (cluster.Changes{}) {
			t.Errorf("MT-05, MT-07, DP-62: a probe counts as a sync: %+v", s)
		}
		for range 100 {
			r.after(syncPeriod / 5)
			if s := r.engine.Stats(); !s.QueuedSince.IsZero() {
				t.Fatalf("something waits since %v", s.QueuedSince)
			}
		}
		s = r.engine.Stats()
		if s.Probes != 1 {
			t.Errorf("%d probes though no event came after the first", s.Probes)
		}
		if n := s.Failing[0].Tries; n < 25 || n > 35 {
			t.Errorf("%d tries in 10 minutes", n)
		}
		if n := r.log.Count("Failed to write a frontend"); n != 1 {
			t.Errorf("%d lines, want 1:\n%s", n, r.log)
		}
		probes := 0
		for _, w := range written {
			if w.Verb == "probe" {
				probes++
				if w.Err != nil || w.Changes != 0 {
					t.Errorf("reported %+v", w)
				}
			}
		}
		if probes != 1 || r.plane.Counts().Probes != 1 {
			t.Errorf("reported %d probes, the plane made %d", probes, r.plane.Counts().Probes)
		}
		r.heals()
	})
}

// HT-04: where no write works, an event waits since the oldest one without a later successful
// write, and there is at most one probe for each retry.
func TestAllRefusedHT04(t *testing.T) {
	bubble(t, func(c *Config) { c.MinSyncPeriod = time.Second }, func(r *rig) {
		r.begin(1)
		r.after(time.Second)
		before := r.engine.Stats() // the first frontend came with the Reset, or just after it
		r.faulty.FailWith(1)
		queued := time.Now()
		r.add(2)
		r.after(10 * time.Minute)
		r.add(3)
		r.run()
		// An event that is reverted before it is written gives no information about the kernel.
		r.do(cluster.ServiceSet{Service: service(4)})
		r.after(time.Second / 10)
		r.do(cluster.ServiceGone{Name: svcName(4)})
		r.after(10 * time.Minute)
		s := r.engine.Stats()
		if !s.QueuedSince.Equal(queued) {
			t.Errorf("something waits since %v, want %v", s.QueuedSince, queued)
		}
		tries := 0
		for _, f := range s.Failing {
			tries += f.Tries
		}
		if len(s.Failing) != 2 || s.Probes < 40 || int(s.Probes) > tries {
			t.Errorf("%d probes for %d tries of %d rows", s.Probes, tries, len(s.Failing))
		}
		if s.Failures != s.Applies-before.Applies+s.Probes+s.Audits {
			t.Errorf("the probes that failed are not among the failures: %+v", s)
		}
		if n := r.log.Count("The kernel accepts no write"); n != 1 {
			t.Errorf("%d lines about that, want 1:\n%s", n, r.log)
		}
		r.heals()
		if s := r.engine.Stats(); !s.LastSuccess.After(queued) {
			t.Errorf("LastSuccess is %v", s.LastSuccess)
		}
	})
}

// No probe is made where other writes show the state: not in a batch with good frontends, and not
// while good ones follow.
func TestNoProbeBesideOtherWrites(t *testing.T) {
	bubble(t, nil, func(r *rig) {
		r.begin()
		_, release := r.faulty.Block()
		r.add(1000)
		r.run()
		r.faulty.Refuse(svcKey(37), svcKey(38))
		for i := range 100 {
			r.add(i)
		}
		release()
		r.run()
		for i := range 600 { // each second one of the good ones changes
			r.after(time.Second)
			if i%7 != 0 {
				r.do(cluster.SliceSet{Slice: slice(i%30, 1, 2+i/30%2)})
				r.run()
			}
			if s := r.engine.Stats(); !s.QueuedSince.IsZero() {
				t.Fatalf("second %d: something waits since %v", i, s.QueuedSince)
			}
		}
		if s := r.engine.Stats(); s.Probes != 0 || len(s.Failing) != 2 {
			t.Errorf("%d probes, %d failing rows", s.Probes, len(s.Failing))
		}
	})
}

// Events that change no frontend do not wait for a refused one either, however rare its retries
// are; and they cause no more probes than retries.
func TestIdleEventsBesideRefusedRowHT04(t *testing.T) {
	bubble(t, func(c *Config) { c.MinSyncPeriod = time.Second }, func(r *rig) {
		r.begin(1)
		r.faulty.Refuse(svcKey(2))
		r.add(2)
		r.after(5 * time.Minute) // now the frontend is retried twice a minute
		before := r.engine.Stats()
		for i := range 600 {
			r.engine.Mark(cluster.Dirty{Services: []cluster.Ref{{Name: svcName(1), V4: true}}})
			r.run()
			if s := r.engine.Stats(); !s.QueuedSince.IsZero() {
				t.Fatalf("event %d waits since %v", i, s.QueuedSince)
			}
			r.after(time.Second)
		}
		s := r.engine.Stats()
		tries := s.Failing[0].Tries - before.Failing[0].Tries
		if n := int(s.Probes - before.Probes); n == 0 || n > tries+1 { // the first is of the try before
			t.Errorf("%d probes, %d tries", n, tries)
		}
		// The kernel refuses everything from here on: the next event waits, whatever a probe showed
		// before.
		r.faulty.FailWith(1)
		r.after(lastDelay + time.Second) // until that shows
		queued := time.Now()
		r.engine.Mark(cluster.Dirty{Services: []cluster.Ref{{Name: svcName(1), V4: true}}})
		r.after(2 * syncPeriod)
		if s := r.engine.Stats(); !s.QueuedSince.Equal(queued) {
			t.Errorf("something waits since %v, want %v", s.QueuedSince, queued)
		}
	})
}

// A Service with many frontends, all of them refused, counts as one bad object too; so does one
// that the first Reset leaves out.
func TestOddServiceHT04(t *testing.T) {
	bubble(t, nil, func(r *rig) {
		r.faulty.Refuse(svcKey(1))
		r.list()
		r.add(0)
		r.add(1)
		r.start()
		r.run()
		if s := r.engine.Stats(); !s.QueuedSince.IsZero() || s.Probes != 1 || len(s.Failing) != 1 || !s.Begun ||
			s.LastSynced.IsZero() || s.Resets != 1 || !r.plane.Has(svcKey(0)) {
			t.Errorf("after a Reset without the row: %+v", s)
		}
		odd := service(2)
		for port := range uint16(50) {
			odd.Ports = append(odd.Ports, cluster.ServicePort{Name: fmt.Sprintf("p%d", port), Protocol: cluster.TCP,
				Port: 1000 + port})
			r.faulty.Refuse(lb.Key{Addr: svcIP(2), Port: 1000 + port, Proto: lb.TCP})
		}
		r.faulty.Refuse(svcKey(2))
		r.do(cluster.ServiceSet{Service: odd})
		for range 20 {
			r.after(syncPeriod)
			if s := r.engine.Stats(); !s.QueuedSince.IsZero() {
				t.Fatalf("something waits since %v", s.QueuedSince)
			}
		}
		if s := r.engine.Stats(); len(s.Failing) != 52 || s.Probes != 2 {
			t.Errorf("%d failing rows, %d probes", len(s.Failing), s.Probes)
		}
	})
}

// A plane that finds during a probe that it has lost its state is reset; so is one that panics.
func TestProbeFindsStateLost(t *testing.T) {
	for _, err := range []error{fmt.Errorf("table gone: %w", plane.ErrStateLost), &panicked{value: "boom"}} {
		var sick error
		change := func(c *Config) { c.Plane = oddProbe{c.Plane.(*fake.Faulty), &sick} }
		bubble(t, change, func(r *rig) {
			r.begin()
			r.faulty.Refuse(svcKey(1))
			sick = err
			r.add(1)
			r.run()
			s := r.engine.Stats()
			if s.Resets != 2 || s.Probes != 2 || s.Lost || !s.QueuedSince.IsZero() {
				t.Errorf("%v: %+v", err, s)
			}
			if (s.Panics > 0) != isPanic(err) {
				t.Errorf("%v: %d panics", err, s.Panics)
			}
			r.heals()
		})
	}
}

// oddProbe fails once, in its own way.
type oddProbe struct {
	*fake.Faulty
	err *error
}

func (p oddProbe) Probe(ctx context.Context) error {
	err := *p.err
	*p.err = nil
	if isPanic(err) {
		panic("boom")
	}
	if err == nil {
		return p.Faulty.Probe(ctx)
	}
	return err
}

// A probe that fails temporarily is repeated with the next retry of the frontend.
func TestProbeIsMadeAgain(t *testing.T) {
	bubble(t, nil, func(r *rig) {
		r.begin()
		r.faulty.Refuse(svcKey(1))
		no := errors.New("no memory")
		r.faulty.FailNext(nil, no, nil, no) // tries and probes take turns
		r.add(1)
		r.run()
		if s := r.engine.Stats(); s.QueuedSince.IsZero() || s.Probes != 1 {
			t.Errorf("the probe failed: %+v", s)
		}
		r.after(firstDelay)
		if s := r.engine.Stats(); s.QueuedSince.IsZero() || s.Probes != 2 {
			t.Errorf("the second probe failed: %+v", s)
		}
		r.after(2 * firstDelay)
		if s := r.engine.Stats(); !s.QueuedSince.IsZero() || s.Probes != 3 || s.Failing[0].Tries != 3 {
			t.Errorf("the third probe was accepted: %+v", s)
		}
	})
}

// HT-04, MT-05: the kernel has nothing for the frontend of a health check, so a plane accepts it
// while every write fails. That shows nothing, whether it is offered before the others or after
// them, and updates no timestamp.
func TestHealthCheckShowsNothingHT04(t *testing.T) {
	const number = 32100
	balanced := func() *cluster.Service {
		s := service(1)
		s.Type, s.ExternalPolicy, s.HealthCheckNodePort = cluster.TypeLoadBalancer, cluster.PolicyLocal, number
		s.Ports[0].NodePort = 30080
		return s
	}
	var sick atomic.Bool
	change := func(c *Config) { c.Plane = sickKernel{c.Plane.(*fake.Faulty), &sick} }
	bubble(t, change, func(r *rig) {
		r.start()
		r.list()
		r.do(cluster.ServiceSet{Service: balanced()}, cluster.SliceSet{Slice: slice(1, 1, 1)})
		r.add(2)
		r.after(time.Second)
		r.converged()
		before := r.engine.Stats()

		sick.Store(true)
		queued := time.Now()
		for n := range 10 {
			r.do(cluster.SliceSet{Slice: slice(1, 1, 2+n)})
			r.after(time.Minute)
		}
		s := r.engine.Stats()
		if !s.QueuedSince.Equal(queued) || len(s.Failing) != 2 {
			t.Errorf("no write works since %v, and something waits since %v: %+v", queued, s.QueuedSince, s)
		}
		if !s.LastSuccess.Equal(before.LastSuccess) || !s.LastSynced.Before(s.LastQueued) {
			t.Errorf("no write works since %v, but the last was accepted %v, and all in force %v", queued,
				s.LastSuccess, s.LastSynced)
		}
		sick.Store(false)
		r.after(lastDelay)
		r.converged()

		// Without failures, a health check that changes alone is reported at once.
		gone := slice(1, 1, 11)
		gone.Endpoints = gone.Endpoints.Edited(func(i int, e *cluster.Endpoint) { e.Terminating = i > 0 })
		r.do(cluster.SliceSet{Slice: gone})
		r.run()
		r.converged()
	})
}

// sickKernel refuses writes while it is sick, but needs none for health checks.
type sickKernel struct {
	*fake.Faulty
	sick *atomic.Bool
}

var errSick = errors.New("no memory")

func (p sickKernel) Apply(ctx context.Context, changes []lb.Change) (plane.ApplyResult, error) {
	for _, c := range changes {
		if p.sick.Load() && c.Key.Port != 32100 {
			return plane.ApplyResult{}, errSick
		}
	}
	return p.Faulty.Apply(ctx, changes)
}

func (p sickKernel) Probe(ctx context.Context) error {
	if p.sick.Load() {
		return errSick
	}
	return p.Faulty.Probe(ctx)
}
