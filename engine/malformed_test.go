package engine

import (
	"strings"
	"testing"
	"time"

	"kube-proxy/cluster"
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
	bubble(t, func(c *Config) { c.Resolve = resolve }, func(r *rig) {
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
