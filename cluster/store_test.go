package cluster_test

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"testing"

	"kube-proxy/cluster"
)

// The tests build objects of one namespace, by short names.

func name(n string) cluster.Name { return cluster.Name{Namespace: "shop", Name: n} }

func service(n string) *cluster.Service {
	return &cluster.Service{
		Name:       name(n),
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("fd00:96::1")},
		Ports:      []cluster.ServicePort{{Name: "http", Protocol: cluster.TCP, Port: 80}},
	}
}

func sliceOf(n, owner string, addrs ...string) *cluster.Slice {
	s := &cluster.Slice{Name: name(n), Service: name(owner),
		Ports: []cluster.SlicePort{{Name: "http", Protocol: cluster.TCP, Port: 8080}}}
	for _, a := range addrs {
		addr := netip.MustParseAddr(a)
		s.IPv6 = addr.Is6()
		s.Endpoints = s.Endpoints.With(cluster.Endpoint{Addr: addr, Where: cluster.At("node-1", ""), Ready: true,
			Serving: true})
	}
	return s
}

// fold folds events one by one and returns the dirty Services, each once, sorted, without causes
// and verbs.
func fold(s *cluster.Store, events ...cluster.Event) (refs []cluster.Ref, facts bool) {
	for _, ev := range events {
		d := s.Fold(ev)
		facts = facts || d.Facts
		for _, r := range d.Services {
			r.Cause, r.Verb, r.Trigger = 0, 0, 0
			i := slices.IndexFunc(refs, func(o cluster.Ref) bool { return o.Name == r.Name })
			if i < 0 {
				refs = append(refs, r)
				continue
			}
			refs[i].V4, refs[i].V6 = refs[i].V4 || r.V4, refs[i].V6 || r.V6
		}
	}
	slices.SortFunc(refs, func(a, b cluster.Ref) int { return a.Name.Compare(b.Name) })
	return refs, facts
}

func both(n string) cluster.Ref { return cluster.Ref{Name: name(n), V4: true, V6: true} }
func v4(n string) cluster.Ref   { return cluster.Ref{Name: name(n), V4: true} }
func v6(n string) cluster.Ref   { return cluster.Ref{Name: name(n), V6: true} }

func wantDirty(t *testing.T, what string, got []cluster.Ref, want ...cluster.Ref) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: dirty %v, want %v", what, got, want)
	}
}

// addrs returns the sorted addresses of all endpoints that a view shows.
func addrs(v cluster.View) []string {
	var out []string
	for _, s := range v.Slices {
		for e := range s.Endpoints.All() {
			out = append(out, e.Addr.String())
		}
	}
	slices.Sort(out)
	return out
}

// A Service of the first list is dirty in the families of its addresses only (SV-11).
func TestFirstListByFamilySV11(t *testing.T) {
	four, six, none := service("four"), service("six"), service("none")
	four.ClusterIPs, six.ClusterIPs, none.ClusterIPs = four.ClusterIPs[:1], six.ClusterIPs[1:], nil
	list := cluster.ServicesListed{Services: []*cluster.Service{service("dual"), four, none, six}}
	s := cluster.NewStore("node-1")
	refs, _ := fold(s, list)
	wantDirty(t, "the first list", refs, both("dual"), v4("four"), both("none"), v6("six"))
	for ipv6, want := range map[bool][]cluster.Name{
		false: {name("dual"), name("four")}, true: {name("dual"), name("six")},
	} {
		if got := slices.SortedFunc(slices.Values(s.NamesIn(ipv6)), cluster.Name.Compare); !slices.Equal(got, want) {
			t.Errorf("IPv6 %v: %v, want %v", ipv6, got, want)
		}
	}
	refs, _ = fold(s, cluster.ServicesListed{}, list)
	wantDirty(t, "later lists", refs, both("dual"), both("four"), both("none"), both("six"))
}

