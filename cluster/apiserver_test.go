package cluster_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"kube-proxy/cluster"
)

func apiSlice(name string, port uint16, addrs ...string) *cluster.Slice {
	s := &cluster.Slice{Name: cluster.Name{Namespace: "default", Name: name},
		Service: cluster.Name{Namespace: "default", Name: "kubernetes"},
		Ports:   []cluster.SlicePort{{Protocol: cluster.TCP, Port: port}, {Protocol: cluster.UDP, Port: 53}}}
	for _, a := range addrs {
		s.Endpoints = s.Endpoints.With(cluster.Endpoint{Addr: netip.MustParseAddr(a)})
	}
	return s
}

// The API servers are the address of the source's connection and their own endpoints, as these
// change. Only Services that name such an address are dirty, and the number of addresses is limited
// (TN-66).
func TestAPIServersTN66(t *testing.T) {
	s := cluster.NewStore("n1")
	lends := func(name, addr string) {
		s.Fold(cluster.ServiceSet{Service: &cluster.Service{Name: cluster.Name{Namespace: "tenant", Name: name},
			ExternalIPs: []netip.Addr{netip.MustParseAddr(addr)}}})
	}
	lends("a", "192.0.2.1")
	lends("b", "192.0.2.2")
	lends("c", "192.0.2.3")
	at := netip.MustParseAddrPort
	for _, step := range []struct {
		name  string
		event cluster.Event
		want  []netip.AddrPort
		dirty []string
	}{
		{"the source connects", cluster.APIServerAt{Addrs: []netip.AddrPort{at("192.0.2.1:6443")}},
			[]netip.AddrPort{at("192.0.2.1:6443")}, []string{"a"}},
		{"it connects again", cluster.APIServerAt{Addrs: []netip.AddrPort{at("192.0.2.1:6443")}},
			[]netip.AddrPort{at("192.0.2.1:6443")}, nil},
		{"the servers' endpoints", cluster.SliceSet{Slice: apiSlice("kubernetes", 6443, "192.0.2.2", "192.0.2.1")},
			[]netip.AddrPort{at("192.0.2.1:6443"), at("192.0.2.2:6443")}, []string{"a", "b"}},
		{"a slice of another Service",
			cluster.SliceSet{Slice: &cluster.Slice{Name: cluster.Name{Namespace: "tenant", Name: "kubernetes"},
				Service:   cluster.Name{Namespace: "tenant", Name: "kubernetes"},
				Ports:     []cluster.SlicePort{{Protocol: cluster.TCP, Port: 6443}},
				Endpoints: cluster.EndpointsOf(cluster.Endpoint{Addr: netip.MustParseAddr("192.0.2.3")})}},
			[]netip.AddrPort{at("192.0.2.1:6443"), at("192.0.2.2:6443")}, nil},
		{"the name resolves to another", cluster.APIServerAt{Addrs: []netip.AddrPort{at("192.0.2.3:6443")}},
			[]netip.AddrPort{at("192.0.2.1:6443"), at("192.0.2.2:6443"), at("192.0.2.3:6443")},
			[]string{"a", "b", "c"}},
		{"a server goes", cluster.SliceSet{Slice: apiSlice("kubernetes", 6443, "192.0.2.2")},
			[]netip.AddrPort{at("192.0.2.2:6443"), at("192.0.2.3:6443")}, []string{"a", "b", "c"}},
		{"all endpoints go", cluster.SliceGone{Name: cluster.Name{Namespace: "default", Name: "kubernetes"}},
			[]netip.AddrPort{at("192.0.2.3:6443")}, []string{"b", "c"}},
	} {
		d := s.Fold(step.event)
		if got := s.Facts().APIServers; !slices.Equal(got, step.want) {
			t.Errorf("%s: API servers at %v, want %v", step.name, got, step.want)
		}
		var dirty []string
		for _, ref := range d.Services {
			dirty = append(dirty, ref.Name.Name)
			if !ref.V4 || !ref.V6 {
				t.Errorf("%s: %v is dirty in one family only", step.name, ref)
			}
		}
		slices.Sort(dirty)
		if !slices.Equal(dirty, step.dirty) || d.Facts != (step.dirty != nil) {
			t.Errorf("%s: %v are dirty and the facts %t, want %v", step.name, dirty, d.Facts, step.dirty)
		}
	}
	var many []string
	for i := range 200 {
		many = append(many, fmt.Sprintf("10.0.0.%d", i))
	}
	s.Fold(cluster.SliceSet{Slice: apiSlice("kubernetes", 6443, many...)})
	if n := len(s.Facts().APIServers); n != 64 {
		t.Errorf("%d API servers are known of 200", n)
	}
}
