package conntrack

import (
	"fmt"
	"net/netip"
	"testing"

	"kube-proxy/internal/cputest"
	"kube-proxy/lb"
)

// Rows that share a large set are compared with the one that comes next at the cost of the set once, not of each row.
func TestSharedSetsAreLinear(t *testing.T) {
	replace := func(n int) func() {
		set := func() *lb.BackendSet {
			s := &lb.BackendSet{ID: lb.SetID{Service: service, Proto: lb.UDP, Scope: lb.Cluster}}
			for i := range n {
				s.Backends = append(s.Backends, lb.Backend{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{100, 64, byte(i >> 8), byte(i)}), 53)})
			}
			return s
		}
		changes := func(to *lb.BackendSet) (out []lb.Change) {
			for i := range n {
				f := row(fmt.Sprintf("198.18.%d.%d:53/udp", i>>8, i&255), service, 0)
				f.Routes = []lb.Route{{From: lb.Host, Do: lb.Balance, To: to, Masq: true}, {From: lb.Anywhere, Do: lb.Balance, To: to}}
				out = append(out, lb.Change{Key: f.Key, New: f})
			}
			return out
		}
		x, after := newIndex(nil), set()
		after.Backends = append(after.Backends, lb.Backend{Addr: netip.MustParseAddrPort("100.127.0.1:53")}) // nobody leaves
		one, other := changes(set()), changes(after)
		for _, c := range one {
			x.apply(c)
		}
		x.settle()
		return func() {
			for _, batch := range [][]lb.Change{other, one} { // and it goes again
				for _, c := range batch {
					x.apply(c)
				}
				x.settle()
			}
		}
	}
	if ratio := cputest.Ratio(replace(100), replace(3200)); ratio > 160 { // 32 is linear, 1024 the square
		t.Errorf("3,200 rows with 3,200 backends cost %.0f times as much as 100 with 100", ratio)
	}
}
