package planetest

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/plane/nftables"
	"kube-proxy/test/scenario"
)

func inKernel(f lb.Family) (Plane, error) { return nftables.New(nftables.Config{Family: f}) }

// mutant is a plane that works, but receives false data.
type mutant struct {
	Plane
	row  func(lb.Frontend) *lb.Frontend // nil: the frontend unchanged; it may return nil for no frontend
	set  func(lb.BackendSet) lb.BackendSet
	node func(lb.Node) lb.Node
	// forget leaves out changes.
	forget func(lb.Change) bool
	sets   map[*lb.BackendSet]*lb.BackendSet
}

// of makes mutants of planes.
func (m mutant) of(create func(lb.Family) (Plane, error)) func(lb.Family) (Plane, error) {
	return func(f lb.Family) (Plane, error) {
		p, err := create(f)
		if err != nil {
			return nil, err
		}
		mine := m
		mine.Plane, mine.sets = p, map[*lb.BackendSet]*lb.BackendSet{}
		return &mine, nil
	}
}

func (m *mutant) Close() error { return shut(m.Plane) }

func (m *mutant) Apply(ctx context.Context, changes []lb.Change) (plane.ApplyResult, error) {
	var reported []lb.Change
	for _, c := range changes {
		if m.forget == nil || !m.forget(c) {
			reported = append(reported, lb.Change{Key: c.Key, Old: m.mutate(c.Old), New: m.mutate(c.New)})
		}
	}
	return m.Plane.Apply(ctx, reported)
}

func (m *mutant) Reset(ctx context.Context, want *lb.Table) (plane.ResetResult, error) {
	reported := &lb.Table{Node: want.Node}
	if m.node != nil {
		reported.Node = m.node(want.Node)
	}
	owners := map[string][]*lb.Frontend{}
	for _, f := range want.Sorted() {
		if g := m.mutate(f); g != nil {
			owners[f.Service] = append(owners[f.Service], g)
		}
	}
	for name, fronts := range owners {
		reported.Replace(lb.Owner{Name: name}, fronts)
	}
	return m.Plane.Reset(ctx, reported)
}

func (m *mutant) mutate(f *lb.Frontend) *lb.Frontend {
	if f == nil {
		return nil
	}
	g := *f
	g.Routes = slices.Clone(f.Routes)
	for i, r := range g.Routes {
		if r.To != nil && m.set != nil {
			if m.sets[r.To] == nil {
				s := *r.To
				s = m.set(s)
				m.sets[r.To] = &s
			}
			g.Routes[i].To = m.sets[r.To]
		}
	}
	if m.row != nil {
		return m.row(g)
	}
	return &g
}

func backendsOf(s lb.BackendSet) []lb.Backend { return slices.Collect(s.Backends.All()) }

// eachRoute makes a frontend mutation of a route mutation.
func eachRoute(f func(r *lb.Route)) func(lb.Frontend) *lb.Frontend {
	return func(g lb.Frontend) *lb.Frontend {
		for i := range g.Routes {
			f(&g.Routes[i])
		}
		return &g
	}
}

func without(from lb.From) func(lb.Frontend) *lb.Frontend {
	return func(g lb.Frontend) *lb.Frontend {
		g.Routes = slices.DeleteFunc(g.Routes, func(r lb.Route) bool { return r.From == from })
		return &g
	}
}

