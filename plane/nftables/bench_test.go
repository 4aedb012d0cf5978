//go:build linux

package nftables

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"testing"

	"kube-proxy/lb"
	"kube-proxy/test/planetest"
)

var sizes = []int{100, 1_000, 10_000, 100_000}

// BenchmarkEndpointIntoKernel changes one endpoint of a service with 10: table, rendering and the
// netlink transaction. It reports the messages and bytes sent.
func BenchmarkEndpointIntoKernel(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) {
			p, flip := loaded(b, n)
			before := p.Stats()
			for b.Loop() {
				apply(b, p, flip())
			}
			sent := p.Stats().minus(before)
			b.ReportMetric(float64(sent.Messages)/float64(b.N), "messages/op")
			b.ReportMetric(float64(sent.Bytes)/float64(b.N), "bytes-sent/op")
		})
	}
}

// BenchmarkEndpointRender does the same without the kernel.
func BenchmarkEndpointRender(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) {
			p, flip := loaded(b, n)
			b.ReportAllocs()
			for b.Loop() {
				c, err := p.changed(flip())
				if err != nil {
					b.Fatal(err)
				}
				c.out.Buffers()
			}
		})
	}
}

func loadedTable(b *testing.B, n int) (*Plane, *lb.Table) {
	inNetns(b)
	p := newPlane(b, lb.IPv4)
	tab := planetest.World{Family: lb.IPv4}.Table(n, 10)
	reset(b, p, tab)
	return p, tab
}

// flipped is the number of services that change in turn, for any total number of services.
const flipped = 100

// loaded returns a function that makes the next change, which replaces one of a service's ten
// endpoints. The frontends are made beforehand, because source and policy make them, not the plane.
func loaded(b *testing.B, n int) (*Plane, func() []lb.Change) {
	p, tab := loadedTable(b, n)
	type form struct {
		owner  lb.Owner
		fronts []*lb.Frontend
	}
	var forms [2][flipped]form
	for version := range forms {
		for i := range flipped {
			at := i * (n / flipped)
			f := &forms[version][i]
			f.owner, f.fronts = planetest.World{Family: lb.IPv4}.ClusterIP(at, at*10, 10)
			set := f.fronts[0].Set(lb.Cluster)
			all := slices.Collect(set.Backends.All())
			all[8].Addr = netip.AddrPortFrom(planetest.World{Family: lb.IPv4}.Addr(100, at*10+10+version), 8080)
			slices.SortFunc(all, lb.Backend.Compare)
			set.Backends = lb.BackendsOf(all...)
		}
	}
	runtime.GC() // exclude the setup's garbage
	i := 0
	return p, func() []lb.Change {
		f := &forms[i/flipped%2][i%flipped]
		i++
		changes, _ := tab.Replace(f.owner, f.fronts)
		return changes
	}
}
