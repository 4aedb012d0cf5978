package engine

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"kube-proxy/cluster"
	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/policy"
	"kube-proxy/test/seedtest"
)

// weighed returns a Service that requests the given number of objects. Its name gives its age.
func weighed(ns string, created, objects int) cluster.View {
	s := &cluster.Service{Name: cluster.Name{Namespace: ns, Name: fmt.Sprintf("s%d", created)}, Created: int64(created),
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}, Ports: []cluster.ServicePort{
			{Name: "p", Protocol: cluster.TCP, Port: 80}}}
	if objects == 0 {
		return cluster.View{Name: s.Name}
	}
	sl := &cluster.Slice{Ports: []cluster.SlicePort{{Name: "p", Protocol: cluster.TCP, Port: 80}},
		Endpoints: cluster.EndpointsOf(make([]cluster.Endpoint, objects-1)...)}
	return cluster.View{Name: s.Name, Service: s, Slices: []*cluster.Slice{sl}}
}

// weighEach counts each frontend and each endpoint as one object.
func weighEach(s lb.Size) int { return s.Ports*s.Copies(1) + s.Backends }

// budgets is a budget with its result for each Service.
type budgets struct {
	*Budget
	limit int
	views map[cluster.Name]cluster.View
	said  map[cluster.Name]int // number of its frontends
	moved int
}

func newBudgets(limit int) *budgets {
	b := &budgets{limit: limit, views: map[cluster.Name]cluster.View{}, said: map[cluster.Name]int{}}
	b.Budget = NewBudget(weighEach, func() policy.Settings {
		return policy.Settings{Family: lb.IPv4, MaxObjects: b.limit}
	})
	return b
}

// weigh records a Service, and resolves it and the Services that the budget returns.
func (b *budgets) weigh(v cluster.View) {
	b.views[v.Name] = v
	if v.Service == nil {
		delete(b.views, v.Name)
	}
	moved := b.Weigh(v)
	b.moved += len(moved)
	for _, name := range append(moved, v.Name) {
		b.said[name] = len(policy.Resolve(b.views[name], b.Settings(name)))
	}
}

// served returns the names of the served Services of the namespace.
func (b *budgets) served(ns string) (names []string) {
	for name, is := range b.said {
		if is > 0 && name.Namespace == ns {
			names = append(names, name.Name)
		}
	}
	slices.Sort(names)
	return names
}

// The oldest Services of a namespace get its objects. An older Service that grows takes objects
// from the youngest; freed objects serve Services that were refused. Other namespaces have no
// effect (TN-12).
func TestBudget(t *testing.T) {
	b := newBudgets(100)
	want := func(story string, names ...string) {
		t.Helper()
		if got := b.served("a"); !slices.Equal(got, names) {
			t.Errorf("%s: %v are served, want %v", story, got, names)
		}
		if got := b.served("b"); !slices.Equal(got, []string{"s1"}) {
			t.Errorf("%s: of the other namespace %v is served", story, got)
		}
	}
	b.weigh(weighed("b", 1, 25))
	for _, created := range []int{5, 1, 4, 2, 3} { // each the most that one may have
		b.weigh(weighed("a", created, 25))
	}
	want("five of a quarter each", "s1", "s2", "s3", "s4")
	b.weigh(weighed("a", 2, 10))
	want("an older one shrinks, not enough for the next", "s1", "s2", "s3", "s4")
	b.weigh(weighed("a", 3, 15))
	want("it shrinks by as much as the next one asks for", "s1", "s2", "s3", "s4", "s5")
	b.weigh(weighed("a", 6, 1))
	want("no object is left", "s1", "s2", "s3", "s4", "s5")
	b.weigh(weighed("a", 2, 25))
	want("an older one grows: the youngest lose", "s1", "s2", "s3", "s4")
	b.weigh(weighed("a", 1, 0))
	want("one goes", "s2", "s3", "s4", "s5", "s6")
	b.limit = 50
	for _, v := range slices.Collect(maps.Values(b.views)) {
		b.weigh(v)
	}
	want("half the limit: those that have more than their quarter have fewer endpoints", "s2", "s3", "s4", "s5", "s6")
	b.limit = 0
	for _, v := range slices.Collect(maps.Values(b.views)) {
		b.weigh(v)
	}
	b.weigh(weighed("a", 7, 1000))
	want("no limit", "s2", "s3", "s4", "s5", "s6", "s7")
}

