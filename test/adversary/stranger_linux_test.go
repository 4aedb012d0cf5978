package adversary_test

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"

	"kube-proxy/cluster"
	"kube-proxy/debug/changes"
	"kube-proxy/engine"
	"kube-proxy/internal/ratelimit"
	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/policy"
	"kube-proxy/source/convert"
	"kube-proxy/test/adversary"
)

// large runs the tests of strangers with shapes of full size; `make release-check` does.
var large = flag.Bool("large", false, "run the tests of strangers at full size")

// sizes are how many of a tenant's Services change at once, and by how much their shapes are
// divided.
func sizes(t *testing.T) (numbers []int, scale int) {
	numbers, scale = []int{1, 10, 100}, 20
	if *large {
		numbers, scale = []int{1, 10, 100, 1000}, 1
	}
	t.Logf("%d Services at once, shapes divided by %d (-large=%t)", numbers, scale, *large)
	return numbers, scale
}

// A tenant changes N of his Services at once, and continues while the stranger waits. Between the
// stranger's own event and the time when his frontend is in force, each stage does a limited amount
// of work, whatever N is (TN-90).
func TestStrangerWaitsForBoundedWork(t *testing.T) {
	numbers, scale := sizes(t)
	for i, n := range numbers {
		for _, shape := range append(adversary.Odd(scale), adversary.Hostile(n, scale, victims())...) {
			if i > 0 && len(shape.Services) <= numbers[i-1] {
				continue // it ran as a whole
			}
			t.Run(fmt.Sprintf("%s/%d at once", shape.Name, n), func(t *testing.T) {
				observers := newObservers(t, lb.IPv4)
				synctest.Test(t, func(t *testing.T) {
					s := newBystander(t, shape, n, observers)
					s.waits()
					s.report()
				})
			})
		}
	}
}

// effort is the work of each stage since the start of a world.
type effort struct {
	services, slices, ports, backends int64 // policy
	visited                           int64 // table
	writes, offered, weight, ops      int64 // plane
	reported                          int64 // observers
	observers                         [3]int64
	lines, bytes                      int64 // log
	events                            int64
}

// stages are the most that each stage may do while a stranger waits.
var stages = []struct {
	stage, unit string
	most        int64
	of          func(*effort) int64
}{
	{"policy", "Services resolved", turns, func(e *effort) int64 { return e.services }},
	{"policy", "slices read", turns, func(e *effort) int64 { return e.slices }},
	{"policy", "ports read", turns, func(e *effort) int64 { return e.ports }},
	{"policy", "backends resolved", turns, func(e *effort) int64 { return e.backends }},
	{"table", "frontends visited", 1 << 17, func(e *effort) int64 { return e.visited }},
	{"plane", "writes", 6, func(e *effort) int64 { return e.writes }},
	{"plane", "changes offered", 4 * maxBatchWeight, func(e *effort) int64 { return e.offered }},
	{"plane", "weight offered", 1 << 20, func(e *effort) int64 { return e.weight }},
	{"plane", "kernel operations", 8 * maxBatchWeight, func(e *effort) int64 { return e.ops }},
	{"observers", "changes reported", 4 * maxBatchWeight, func(e *effort) int64 { return e.reported }},
	{"conntrack", "allocations", 40 * maxBatchWeight, func(e *effort) int64 { return e.observers[0] }},
	{"sockets", "allocations", 40 * maxBatchWeight, func(e *effort) int64 { return e.observers[1] }},
	{"health", "allocations", 40 * maxBatchWeight, func(e *effort) int64 { return e.observers[2] }},
	{"log", "lines", maxLines, func(e *effort) int64 { return e.lines }},
	{"log", "bytes", 60_000, func(e *effort) int64 { return e.bytes }},
	{"events", "events", 120, func(e *effort) int64 { return e.events }},
}

// turns is the work of two turns of the engine, the current one and the stranger's; in each the
// last Service may exceed the rest.
const turns = 2 << 15

// maxLines is the largest number of log lines about a namespace: a share for each kind of message.
const maxLines = 6 * ratelimit.Burst

// maxBatchWeight is the weight of one write, as of the planes of Linux.
const maxBatchWeight = 2000

// bystander is a world in which a stranger, who is no tenant, changes his Service while a tenant's
// change.
type bystander struct {
	*world
	shape adversary.Shape
	n     int // Services that change at once
	round int
	ring  *changes.Ring
	// reporter receives faults of objects, as in the process.
	reporter *convert.Reporter
	lost     map[string]int // the Services with reported losses of addresses

	beside    *beside
	observers []*observer
	alone     asked // without the tenant

	done  effort         // except what others count
	await *cluster.Slice // the stranger's last change; nil once that is in force
	then  effort         // when it was
	since effort
	// heaviest is the most that one Service has been.
	heaviest effort
}

func newBystander(t *testing.T, shape adversary.Shape, n int, observers []*observer) *bystander {
	s := &bystander{world: emptyWorld(t, lb.IPv4, 1), shape: shape, n: min(n, len(shape.Services)),
		ring: changes.New(), observers: observers}
	s.plane.Slow(0, maxBatchWeight)
	resolve := s.resolve
	s.resolve = func(v cluster.View) []*lb.Frontend {
		s.resolves(v)
		return resolve(v)
	}
	s.configure = func(cfg *engine.Config) {
		cfg.Plane, cfg.Observers, cfg.Changes = counting{cfg.Plane, s}, nil, s.ring
		for _, o := range observers {
			cfg.Observers = append(cfg.Observers, o)
		}
		cfg.Observers = append(cfg.Observers, s) // after all other observers
		cfg.Contested = func(l engine.Loss) {
			s.done.events++
			if s.lost != nil {
				s.lost[l.Loser.Name]++
			}
		}
		cfg.Lent = func(engine.ProvisionalOwner) { s.done.events++ }
	}
	log := slog.New(slog.NewTextHandler(&s.log, nil))
	problems := ratelimit.New(log, "Malformed object")
	s.reporter = convert.NewReporter(func(p convert.Problem) {
		if problems.Allow(p.Name.Namespace) {
			log.Warn("Malformed object", "problem", p.String())
		}
	})
	s.start()
	s.settleDown()
	s.beside = s.newBeside()
	s.ask()
	s.alone = s.ask()
	s.alone.delivery = s.deliver(cluster.SliceSet{Slice: honestSlice(aside, 3, false)})
	s.do(shape.Events()...)
	s.settle()
	return s
}

