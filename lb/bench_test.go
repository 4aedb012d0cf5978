package lb_test

import (
	"fmt"
	"net/netip"
	"testing"

	"kube-proxy/lb"
)

// BenchmarkConflicts measures a Service that claims and releases a key: with others on its key, or
// beside other keys in conflict.
func BenchmarkConflicts(b *testing.B) {
	key := lb.Key{Addr: netip.MustParseAddr("192.0.2.7"), Port: 80, Proto: lb.TCP}
	for _, claims := range []int{0, 100, 10_000, 100_000} {
		b.Run(fmt.Sprintf("claims=%d", claims), func(b *testing.B) {
			var table lb.Table
			for i := range claims {
				o := lb.Owner{Name: fmt.Sprint("ns/", i), Created: int64(i)}
				table.Replace(o, []*lb.Frontend{row(o, key)})
			}
			comeAndGo(b, &table, key)
		})
	}
	for _, keys := range []int{100, 10_000, 100_000} {
		b.Run(fmt.Sprintf("keys=%d", keys), func(b *testing.B) {
			var table lb.Table
			for i := range 2 * keys {
				o := lb.Owner{Name: fmt.Sprint("ns/", i), Created: int64(i)}
				n := i % keys
				table.Replace(o,
					[]*lb.Frontend{row(o, lb.Key{Addr: netip.AddrFrom4([4]byte{198, 18, byte(n >> 8), byte(n)}),
						Port: uint16(1 + n>>16), Proto: lb.TCP})})
			}
			comeAndGo(b, &table, key)
		})
	}
}

func comeAndGo(b *testing.B, table *lb.Table, key lb.Key) {
	o := lb.Owner{Name: "ns/amid", Created: 50}
	fronts := []*lb.Frontend{row(o, key)}
	visited := table.Visited
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		table.Replace(o, fronts)
		table.Replace(o, nil)
	}
	b.ReportMetric(float64(table.Visited-visited)/float64(b.N), "rows/op")
}
