//go:build linux

package ipvs

import (
	"context"
	"net/netip"
	"testing"

	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/test/planetest"
)

// measured is a plane that measures its writes.
type measured struct {
	*Plane
	lab          *lab
	reset, apply int // the largest single write
}

func (m *measured) Reset(ctx context.Context, want *lb.Table) (plane.ResetResult, error) {
	before := m.lab.cost()
	defer func() { m.reset = max(m.reset, m.lab.cost().since(before).total()) }()
	return m.Plane.Reset(ctx, want)
}

func (m *measured) Apply(ctx context.Context, changes []lb.Change) (plane.ApplyResult, error) {
	before := m.lab.cost()
	defer func() { m.apply = max(m.apply, m.lab.cost().since(before).total()) }()
	return m.Plane.Apply(ctx, changes)
}

// A frontend's weight bounds its part of a write. In this mode each address has its own copy of the
// backends and ranges that frontends share, so a Service with many of both makes no Apply longer
// than others'.
func TestWritesAreAsLongAsTheyWeigh(t *testing.T) {
	const addresses, endpoints, ranges = 60, 200, 300
	k, w := newLab(t), planetest.World{Family: lb.IPv4}
	m := &measured{Plane: k.plane(t, lb.IPv4), lab: k}
	m.step = 3000
	set := w.Set("a/a:p", lb.Cluster, 0, endpoints)
	sources := ranged(w, "", 0, 1, ranges)[0].Sources
	var rows []*lb.Frontend
	add := func(a netip.Addr, port uint16, kind lb.Kind, sources []netip.Prefix) {
		rows = append(rows, &lb.Frontend{Key: lb.Key{Addr: a, Port: port, Proto: lb.TCP}, Service: set.ID.Service,
			Kind: kind, Sources: sources, Routes: []lb.Route{{From: lb.Anywhere, Do: lb.Balance, Masq: true, To: set}}})
	}
	for i := range addresses {
		add(w.Addr(203, i), 80, lb.ExternalIP, nil)
		add(w.Addr(198, i), 80, lb.LoadBalancer, sources)
	}
	add(netip.Addr{}, 30000, lb.NodePort, nil)
	table := w.Table(0, 0)
	table.Replace(lb.Owner{Name: "a/a"}, rows)
	must(t, only(planetest.ResetAll(t.Context(), m, table)))
	const heaviest = endpoints + ranges + 10 // a frontend may begin at the end of a piece
	if m.apply > maxBatchWeight+heaviest || m.reset > m.step+heaviest {
		t.Errorf("an Apply was %d operations, a Reset %d, want %d and %d at most", m.apply, m.reset, maxBatchWeight+
			heaviest, m.step+heaviest)
	}
	var total int
	for _, row := range table.Sorted() {
		total += m.Weigh(row)
	}
	if did := k.cost().total(); did < total/2 || did > 2*total {
		t.Errorf("rows that weigh %d took %d operations", total, did)
	}
	t.Logf("an Apply was %d operations, a Reset %d", m.apply, m.reset)
}