// resolves counts the data that policy reads of a Service.
func (s *bystander) resolves(v cluster.View) {
	was := s.done
	defer func() {
		h := &s.heaviest
		h.slices, h.ports = max(h.slices, s.done.slices-was.slices), max(h.ports, s.done.ports-was.ports)
		h.backends = max(h.backends, s.done.backends-was.backends)
	}()
	cost := policy.CostOf(v, s.family)
	s.done.services++
	s.done.slices += int64(cost.Slices)
	s.done.ports += int64(cost.Ports)
	s.done.backends += int64(cost.Backends)
}

// counting is a plane that counts its writes; the tenant continues during them.
type counting struct {
	engine.Plane
	s *bystander
}

func (c counting) Apply(ctx context.Context, changes []lb.Change) (plane.ApplyResult, error) {
	res, err := c.Plane.Apply(ctx, changes)
	weight := plane.Weights(c.Plane)
	c.s.done.writes++
	c.s.done.offered += int64(len(changes))
	for _, change := range changes {
		c.s.done.weight += int64(weight(change.New))
	}
	if c.s.await != nil && c.s.round < 20 {
		c.s.flood()
	}
	return res, err
}

// flood changes N of the tenant's Services.
func (s *bystander) flood() {
	s.round++
	for i := range s.n {
		s.deliver(s.shape.Touch(i, s.round))
	}
}

// deliver passes an event through all stages before the engine's own goroutine, and returns the
// allocations of each stage.
func (s *bystander) deliver(ev cluster.Event) (d delivery) {
	var dirty cluster.Dirty
	d.source = allocations(func() { ev = converted(ev, s.reporter) })
	d.store = allocations(func() { dirty = s.store.Fold(ev) })
	d.inbox = allocations(func() { s.engine.Mark(dirty) })
	return d
}

// delivery has the allocations of the stages before the engine's goroutine for one event.
type delivery struct{ source, store, inbox int64 }

// allocations is the number of objects that f allocates, and that other goroutines allocate
// meanwhile.
func allocations(f func()) int64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return int64(after.Mallocs - before.Mallocs)
}

// Applied is engine.Observer's.
func (s *bystander) Applied(changes []lb.Change) {
	s.done.reported += int64(len(changes))
	for _, c := range changes {
		if s.await != nil && c.New != nil && c.New.Service == honestName(aside).String()+":http" &&
			leadsTo(c.New, s.await) {
			s.await, s.then = nil, s.effort()
		}
	}
}

func leadsTo(f *lb.Frontend, sl *cluster.Slice) bool {
	set := f.Set(lb.Cluster)
	return set != nil && slices.ContainsFunc(slices.Collect(set.Backends.All()), func(b lb.Backend) bool {
		return b.Addr.Addr() == sl.Endpoints.At(2).Addr
	})
}

func (s *bystander) effort() effort {
	e := s.done
	s.engine.Query(func(t *lb.Table) { e.visited = int64(t.Visited) })
	e.ops = int64(s.plane.Counts().Ops)
	for i, o := range s.observers {
		e.observers[i] = o.allocated
	}
	e.lines, e.bytes = s.log.lines.Load(), s.log.bytes.Load()
	return e
}

// waits has the tenant change N Services while a write is in hand, and then the stranger his.
func (s *bystander) waits() {
	quiet := s.log.lines.Load()
	entered, release := s.faulty.Block()
	s.do(cluster.SliceSet{Slice: honestSlice(2, 1, false)})
	<-entered
	s.flood()
	s.await = honestSlice(aside, 7, false)
	s.since = s.effort()
	seq, _ := s.ring.Counts()
	sent := s.deliver(cluster.SliceSet{Slice: s.await})
	for _, x := range []struct {
		stage       string
		took, alone int64
	}{{"source", sent.source, s.alone.delivery.source}, {"store", sent.store, s.alone.delivery.store},
		{"inbox", sent.inbox, s.alone.delivery.inbox}} {
		if x.took > x.alone+100 { // interned names are created again after a garbage collection
			s.errorf("%s: %q with %d Services changed at once: %d allocations for a stranger's event, and %d without "+
				"the tenant", x.stage, s.shape.Name, s.n, x.took, x.alone)
		}
	}
	release()
	synctest.Wait()
	if s.await != nil {
		s.errorf("the stranger's change is not in force when all has come to rest")
		return
	}
	for _, x := range stages {
		did := x.of(&s.then) - x.of(&s.since)
		if x.most == turns {
			did -= 6 * x.of(&s.heaviest) // a turn resolves at least one Service, and a write follows each
		}
		if did > x.most {
			s.errorf("%s: %q with %d Services changed at once: %d %s between a stranger's event and his frontend, "+
				"want at most %d",
				x.stage, s.shape.Name, s.n, did, x.unit, x.most)
		}
	}
	if lines := s.log.lines.Load() - quiet; lines > maxLines {
		s.errorf("log: %q with %d Services changed %d times: %d lines, want at most %d", s.shape.Name, s.n, s.round,
			lines, maxLines)
	}
	s.answers()
	s.remembered(seq)
}
