package changes

import (
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
		{"very many", func() { set(1, 1) }, row(1, 2000), row(1, 1999), "2000 endpoints before, 1999 now"},
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
