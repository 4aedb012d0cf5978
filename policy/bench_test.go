package policy_test

import (
	"fmt"
	"net/netip"
	"testing"

	"kube-proxy/cluster"
	"kube-proxy/lb"
	"kube-proxy/policy"
)

// BenchmarkEndpointChange measures one endpoint event in everything above the planes: fold, view,
// resolve, replace. The Services have one port and ten endpoints. The cost must not depend on their
// number.
func BenchmarkEndpointChange(b *testing.B) {
	for _, n := range []int{100, 10_000, 100_000} {
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) { benchmarkEndpointChange(b, n) })
	}
}

func benchmarkEndpointChange(b *testing.B, services int) {
	c := newChanger(services)
	visited := c.table.Visited
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		if c.change() != 1 {
			b.Fatal("one endpoint change must change one row")
		}
	}
	b.ReportMetric(float64(c.table.Visited-visited)/float64(b.N), "rows/op")
}

// TestEndpointChangeCost checks the benchmark's claim: a change costs the same with any number of
// Services.
func TestEndpointChangeCost(t *testing.T) {
	for _, services := range []int{100, 2000} {
		c := newChanger(services)
		visited := c.table.Visited
		const runs = 100
		allocs := testing.AllocsPerRun(runs-1, func() { c.change() }) // AllocsPerRun makes one more run to warm up
		if rows := c.table.Visited - visited; rows != 2*runs {
			t.Errorf("%d services: %d changes visited %d rows, want two each", services, runs, rows)
		}
		if allocs > 24 {
			t.Errorf("%d services: %v allocations a change, want at most 24", services, allocs)
		}
	}
}

// changer is a cluster in which one endpoint of one Service is added and removed.
type changer struct {
	store    *cluster.Store
	table    *lb.Table
	settings policy.Settings
	states   [2]*cluster.Slice // made beforehand: a source makes them, not we
	n        int
}

func newChanger(services int) *changer {
	target := services / 2
	c := &changer{
		store: cluster.NewStore("node-1"), table: &lb.Table{}, settings: benchSettings(),
		states: [2]*cluster.Slice{benchSlice(target, 9), benchSlice(target, 10)},
	}
	for i := range services {
		c.apply(cluster.SliceSet{Slice: benchSlice(i, 10)})
		c.apply(cluster.ServiceSet{Service: benchService(i)})
	}
	return c
}

// change removes or adds the endpoint, and returns the number of changed frontends.
func (c *changer) change() int {
	c.n++
	return c.apply(cluster.SliceSet{Slice: c.states[(c.n+1)%2]})
}

func (c *changer) apply(ev cluster.Event) (changed int) {
	for _, ref := range c.store.Fold(ev).Services {
		v := c.store.View(ref.Name)
		changes, _ := c.table.Replace(lb.Owner{Name: ref.Name.String(), Created: v.Service.Created},
			policy.Resolve(v, c.settings))
		changed += len(changes)
	}
	return changed
}

func benchSettings() policy.Settings {
	return policy.Settings{Family: lb.IPv4, ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}
}

func benchName(i int) cluster.Name {
	return cluster.Name{Namespace: "shop", Name: fmt.Sprintf("web-%06d", i)}
}

func benchService(i int) *cluster.Service {
	return &cluster.Service{
		Name:       benchName(i),
		Created:    int64(i),
		ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{172, 16 + byte(i>>16), byte(i >> 8), byte(i)})},
		Ports:      []cluster.ServicePort{{Name: "http", Protocol: cluster.TCP, Port: 80}},
	}
}

func benchSlice(i, endpoints int) *cluster.Slice {
	name := benchName(i)
	s := &cluster.Slice{
		Name:    cluster.Name{Namespace: name.Namespace, Name: name.Name + "-abcde"},
		Service: name,
		Ports:   []cluster.SlicePort{{Name: "http", Protocol: cluster.TCP, Port: 8080}},
	}
	var all []cluster.Endpoint
	for e := range endpoints {
		all = append(all, cluster.Endpoint{
			Addr:  netip.AddrFrom4([4]byte{10, byte(i >> 12), byte(i >> 4), byte(i<<4 | e)}),
			Where: cluster.At(fmt.Sprintf("node-%d", e), ""),
			Ready: true, Serving: true,
		})
	}
	s.Endpoints = cluster.EndpointsOf(all...)
	return s
}