// A scenario must find each mutant by the behaviour that it breaks. Otherwise such wrong packets
// would not be noticed.
func TestMutantsAreFound(t *testing.T) {
	all := load(t, "")
	labs := newPool(t)
	pod5 := map[bool]netip.Addr{false: netip.MustParseAddr("10.1.2.15"), true: netip.MustParseAddr("fd00:10:1:2::15")}
	for _, c := range []struct {
		name, scenario string
		m              mutant
	}{
		{"never masquerades", "clusterip", mutant{row: eachRoute(func(r *lb.Route) { r.Masq = false })}},
		{"always masquerades", "external-policy-local", mutant{row: eachRoute(func(r *lb.Route) {
			r.Masq = r.Do == lb.Balance
		})}},
		{"no affinity", "session-affinity", mutant{row: func(g lb.Frontend) *lb.Frontend {
			g.Affinity = 0
			return &g
		}}},
		{"affinity for all", "nodeport", mutant{row: func(g lb.Frontend) *lb.Frontend {
			g.Affinity = time.Hour
			return &g
		}}},
		{"affinity without end", "session-affinity-timeout", mutant{row: func(g lb.Frontend) *lb.Frontend {
			g.Affinity = time.Hour
			return &g
		}}},
		{"no source ranges", "source-ranges", mutant{row: func(g lb.Frontend) *lb.Frontend {
			g.Sources = nil
			return &g
		}}},
		{"pods are like others", "external-policy-local", mutant{row: without(lb.Pods)}},
		{"the node is like others", "external-policy-local-none-local", mutant{row: without(lb.Host)}},
		{"drops for rejects", "no-endpoints", mutant{row: eachRoute(func(r *lb.Route) {
			if r.Do == lb.Reject {
				r.Do = lb.Drop
			}
		})}},
		{"rejects for drops", "internal-policy-local", mutant{row: eachRoute(func(r *lb.Route) {
			if r.Do == lb.Drop {
				r.Do = lb.Reject
			}
		})}},
		{"all is a hairpin", "hairpin", mutant{row: eachRoute(func(r *lb.Route) { r.Masq = r.Do == lb.Balance })}},
		{"one backend less", "clusterip", mutant{set: func(s lb.BackendSet) lb.BackendSet {
			s.Backends = lb.BackendsOf(backendsOf(s)[:s.Backends.Len()-1]...)
			return s
		}}},
		{"one backend more", "terminating-cluster", mutant{set: func(s lb.BackendSet) lb.BackendSet {
			a := pod5[s.Backends.At(0).Addr.Addr().Is6()]
			if s.Backends.At(s.Backends.Len()-1).Addr.Addr() != a {
				s.Backends = lb.BackendsOf(append(backendsOf(s), lb.Backend{Addr: netip.AddrPortFrom(a, 8080)})...)
			}
			return s
		}}},
		{"another target port", "multiport", mutant{set: func(s lb.BackendSet) lb.BackendSet {
			all := backendsOf(s)
			for i, b := range all {
				all[i].Addr = netip.AddrPortFrom(b.Addr.Addr(), 8082)
			}
			s.Backends = lb.BackendsOf(all...)
			return s
		}}},
		{"NodePorts everywhere", "nodeport-addresses-primary", mutant{node: func(n lb.Node) lb.Node {
			if len(n.NodePorts) > 0 {
				n.NodePorts = []netip.Prefix{netip.PrefixFrom(n.NodePorts[0].Addr(), 0).Masked()}
			}
			return n
		}}},
		{"no service network", "unallocated-address", mutant{node: func(n lb.Node) lb.Node {
			n.ServiceCIDRs = nil
			return n
		}}},
		{"cluster IPs like others", "unknown-port", mutant{row: func(g lb.Frontend) *lb.Frontend {
			g.Kind = lb.LoadBalancer
			return &g
		}}},
		{"no detector", "detect-node-cidr", mutant{node: func(n lb.Node) lb.Node { n.Pods = lb.Detector{}; return n }}},
		{"forgets deletions", "external-name", mutant{forget: func(c lb.Change) bool { return c.New == nil }}},
		{"forgets changes", "scale-to-zero-and-back", mutant{forget: func(c lb.Change) bool {
			return c.Old != nil && c.New != nil
		}}},
		{"no NodePorts", "nodeport-same-port-tcp-and-udp", mutant{row: func(g lb.Frontend) *lb.Frontend {
			if g.Kind == lb.NodePort {
				return nil
			}
			return &g
		}}},
		{"no UDP", "udp", mutant{row: func(g lb.Frontend) *lb.Frontend {
			if g.Key.Proto == lb.UDP {
				return nil
			}
			return &g
		}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			found(t, all, labs, c.scenario, c.m)
		})
	}
}

func found(t *testing.T, all []*scenario.Scenario, labs *pool, name string, m mutant) {
	sc := named(t, all, name)
	s := &suite{Config: Config{Mode: "mutant", New: m.of(inKernel)}, labs: labs, timeout: 300 * time.Millisecond}
	_, failures, err := s.try(sc)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Join(failures, "\n")
	for _, f := range families {
		if !strings.Contains(text, ", "+f.String()) {
			t.Errorf("%s passes in %s", name, f)
		}
	}
	for _, bad := range []string{"reset:", "apply ", "new plane:"} {
		if strings.Contains(text, bad) {
			t.Errorf("the mutant could not be built:\n%s", text)
		}
	}
}

// holey is a plane without transactions that removes a frontend before it adds the new one in its
// place.
type holey struct{ *nftables.Plane }

func (p holey) Apply(ctx context.Context, changes []lb.Change) (plane.ApplyResult, error) {
	gone := slices.Clone(changes)
	for i := range gone {
		gone[i].New = nil
	}
	if _, err := p.Plane.Apply(ctx, gone); err != nil {
		return plane.ApplyResult{}, err
	}
	return p.Plane.Apply(ctx, changes)
}

func TestHolesAreFound(t *testing.T) {
	load(t, "") // skips without root
	newPlane := func(f lb.Family) (Plane, error) {
		p, err := nftables.New(nftables.Config{Family: f})
		return holey{p}, err
	}
	s := &suite{Config: Config{Mode: "holey", New: newPlane}, labs: newPool(t), timeout: 300 * time.Millisecond}
	missed := slices.Clone(families)
	for tries := 0; len(missed) > 0; tries++ { // on a busy machine there are few connections in a while
		if tries == 10 {
			t.Fatalf("%v: no connection met a hole", missed)
		}
		_, failures, err := s.tryChurn()
		if err != nil {
			t.Fatal(err)
		}
		missed = slices.DeleteFunc(missed, func(f lb.Family) bool {
			return slices.ContainsFunc(failures, func(text string) bool {
				return strings.HasPrefix(text, f.String()+", after")
			})
		})
	}
}

// A failure counts too that comes after the time is over.
func TestLateFailureCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		late := errors.New("late")
		for name, failing := range map[string]func() error{
			"begun in time": func() error { time.Sleep(2 * churnTime); return late },
			"at once":       func() error { return late },
		} {
			working := func() error { time.Sleep(time.Millisecond); return nil }
			if err := forAWhile([]func() error{failing, working}); !errors.Is(err, late) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}
