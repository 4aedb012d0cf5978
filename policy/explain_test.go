package policy_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"kube-proxy/cluster"
	"kube-proxy/lb"
	"kube-proxy/policy"
	"kube-proxy/test/adversary"
	"kube-proxy/test/cputest"
	"kube-proxy/test/scenario"
)

// checkExplained compares Explain with Resolve: an endpoint is explained as part of a set if and
// only if the set of the frontends has it, and each excluded one has a reason.
func checkExplained(t *testing.T, v cluster.View, s policy.Settings) policy.Explanation {
	t.Helper()
	x, rows := policy.Explain(v, s), policy.Resolve(v, s)
	what := fmt.Sprintf("view %s\nsettings %+v", describe(v), s)
	if (x.Not == "") != (len(rows) > 0) {
		t.Fatalf("%d rows, and it says %q\n%s", len(rows), x.Not, what)
	}
	var explained []*lb.Frontend
	for _, p := range x.Ports {
		explained = append(explained, p.Frontends...)
		checkExplainedPort(t, p, v, what)
	}
	// The frontends of the ports are all frontends, in their order, except that of the health
	// check.
	rows = slices.DeleteFunc(slices.Clone(rows), func(f *lb.Frontend) bool { return f.Kind == lb.HealthCheck })
	if !slices.EqualFunc(rows, explained, (*lb.Frontend).Equal) {
		t.Fatalf("explained rows\n%v\nare not those of Resolve\n%v\n%s", explained, rows, what)
	}
	// Slices have no order.
	v.Slices = slices.Clone(v.Slices)
	slices.Reverse(v.Slices)
	if again := policy.Explain(v, s); !reflect.DeepEqual(again, x) {
		t.Fatalf("slices in another order are explained by\n%+v\nnot by\n%+v\n%s", again, x, what)
	}
	return x
}

func checkExplainedPort(t *testing.T, p policy.ExplainedPort, v cluster.View, what string) {
	t.Helper()
	sets := map[lb.Scope]*lb.BackendSet{}
	serves := false
	for _, f := range p.Frontends {
		for _, scope := range []lb.Scope{lb.Cluster, lb.Local} {
			if set := f.Set(scope); set != nil {
				sets[scope] = set
				serves = true
			}
		}
	}
	if set := sets[lb.Cluster]; set != nil && !p.Cluster {
		t.Fatalf("%s: rows have the set %v, but it needs none\n%s", p.Service, set, what)
	}
	if set := sets[lb.Local]; set != nil && !p.Local {
		t.Fatalf("%s: rows have the set %v, but it needs none\n%s", p.Service, set, what)
	}
	said := map[lb.Scope]map[netip.AddrPort]bool{lb.Cluster: {}, lb.Local: {}}
	for i, e := range p.Endpoints {
		if i > 0 && !p.Endpoints[i-1].Address.Addr().IsValid() || i > 0 &&
			p.Endpoints[i-1].Address.Compare(e.Address) >= 0 {
			t.Fatalf("%s: endpoints are not sorted: %v\n%s", p.Service, p.Endpoints, what)
		}
		if e.InCluster {
			said[lb.Cluster][e.Address] = true
		}
		if e.InLocal {
			said[lb.Local][e.Address] = true
		}
		if (e.WhyNotCluster != "") != (p.Cluster && !e.InCluster) || (e.WhyNotLocal != "") != (p.Local && !e.InLocal) {
			t.Fatalf("%s: %+v: reasons and sets do not fit\n%s", p.Service, e, what)
		}
	}
	for scope, in := range said {
		var has lb.Backends
		if sets[scope] != nil {
			has = sets[scope].Backends
		}
		for b := range has.All() {
			if !in[b.Addr] && p.MoreEndpoints == 0 {
				t.Fatalf("%s: %s is in the %s set of the rows, and is not said to be\n%+v\n%s", p.Service, b.Addr,
					scope, p.Endpoints, what)
			}
			delete(in, b.Addr)
		}
		if len(in) > 0 {
			t.Fatalf("%s: %v are said to be in the %s set, and are not\n%s", p.Service, in, scope, what)
		}
	}
	if !serves && len(p.Why) == 0 {
		t.Fatalf("%s has no backends, and no reason\n%s", p.Service, what)
	}
}