// The history has no effect: the served Services are those that a budget would serve that had them
// all from the start (TN-12). While all fit, no Service is resolved again; else no more than fit
// into the difference.
func TestBudgetWalk(t *testing.T) {
	rnd := rand.New(rand.NewPCG(seedtest.Of(t), 19))
	const limit = 400
	b := newBudgets(limit)
	for step := range 5000 {
		objects := rnd.IntN(60)
		if step%1000 > 800 {
			objects = 0 // they go
		}
		v := weighed([]string{"a", "b"}[rnd.IntN(2)], rnd.IntN(40), objects)
		for i := range rnd.IntN(6) * min(1, objects) {
			v.Service.ExternalIPs = append(v.Service.ExternalIPs, netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}))
		}
		b.weigh(v)
		if step%50 > 0 {
			continue
		}
		fresh := newBudgets(limit)
		for _, v := range b.views { // as after a restart, in another order
			fresh.Weigh(v)
		}
		for name, v := range b.views {
			if rows := len(policy.Resolve(v, fresh.Settings(name))); rows != b.said[name] {
				t.Fatalf("step %d: %s has %d rows, after a restart %d", step, name, b.said[name], rows)
			}
		}
	}
	few := newBudgets(1 << 30)
	for i := range 1000 {
		few.weigh(weighed("a", i, 1+rnd.IntN(100)))
	}
	if few.moved > 0 {
		t.Errorf("%d Services were resolved again, though all fit", few.moved)
	}
	many := newBudgets(4000)
	for i := range 10_000 { // of them 4000 fit
		many.weigh(weighed("a", i, 1))
	}
	many.moved = 0
	many.weigh(weighed("a", 1, 11))
	if many.moved > 12 {
		t.Errorf("%d Services were resolved again for a change by 10 objects", many.moved)
	}
}

// With a namespace at its limit, the engine writes the part that fits from the first Reset on, and
// objects freed by one Service serve another at once. A Service of another namespace is served
// whatever this namespace requests (TN-12).
func TestBudgetInForce(t *testing.T) {
	const fit, services = 5, 40 // 4 objects each
	limited := settings
	limited.MaxObjects = 4 * fit
	budget := NewBudget(weighEach, func() policy.Settings { return limited })
	first := 0
	bubble(t, func(c *Config) {
		c.Budget, c.Plane = budget, &resetSize{Plane: c.Plane, first: &first}
		c.Resolve = func(v cluster.View) []*lb.Frontend { return policy.Resolve(v, budget.Settings(v.Name)) }
	}, func(r *rig) {
		var all []*cluster.Service
		var lists []*cluster.Slice
		for i := range services {
			all, lists = append(all, service(i+1)), append(lists, slice(i+1, 1, 3))
		}
		stranger := service(services + 1)
		stranger.Name.Namespace = "elsewhere"
		r.do(cluster.ServicesListed{Services: append(all, stranger)}, cluster.SlicesListed{Slices: lists})
		r.start()
		want := func(story string, served ...int) {
			t.Helper()
			r.run()
			var names []string
			r.engine.Query(func(table *lb.Table) {
				for f := range table.All() {
					names = append(names, f.Service)
				}
			})
			if written := strings.Count(r.plane.Dump(), "clusterip"); len(names) != len(served)+1 ||
				written != len(names) {
				t.Errorf("%s: %d Services have rows, and %d are written, want %d", story, len(names), written,
					len(served)+1)
			}
			for _, i := range served {
				if len(r.engine.table.Owned(svcName(i).String())) == 0 {
					t.Errorf("%s: %s is not served", story, svcName(i))
				}
			}
			if len(r.engine.table.Owned(stranger.Name.String())) == 0 {
				t.Errorf("%s: the stranger is not served", story)
			}
		}
		want("first", 1, 2, 3, 4, 5)
		if first != fit+1 {
			t.Errorf("the first Reset had %d rows", first)
		}
		r.do(cluster.ServiceGone{Name: svcName(2)})
		want("one goes", 1, 3, 4, 5, 6)
		limited.MaxObjects *= 2
		r.engine.ResolveAll()
		want("the limit is raised", 1, 3, 4, 5, 6, 7, 8, 9, 10, 11)
	})
}

// resetSize records how many frontends the first Reset has.
type resetSize struct {
	Plane
	first *int
}

func (p *resetSize) Reset(ctx context.Context, want *lb.Table) (plane.ResetResult, error) {
	if *p.first == 0 {
		*p.first = want.Len()
	}
	return p.Plane.Reset(ctx, want)
}
