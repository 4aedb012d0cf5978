package lb_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"kube-proxy/lb"
)

// KindAt returns the kinds of the frontends in force, and the first conflicts are a prefix of all,
// through any changes.
func TestAskedOfTables(t *testing.T) {
	rnd := rand.New(rand.NewPCG(14, 56))
	var table lb.Table
	var keys []lb.Key
	for a := range 4 {
		for port := range 3 {
			keys = append(keys, lb.Key{Addr: netip.AddrFrom4([4]byte{10, 96, 0, byte(a)}), Port: uint16(80 + port),
				Proto: lb.TCP})
		}
	}
	for step := range 3000 {
		o := lb.Owner{Name: fmt.Sprint("ns/", rnd.IntN(30)), Created: int64(rnd.IntN(3))}
		var fronts []*lb.Frontend
		for range rnd.IntN(5) {
			f := row(o, keys[rnd.IntN(len(keys))])
			f.Kind = []lb.Kind{lb.ClusterIP, lb.LoadBalancer, lb.ExternalIP}[rnd.IntN(3)]
			fronts = append(fronts, f)
		}
		table.Replace(o, fronts)
		best := map[netip.Addr]lb.Kind{}
		for f := range table.All() {
			was := best[f.Key.Addr]
			if was == 0 || f.Kind == lb.ClusterIP || f.Kind == lb.LoadBalancer && was == lb.ExternalIP {
				best[f.Key.Addr] = f.Kind
			}
		}
		for _, k := range keys {
			if got := table.KindAt(k.Addr); got != best[k.Addr] {
				t.Fatalf("step %d: KindAt(%s) is %s, want %s", step, k.Addr, got, best[k.Addr])
			}
			all := table.Conflicts(k)
			for _, n := range []int{0, 1, 3, 100} {
				first, total := table.FirstConflicts(k, n)
				if total != len(all) || !slices.Equal(first, all[:min(n, len(all))]) {
					t.Fatalf("step %d: the first %d conflicts of %s are %v of %d, want those of %v", step, n, k, first,
						total, all)
				}
			}
		}
	}
	for i := range 30 {
		table.Replace(lb.Owner{Name: fmt.Sprint("ns/", i)}, nil)
	}
	for _, k := range keys {
		if got := table.KindAt(k.Addr); got != 0 {
			t.Errorf("KindAt(%s) is %s without any Service", k.Addr, got)
		}
	}
}

// A NodePort is at no address that one could ask for.
func TestNodePortHasNoAddress(t *testing.T) {
	var table lb.Table
	f := row(oldest, lb.Key{Port: 30080, Proto: lb.TCP})
	f.Kind = lb.NodePort
	table.Replace(oldest, []*lb.Frontend{f})
	if got := table.KindAt(netip.Addr{}); table.Len() != 1 || got != 0 {
		t.Errorf("%d frontends, of kind %s at no address", table.Len(), got)
	}
}