// FuzzExplain is TestExplainRandomViews without a time limit.
func FuzzExplain(f *testing.F) {
	f.Add(uint64(1), uint64(2))
	f.Fuzz(func(t *testing.T, seed1, seed2 uint64) {
		g := generator{rand.New(rand.NewPCG(seed1, seed2))}
		checkExplained(t, g.view(), g.settings())
	})
}

// Random views and settings.
func TestExplainRandomViews(t *testing.T) {
	for seed := range uint64(1500) {
		g := generator{rand.New(rand.NewPCG(seed, 14))}
		checkExplained(t, g.view(), g.settings())
	}
}

// The objects of hostile tenants.
func TestExplainAdversary(t *testing.T) {
	victims := adversary.Victims{
		ClusterIPs: addrs("10.96.0.1", "fd00:96::1"), Pods: addrs("10.1.0.1", "10.1.0.2", "10.1.3.3", "fd00:1::1"),
		Free:    addrs("10.96.9.9"),
		Special: adversary.Special(), Node: addrs("172.18.0.2", "fd00:18::2"), NodeName: "node1",
		Ports: []uint16{80, 443}, NodePorts: []uint16{30080, 30443}, Targets: []uint16{8080, 9090},
	}
	settings := policy.Settings{ClusterCIDRs: prefixes("10.1.0.0/16", "fd00:1::/32"),
		NodePortAddrs: policy.NodePortAddrs{Primary: true}}
	explained := 0
	for seed := range uint64(2) {
		tenant := adversary.New("tenant", seed, victims, func(i int) []netip.Addr {
			return []netip.Addr{netip.AddrFrom4([4]byte{10, 97, 0, byte(1 + i)}), addrs("fd00:97::1")[0]}
		})
		store := cluster.NewStore("node1")
		store.Fold(cluster.NodeSet{Node: &cluster.Node{Name: "node1", Addrs: victims.Node, Zone: "a"}})
		for range 100 {
			for _, ref := range store.Fold(tenant.Event()).Services {
				for _, f := range []lb.Family{lb.IPv4, lb.IPv6} {
					settings.Family = f
					checkExplained(t, store.View(ref.Name), settings)
					explained++
				}
			}
		}
	}
	if explained < 150 {
		t.Errorf("explained %d times", explained)
	}
}

// Every Service in every state of every scenario.
func TestExplainScenarios(t *testing.T) {
	dir, err := scenario.Dir()
	if err != nil {
		t.Fatal(err)
	}
	all, err := scenario.LoadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, sc := range all {
		store := cluster.NewStore(sc.Settings.NodeName)
		for _, st := range sc.States {
			events, _, err := st.Events()
			if err != nil {
				t.Fatal(err)
			}
			for _, ev := range events {
				store.Fold(ev)
			}
			for _, n := range store.Names() {
				for _, f := range []lb.Family{lb.IPv4, lb.IPv6} {
					checkExplained(t, store.View(n), sc.Settings.For(f))
				}
			}
		}
	}
}

// Explaining a Service with sixteen times as many ports, none with an endpoint, must not have
// quadratic cost.
func TestExplainIsLinear(t *testing.T) {
	view := func(ports int) cluster.View {
		name := cluster.Name{Namespace: "odd", Name: "s"}
		store := cluster.NewStore("node1")
		svc := &cluster.Service{Name: name, ClusterIPs: addrs("10.96.0.1")}
		for i := range ports {
			svc.Ports = append(svc.Ports, cluster.ServicePort{Name: fmt.Sprint("p", i), Protocol: cluster.TCP,
				Port: uint16(1 + i)})
		}
		store.Fold(cluster.ServiceSet{Service: svc})
		for i := 0; i < ports; i += 100 {
			sl := &cluster.Slice{Name: cluster.Name{Namespace: "odd", Name: fmt.Sprint("s", i)}, Service: name}
			for k := i; k < min(i+100, ports); k++ {
				sl.Ports = append(sl.Ports, cluster.SlicePort{Name: fmt.Sprint("p", k), Protocol: cluster.TCP,
					Port: 8080})
			}
			for _, a := range addrs("10.1.0.1", "10.1.0.2", "10.1.0.3") {
				sl.Endpoints = sl.Endpoints.With(cluster.Endpoint{Addr: a})
			}
			store.Fold(cluster.SliceSet{Slice: sl})
		}
		return store.View(name)
	}
	small, large := view(250), view(4000)
	s := policy.Settings{Family: lb.IPv4}
	// 16 is linear, 256 the square
	if ratio := cputest.Ratio(func() { policy.Explain(small, s) }, func() { policy.Explain(large, s) }); ratio > 80 {
		t.Errorf("sixteen times as many ports cost %.0f times as much", ratio)
	}
	if x := policy.Explain(large, s); x.Ports[3999].MoreEndpoints == 0 || len(x.Ports[0].Endpoints) != 3 ||
		len(x.Ports[3999].Why) == 0 {
		t.Errorf("the last port: %+v", x.Ports[3999])
	}
}

