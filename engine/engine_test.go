package engine

import (
	"context"
	"net/netip"
	"sync"
	"testing"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/test/fake"
)

// SV-05: nothing is written until both Services and slices have been listed; then one Reset.
func TestNothingBeforeTheLists(t *testing.T) {
	bubble(t, nil, func(r *rig) {
		r.start()
		r.add(1)
		r.do(cluster.ServicesListed{Services: []*cluster.Service{service(1), service(2)}})
		r.after(time.Hour)
		if c := r.plane.Counts(); c.Resets+c.Applies+c.SetNodes+c.Audits != 0 {
			t.Errorf("before the slices were listed: %+v", c)
		}
		if s := r.engine.Stats(); s.Settled || s.Resolved != 0 {
			t.Errorf("before the slices were listed: %+v", s)
		}
		r.do(cluster.SlicesListed{Slices: []*cluster.Slice{slice(1, 1, 3)}})
		r.run()
		if c := r.plane.Counts(); c.Resets != 1 || c.Applies != 0 {
			t.Errorf("after the lists: %+v, want one Reset", c)
		}
		r.converged()
		r.add(3)
		r.run()
		if c := r.plane.Counts(); c.Resets != 1 || c.Applies == 0 || c.Audits != 0 {
			t.Errorf("after another service: %+v, want one Reset and an Apply", c)
		}
		r.converged()
	})
}

// DP-60: the first event after an idle time is applied at once; events that arrive during a write
// form one batch.
func TestFireAtOnceCoalesceWhileWriting(t *testing.T) {
	bubble(t, nil, func(r *rig) {
		r.begin()
		entered, release := r.faulty.Block()
		r.do(cluster.ServiceSet{Service: service(1)})
		r.run()
		select {
		case <-entered:
		default:
			t.Fatal("the first event was not written at once")
		}
		for i := range 50 {
			r.add(i)
		}
		for i := range 10 {
			r.do(cluster.SliceSet{Slice: slice(1, i, 4)})
		}
		r.after(time.Minute)
		if c := r.faulty.Calls(); c != 2 {
			t.Errorf("%d calls while the first write runs, want 2 (Reset and that write)", c)
		}
		release()
		r.run()
		if c := r.plane.Counts(); c.Applies != 2 || c.Changes != 1+50 {
			t.Errorf("after the write: %+v, want one more Apply, one change for each of 50 services", c)
		}
		r.converged()
	})
}

// DP-60, CF-24, CF-30: at least MinSyncPeriod from the end of one write to the start of the next.
func TestMinSyncPeriod(t *testing.T) {
	var mu sync.Mutex
	var writes []time.Time
	took := func() []time.Time {
		mu.Lock()
		defer mu.Unlock()
		out := writes
		writes = nil
		return out
	}
	change := func(c *Config) {
		c.MinSyncPeriod = 10 * time.Second
		c.Written = func(w Write) {
			mu.Lock()
			defer mu.Unlock()
			if w.Verb == "apply" {
				writes = append(writes, time.Now())
			}
		}
	}
	bubble(t, change, func(r *rig) {
		r.start()
		r.list()
		r.after(time.Minute)
		start := time.Now()
		_, release := r.faulty.Block()
		r.do(cluster.ServiceSet{Service: service(1)})
		r.after(3 * time.Second) // the write takes 3 s
		release()
		r.do(cluster.ServiceSet{Service: service(2)})
		r.after(time.Second)
		r.do(cluster.ServiceSet{Service: service(3)})
		r.after(time.Minute)
		writes := took()
		if len(writes) != 2 || writes[0].Sub(start) != 3*time.Second || writes[1].Sub(writes[0]) != 10*time.Second {
			t.Fatalf("writes ended at %v after %v, want one at 3 s and one 10 s later", writes, start)
		}
		r.converged()

		start = time.Now()
		r.do(cluster.ServiceSet{Service: service(4)})
		r.run()
		r.do(cluster.ServiceSet{Service: service(5)})
		r.after(time.Second)
		r.engine.SetMinSyncPeriod(2 * time.Second)
		r.after(time.Minute)
		writes = took()
		if len(writes) != 2 || !writes[0].Equal(start) || writes[1].Sub(start) != 2*time.Second {
			t.Fatalf("writes at %v after %v, want one at once and one 2 s later", writes, start)
		}
		r.converged()
	})
}

// An engine receives events of its own family only (G6).
func TestOtherFamilyIsIgnored(t *testing.T) {
	bubble(t, nil, func(r *rig) {
		r.begin()
		before := r.engine.Stats().Resolved
		r.engine.Mark(cluster.Dirty{Services: []cluster.Ref{{Name: svcName(1), V6: true}}})
		r.run()
		if n := r.engine.Stats().Resolved - before; n != 0 {
			t.Errorf("%d services resolved for the other family", n)
		}
		r.engine.Mark(cluster.Dirty{Services: []cluster.Ref{{Name: svcName(1), V4: true}}})
		r.run()
		if n := r.engine.Stats().Resolved - before; n != 1 {
			t.Errorf("%d services resolved, want 1", n)
		}
	})
}

