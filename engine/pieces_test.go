package engine

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/test/fake"
)

// slowRig is an engine over a plane that writes ten Services in a piece. at is called after each
// write with its number, before the next one.
func slowRig(t *testing.T, change func(*Config), at func(r *rig, write int)) func(f func(r *rig)) {
	return func(f func(r *rig)) {
		bubble(t, func(c *Config) {
			if change != nil {
				change(c)
			}
		}, func(r *rig) {
			r.plane.Slow(1, 10*11)
			n := 0
			r.engine.cfg.Written = func(w Write) {
				n++
				if at != nil {
					at(r, n)
				}
			}
			f(r)
		})
	}
}

// knows reports whether the observers have the frontend as the store has it.
func (r *rig) knows(k lb.Key) bool {
	r.model.mu.Lock()
	defer r.model.mu.Unlock()
	return r.model.rows[k] != nil && r.model.rows[k].Equal(tableOf(r.store).Get(k))
}

// A change that is marked during the first write of a large table is in the plane with the next
// piece: a new Service as well as one that was due at the end. The proxy is not ready before all is
// written (SV-05).
func TestChangeDuringFirstWrite(t *testing.T) {
	const services, marked = 400, 10
	changed, added := svcKey(services-1), svcKey(services) // the fake plane postpones frontends by their keys
	came := map[lb.Key]int{}
	writes := 0
	slowRig(t, nil, func(r *rig, n int) {
		writes = n
		s := r.engine.Stats()
		if s.Begun && n <= services/10 {
			r.t.Errorf("begun with write %d", n)
		}
		if s.Pending > 0 && !s.LastSynced.IsZero() {
			r.t.Errorf("%d rows wait, and all was in sync at %v", s.Pending, s.LastSynced)
		}
		if n == marked {
			r.do(cluster.SliceSet{Slice: slice(services-1, 5, 10)})
			r.add(services)
		}
	})(func(r *rig) {
		r.engine.cfg.Observers = append(r.engine.cfg.Observers, observer(func(changes []lb.Change) {
			for _, c := range changes {
				came[c.Key] = writes
			}
		}))
		r.fill(services)
		r.start()
		r.run()
		for _, k := range []lb.Key{changed, added} {
			if came[k] != marked+1 {
				t.Errorf("%s, marked after write %d, came with write %d", k, marked, came[k])
			}
		}
		if writes < services/10 || !r.engine.Stats().Begun {
			t.Errorf("%d writes for %d services: %+v", writes, services, r.engine.Stats())
		}
		r.converged()
	})
}

type observer func([]lb.Change)

func (o observer) Applied(changes []lb.Change) { o(changes) }

// While a tenant's large change is written in pieces, a small change of another namespace is the
// next write, and nothing else is in it: it waits for the piece under way and for no other. The
// write after it is a full piece again (TN-33).
func TestSmallChangeIsAWriteOfItsOwn(t *testing.T) {
	const services, stranger, piece = 200, 1000, 10
	small := func(first int) *cluster.Slice {
		sl := slice(stranger, first, 3)
		sl.Name.Namespace, sl.Service.Namespace = "stranger", "stranger"
		return sl
	}
	due, write, came := 0, 0, 0 // due is the write with the stranger's change; 0 during the start
	slowRig(t, nil, func(r *rig, n int) {
		write = n
		if due != 0 && n%4 == 0 && r.engine.Stats().Pending > 5*piece {
			due = n + 1
			r.do(cluster.SliceSet{Slice: small(n)})
		}
	})(func(r *rig) {
		r.fill(services)
		s := service(stranger)
		s.Name.Namespace = "stranger"
		r.do(cluster.ServiceSet{Service: s}, cluster.SliceSet{Slice: small(1)})
		r.start()
		r.run()
		r.engine.cfg.Observers = append(r.engine.cfg.Observers, observer(func(changes []lb.Change) {
			has := slices.ContainsFunc(changes, func(c lb.Change) bool { return c.Key == svcKey(stranger) })
			switch {
			case write == due && has && len(changes) == 1:
				came++
			case write == due || has:
				t.Errorf("write %d: %d changes, with the stranger's: %t; his was due in write %d", write, len(changes),
					has, due)
			case write == due+1 && len(changes) < piece:
				t.Errorf("write %d, after the stranger's, has %d changes; want %d", write, len(changes), piece)
			}
		}))
		var batch cluster.Batch
		for i := range services {
			batch = append(batch, cluster.SliceSet{Slice: slice(i, 20, 10)})
		}
		due = -1
		r.do(batch)
		r.run()
		if came < 3 {
			t.Errorf("%d changes of the stranger came", came)
		}
		r.converged()
	})
}