// An address with a terminating entry that serves and a running one that is not ready is explained
// by the pair, in either order; without the running one it serves (SV-32).
func TestExplainTakenAddress(t *testing.T) {
	addr := netip.MustParseAddr("10.1.0.1")
	terminating := cluster.Endpoint{Addr: addr, Serving: true, Terminating: true}
	running, gone := cluster.Endpoint{Addr: addr}, cluster.Endpoint{Addr: addr, Terminating: true}
	const taken = "terminating, and another pod, which is not ready, has its address"
	for _, c := range []struct {
		entries []cluster.Endpoint
		want    string
	}{
		{[]cluster.Endpoint{terminating, running}, taken}, {[]cluster.Endpoint{running, terminating}, taken},
		{[]cluster.Endpoint{terminating, gone}, ""}, {[]cluster.Endpoint{running}, "not ready"},
		{[]cluster.Endpoint{gone}, "terminating, and serves no more"},
	} {
		name := cluster.Name{Namespace: "ns", Name: "web"}
		view := cluster.View{Service: &cluster.Service{Name: name,
			ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
			Ports:      []cluster.ServicePort{{Name: "p", Protocol: cluster.TCP, Port: 80}}},
			Slices: []*cluster.Slice{{Name: name, Service: name, Endpoints: cluster.EndpointsOf(c.entries...),
				Ports: []cluster.SlicePort{{Name: "p", Protocol: cluster.TCP, Port: 8080}}}}}
		ports := checkExplained(t, view, policy.Settings{Family: lb.IPv4}).Ports
		if len(ports) != 1 || len(ports[0].Endpoints) != 1 || ports[0].Endpoints[0].WhyNotCluster != c.want {
			t.Errorf("%+v: %+v, want %q", c.entries, ports, c.want)
		}
	}
}

// At the limit of an explanation, another entry for a listed address still counts with it. All
// others are only counted, and so are all entries of the next port.
func TestExplainLimit(t *testing.T) {
	const limit = 10_000
	var eps []cluster.Endpoint
	for i := range limit + 3 {
		eps = append(eps, cluster.Endpoint{Addr: netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), Ready: true})
	}
	s := newScene()
	s.svc.Ports = append(s.svc.Ports, cluster.ServicePort{Name: "admin", Protocol: cluster.TCP, Port: 81})
	for _, of := range [][]cluster.Endpoint{eps[:limit], append(eps[limit:], eps[0])} {
		name := cluster.Name{Namespace: "shop", Name: fmt.Sprint("web-", len(s.slices))}
		s.slices = append(s.slices, &cluster.Slice{Name: name, Service: s.svc.Name,
			Endpoints: cluster.EndpointsOf(of...), Ports: []cluster.SlicePort{
				{Name: "http", Protocol: cluster.TCP, Port: 8080}, {Name: "admin", Protocol: cluster.TCP, Port: 8081}}})
	}
	s.slices[1].Unused = addrs("10.2.0.1", "10.2.0.2")
	ports := checkExplained(t, s.view(), s.settings).Ports
	if p := ports[0]; len(p.Endpoints) != limit || p.Endpoints[0].Entries != 2 || p.Endpoints[1].Entries != 1 ||
		p.MoreEndpoints != 5 {
		t.Errorf("%d endpoints, of %d and %d entries, and %d more; want %d, of 2 and 1, and 5", len(p.Endpoints),
			p.Endpoints[0].Entries, p.Endpoints[1].Entries, p.MoreEndpoints, limit)
	}
	if p := ports[1]; len(p.Endpoints) != 0 || p.MoreEndpoints != limit+6 {
		t.Errorf("the second port: %d endpoints and %d more, want 0 and %d", len(p.Endpoints), p.MoreEndpoints, limit+6)
	}
}
