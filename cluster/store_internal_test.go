package cluster

import (
	"net/netip"
	"testing"
)

// After all objects are deleted the store keeps nothing of them.
func TestStoreForgets(t *testing.T) {
	s := NewStore("node-1")
	n := Name{"shop", "web"}
	here := netip.MustParseAddr("192.0.2.1")
	s.Fold(NodeHolds{Addrs: []netip.Addr{here}})
	service := ServiceSet{&Service{Name: n, ExternalIPs: []netip.Addr{here},
		Ports: []ServicePort{{Port: 80, Protocol: TCP}}}}
	slice := &Slice{Name: Name{"shop", "web-1"}, Service: n}
	for _, events := range [][]Event{
		{service, SliceSet{slice}, ServiceGone{n}, SliceGone{slice.Name}},
		{SliceSet{slice}, ServiceSet{&Service{Name: n}}, SliceGone{slice.Name}, ServiceGone{n}},
		{SliceSet{slice}, SliceGone{slice.Name}},
		{SliceSet{slice}, SliceSet{&Slice{Name: slice.Name, Service: Name{"shop", "api"}}}, SlicesListed{}},
	} {
		for _, ev := range events {
			s.Fold(ev)
		}
		if len(s.services) != 0 || len(s.slices) != 0 || len(s.exposed) != 0 {
			t.Errorf("%d services, %d slices and %d ports are left after %v", len(s.services), len(s.slices),
				len(s.exposed), events)
		}
	}
}
