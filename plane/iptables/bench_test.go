package iptables

import (
	"context"
	"fmt"
	"testing"

	"kube-proxy/lb"
	"kube-proxy/plane/planetest"
)

// BenchmarkFirstSync is the cold load of services with ten backends each.
func BenchmarkFirstSync(b *testing.B) {
	for _, back := range []Backend{NFT, Legacy} {
		for _, n := range []int{1000, 5000} {
			b.Run(fmt.Sprintf("%s/services=%d", back, n), func(b *testing.B) {
				w := planetest.World{Family: lb.IPv4}
				want := w.Table(n, 10)
				for b.Loop() {
					b.StopTimer()
					needs(b, back)
					inNetns(b)
					p := newPlane(b, Config{Family: lb.IPv4, Backend: back})
					b.StartTimer()
					reset(b, p, want)
				}
			})
		}
	}
}

// BenchmarkChange is one endpoint of one service that changes among many.
func BenchmarkChange(b *testing.B) {
	for _, back := range []Backend{NFT, Legacy} {
		for _, n := range []int{100, 5000} {
			b.Run(fmt.Sprintf("%s/services=%d", back, n), func(b *testing.B) {
				needs(b, back)
				inNetns(b)
				w := planetest.World{Family: lb.IPv4}
				p := newPlane(b, Config{Family: lb.IPv4, Backend: back})
				table := w.Table(n, 10)
				reset(b, p, table)
				i := 0
				for b.Loop() {
					changes, _ := table.Replace(w.ClusterIP(7, 70+i%2, 10))
					if err := p.Apply(context.Background(), changes); err != nil {
						b.Fatal(err)
					}
					i++
				}
			})
		}
	}
}

// BenchmarkFind is what the start asks before it reads any rule, on a node that a kubelet has marked, beside the rules of
// earlier services.
func BenchmarkFind(b *testing.B) {
	for _, n := range []int{100, 5000} {
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) {
			needs(b, NFT)
			inNetns(b)
			run(b, "", "iptables-nft", "-t", "mangle", "-N", kubelets[0])
			reset(b, newPlane(b, Config{Family: lb.IPv4, Backend: NFT}), planetest.World{Family: lb.IPv4}.Table(n, 10))
			for b.Loop() {
				if _, err := Find(lb.IPv4); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
