package engine

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/lb"
	"kube-proxy/policy"
	"kube-proxy/test/fake"
	"kube-proxy/test/logtest"
)

// rig is an engine with its surroundings, over a fake plane.
type rig struct {
	t      testing.TB
	store  *cluster.Store
	plane  *fake.Plane
	faulty *fake.Faulty
	engine *Engine
	model  *model
	log    *logtest.Buffer
	stop   func() error
}

const nodeName = "n1"

var settings = policy.Settings{
	Family:       lb.IPv4,
	ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
}

func newRig(t testing.TB, change func(*Config)) *rig {
	r := &rig{t: t, store: cluster.NewStore(nodeName), plane: fake.New(lb.IPv4), log: &logtest.Buffer{}}
	r.faulty = fake.NewFaulty(r.plane, 1)
	r.model = &model{rows: map[lb.Key]*lb.Frontend{}}
	cfg := Config{
		Family:    lb.IPv4,
		Plane:     r.faulty,
		Store:     r.store,
		Settings:  settings,
		Observers: []Observer{r.model},
		Log:       slog.New(slog.NewTextHandler(r.log, nil)),
	}
	if change != nil {
		change(&cfg)
	}
	r.engine = New(cfg)
	return r
}

func (r *rig) start() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.engine.Run(ctx) }()
	r.stop = sync.OnceValue(func() error {
		cancel()
		return <-done
	})
	r.t.Cleanup(func() {
		if err := r.stop(); err != nil {
			r.t.Errorf("Run: %v", err)
		}
	})
}

// begin starts the engine, and lets it write the Services after the lists.
func (r *rig) begin(services ...int) {
	r.start()
	r.list()
	for _, i := range services {
		r.add(i)
	}
	r.run()
}

// heals lets the kernel take all writes again, and checks that failed writes are repeated.
func (r *rig) heals() {
	r.t.Helper()
	r.faulty.Heal()
	r.after(lastDelay)
	r.converged()
}

// do folds events and marks their changes.
func (r *rig) do(events ...cluster.Event) {
	for _, ev := range events {
		r.engine.Mark(r.store.Fold(ev))
	}
}

// list makes the store synced.
func (r *rig) list() { r.do(cluster.ServicesListed{}, cluster.SlicesListed{}) }

// fresh is the dump of a plane that was reset to the store's contents.
func (r *rig) fresh() string {
	p := fake.New(lb.IPv4)
	if _, err := p.Reset(context.Background(), tableOf(r.store)); err != nil {
		r.t.Fatalf("fresh start: %v", err)
	}
	return p.Dump()
}

func tableOf(store *cluster.Store) *lb.Table {
	table := &lb.Table{Node: policy.ResolveNode(store.Facts(), settings)}
	for _, n := range store.Names() {
		v := store.View(n)
		table.Replace(lb.Owner{Name: n.String(), Created: v.Service.Created}, policy.Resolve(v, settings))
	}
	return table
}

// converged checks that the plane and the observers have the state of a fresh start.
func (r *rig) converged() {
	r.t.Helper()
	s := r.engine.Stats()
	if !s.Settled || s.Pending != 0 || s.Doubtful != 0 || len(s.Failing) != 0 || !s.QueuedSince.IsZero() {
		r.t.Errorf("not settled: %+v", s)
	}
	if got, want := r.plane.Dump(), r.fresh(); got != want {
		r.t.Errorf("the plane is not where a fresh start would be\ngot:\n%s\nwant:\n%s", got, want)
	}
	r.model.check(r.t, tableOf(r.store))
	if s.Owed != (cluster.Changes{}) || s.LastSynced.Before(s.LastQueued) {
		r.t.Errorf("settled, but changes %+v wait; synced at %v, last event at %v", s.Owed, s.LastSynced, s.LastQueued)
	}
	if want := noLocalOf(r.store); s.NoLocal != want {
		r.t.Errorf("service ports without a local endpoint: counted %+v, want %+v", s.NoLocal, want)
	}
}

