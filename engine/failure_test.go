package engine

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/internal/ratelimit"
	"kube-proxy/lb"
	"kube-proxy/test/fake"
)

// A write fails after the plane has changed something, and the last accepted state is desired again
// before the retry: the key is offered nevertheless.
func TestDoubtIsOfferedThoughNothingChanged(t *testing.T) {
	bubble(t, nil, func(r *rig) {
		r.begin(1)
		r.faulty.FailNext(fake.ErrInjected)
		r.do(cluster.SliceSet{Slice: slice(1, 1, 5)})
		r.run()
		before := r.engine.Stats()
		if before.Doubtful != 1 || before.Pending != 1 || before.LastError == "" || before.LastFailure.IsZero() {
			t.Fatalf("after a failure: %+v", before)
		}
		r.do(cluster.SliceSet{Slice: slice(1, 1, 3)})
		r.run()
		if s := r.engine.Stats(); s.Applies != before.Applies+1 || s.Retries != 1 || s.Doubtful != 0 {
			t.Errorf("want the key offered once more: %+v", s)
		}
		r.converged()
	})
}

// Issue 2, item 5: one bad object is retried alone with backoff; it blocks no other and forces no
// Reset.
func TestBadObject(t *testing.T) {
	bubble(t, nil, func(r *rig) {
		r.begin()
		_, release := r.faulty.Block()
		r.add(1000)
		r.run()
		r.faulty.Refuse(svcKey(37))
		for i := range 100 {
			r.add(i)
		}
		r.run()
		release()
		r.run()
		s := r.engine.Stats()
		if r.plane.Len() != 100 || r.plane.Has(svcKey(37)) {
			t.Errorf("%d rows, want all 100 others at once", r.plane.Len())
		}
		if s.Applies > 20 {
			t.Errorf("%d writes to find one culprit among 100", s.Applies)
		}
		if s.Pending != 1 || s.Doubtful != 1 || len(s.Failing) != 1 || s.Failing[0].Key != svcKey(37) ||
			s.Failing[0].Service != "shop/s37:http" || s.Settled {
			t.Errorf("want one failing row: %+v", s)
		}
		r.after(10 * time.Minute)
		s = r.engine.Stats()
		// 50 ms doubling to 30 s: 10 tries in the first 25 s or so, then two a minute.
		if n := s.Failing[0].Tries; n < 25 || n > 35 {
			t.Errorf("%d tries in 10 minutes", n)
		}
		if n := r.log.Count("Failed to write a frontend"); n != 1 || r.log.Count("service=shop/s37:http") != 1 {
			t.Errorf("%d log lines, want one:\n%s", n, r.log)
		}
		if s.Resets != 1 {
			t.Errorf("%d resets", s.Resets)
		}
		// It does not delay others.
		r.add(200)
		r.run()
		if !r.plane.Has(svcKey(200)) {
			t.Error("a good row waits for a bad one")
		}
		r.heals()
		if r.log.Count("Wrote frontends after failures") != 1 {
			t.Errorf("no line about the success:\n%s", r.log)
		}
	})
}

// A new change of a waiting key is tried at once, and its backoff restarts.
func TestNewWishIsTriedAtOnce(t *testing.T) {
	bubble(t, nil, func(r *rig) {
		r.begin()
		r.faulty.Refuse(svcKey(1))
		r.do(cluster.ServiceSet{Service: service(1)})
		r.after(10 * time.Minute)
		tries := r.engine.Stats().Applies
		r.do(cluster.SliceSet{Slice: slice(1, 1, 3)})
		r.run()
		if n := r.engine.Stats().Applies - tries; n != 1 {
			t.Errorf("%d writes at once after a new change, want 1", n)
		}
		r.after(60 * time.Millisecond)
		if n := r.engine.Stats().Applies - tries; n != 2 {
			t.Errorf("%d writes 60 ms after a new change, want 2", n)
		}
		r.do(cluster.ServiceGone{Name: svcName(1)})
		r.faulty.Heal()
		r.run()
		r.converged()
	})
}