func TestServiceCIDRsSV03(t *testing.T) {
	s := cluster.NewStore("node-1")
	cidr := func(n string, ps ...string) *cluster.ServiceCIDR {
		c := &cluster.ServiceCIDR{Name: n}
		for _, p := range ps {
			c.Prefixes = append(c.Prefixes, netip.MustParsePrefix(p))
		}
		return c
	}
	want := func(what string, events []cluster.Event, wantFacts bool, want ...string) {
		t.Helper()
		refs, facts := fold(s, events...)
		wantDirty(t, what, refs)
		if facts != wantFacts {
			t.Errorf("%s: facts dirty %v, want %v", what, facts, wantFacts)
		}
		var got []string
		for _, p := range s.Facts().CIDRs {
			got = append(got, p.String())
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: service network %v, want %v", what, got, want)
		}
	}
	want("an API without ServiceCIDRs", nil, false)
	a, b := cidr("a", "10.96.0.0/16", "fd00:96::/112"), cidr("b", "10.8.0.0/16", "10.96.0.0/16")
	want("the first", []cluster.Event{cluster.CIDRSet{CIDR: a}}, true, "10.96.0.0/16", "fd00:96::/112")
	want("the same again", []cluster.Event{cluster.CIDRSet{CIDR: a}}, false, "10.96.0.0/16", "fd00:96::/112")
	want("a second", []cluster.Event{cluster.CIDRSet{CIDR: b}}, true, "10.8.0.0/16", "10.96.0.0/16", "fd00:96::/112")
	want("the first went", []cluster.Event{cluster.CIDRGone{Name: "a"}}, true, "10.8.0.0/16", "10.96.0.0/16")
	want("a list of the first", []cluster.Event{cluster.CIDRsListed{CIDRs: []*cluster.ServiceCIDR{a}}}, true,
		"10.96.0.0/16", "fd00:96::/112")
	want("an empty list", []cluster.Event{cluster.CIDRsListed{}}, true)
}

// The wait for facts ends when the Node, or its absence, and the service network are known.
func TestWaitForFacts(t *testing.T) {
	node := cluster.NodeSet{Node: &cluster.Node{Name: "node-1"}}
	for _, c := range []struct {
		name    string
		events  []cluster.Event
		missing bool
	}{
		{"nothing", nil, true},
		{"the Node", []cluster.Event{node}, true},
		{"the service network", []cluster.Event{cluster.CIDRsListed{}}, true},
		{"both", []cluster.Event{cluster.CIDRsListed{}, node}, false},
		{"no API of service networks", []cluster.Event{node, cluster.CIDRsAbsent{}}, false},
	} {
		s := cluster.NewStore("node-1")
		s.Fold(cluster.Batch{cluster.ServicesListed{}, cluster.SlicesListed{}})
		fold(s, c.events...)
		if missing := s.WaitForFacts(true); missing != c.missing || s.Synced() == missing {
			t.Errorf("%s: missing %t, synced %t", c.name, missing, s.Synced())
		}
		s.WaitForFacts(false)
		if !s.Synced() {
			t.Errorf("%s: it waits still", c.name)
		}
	}
}

func TestDirtyIsZero(t *testing.T) {
	for want, all := range map[bool][]cluster.Dirty{true: {{}}, false: {{Facts: true}, {Services: make([]cluster.Ref,
		1)}}} {
		for _, d := range all {
			if d.IsZero() != want {
				t.Errorf("%+v is zero: %t", d, !want)
			}
		}
	}
}

