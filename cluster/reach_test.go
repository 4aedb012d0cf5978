package cluster_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	. "kube-proxy/cluster"
	"kube-proxy/test/seedtest"
)

// TestIndex: after any changes of slices and Services, the index finds the Services of an address
// and of a node, as a search of all Services does, and a change of what is unreachable marks
// exactly those (FO-06).
func TestIndex(t *testing.T) {
	seed := seedtest.Of(t)
	random := rand.New(rand.NewPCG(seed, 1))
	s := NewStore("node-0")
	s.Fold(ServicesListed{})
	s.Fold(SlicesListed{})
	addr := func() netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(random.IntN(12))}) }
	node := func() string { return []string{"", "node-1", "node-2", "node-3"}[random.IntN(4)] }
	name := func() Name { return Name{"ns", fmt.Sprint(random.IntN(6))} }
	slice := func() *Slice {
		var all []Endpoint
		for range random.IntN(5) {
			all = append(all, Endpoint{Addr: addr(), Where: At(node(), ""), Ready: true, Serving: true})
		}
		return &Slice{Name: Name{"ns", fmt.Sprintf("s%d", random.IntN(10))}, Service: name(),
			Endpoints: EndpointsOf(all...), Ports: []SlicePort{{Port: 80, Protocol: TCP}}}
	}
	for step := range 3000 {
		switch random.IntN(8) {
		case 0:
			s.Fold(ServiceSet{&Service{Name: name(), ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}}})
		case 1:
			s.Fold(ServiceGone{name()})
		case 2:
			s.Fold(SliceGone{slice().Name})
		case 3:
			s.Fold(SlicesListed{[]*Slice{slice()}})
		case 4:
			on := random.IntN(4) > 0
			s.IndexEndpoints(on)
			for i := range 12 {
				if a := netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}); !on && len(s.WithAddr(a, 100)) > 0 {
					t.Fatalf("step %d: without an index %s is found", step, a)
				}
			}
		default:
			s.Fold(SliceSet{slice()})
		}
		s.IndexEndpoints(true)
		a, n := addr(), node()
		byAddr, byNode := holders(s, a, n)
		if got := s.WithAddr(a, 100); !slices.Equal(got, byAddr) {
			t.Fatalf("step %d: %s: %v, want %v", step, a, got, byAddr)
		}
		if got := s.WithAddr(a, 1); len(got) != min(1, len(byAddr)) {
			t.Fatalf("step %d: %s: %v, want one of %v", step, a, got, byAddr)
		}
		if got := s.OnNode(n, 100); n != "" && !slices.Equal(got, byNode) {
			t.Fatalf("step %d: %s: %v, want %v", step, n, got, byNode)
		}
		u := Unreachable{Endpoints: map[netip.AddrPort]bool{netip.AddrPortFrom(a, 80): true}}
		if n != "" {
			u.Nodes = map[string]bool{n: true}
		} else {
			byNode = nil
		}
		marked(t, s, u, append(byAddr, byNode...))
		if n != "" { // the node goes on to count in another way
			u.Nodes = map[string]bool{n: false}
			marked(t, s, u, byNode)
		}
		marked(t, s, Unreachable{}, append(byAddr, byNode...))
	}
}

func marked(t *testing.T, s *Store, u Unreachable, want []Name) {
	t.Helper()
	got, wanted := map[Name]bool{}, map[Name]bool{}
	for _, ref := range s.Fold(UnreachableSet{u}).Services {
		got[ref.Name] = true
	}
	for _, n := range want {
		wanted[n] = true
	}
	if !maps.Equal(got, wanted) {
		t.Fatalf("%+v marks %v, want %v", u, got, wanted)
	}
	if !s.Facts().Unreachable.Equal(u) {
		t.Fatalf("the facts have %+v, want %+v", s.Facts().Unreachable, u)
	}
}

