//go:build linux

package ipvs

import (
	"slices"

	"kube-proxy/lb"
)

// Weigh implements plane.Weigher: each key has a virtual server with all backends, and members for
// all ranges. Shared virtual servers by mark count for each frontend.
func (p *Plane) Weigh(row *lb.Frontend) int {
	base := routeOf(row, lb.Anywhere)
	each := 1 + len(row.Sources) + backendsOf(base)
	keys := 1
	if row.Key.IsNodePort() && p.l != nil {
		keys = max(1, len(p.l.nodePorts))
	}
	n := keys * each
	for i, r := range row.Routes {
		if r.To != base.To && !slices.ContainsFunc(row.Routes[:i], func(o lb.Route) bool { return o.To == r.To }) {
			n += backendsOf(&r)
		}
	}
	return n
}

func backendsOf(r *lb.Route) int {
	if r.To == nil {
		return 0
	}
	return r.To.Backends.Len()
}
