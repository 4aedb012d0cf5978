package cluster_test

import (
	"slices"
	"testing"

	"kube-proxy/cluster"
)

// triggers returns the time stamps that a fold hands on.
func triggers(d cluster.Dirty) (out []int64) {
	for _, r := range d.Services {
		if r.Trigger != 0 {
			out = append(out, r.Trigger)
		}
	}
	return out
}

// SV-35: the time stamp of a slice belongs to the change that it explains, and to no other.
func TestTriggerSV35(t *testing.T) {
	at := func(trigger int64, n, owner string, addrs ...string) *cluster.Slice {
		s := sliceOf(n, owner, addrs...)
		s.Trigger = trigger
		return s
	}
	s := cluster.NewStore("node-1")
	for _, step := range []struct {
		what string
		ev   cluster.Event
		want []int64
	}{
		{"the first list of Services", cluster.ServicesListed{Services: []*cluster.Service{service("web"),
			service("db")}}, nil},
		{"the first list, as after a restart",
			cluster.SlicesListed{Slices: []*cluster.Slice{at(5, "web-1", "web", "10.0.0.1")}}, nil},
		{"a relist without news", cluster.SlicesListed{Slices: []*cluster.Slice{at(5, "web-1", "web", "10.0.0.1")}},
			nil},
		{"an endpoint more", cluster.SliceSet{Slice: at(7, "web-1", "web", "10.0.0.1", "10.0.0.2")}, []int64{7}},
		{"a change that is not the trigger's", cluster.SliceSet{Slice: at(7, "web-1", "web", "10.0.0.2")}, nil},
		{"the same endpoints with another time stamp", cluster.SliceSet{Slice: at(8, "web-1", "web", "10.0.0.2")}, nil},
		{"no time stamp", cluster.SliceSet{Slice: at(0, "web-1", "web", "10.0.0.3")}, nil},
		{"a new slice", cluster.SliceSet{Slice: at(9, "db-1", "db", "10.0.1.1")}, []int64{9}},
		{"a Service that does not exist", cluster.SliceSet{Slice: at(10, "x-1", "x", "10.0.2.1")}, nil},
		{"a slice that moves", cluster.SliceSet{Slice: at(11, "db-1", "web", "10.0.1.1")}, []int64{11}},
		{"a change in a relist", cluster.SlicesListed{Slices: []*cluster.Slice{at(12, "web-1", "web", "10.0.0.4")}},
			[]int64{12}},
		{"a slice that goes", cluster.SliceGone{Name: name("web-1")}, nil},
		{"two at once", cluster.Batch{
			cluster.SliceSet{Slice: at(13, "web-1", "web", "10.0.0.1")},
			cluster.SliceSet{Slice: at(14, "db-1", "db", "10.0.0.1")},
		}, []int64{13, 14}},
	} {
		if got := triggers(s.Fold(step.ev)); !slices.Equal(got, step.want) {
			t.Errorf("%s: triggers %v, want %v", step.what, got, step.want)
		}
	}
}

// MT-07, MT-08: each change of an object is counted once; an update without a difference is not
// counted.
func TestChangesAreCounted(t *testing.T) {
	s := cluster.NewStore("node-1")
	var marked cluster.Changes
	for _, step := range []struct {
		what string
		ev   cluster.Event
		want cluster.Changes
	}{
		{"a list", cluster.ServicesListed{Services: []*cluster.Service{service("web"), service("db")}},
			cluster.Changes{Services: 2}},
		{"slices", cluster.SlicesListed{Slices: []*cluster.Slice{sliceOf("web-1", "web", "10.0.0.1"),
			sliceOf("web-2", "web", "fd00::1")}}, cluster.Changes{Services: 2, Slices: 2}},
		{"the same again", cluster.ServicesListed{Services: []*cluster.Service{service("web"), service("db")}},
			cluster.Changes{Services: 2, Slices: 2}},
		{"a Service goes", cluster.ServiceGone{Name: name("db")}, cluster.Changes{Services: 3, Slices: 2}},
		{"a slice goes", cluster.SliceGone{Name: name("web-2")}, cluster.Changes{Services: 3, Slices: 3}},
		{"the node changes", cluster.NodeSet{Node: &cluster.Node{Name: "node-1", Zone: "a"}},
			cluster.Changes{Services: 3, Slices: 3}},
	} {
		for _, r := range s.Fold(step.ev).Services {
			switch r.Cause {
			case cluster.ByService:
				marked.Services++
			case cluster.BySlice:
				marked.Slices++
			}
		}
		if got := s.Changes(); got != step.want || marked != step.want {
			t.Errorf("%s: counted %v, marked %v, want %v", step.what, got, marked, step.want)
		}
	}
	// A slice of an unknown Service changes nothing that a write could bring in force.
	if d := s.Fold(cluster.SliceSet{Slice: sliceOf("x-1", "x", "10.0.0.1")}); !d.IsZero() || s.Changes().Slices != 4 {
		t.Errorf("a slice without a Service: dirty %v, %v", d, s.Changes())
	}
}

// Each change has the verb of its object.
func TestVerbs(t *testing.T) {
	other := service("web")
	other.ExternalPolicy = cluster.PolicyLocal
	s := cluster.NewStore("node-1")
	for _, step := range []struct {
		what string
		ev   cluster.Event
		want []cluster.Verb
	}{
		{"two Services", cluster.ServicesListed{Services: []*cluster.Service{service("web"), service("db")}},
			[]cluster.Verb{cluster.Created, cluster.Created}},
		{"a Service changes", cluster.ServiceSet{Service: other}, []cluster.Verb{cluster.Changed}},
		{"a slice", cluster.SliceSet{Slice: sliceOf("web-1", "web", "10.0.0.1")}, []cluster.Verb{cluster.Created}},
		{"the slice changes", cluster.SliceSet{Slice: sliceOf("web-1", "web", "10.0.0.2")},
			[]cluster.Verb{cluster.Changed}},
		{"it moves", cluster.SliceSet{Slice: sliceOf("web-1", "db", "10.0.0.2")},
			[]cluster.Verb{cluster.Deleted, cluster.Created}},
		{"it goes", cluster.SliceGone{Name: name("web-1")}, []cluster.Verb{cluster.Deleted}},
		{"a relist", cluster.ServicesListed{Services: []*cluster.Service{other}}, []cluster.Verb{cluster.Deleted}},
	} {
		var got []cluster.Verb
		for _, r := range s.Fold(step.ev).Services {
			got = append(got, r.Verb)
		}
		if !slices.Equal(got, step.want) {
			t.Errorf("%s: verbs %v, want %v", step.what, got, step.want)
		}
	}
}