// noLocalOf counts as MT-13 specifies: service ports with policy Local that have endpoints, but
// none on this node.
func noLocalOf(store *cluster.Store) (n NoLocal) {
	internal, external := map[lb.SetID]bool{}, map[lb.SetID]bool{}
	for f := range tableOf(store).All() {
		port := lb.SetID{Service: f.Service, Proto: f.Key.Proto}
		for _, r := range f.Routes {
			switch {
			case r.Do != lb.Drop:
			case f.Kind == lb.ClusterIP:
				internal[port] = true
			default:
				external[port] = true
			}
		}
	}
	return NoLocal{len(internal), len(external)}
}

// model is an observer that checks that its calls are consistent.
type model struct {
	mu       sync.Mutex
	rows     map[lb.Key]*lb.Frontend
	reported int
	errors   []string
}

func (m *model) Applied(changes []lb.Change) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range changes {
		m.reported++
		if !m.rows[c.Key].Equal(c.Old) {
			m.errors = append(m.errors, fmt.Sprintf("%s: old row %v, but knew %v", c.Key, c.Old, m.rows[c.Key]))
		}
		if c.New == nil {
			delete(m.rows, c.Key)
		} else {
			m.rows[c.Key] = c.New
		}
	}
}

func (m *model) check(t testing.TB, want *lb.Table) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.errors {
		t.Error(e)
	}
	for f := range want.All() {
		if !m.rows[f.Key].Equal(f) {
			t.Errorf("observers know %v for %s, the table has %v", m.rows[f.Key], f.Key, f)
		}
	}
	if len(m.rows) != want.Len() {
		t.Errorf("observers know %d rows, the table has %d", len(m.rows), want.Len())
	}
}

// bubble runs a test with made-up time.
func bubble(t *testing.T, change func(*Config), f func(*rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, change)
		f(r)
		if r.stop != nil {
			if err := r.stop(); err != nil {
				t.Errorf("Run: %v", err)
			}
		}
	})
}

// run waits until all goroutines are idle, without advancing the clock.
func (r *rig) run() { synctest.Wait() }

// after advances the clock.
func (r *rig) after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func svcName(i int) cluster.Name { return cluster.Name{Namespace: "shop", Name: fmt.Sprintf("s%d", i)} }

func svcIP(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{172, byte(16 + i>>16), byte(i >> 8), byte(i)})
}

func svcKey(i int) lb.Key { return lb.Key{Addr: svcIP(i), Port: 80, Proto: lb.TCP} }

// service is a Service with one port.
func service(i int) *cluster.Service {
	return &cluster.Service{
		Name:       svcName(i),
		Created:    int64(1000 + i),
		ClusterIPs: []netip.Addr{svcIP(i)},
		Ports:      []cluster.ServicePort{{Name: "http", Protocol: cluster.TCP, Port: 80}},
	}
}

// svcPod is pod k of the service.
func svcPod(i, k int) netip.Addr { return netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), byte(k)}) }

// slice is the Service's slice, with n endpoints whose addresses start at from.
func slice(i, from, n int) *cluster.Slice {
	s := &cluster.Slice{
		Name:    cluster.Name{Namespace: "shop", Name: fmt.Sprintf("s%d-x", i)},
		Service: svcName(i),
		Ports:   []cluster.SlicePort{{Name: "http", Protocol: cluster.TCP, Port: 8080}},
	}
	var all []cluster.Endpoint
	for k := range n {
		all = append(all, cluster.Endpoint{
			Addr:  svcPod(i, from+k),
			Where: cluster.At(nodeName, ""),
			Ready: true, Serving: true,
		})
	}
	s.Endpoints = cluster.EndpointsOf(all...)
	return s
}

func (r *rig) add(i int) {
	r.do(cluster.SliceSet{Slice: slice(i, 1, 3)}, cluster.ServiceSet{Service: service(i)})
}