// A change that is reverted before it was offered is not written.
func TestTakenBack(t *testing.T) {
	bubble(t, func(c *Config) { c.MinSyncPeriod = time.Second }, func(r *rig) {
		r.start()
		r.add(1)
		r.list()
		r.do(cluster.ServiceSet{Service: service(1)}, cluster.SliceSet{Slice: slice(1, 1, 3)})
		r.after(time.Minute)
		r.converged()
		r.do(cluster.ServiceSet{Service: service(2)}) // starts the second in which nothing is written
		r.run()
		before := r.plane.Counts()
		r.do(cluster.SliceSet{Slice: slice(1, 1, 2)})
		r.run()
		r.do(cluster.SliceSet{Slice: slice(1, 1, 3)})
		r.after(time.Minute)
		if c := r.plane.Counts(); c != before {
			t.Errorf("%+v, then %+v: a change that came to nothing was written", before, c)
		}
		r.converged()
	})
}

// Stop: the current write is finished, no other starts, the rules stay.
func TestGracefulStop(t *testing.T) {
	bubble(t, nil, func(r *rig) {
		r.begin()
		entered, release := r.faulty.Block()
		r.add(1)
		r.run()
		<-entered
		r.add(2)
		stopped := make(chan error)
		go func() { stopped <- r.stop() }()
		r.after(time.Second)
		select {
		case <-stopped:
			t.Fatal("Run returned in the middle of a write")
		default:
		}
		release()
		if err := <-stopped; err != nil {
			t.Errorf("Run: %v", err)
		}
		if !r.plane.Has(svcKey(1)) || r.plane.Has(svcKey(2)) {
			t.Errorf("want the row in hand written and the pending one not:\n%s", r.plane.Dump())
		}
	})
}

// hanging is a plane whose writes last until their context ends.
type hanging struct {
	*fake.Plane
	ended chan error
}

// Drift returns nil: the plane's own channel was made outside the bubble.
func (h hanging) Drift() <-chan struct{} { return nil }

func (h hanging) Apply(ctx context.Context, _ []lb.Change) (plane.ApplyResult, error) {
	<-ctx.Done()
	h.ended <- ctx.Err()
	return plane.ApplyResult{}, ctx.Err()
}

// A hanging write cannot keep the process from stopping forever.
func TestStopIsBounded(t *testing.T) {
	h := hanging{fake.New(lb.IPv4), make(chan error, 1)}
	bubble(t, func(c *Config) { c.Plane = h }, func(r *rig) {
		r.begin()
		r.add(1)
		r.after(time.Hour)
		start := time.Now()
		if err := r.stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
		if d := time.Since(start); d != grace {
			t.Errorf("Run took %v to stop, want %v", d, grace)
		}
	})
}

// SV-24: a conflict is logged once as a warning for the loser, which gets the key when the winner
// goes.
func TestConflict(t *testing.T) {
	var reported []Loss
	bubble(t, func(c *Config) { c.Contested = func(x Loss) { reported = append(reported, x) } }, func(r *rig) {
		shared := netip.MustParseAddr("192.0.2.7")
		claim := func(i int) *cluster.Service {
			s := service(i)
			s.Type = cluster.TypeLoadBalancer
			s.LoadBalancerIPs = []netip.Addr{shared}
			return s
		}
		r.start()
		// The youngest first: while all are resolved the winner changes.
		r.do(cluster.ServiceSet{Service: claim(3)}, cluster.ServiceSet{Service: claim(2)})
		r.list()
		r.do(cluster.ServiceSet{Service: claim(3)}, cluster.ServiceSet{Service: claim(2)})
		r.run()
		want := `msg="Service lost an address and port to another Service" family=IPv4 service=shop/s3 ` +
			`key=192.0.2.7:80/tcp ` + `winner=shop/s2 reason="it is older" keys=1`
		if r.log.Count(want) != 1 || len(reported) != 1 {
			t.Errorf("want one warning %q:\n%s%v", want, r.log, reported)
		}
		again := claim(3)
		again.AffinitySeconds = 5
		r.do(cluster.ServiceSet{Service: again})
		r.engine.ResolveAll()
		r.run()
		if r.log.Count("lost") != 1 || len(reported) != 1 {
			t.Errorf("warned again:\n%s", r.log)
		}
		r.converged()
		r.do(cluster.ServiceGone{Name: svcName(2)})
		r.run()
		if !r.plane.Has(lb.Key{Addr: shared, Port: 80, Proto: lb.TCP}) {
			t.Error("the loser did not get the key")
		}
		r.converged()
	})
}

// dropper is a plane that found frontends of a Service that was deleted while no proxy ran.
type dropper struct {
	*fake.Plane
	keys []lb.Key
}

func (d dropper) Reset(ctx context.Context, want *lb.Table) (plane.ResetResult, error) {
	res, err := d.Plane.Reset(ctx, want)
	res.Dropped = d.keys
	return res, err
}

// reported is an observer that records its calls.
type reported struct{ changes []lb.Change }

func (o *reported) Applied(changes []lb.Change) { o.changes = append(o.changes, changes...) }

// Observers receive the keys that the first Reset removed, and those of no other Reset.
func TestDroppedRowsAreReported(t *testing.T) {
	gone := svcKey(77)
	var o reported
	bubble(t, func(c *Config) {
		c.Plane = dropper{fake.New(lb.IPv4), []lb.Key{gone}}
		c.Observers = []Observer{&o}
	}, func(r *rig) {
		r.list()
		r.add(1)
		r.start()
		r.run()
		var dropped []lb.Key
		for _, c := range o.changes {
			if c.Old == nil && c.New == nil {
				dropped = append(dropped, c.Key)
			}
		}
		if len(dropped) != 1 || dropped[0] != gone || len(o.changes) != 2 {
			t.Errorf("reported %v", o.changes)
		}
	})
}