// A list of endpoints keeps each field of each.
func TestEndpointsKeepTheirFields(t *testing.T) {
	a := netip.MustParseAddr("10.0.0.1")
	want := []cluster.Endpoint{{Addr: a, Ready: true}, {Addr: a.Next(), Serving: true, Where: cluster.At("", "zone-a")},
		{Terminating: true, Addr: a.Next().Next(), Where: cluster.At("node-1", ""),
			Hints: &cluster.Hints{Zones: []string{"zone-a"}}}}
	list := cluster.EndpointsOf(want...)
	for i, e := range want {
		if got := list.At(i); got != e {
			t.Errorf("endpoint %d is %+v, want %+v", i, got, e)
		}
		if p := e.Place(); p != [...]cluster.Place{{}, {Zone: "zone-a"}, {Node: "node-1"}}[i] {
			t.Errorf("endpoint %d is at %+v", i, p)
		}
		if i < 2 && (e.OnNode("") || e.OnNode("node-1")) || i == 2 && (!e.OnNode("node-1") || e.OnNode("node-2")) {
			t.Errorf("endpoint %d is on another node", i)
		}
	}
}

func TestSyncedSV05(t *testing.T) {
	for _, test := range []struct {
		name   string
		events []cluster.Event
		want   bool
	}{
		{"nothing", nil, false},
		{"objects, but no list", []cluster.Event{cluster.ServiceSet{Service: service("web")},
			cluster.SliceSet{Slice: sliceOf("web-1", "web")}}, false},
		{"services", []cluster.Event{cluster.ServicesListed{}}, false},
		{"slices", []cluster.Event{cluster.SlicesListed{}}, false},
		{"services twice", []cluster.Event{cluster.ServicesListed{}, cluster.ServicesListed{}}, false},
		{"CIDRs and services", []cluster.Event{cluster.CIDRsListed{}, cluster.ServicesListed{}}, false},
		{"both, empty", []cluster.Event{cluster.SlicesListed{}, cluster.ServicesListed{}}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := cluster.NewStore("node-1")
			fold(s, test.events...)
			if got := s.Synced(); got != test.want {
				t.Errorf("synced %v, want %v", got, test.want)
			}
		})
	}
}

// edited edits one endpoint.
func edited(at int, edit func(*cluster.Endpoint)) func(*cluster.Slice) {
	return func(s *cluster.Slice) {
		s.Endpoints = s.Endpoints.Edited(func(i int, e *cluster.Endpoint) {
			if i == at {
				edit(e)
			}
		})
	}
}

// An update without a change of a used field is no change.
func TestSameAgainSV23(t *testing.T) {
	s := cluster.NewStore("node-1")
	svc := service("web")
	svc.SourceRanges = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	sl := sliceOf("web-1", "web", "10.0.0.1", "10.0.0.2")
	hint := edited(0, func(e *cluster.Endpoint) { e.Hints = &cluster.Hints{Zones: []string{"a"}} })
	hint(sl)
	fold(s, cluster.ServiceSet{Service: svc}, cluster.SliceSet{Slice: sl})

	svc2, sl2 := *svc, *sl
	svc2.Ports = slices.Clone(svc.Ports)
	hint(&sl2)
	sl2.Trigger = 42 // SV-35: no packet depends on a time stamp
	if d := s.Fold(cluster.ServiceSet{Service: &svc2}); !d.IsZero() {
		t.Errorf("an equal Service is a change: %v", d)
	}
	if d := s.Fold(cluster.SliceSet{Slice: &sl2}); !d.IsZero() {
		t.Errorf("an equal slice is a change: %v", d)
	}
	relist := []cluster.Event{
		cluster.ServicesListed{Services: []*cluster.Service{&svc2}},
		cluster.SlicesListed{Slices: []*cluster.Slice{&sl2}},
	}
	refs, facts := fold(s, relist...)
	wantDirty(t, "a relist without news", refs)
	if facts {
		t.Error("a relist without news changed the facts")
	}
}

