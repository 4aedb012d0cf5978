package changes

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"kube-proxy/cluster"
	"kube-proxy/lb"
)

// Entries name the added and removed endpoints, the reason why one is not used, and the first of
// many.
func TestEndpointsAreNamed(t *testing.T) {
	web := cluster.Name{Namespace: "shop", Name: "web"}
	store := cluster.NewStore("node1")
	set := func(from, n int, edit ...func(*cluster.Endpoint)) {
		s := &cluster.Slice{Name: web, Service: web, Ports: []cluster.SlicePort{{Port: 8080}}}
		for i := from; i < from+n; i++ {
			e := cluster.Endpoint{Addr: netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}),
				Where: cluster.At("node2", ""), Ready: true, Serving: true}
			for _, f := range edit {
				f(&e)
			}
			s.Endpoints = s.Endpoints.With(e)
		}
		store.Fold(cluster.SliceSet{Slice: s})
	}
	row := func(from, n int) *lb.Frontend {
		all := make([]lb.Backend, n)
		for i := range all {
			all[i].Addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte((from + i) >> 8), byte(from + i)}),
				8080)
		}
		f := &lb.Frontend{Service: "shop/web", Kind: lb.ClusterIP,
			Routes: []lb.Route{{From: lb.Anywhere, Do: lb.Reject}}}
		if n > 0 {
			f.Routes[0] = lb.Route{From: lb.Anywhere, Do: lb.Balance, To: &lb.BackendSet{
				ID: lb.SetID{Service: "shop/web", Proto: lb.TCP, Scope: lb.Cluster}, Backends: lb.BackendsOf(all...)}}
		}
		return f
	}
	at := func(port uint16, f *lb.Frontend) *lb.Frontend {
		var all []lb.Backend
		for b := range f.Routes[0].To.Backends.All() {
			all = append(all, lb.Backend{Addr: netip.AddrPortFrom(b.Addr.Addr(), port)})
		}
		f.Routes[0].To.Backends = lb.BackendsOf(all...)
		return f
	}
	healthCheck := row(1, 0)
	healthCheck.Kind = lb.HealthCheck
	unready := func(e *cluster.Endpoint) { e.Ready, e.Serving = false, false }
	ends := func(e *cluster.Endpoint) { e.Ready, e.Terminating = false, true }
	for _, c := range []struct {
		what     string
		there    func()
		old, new *lb.Frontend
		want     string
	}{
		{"not ready", func() { set(1, 1, unready) }, row(1, 1), row(1, 0), "−10.1.0.1:8080 (node2, not ready)"},
		{"terminating", func() { set(1, 1, ends) }, row(1, 1), row(1, 0), "−10.1.0.1:8080 (node2, terminating)"},
		{"gone", func() { set(2, 1) }, row(1, 2), row(2, 1), "−10.1.0.1:8080 (gone)"},
		{"added", func() { set(1, 1) }, row(1, 0), row(1, 1), "+10.1.0.1:8080 (node2)"},
		{"moved", func() { set(2, 1) }, row(1, 1), row(2, 1), "−10.1.0.1:8080 (gone), +10.1.0.2:8080 (node2)"},
		{"another target port", func() { set(1, 1) }, row(1, 1), at(9090, row(1, 1)),
			"−10.1.0.1:8080 (node2, its port is 9090 now), +10.1.0.1:9090 (node2)"},
		{"many", func() { set(1, 6) }, row(1, 1), row(1, 6), "+10.1.0.2:8080 (node2), +10.1.0.3:8080 (node2), " +
			"+10.1.0.4:8080 (node2), 2 more are added"},
		{"many removed", func() { set(1, 1) }, row(1, 6), row(1, 1), "−10.1.0.2:8080 (gone), −10.1.0.3:8080 (gone), " +
			"−10.1.0.4:8080 (gone), 2 more are removed"},
		{"very many", func() { set(1, 1) }, row(1, 2000), row(1, 1999), "2000 endpoints before, 1999 now"},
		{"the most that are compared", func() { set(1, 1) }, row(1, maxBackends), row(1, maxBackends-1),
			"−10.1.3.232:8080 (gone)"},
		{"more now", func() { set(1, 1) }, row(1, maxBackends), row(1, maxBackends+1),
			"1000 endpoints before, 1001 now"},
		{"avoided", func() {
			set(1, 1)
			store.Fold(cluster.UnreachableSet{Unreachable: cluster.Unreachable{Nodes: map[string]bool{"node2": true}}})
		}, row(1, 1), row(1, 0), "−10.1.0.1:8080 (node2, avoided: unreachable from here)"},
		{"reachable again", func() { store.Fold(cluster.UnreachableSet{}) }, row(1, 1), row(1, 0),
			"−10.1.0.1:8080 (node2, ready, but not for this node)"},
		{"a health check", func() { set(1, 1) }, healthCheck, healthCheck, ""},
		{"a frontend that went", func() { set(1, 1) }, row(1, 1), nil, ""},
		{"the same", func() { set(1, 1) }, row(1, 1), row(1, 1), ""},
		{"a frontend that came", func() { set(1, 1) }, nil, row(1, 1), ""},
	} {
		c.there()
		ring, reported := newRing(8), ""
		entry := of("shop", "web")
		ring.Add(entry)
		ring.Add(of("shop", "other"))
		o := Endpoints{Family: lb.IPv4, Ring: ring, Store: store,
			Report: func(_ cluster.Name, s string) { reported = s }}
		o.Applied([]lb.Change{{Key: lb.Key{Port: 80, Proto: lb.TCP}, Old: c.old, New: c.new}})
		entries, _ := ring.After(0)
		if reported != c.want || entries[0].Endpoints != c.want || entries[1].Endpoints != "" {
			t.Errorf("%s: told %q, entries %q and %q; want %q", c.what, reported, entries[0].Endpoints,
				entries[1].Endpoints, c.want)
		}
		if c.want != "" && !strings.HasSuffix(entries[0].Words(), ": "+c.want) {
			t.Errorf("%s: words %q", c.what, entries[0].Words())
		}
	}
}

