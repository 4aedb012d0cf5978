package engine

import (
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/lb"
	"kube-proxy/test/cputest"
	"kube-proxy/test/fake"
)

// fill lists n services with 10 endpoints each.
func (r *rig) fill(n int) {
	services := make([]*cluster.Service, n)
	slices := make([]*cluster.Slice, n)
	for i := range n {
		services[i], slices[i] = service(i), slice(i, 1, 10)
	}
	r.do(cluster.ServicesListed{Services: services}, cluster.SlicesListed{Slices: slices})
}

// The cost of one endpoint event does not depend on the number of Services.
func TestCostFollowsTheChange(t *testing.T) {
	type cost struct{ resolved, visited, offered, changes, applies, ops uint64 }
	measure := func(n int) (c cost) {
		bubble(t, nil, func(r *rig) {
			r.start()
			r.fill(n)
			r.run()
			s, ops := r.engine.Stats(), r.plane.Counts().Ops
			c = cost{s.Resolved, s.Visited, s.Offered, s.Changes, s.Applies, uint64(ops)}
			const events = 10
			for i := range events {
				r.do(cluster.SliceSet{Slice: slice(n/2, 2+i, 10)})
				r.run()
			}
			s, ops = r.engine.Stats(), r.plane.Counts().Ops
			c = cost{s.Resolved - c.resolved, s.Visited - c.visited, s.Offered - c.offered, s.Changes - c.changes,
				s.Applies - c.applies, uint64(ops) - c.ops}
			if c.applies != events || c.changes != events || c.resolved != events {
				t.Errorf("%d services, %d events: %+v", n, events, c)
			}
		})
		return c
	}
	small, large := measure(100), measure(2000)
	if small != large {
		t.Errorf("ten endpoint events cost %+v among 100 services, %+v among 2,000", small, large)
	}
}

// The pending map was as large as the table once; that must not slow down a change.
func BenchmarkEndpointChange(b *testing.B) {
	for _, n := range []int{100, 10_000, 100_000} {
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) { benchEndpointChange(b, n) })
	}
}

// applied signals the benchmark that a change is in the plane.
type applied chan struct{}

func (a applied) Applied([]lb.Change) { a <- struct{}{} }

func benchEndpointChange(b *testing.B, n int) {
	done := make(applied, 1)
	r := newRig(b, func(c *Config) {
		c.Observers = []Observer{done}
		c.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	})
	r.start()
	r.fill(n)
	<-done
	// All changes are pending at once, so that the maps reach their full size once.
	r.faulty.FailNext(fake.ErrInjected)
	changed := make([]*cluster.Slice, n)
	for i := range changed {
		changed[i] = slice(i, 2, 10)
	}
	r.do(cluster.SlicesListed{Slices: changed})
	for s := r.engine.Stats(); !s.Settled || s.Failures == 0; s = r.engine.Stats() {
		select {
		case <-done:
		case <-time.After(10 * time.Millisecond):
		}
	}
	select {
	case <-done:
	default:
	}
	forms := make([][2]*cluster.Slice, 100)
	for i, at := range rand.Perm(n)[:len(forms)] {
		forms[i] = [2]*cluster.Slice{slice(at, 3, 10), slice(at, 4, 10)}
	}
	runtime.GC() // garbage of the setup does not count for the change
	before, cpu := r.engine.Stats(), cputest.Time()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		r.do(cluster.SliceSet{Slice: forms[i%len(forms)][i/len(forms)%2]})
		<-done
	}
	// On a busy machine the processor time is more exact than the clock.
	b.ReportMetric(float64(cputest.Time()-cpu)/float64(b.N), "cpu-ns/op")
	s := r.engine.Stats()
	b.ReportMetric(float64(s.Changes-before.Changes)/float64(b.N), "changes/op")
}

// Many goroutines mark at once while the plane fails at times: no change is lost. Run with -race.
func TestNoLostChange(t *testing.T) {
	const services, writers = 200, 8
	rounds := 300
	if testing.Short() {
		rounds = 30
	}
	r := newRig(t, nil)
	r.start()
	r.list()
	r.faulty.FailWith(0.2)
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			rd := rand.New(rand.NewPCG(uint64(w), 1))
			for range rounds {
				i := rd.IntN(services)
				switch rd.IntN(4) {
				case 0:
					r.do(cluster.ServiceSet{Service: service(i)})
				case 1:
					r.do(cluster.ServiceGone{Name: svcName(i)})
				default:
					r.do(cluster.SliceSet{Slice: slice(i, rd.IntN(200), 3)})
				}
				if rd.IntN(20) == 0 {
					r.plane.StealAny(true)
				}
				r.engine.Stats()
				r.engine.Query(func(table *lb.Table) { table.Len() })
			}
		})
	}
	wg.Wait()
	r.faulty.Heal()
	for limit := time.Now().Add(time.Minute); !r.engine.Stats().Settled; time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("not settled a minute after the last fault: %+v", r.engine.Stats())
		}
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	r.converged()
}