// MinSyncPeriod is the time between two writes, not between the pieces of one.
func TestPiecesDoNotWaitForMinSyncPeriod(t *testing.T) {
	slowRig(t, func(c *Config) { c.MinSyncPeriod = 10 * time.Second }, nil)(func(r *rig) {
		r.fill(200)
		r.start()
		r.run()
		if s, n := r.engine.Stats(), r.plane.Counts(); !s.Begun || n.Applies < 15 {
			t.Errorf("at once: %+v", s)
		}
		r.add(200)
		r.run()
		if r.knows(svcKey(200)) {
			t.Error("a change did not wait for the period")
		}
		r.after(10 * time.Second)
		r.converged()
	})
}

// A refused frontend does not prevent the end of the first write; a plane that refuses everything
// does.
func TestFirstWriteFails(t *testing.T) {
	slowRig(t, nil, nil)(func(r *rig) {
		r.fill(100)
		r.faulty.Refuse(svcKey(50))
		r.start()
		r.after(time.Second)
		if s := r.engine.Stats(); !s.Begun || s.Pending != 1 {
			t.Errorf("one row is refused: %+v", s)
		}
		r.faulty.Heal()
		r.after(time.Minute)
		r.converged()
	})
	slowRig(t, nil, func(r *rig, n int) {
		if n == 2 {
			r.faulty.FailWith(1)
		}
	})(func(r *rig) {
		r.fill(2000)
		r.start()
		r.after(time.Second)
		if s := r.engine.Stats(); s.Begun {
			t.Errorf("nothing is taken: %+v", s)
		}
		r.faulty.Heal()
		r.after(time.Hour)
		r.converged()
	})
}

// The plane loses its state during a first write, and again when the observers have all frontends:
// they receive each once, and changes are in force with the frontends.
func TestStateLostBetweenPieces(t *testing.T) {
	l := &latencies{}
	slowRig(t, func(c *Config) { c.Programmed = l.add }, func(r *rig, n int) {
		if n == 5 {
			r.faulty.FailNext(plane.ErrStateLost)
		}
	})(func(r *rig) {
		r.fill(100)
		r.start()
		r.after(time.Minute)
		r.converged()
		l.took = nil
		r.plane.StealAny(false)
		r.plane.Lose(false)
		for i := range 100 {
			r.do(triggered(i, 7, 10, time.Second))
		}
		r.after(time.Minute)
		r.converged()
		if len(l.took) != 100 {
			t.Errorf("%d latencies of 100 changes", len(l.took))
		}
	})
}

// The endpoint count of a health check waits for the frontends of its traffic (HT-16), also where a
// Reset postpones them.
func TestHealthCheckWaitsForLaterRows(t *testing.T) {
	check := lb.Key{Port: 32000, Proto: lb.TCP}
	reported, balanced := 0, 0
	slowRig(t, nil, nil)(func(r *rig) {
		writes := 0
		r.engine.cfg.Written = func(Write) { writes++ }
		r.engine.cfg.Observers = append(r.engine.cfg.Observers, observer(func(changes []lb.Change) {
			for _, c := range changes {
				switch {
				case c.Key == check:
					reported = writes
				case c.New != nil && c.New.Kind == lb.LoadBalancer:
					balanced = writes
				}
			}
		}))
		r.fill(60)
		svc := service(61)
		svc.Type = cluster.TypeLoadBalancer
		svc.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr("192.0.2.7")}
		svc.ExternalPolicy, svc.HealthCheckNodePort = cluster.PolicyLocal, check.Port
		r.do(cluster.SliceSet{Slice: slice(61, 1, 3)}, cluster.ServiceSet{Service: svc})
		r.start()
		r.run()
		if reported < balanced || balanced < 2 {
			t.Errorf("endpoints reported after write %d, rows in force after write %d", reported, balanced)
		}
		r.converged()
	})
}