// When every write fails there is one backoff for all and no storm, even while events keep
// arriving.
func TestSystemicFailure(t *testing.T) {
	bubble(t, nil, func(r *rig) {
		r.begin()
		r.faulty.FailWith(1)
		_, release := r.faulty.Block()
		r.add(5000)
		r.run()
		for i := range 1000 {
			r.add(i)
		}
		r.run()
		release()
		r.run()
		if s := r.engine.Stats(); s.Applies > 30 {
			t.Errorf("%d writes in the first moment", s.Applies)
		}
		r.after(time.Minute)
		before := r.engine.Stats()
		if before.Applies > 500 {
			t.Errorf("%d writes in the first minute", before.Applies)
		}
		for i := range 600 { // a minute with ten events a second
			r.do(cluster.SliceSet{Slice: slice(i, 1, 4)})
			r.after(100 * time.Millisecond)
		}
		s := r.engine.Stats()
		if n := s.Applies - before.Applies; n > 800 {
			t.Errorf("%d writes in a minute in which everything fails", n)
		}
		if s.Resets != 1 {
			t.Errorf("%d resets", s.Resets)
		}
		if n := r.log.Count("level=ERROR"); n > 120 {
			t.Errorf("%d lines in the log", n)
		}
		r.heals()
	})
}

// Many bad objects among many: all good ones are written within seconds.
func TestManyBadObjects(t *testing.T) {
	bubble(t, nil, func(r *rig) {
		r.begin()
		_, release := r.faulty.Block()
		r.add(5000)
		r.run()
		for i := range 1000 {
			r.add(i)
			if i%20 == 0 {
				r.faulty.Refuse(svcKey(i))
			}
		}
		release()
		r.after(5 * time.Second)
		if n := r.plane.Len(); n != 951 {
			t.Errorf("%d rows after 5 s, want 951", n)
		}
		if s := r.engine.Stats(); len(s.Failing) != 50 || s.Pending != 50 {
			t.Errorf("%d failing, %d pending, want 50", len(s.Failing), s.Pending)
		}
		before := r.engine.Stats().Applies
		r.after(time.Minute)
		if n := r.engine.Stats().Applies - before; n > 600 {
			t.Errorf("%d writes a minute for 50 bad rows", n)
		}
		r.faulty.Heal()
		r.after(2 * lastDelay)
		r.converged()
	})
}

// A failed Reset is retried with backoff and logged once for each error text; events that arrive
// meanwhile are part of the next one.
func TestResetFails(t *testing.T) {
	bubble(t, nil, func(r *rig) {
		r.start()
		for range 10 {
			r.faulty.FailNext(fmt.Errorf("no memory: %w", fake.ErrInjected))
		}
		r.list()
		r.run()
		r.add(1)
		r.after(time.Second)
		if c := r.faulty.Calls(); c < 3 || c > 6 {
			t.Errorf("%d tries in a second", c)
		}
		if s := r.engine.Stats(); !s.Lost || s.Begun || s.QueuedSince.IsZero() {
			t.Errorf("%+v", s)
		}
		r.after(2 * time.Minute)
		r.converged()
		if n := r.log.Count("Failed to rewrite everything"); n != 1 {
			t.Errorf("%d lines, want 1:\n%s", n, r.log)
		}
		if s := r.engine.Stats(); s.Resets != 11 || s.Applies != 0 || s.Retries != 10 {
			t.Errorf("%+v", s)
		}
	})
}

// A changed audit period takes effect at once, even if it is shorter than the rest of the old one.
func TestSetAuditPeriod(t *testing.T) {
	bubble(t, func(c *Config) { c.AuditPeriod = time.Hour }, func(r *rig) {
		r.begin()
		audits := func() uint64 { return r.engine.Stats().Audits }
		r.after(30 * time.Minute)
		if audits() != 0 {
			t.Errorf("%d audits in half a period", audits())
		}
		r.engine.SetAuditPeriod(time.Minute)
		r.after(10 * time.Minute)
		if audits() < 9 || audits() > 12 {
			t.Errorf("%d audits in 10 minutes, a minute apart", audits())
		}
		before := audits()
		r.engine.SetAuditPeriod(-1)
		r.after(time.Hour)
		if audits() != before {
			t.Errorf("%d audits after they were ended", audits()-before)
		}
		r.engine.SetAuditPeriod(0)
		r.after(6 * time.Minute)
		if audits() != before+1 {
			t.Errorf("%d audits in 6 minutes, 5 apart", audits()-before)
		}
	})
}