// Every field that decides about packets must make a difference.
func TestEveryFieldCountsSV23(t *testing.T) {
	addr, prefix := netip.MustParseAddr("192.0.2.1"), netip.MustParsePrefix("192.0.2.0/24")
	for field, change := range map[string]func(*cluster.Service){
		"Created":             func(s *cluster.Service) { s.Created = 1 },
		"Type":                func(s *cluster.Service) { s.Type = cluster.TypeExternalName },
		"ClusterIPs":          func(s *cluster.Service) { s.ClusterIPs = s.ClusterIPs[:1] },
		"ExternalIPs":         func(s *cluster.Service) { s.ExternalIPs = []netip.Addr{addr} },
		"LoadBalancerIPs":     func(s *cluster.Service) { s.LoadBalancerIPs = []netip.Addr{addr} },
		"SourceRanges":        func(s *cluster.Service) { s.SourceRanges = []netip.Prefix{prefix} },
		"InternalPolicy":      func(s *cluster.Service) { s.InternalPolicy = cluster.PolicyLocal },
		"ExternalPolicy":      func(s *cluster.Service) { s.ExternalPolicy = cluster.PolicyLocal },
		"AffinitySeconds":     func(s *cluster.Service) { s.AffinitySeconds = 1 },
		"HealthCheckNodePort": func(s *cluster.Service) { s.HealthCheckNodePort = 1 },
		"PreserveDestination": func(s *cluster.Service) { s.PreserveDestination = true },
		"Ports": func(s *cluster.Service) {
			s.Ports = []cluster.ServicePort{{Name: "http", Protocol: cluster.TCP, Port: 80, NodePort: 30080}}
		},
	} {
		s := cluster.NewStore("node-1")
		fold(s, cluster.ServiceSet{Service: service("web")})
		changed := service("web")
		change(changed)
		refs, _ := fold(s, cluster.ServiceSet{Service: changed})
		wantDirty(t, "Service."+field, refs, both("web"))
		if s.View(name("web")).Service != changed {
			t.Errorf("Service.%s: the view shows the old Service", field)
		}
	}
	for field, change := range map[string]func(*cluster.Slice){
		"Ports": func(s *cluster.Slice) {
			s.Ports = []cluster.SlicePort{{Name: "http", Protocol: cluster.TCP, Port: 8081}}
		},
		"Endpoints":   func(s *cluster.Slice) { s.Endpoints = s.Endpoints.With(s.Endpoints.At(0)) },
		"Addr":        edited(0, func(e *cluster.Endpoint) { e.Addr = addr }),
		"Node":        edited(0, func(e *cluster.Endpoint) { e.Where = cluster.At("node-2", "") }),
		"Ready":       edited(0, func(e *cluster.Endpoint) { e.Ready = false }),
		"Serving":     edited(0, func(e *cluster.Endpoint) { e.Serving = false }),
		"Terminating": edited(0, func(e *cluster.Endpoint) { e.Terminating = true }),
		"Hints":       edited(0, func(e *cluster.Endpoint) { e.Hints = &cluster.Hints{} }),
		"Hints.Zones": edited(1, func(e *cluster.Endpoint) { e.Hints = &cluster.Hints{Zones: []string{"b"}} }),
		"Hints.Nodes": edited(1, func(e *cluster.Endpoint) {
			e.Hints = &cluster.Hints{Zones: []string{"a"}, Nodes: []string{"n"}}
		}),
	} {
		build := func() *cluster.Slice {
			sl := sliceOf("web-1", "web", "10.0.0.1", "10.0.0.2")
			edited(1, func(e *cluster.Endpoint) { e.Hints = &cluster.Hints{Zones: []string{"a"}} })(sl)
			return sl
		}
		s := cluster.NewStore("node-1")
		fold(s, cluster.ServiceSet{Service: service("web")}, cluster.SliceSet{Slice: build()})
		changed := build()
		change(changed)
		refs, _ := fold(s, cluster.SliceSet{Slice: changed})
		wantDirty(t, "Slice."+field, refs, v4("web"))
		if v := s.View(name("web")); len(v.Slices) != 1 || v.Slices[0] != changed {
			t.Errorf("Slice.%s: the view shows %v", field, v.Slices)
		}
	}
}