// Groups of retries are cut into pieces, too.
func TestRetriesInPieces(t *testing.T) {
	bubble(t, nil, func(r *rig) {
		r.list()
		r.start()
		r.run()
		r.plane.Slow(0, 10*11)
		r.faulty.FailWith(1)
		for i := range 500 {
			r.add(i)
		}
		r.after(time.Second)
		r.faulty.Heal()
		r.after(time.Minute)
		r.converged()
	})
	p := fake.New(lb.IPv4)
	p.Slow(0, 100)
	e := New(Config{Family: lb.IPv4, Plane: p, Store: cluster.NewStore(nodeName)})
	var keys []lb.Key
	for i := range 1000 {
		e.pending.add(lb.Change{Key: svcKey(i), New: &lb.Frontend{Key: svcKey(i), Service: "a/b:c"}})
		keys = append(keys, svcKey(i))
	}
	groups := e.inPieces(keys)
	if len(groups) != 10 || !slices.Equal(slices.Concat(groups...), keys) {
		t.Errorf("%d groups", len(groups))
	}
}

// weigher is a plane with its own weight function.
type weigher struct {
	*fake.Plane
	each int
}

func (w weigher) Weigh(*lb.Frontend) int { return w.each }

// A plane with its own weight function gets pieces by that weight, of new changes and of retries.
func TestPiecesByThePlanesOwnWeight(t *testing.T) {
	p := weigher{fake.New(lb.IPv4), 50}
	p.Slow(0, 100)
	e := New(Config{Family: lb.IPv4, Plane: p, Store: cluster.NewStore(nodeName)})
	var keys []lb.Key
	for i := range 10 {
		row := &lb.Frontend{Key: svcKey(i), Service: fmt.Sprintf("a/b%d:c", i)}
		e.pending.add(lb.Change{Key: row.Key, Old: row})
		keys = append(keys, row.Key)
	}
	if groups := e.inPieces(keys); len(groups) != 5 || len(groups[0]) != 2 {
		t.Errorf("what is tried again comes in %v, want two rows each", groups)
	}
	e.writeFresh(t.Context())
	if left := e.pending.queue.len(); left != 8 {
		t.Errorf("%d of 10 rows are left after a piece, want 8", left)
	}
}

// A key that a Reset left for later is no longer owed once it was tried, however often it is tried
// again: the load ends when all were.
func TestLeftKeysCountOnce(t *testing.T) {
	p, first, second := &pending{left: 2}, &pendingChange{left: true}, &pendingChange{left: true}
	for range 3 { // its write fails, alone
		p.tried(first)
	}
	if p.left != 1 {
		t.Errorf("%d keys are left, want 1", p.left)
	}
	p.tried(second)
	if p.left != 0 {
		t.Errorf("%d keys are left, want none", p.left)
	}
}

// A write in pieces whose rest needs no further write is over: the next change waits for
// MinSyncPeriod.
func TestPiecesEndWithoutAWrite(t *testing.T) {
	bubble(t, func(c *Config) { c.MinSyncPeriod = 10 * time.Second }, func(r *rig) {
		r.begin(1, 2)
		r.after(time.Minute)
		r.do(cluster.ServiceSet{Service: service(3)})
		r.run()
		r.engine.writer.inPiece = true // as if a Service had been unresolved then
		r.engine.ResolveAll()          // it needs no write
		r.run()
		r.do(cluster.ServiceSet{Service: service(4)})
		r.run()
		if r.knows(svcKey(4)) {
			t.Error("a change did not wait for the period")
		}
		r.after(10 * time.Second)
		r.converged()
	})
}