// holders searches all Services.
func holders(s *Store, a netip.Addr, node string) (byAddr, byNode []Name) {
	for _, n := range s.Names() {
		for _, sl := range s.View(n).Slices {
			for e := range sl.Endpoints.All() {
				if e.Addr == a {
					byAddr = append(byAddr, n)
				}
				if e.Place().Node == node {
					byNode = append(byNode, n)
				}
			}
		}
	}
	for _, l := range []*[]Name{&byAddr, &byNode} {
		slices.SortFunc(*l, Name.Compare)
		*l = slices.Compact(*l)
	}
	return byAddr, byNode
}

// A Service is marked in its own families only, and nothing is unreachable in the zero value alone.
func TestUnreachableFamilies(t *testing.T) {
	at := netip.MustParseAddrPort("10.0.0.1:80")
	for addr, want := range map[string]Ref{
		"10.96.0.1":  {Name: Name{"ns", "a"}, V4: true},
		"fd00:96::1": {Name: Name{"ns", "a"}, V6: true},
	} {
		s := NewStore("node-0")
		s.Fold(ServicesListed{[]*Service{{Name: want.Name, ClusterIPs: []netip.Addr{netip.MustParseAddr(addr)}}}})
		s.Fold(SlicesListed{[]*Slice{{Name: want.Name, Service: want.Name,
			Endpoints: EndpointsOf(Endpoint{Addr: at.Addr(), Ready: true, Serving: true})}}})
		s.IndexEndpoints(true)
		got := s.Fold(UnreachableSet{Unreachable{Endpoints: map[netip.AddrPort]bool{at: true}}}).Services
		if len(got) != 1 || got[0] != want {
			t.Errorf("%s: marked %+v, want %+v", addr, got, want)
		}
	}
	for _, c := range []struct {
		u    Unreachable
		want bool
	}{
		{Unreachable{}, true}, {Unreachable{Endpoints: map[netip.AddrPort]bool{at: false}}, false},
		{Unreachable{Nodes: map[string]bool{"n": false}}, false},
	} {
		if got := c.u.IsZero(); got != c.want {
			t.Errorf("%+v is zero: %t", c.u, got)
		}
		if got := c.u.Equal(Unreachable{}); got != c.want {
			t.Errorf("%+v equals the zero value: %t", c.u, got)
		}
	}
}

// TestUnreachable: a node counts for the endpoints that a slice places there, and for TCP only if
// all of it counts, or the endpoint is silent (FO-03, FO-08).
func TestUnreachable(t *testing.T) {
	at := netip.MustParseAddrPort("10.0.0.1:80")
	for _, c := range []struct {
		name       string
		u          Unreachable
		proto      Protocol
		node       string
		is, byNode bool
	}{
		{"nothing", Unreachable{}, TCP, "n", false, false},
		{"alone", Unreachable{Endpoints: map[netip.AddrPort]bool{at: true}}, TCP, "n", true, false},
		{"alone, of UDP", Unreachable{Endpoints: map[netip.AddrPort]bool{at: true}}, UDP, "n", false, false},
		{"silent, of a living node", Unreachable{Endpoints: map[netip.AddrPort]bool{at: false}}, TCP, "n", false,
			false},
		{"a dead node", Unreachable{Nodes: map[string]bool{"n": true}}, TCP, "n", true, true},
		{"another dead node", Unreachable{Nodes: map[string]bool{"m": true}}, TCP, "n", false, false},
		{"no node", Unreachable{Nodes: map[string]bool{"": true}}, TCP, "", false, false},
		{"a node whose ports prove little", Unreachable{Nodes: map[string]bool{"n": false}}, TCP, "n", false, false},
		{"such a node, UDP", Unreachable{Nodes: map[string]bool{"n": false}}, UDP, "n", true, true},
		{"such a node, silent", Unreachable{Nodes: map[string]bool{"n": false},
			Endpoints: map[netip.AddrPort]bool{at: false}}, TCP, "n", true, true},
	} {
		if is, byNode := c.u.Has(at, c.proto, c.node); is != c.is || byNode != c.byNode {
			t.Errorf("%s: %v, %v; want %v, %v", c.name, is, byNode, c.is, c.byNode)
		}
	}
}
