package conntrack

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"kube-proxy/lb"
)

// Rows that share a large set are compared with the one that comes next at the cost of the set once, not of each row.
func TestSharedSetsAreLinear(t *testing.T) {
	took := func(n int) time.Duration {
		best := time.Hour
		set := func(from int) *lb.BackendSet {
			s := &lb.BackendSet{ID: lb.SetID{Service: service, Proto: lb.UDP, Scope: lb.Cluster}}
			for i := from; i < from+n; i++ {
				s.Backends = append(s.Backends, lb.Backend{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{100, 64, byte(i >> 8), byte(i)}), 53)})
			}
			return s
		}
		change := func(to *lb.BackendSet, i int) lb.Change {
			f := row(fmt.Sprintf("198.18.%d.%d:53/udp", i>>8, i&255), service, 0)
			f.Routes = []lb.Route{{From: lb.Host, Do: lb.Balance, To: to, Masq: true}, {From: lb.Anywhere, Do: lb.Balance, To: to}}
			return lb.Change{Key: f.Key, New: f}
		}
		for range 3 {
			x, before, after := newIndex(), set(0), set(0)
			after.Backends = append(after.Backends, lb.Backend{Addr: netip.MustParseAddrPort("100.127.0.1:53")}) // nobody leaves
			var changes []lb.Change
			for i := range n {
				x.apply(change(before, i))
				changes = append(changes, change(after, i))
			}
			x.settle()
			start := time.Now()
			for _, c := range changes {
				if x.apply(c) {
					t.Fatal("one that comes makes flows suspect")
				}
			}
			x.settle()
			best = min(best, time.Since(start))
		}
		return best
	}
	small, large := took(100), took(3200)
	if ratio := float64(large) / float64(small); ratio > 160 { // 32 is linear, 1024 the square
		t.Errorf("100 rows with 100 backends take %v, 3,200 with 3,200 %v, %.0f times as much", small, large, ratio)
	}
}