// DP-61: a panic in the plane is caught; the plane may be half changed, so it is reset.
func TestPanicInPlane(t *testing.T) {
	bubble(t, nil, func(r *rig) {
		r.begin(1)
		r.faulty.PanicAt(svcKey(2))
		r.do(cluster.SliceSet{Slice: slice(1, 1, 5)}, cluster.ServiceSet{Service: service(2)})
		r.run()
		s := r.engine.Stats()
		if s.Panics == 0 || s.Resets != 2 {
			t.Errorf("after a panic: %+v", s)
		}
		if r.log.Count("Recovered from a panic") != 1 || r.log.Count("faulty.go") == 0 {
			t.Errorf("want one line with the stack:\n%s", r.log)
		}
		r.converged()
	})
}

// DP-61: a panic in the policy affects its own Service only, which keeps its frontends and is tried
// again.
func TestPanicInPolicy(t *testing.T) {
	var sick atomic.Bool
	var asked atomic.Int64
	change := func(c *Config) {
		c.Resolve = func(v cluster.View) []*lb.Frontend {
			if v.Name == svcName(1) {
				asked.Add(1)
				if sick.Load() {
					panic("policy is sick")
				}
			}
			return resolveDefault(v)
		}
	}
	bubble(t, change, func(r *rig) {
		r.begin(1)
		sick.Store(true)
		r.do(cluster.SliceSet{Slice: slice(1, 1, 9)})
		r.add(2)
		r.run()
		if !r.plane.Has(svcKey(1)) || !r.plane.Has(svcKey(2)) {
			t.Errorf("want the old row of one and the new row of the other:\n%s", r.plane.Dump())
		}
		if s := r.engine.Stats(); s.Unresolved != 1 || s.Panics == 0 || s.Settled || s.Resets != 1 ||
			!strings.HasPrefix(s.LastError, "resolve service "+svcName(1).String()+": ") {
			t.Errorf("%+v", s)
		}
		asked.Store(0)
		r.after(10 * time.Minute)
		if n := asked.Load(); n < 25 || n > 35 {
			t.Errorf("asked %d times in 10 minutes", n)
		}
		if n := r.log.Count("Failed to resolve a Service"); n != 1 {
			t.Errorf("%d lines, want 1", n)
		}
		sick.Store(false)
		r.after(lastDelay)
		r.converged()
	})
}

// HT-04: a Service whose frontends cannot be computed does not count as a change that waits for the
// kernel, even where nothing else changes; it stays visible.
func TestSickPolicyHT04(t *testing.T) {
	change := func(c *Config) {
		c.Resolve = func(v cluster.View) []*lb.Frontend {
			if v.Name == svcName(2) {
				panic("policy is sick")
			}
			return resolveDefault(v)
		}
	}
	bubble(t, change, func(r *rig) {
		r.begin(1)
		r.after(time.Second)
		r.add(2)
		for range 100 {
			r.after(syncPeriod / 5)
			if s := r.engine.Stats(); !s.QueuedSince.IsZero() || s.Unresolved != 1 || s.Settled {
				t.Fatalf("one Service's policy is sick, and the kernel well: %+v", s)
			}
		}
		// If the kernel also refuses a write, that counts as usual.
		r.faulty.FailWith(1)
		queued := time.Now()
		r.add(3)
		r.after(10 * time.Minute)
		if s := r.engine.Stats(); !s.QueuedSince.Equal(queued) {
			t.Errorf("something waits since %v, want %v", s.QueuedSince, queued)
		}
	})
}

