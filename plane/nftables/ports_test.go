//go:build linux

package nftables

import (
	"fmt"
	"runtime"
	"testing"

	"kube-proxy/lb"
	"kube-proxy/test/planetest"
)

// An endpoint change of a Service costs memory once, whatever the number of its ports, because the
// ports share their endpoints. Each port's set then has the change, and an audit has nothing to
// repair (TN-89).
func TestPatchOfManyPorts(t *testing.T) {
	inNetns(t)
	const endpoints = 1000
	w := planetest.World{Family: lb.IPv4}
	cost := map[int]uint64{}
	for _, ports := range []int{1, 20} {
		p := newPlane(t, w.Family)
		tab := &lb.Table{Family: w.Family}
		version := func(n int) []lb.Change {
			var shared []lb.Endpoint
			for e := range endpoints {
				if e != n { // one leaves, and an omitted one is added
					shared = append(shared, lb.Endpoint{Addr: w.Addr(100, e)})
				}
			}
			list := lb.EndpointsOf(shared...)
			var rows []*lb.Frontend
			for i := range ports {
				set := &lb.BackendSet{ID: lb.SetID{Service: fmt.Sprint("shop/web:p", i), Proto: lb.UDP,
					Scope: lb.Cluster}}
				set.Backends.Add(8080, list)
				rows = append(rows, &lb.Frontend{Key: lb.Key{Addr: w.Addr(10, 1), Port: uint16(1 + i), Proto: lb.UDP},
					Service: set.ID.Service,
					Kind:    lb.ClusterIP, Routes: []lb.Route{{From: lb.Anywhere, Do: lb.Balance, To: set}}})
			}
			changes, _ := tab.Replace(lb.Owner{Name: "shop/web"}, rows)
			return changes
		}
		version(0)
		reset(t, p, tab)
		for n := 1; n < 10; n++ {
			changes := version(n)
			before := p.Stats()
			var was, is runtime.MemStats
			runtime.ReadMemStats(&was)
			apply(t, p, changes)
			runtime.ReadMemStats(&is)
			cost[ports] += is.TotalAlloc - was.TotalAlloc
			if sent := p.Stats().minus(before); sent.Bytes > uint64(200+200*ports) {
				t.Errorf("%d ports: %d bytes were sent for one slot of each", ports, sent.Bytes)
			}
		}
		if repaired, err := p.Audit(t.Context(), true); err != nil || repaired > 0 {
			t.Errorf("%d ports: an audit repaired %d elements: %v", ports, repaired, err)
		}
		p.Close()
	}
	t.Logf("bytes of heap for ten changes, by ports: %v", cost)
	if cost[20] > 3*cost[1] {
		t.Errorf("ten changes of %d endpoints allocate %d bytes with 1 port and %d with 20, want less than three "+
			"times as much", endpoints, cost[1], cost[20])
	}
}
