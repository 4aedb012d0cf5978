//go:build linux

package snapshot

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"testing"

	"kube-proxy/cluster"
	"kube-proxy/test/cputest"
)

// storeOf has Services with ten endpoints each, on 1,000 nodes in 3 zones.
func storeOf(services int) *cluster.Store {
	addr := func(n int) netip.Addr {
		return netip.AddrFrom4([4]byte{100, byte(64 + n>>16), byte(n >> 8), byte(n)})
	}
	store := cluster.NewStore("n1")
	batch := make(cluster.Batch, 0, 2*services)
	for i := range services {
		name := cluster.Name{Namespace: fmt.Sprint("team-", i%500), Name: fmt.Sprint("service-", i)}
		s := &cluster.Slice{Name: cluster.Name{Namespace: name.Namespace, Name: name.Name + "-x7k2p"}, Service: name,
			Ports: []cluster.SlicePort{{Name: "http", Protocol: cluster.TCP, Port: 8080}}}
		var endpoints []cluster.Endpoint
		for j := range 10 {
			n := 10*i + j
			endpoints = append(endpoints, cluster.Endpoint{Addr: addr(n), Ready: true, Serving: true,
				Where: cluster.At(fmt.Sprint("node-", n%1000), fmt.Sprint("zone-", n%3))})
		}
		s.Endpoints = cluster.EndpointsOf(endpoints...)
		service := &cluster.Service{Name: name, Created: 1_800_000_000, ClusterIPs: []netip.Addr{addr(i)},
			Ports: []cluster.ServicePort{{Name: "http", Protocol: cluster.TCP, Port: 80}}}
		batch = append(batch, cluster.SliceSet{Slice: s}, cluster.ServiceSet{Service: service})
	}
	store.Fold(batch)
	return store
}

func BenchmarkSave(b *testing.B) {
	for _, n := range []int{1000, 100_000} {
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) {
			store, dir := storeOf(n), filepath.Join(b.TempDir(), "s")
			b.ReportAllocs()
			began := cputest.Time()
			for b.Loop() {
				b.ReportMetric(float64(mustSave(b, dir, store).Size), "file-bytes")
			}
			b.ReportMetric(float64(cputest.Time()-began)/float64(b.N), "cpu-ns/op")
		})
	}
}

// BenchmarkLoad is the time from a start to facts in the store.
func BenchmarkLoad(b *testing.B) {
	for _, n := range []int{1000, 100_000} {
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) {
			dir := filepath.Join(b.TempDir(), "s")
			mustSave(b, dir, storeOf(n))
			b.ReportAllocs()
			began := cputest.Time()
			for b.Loop() {
				cluster.NewStore("n1").Fold(mustLoad(b, dir).Events())
			}
			b.ReportMetric(float64(cputest.Time()-began)/float64(b.N), "cpu-ns/op")
		})
	}
}