// DP-61: a panic in the table leaves it half changed: the engine rebuilds it and resets the plane
// to it, once.
func TestPanicInTable(t *testing.T) {
	var sick atomic.Bool
	change := func(c *Config) {
		c.Resolve = func(v cluster.View) []*lb.Frontend {
			if sick.Load() && v.Name == svcName(1) {
				return []*lb.Frontend{nil}
			}
			return resolveDefault(v)
		}
	}
	bubble(t, change, func(r *rig) {
		r.begin(1, 2)
		sick.Store(true)
		r.do(cluster.SliceSet{Slice: slice(1, 1, 9)}, cluster.SliceSet{Slice: slice(2, 1, 9)})
		r.after(10 * time.Minute)
		if !r.plane.Has(svcKey(1)) || !r.plane.Has(svcKey(2)) {
			t.Errorf("rows are missing:\n%s", r.plane.Dump())
		}
		if s := r.engine.Stats(); s.Resets != 2 || s.Unresolved != 1 {
			t.Errorf("%+v", s)
		}
		sick.Store(false)
		r.after(lastDelay)
		r.converged()
	})
}

// A panic in an observer affects that observer only.
func TestPanicInObserver(t *testing.T) {
	bubble(t, func(c *Config) { c.Observers = append([]Observer{sickObserver{}}, c.Observers...) }, func(r *rig) {
		r.begin(1)
		r.converged()
		if s := r.engine.Stats(); s.Panics == 0 {
			t.Errorf("%+v", s)
		}
	})
}

type sickObserver struct{}

func (sickObserver) Applied([]lb.Change) { panic("observer is sick") }

// HT-04: changes wait for the kernel from the time when the sources have listed, not before. So an
// engine with silent sources is healthy, and one with a hanging first Reset is not.
func TestQueuedSinceListed(t *testing.T) {
	bubble(t, nil, func(r *rig) {
		r.start()
		r.engine.Mark(cluster.Dirty{Facts: true}) // where the API server is
		r.after(time.Minute)
		if s := r.engine.Stats(); !s.LastQueued.IsZero() {
			t.Errorf("before the lists, facts asked for new rules at %v", s.LastQueued)
		}
		r.add(1)
		r.after(10 * time.Minute)
		if s := r.engine.Stats(); !s.QueuedSince.IsZero() || s.LastQueued.IsZero() {
			t.Errorf("not listed yet, and something waits since %v; the last event came at %v", s.QueuedSince,
				s.LastQueued)
		}
		entered, release := r.faulty.Block()
		listed := time.Now()
		r.list()
		<-entered
		r.after(time.Minute)
		r.add(2)
		r.after(time.Minute)
		if s := r.engine.Stats(); !s.QueuedSince.Equal(listed) {
			t.Errorf("the first Reset hangs: something waits since %v, want %v", s.QueuedSince, listed)
		}
		release()
		r.after(time.Minute)
		r.converged()
	})
}

// TN-08: frontends of one tenant that fail, many together and repeatedly, do not cause a log line
// each time.
func TestFloodOfFailures(t *testing.T) {
	bubble(t, nil, func(r *rig) {
		r.begin()
		const rows, times = 10, 100
		keys := make([]lb.Key, rows)
		for i := range keys {
			keys[i] = svcKey(i)
		}
		start := time.Now()
		for n := range times {
			_, release := r.faulty.Block()
			r.add(1000 + n)
			r.run()
			r.faulty.Refuse(keys...)
			for i := range rows {
				r.add(i)
			}
			r.run()
			release()
			r.after(time.Second)
			r.faulty.Heal()
			for i := range rows {
				r.do(cluster.ServiceGone{Name: service(i).Name})
			}
			r.add(1000 + times + n)
			r.after(time.Second)
		}
		regained := int(time.Since(start) / ratelimit.Gap)
		if got := r.log.Count("Failed to write changes, retrying them " +
			"together"); got < ratelimit.Burst || got > ratelimit.Burst+
			regained+1 {
			t.Errorf("%d lines about %d failures, want %d and %d regained", got, times, ratelimit.Burst, regained)
		}
		r.after(2 * ratelimit.ReportGap)
		if r.log.Count(`kind="Failed to write a frontend"`) == 0 {
			t.Error("the log does not count what it suppressed")
		}
		r.converged()
	})
}
