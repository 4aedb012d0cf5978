package engine

import (
	"strings"
	"testing"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/debug/changes"
	"kube-proxy/lb"
	"kube-proxy/policy"
)

// A malformed frontend is never offered: the plane keeps the Service's last good one, no other
// Service waits, and the fault is logged once and stays in Stats as long as it lasts.
func TestMalformedRows(t *testing.T) {
	spoilt := false
	resolve := func(v cluster.View) []*lb.Frontend {
		rows := policy.Resolve(v, settings)
		if spoilt && v.Service != nil && v.Service.Name == svcName(1) {
			bad := *rows[0]
			bad.Routes = nil
			rows[0] = &bad
		}
		return rows
	}
	ring := changes.New()
	bubble(t, func(c *Config) { c.Resolve, c.Changes = resolve, ring }, func(r *rig) {
		r.begin(1, 2)
		good := r.plane.Dump()
		spoilt = true
		r.do(cluster.SliceSet{Slice: slice(1, 7, 2)}, cluster.SliceSet{Slice: slice(2, 7, 2)})
		r.run()
		r.engine.ResolveAll()
		r.after(time.Minute)
		s := r.engine.Stats()
		if len(s.Failing) != 1 || s.Failing[0].Key != svcKey(1) || s.Failing[0].Service != "shop/s1" || !s.Settled ||
			s.Failures != 0 {
			t.Errorf("%+v", s)
		}
		if !strings.Contains(s.LastError, "1 frontends of service shop/s1 are malformed") {
			t.Errorf("the last error is %q", s.LastError)
		}
		if all := failures(ring); len(all) != 1 || all[0].Service != svcName(1) || all[0].Key != svcKey(1) ||
			!strings.HasPrefix(all[0].Why, "left out: ") {
			t.Errorf("reported failures: %+v", all)
		}
		if n := strings.Count(r.log.String(), "malformed frontends"); n != 1 {
			t.Errorf("%d lines about it, want one:\n%s", n, r.log)
		}
		if f := r.engine.table.Get(svcKey(1)); f == nil || f.Routes[0].To.Backends.At(0).Addr.Addr() != svcPod(1, 1) {
			t.Errorf("in force is %v, want what was", f)
		}
		if r.plane.Dump() == good {
			t.Error("the other service was not brought up to date")
		}
		spoilt = false
		r.engine.ResolveAll()
		r.run()
		r.converged()
	})
}

// failures are the reported failures.
func failures(ring *changes.Ring) (all []changes.Entry) {
	entries, _ := ring.After(0)
	for _, e := range entries {
		if e.Kind == changes.Failed {
			all = append(all, e)
		}
	}
	return all
}