// A zone is for display: after a change of a zone alone, views have the new one and no Service is
// dirty. The slice keeps its time, so that the next change counts as the first one with a new time
// (SV-35).
func TestZoneMakesNothingDirty(t *testing.T) {
	in := func(zone string, trigger int64, addrs ...string) cluster.Event {
		sl := sliceOf("web-1", "web", addrs...)
		sl.Endpoints = sl.Endpoints.Edited(func(_ int, e *cluster.Endpoint) { e.Where = cluster.At("node-1", zone) })
		sl.Trigger = trigger
		return cluster.SliceSet{Slice: sl}
	}
	s := cluster.NewStore("node-1")
	fold(s, cluster.ServiceSet{Service: service("web")}, cluster.SliceSet{Slice: sliceOf("web-0", "web", "10.0.0.9")},
		in("a", 1, "10.0.0.1", "10.0.0.2"))
	before := s.Changes()
	refs, _ := fold(s, in("b", 2, "10.0.0.1", "10.0.0.2"))
	wantDirty(t, "only the zone changed", refs)
	if after := s.Changes(); after != before {
		t.Errorf("it counts as a change: %v, then %v", before, after)
	}
	for _, sl := range s.View(name("web")).Slices {
		for e := range sl.Endpoints.All() {
			if want := map[string]string{"web-0": "", "web-1": "b"}[sl.Name.Name]; e.Place().Zone != want {
				t.Errorf("%s of %s is in zone %q, want %q", e.Addr, sl.Name, e.Place().Zone, want)
			}
		}
	}
	fold(s, in("a", 2, "10.0.0.1", "10.0.0.2")) // back, and forth again
	for e := range s.View(name("web")).Slices[1].Endpoints.All() {
		if e.Place().Zone != "a" {
			t.Errorf("%s is in zone %q, want the former", e.Addr, e.Place().Zone)
		}
	}
	fold(s, in("b", 2, "10.0.0.1", "10.0.0.2"))
	if d := s.Fold(in("b", 2, "10.0.0.1")); len(d.Services) != 1 || d.Services[0].Trigger != 2 {
		t.Errorf("the next change: %+v, want one of time 2", d.Services)
	}
	fold(s, cluster.SliceGone{Name: name("web-0")}, cluster.SliceGone{Name: name("web-1")})
	if left := s.View(name("web")).Slices; len(left) != 0 {
		t.Errorf("slices that went are there: %v", left)
	}
}

// The memory of endpoints grows with the cluster, and must not grow for data that is only for
// display.
func TestEndpointSize(t *testing.T) {
	one := cluster.Endpoint{Addr: netip.MustParseAddr("10.0.0.1"), Where: cluster.At("node-1", "zone-a"), Ready: true}
	all := slices.Repeat([]cluster.Endpoint{one}, 10_000)
	var m, n runtime.MemStats
	runtime.ReadMemStats(&m)
	list := cluster.EndpointsOf(all...)
	runtime.ReadMemStats(&n)
	if each := float64(n.TotalAlloc-m.TotalAlloc) / float64(list.Len()); each > 16 {
		t.Errorf("an endpoint takes %.1f bytes, want 16 at most", each)
	}
	if n := testing.AllocsPerRun(100, func() { cluster.At("node-1", "zone-a") }); n != 0 {
		t.Errorf("a place that is known costs %v allocations", n)
	}
}

// A view does not change with the store.
func TestViewIsTheCallers(t *testing.T) {
	s := cluster.NewStore("node-1")
	fold(s, cluster.ServiceSet{Service: service("web")})
	for i := range 4 {
		n := fmt.Sprintf("web-%d", i)
		fold(s, cluster.SliceSet{Slice: sliceOf(n, "web", fmt.Sprintf("10.0.0.%d", i))})
	}
	before := s.View(name("web"))
	want := addrs(before)
	fold(s, cluster.SliceSet{Slice: sliceOf("web-0", "web", "10.9.9.9")}, cluster.SliceGone{Name: name("web-1")})
	if got := addrs(before); !slices.Equal(got, want) {
		t.Errorf("a view changed from %v to %v", want, got)
	}
}
