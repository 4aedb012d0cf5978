package policy_test

import (
	"fmt"
	"net/netip"
	"testing"
	"unique"

	"kube-proxy/cluster"
	"kube-proxy/lb"
	"kube-proxy/policy"
)

// BenchmarkEndpointChange is the path of one endpoint event through everything above the planes: fold,
// view, resolve, replace. The services have one port and ten endpoints. Its cost must not follow their
// number.
func BenchmarkEndpointChange(b *testing.B) {
	for _, n := range []int{100, 10_000, 100_000} {
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) { benchmarkEndpointChange(b, n) })
	}
}

func benchmarkEndpointChange(b *testing.B, services int) {
	store, table, settings := cluster.NewStore("node-1"), &lb.Table{}, benchSettings()
	apply := func(d cluster.Dirty) int {
		changed := 0
		for _, ref := range d.Services {
			v := store.View(ref.Name)
			changes, _ := table.Replace(lb.Owner{Name: ref.Name.String(), Created: v.Service.Created}, policy.Resolve(v, settings))
			changed += len(changes)
		}
		return changed
	}
	for i := range services {
		store.Fold(cluster.SliceSet{Slice: benchSlice(i, 10)})
		apply(store.Fold(cluster.ServiceSet{Service: benchService(i)}))
	}
	// The two states of the slice that flips, made before the clock runs: a source makes them, not we.
	target := services / 2
	states := [2]*cluster.Slice{benchSlice(target, 9), benchSlice(target, 10)}
	visited := table.Visited
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		if apply(store.Fold(cluster.SliceSet{Slice: states[i%2]})) != 1 {
			b.Fatal("one endpoint change must change one row")
		}
	}
	b.ReportMetric(float64(table.Visited-visited)/float64(b.N), "rows/op")
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
	for e := range endpoints {
		s.Endpoints = append(s.Endpoints, cluster.Endpoint{
			Addr:     netip.AddrFrom4([4]byte{10, byte(i >> 12), byte(i >> 4), byte(i<<4 | e)}),
			NodeName: unique.Make(fmt.Sprintf("node-%d", e)),
			Ready:    true, Serving: true,
		})
	}
	return s
}
