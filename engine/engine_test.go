package engine

import (
	"testing"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/lb"
)

// SV-05: no rule is written until both Services and slices have been listed; then one Reset.
func TestNothingBeforeTheLists(t *testing.T) {
	bubble(t, nil, func(r *rig) {
		r.start()
		r.add(1)
		r.do(cluster.ServicesListed{Services: []*cluster.Service{service(1), service(2)}})
		r.after(time.Hour)
		if c := r.plane.Counts(); c.Resets+c.Applies+c.SetNodes+c.Audits != 0 {
			t.Errorf("before the slices were listed: %+v", c)
		}
		if s := r.engine.Stats(); s.Settled || s.Resolved != 0 {
			t.Errorf("before the slices were listed: %+v", s)
		}
		r.do(cluster.SlicesListed{Slices: []*cluster.Slice{slice(1, 1, 3)}})
		r.run()
		if c := r.plane.Counts(); c.Resets != 1 || c.Applies != 0 {
			t.Errorf("after the lists: %+v, want one Reset", c)
		}
		r.converged()
		r.add(3)
		r.run()
		if c := r.plane.Counts(); c.Resets != 1 || c.Applies == 0 || c.Audits != 0 {
			t.Errorf("after another service: %+v, want one Reset and an Apply", c)
		}
		r.converged()
	})
}

// SV-05: lists that are empty are lists.
func TestEmptyLists(t *testing.T) {
	bubble(t, nil, func(r *rig) {
		r.start()
		r.list()
		r.run()
		if c := r.plane.Counts(); c.Resets != 1 {
			t.Errorf("after empty lists: %+v, want one Reset", c)
		}
		r.converged()
	})
}

var _ = lb.IPv4