// An endpoint that several slices have is described by an entry that is ready.
func TestReadyEntryIsDescribed(t *testing.T) {
	at := netip.MustParseAddrPort("10.1.0.1:8080")
	slice := func(ready ...bool) *cluster.Slice {
		s := &cluster.Slice{}
		for i, is := range ready {
			s.Endpoints = s.Endpoints.With(cluster.Endpoint{Addr: at.Addr(), Ready: is,
				Where: cluster.At([]string{"first", "second", "third"}[i], "")})
		}
		return s
	}
	for want, s := range map[string]*cluster.Slice{"second": slice(false, true, false), "first": slice(false, false),
		"": slice()} {
		d := delta{removed: []netip.AddrPort{at}}
		e := d.look(cluster.View{Slices: []*cluster.Slice{s}})[at.Addr()]
		if e.Place().Node != want {
			t.Errorf("described as that of node %q, want %q", e.Place().Node, want)
		}
	}
}

// The frontends of a service port have the same endpoints: the first one describes all. Of a write
// that changes very many Services the first are described.
func TestEachServiceIsDescribedOnce(t *testing.T) {
	frontend := func(service string, backends ...string) *lb.Frontend {
		set := &lb.BackendSet{ID: lb.SetID{Service: service, Proto: lb.TCP, Scope: lb.Local}}
		for i, a := range backends {
			set.Backends.Add(uint16(80+i), lb.EndpointsOf(lb.Endpoint{Addr: netip.MustParseAddr(a)}))
		}
		return &lb.Frontend{Service: service, Kind: lb.ClusterIP,
			Routes: []lb.Route{{From: lb.Anywhere, Do: lb.Balance, To: set}}}
	}
	var changes []lb.Change
	for i := range 2 * maxServices {
		service := fmt.Sprintf("shop/web-%d:http", i)
		for port := range uint16(2) {
			changes = append(changes, lb.Change{Key: lb.Key{Port: 1 + port, Proto: lb.TCP},
				Old: frontend(service, "10.1.0.1"), New: frontend(service, "10.1.0.1", "10.1.0.2")})
		}
	}
	texts := map[string]string{}
	o := Endpoints{Family: lb.IPv4, Store: cluster.NewStore("node1"),
		Report: func(service cluster.Name, s string) { texts[service.Name] = s }}
	o.Applied(changes)
	if len(texts) != maxServices || texts["web-0"] != "+10.1.0.2:81" || texts["web-99"] != "+10.1.0.2:81" {
		t.Errorf("%d Services are described: %v", len(texts), texts)
	}
}
