package cluster

import "testing"

// After all objects are deleted the store keeps nothing of them.
func TestStoreForgets(t *testing.T) {
	s := NewStore("node-1")
	n := Name{"shop", "web"}
	slice := &Slice{Name: Name{"shop", "web-1"}, Service: n}
	for _, events := range [][]Event{
		{ServiceSet{&Service{Name: n}}, SliceSet{slice}, ServiceGone{n}, SliceGone{slice.Name}},
		{SliceSet{slice}, ServiceSet{&Service{Name: n}}, SliceGone{slice.Name}, ServiceGone{n}},
		{SliceSet{slice}, SliceGone{slice.Name}},
		{SliceSet{slice}, SliceSet{&Slice{Name: slice.Name, Service: Name{"shop", "api"}}}, SlicesListed{}},
	} {
		for _, ev := range events {
			s.Fold(ev)
		}
		if len(s.services) != 0 || len(s.slices) != 0 {
			t.Errorf("%d services and %d slices are left after %v", len(s.services), len(s.slices), events)
		}
	}
}
