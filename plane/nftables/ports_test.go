//go:build linux

package nftables

import (
	"fmt"
	"runtime"
	"testing"

	"kube-proxy/lb"
	"kube-proxy/plane/internal/slots"
	"kube-proxy/test/planetest"
)

// TN-21: the plane's copy of the kernel's state has no second copy of backends. A set with
// unchanged endpoints takes no memory for its slots. Ports whose endpoints change together share
// one order of slots, also after a restart.
func TestPortsShareAnOrder(t *testing.T) {
	const ports, endpoints = 20, 100
	w := planetest.World{Family: lb.IPv4}
	orders := func(p *Plane) int {
		in := map[*slots.Order]bool{}
		for _, s := range p.st.sets {
			if o := s.held.Order(); o != nil {
				in[o] = true
			}
		}
		return len(in)
	}
	tab := &lb.Table{Node: w.Node()}
	p := started(t, w, tab)
	apply(t, p, planetest.Changes(tab.Replace(manyPorts(w, ports, endpoints, -1))))
	if n := orders(p); n != 0 {
		t.Errorf("%d orders in memory for new sets, want none", n)
	}
	apply(t, p, planetest.Changes(tab.Replace(manyPorts(w, ports, endpoints, 10))))
	if n := orders(p); n != 1 {
		t.Errorf("%d orders in memory after an endpoint left, want 1", n)
	}
	again := newPlane(t, w.Family)
	reset(t, again, tab)
	if n := orders(again); n != 1 {
		t.Errorf("%d orders in memory after a restart, want 1", n)
	}
}

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
		tab.Replace(manyPorts(w, ports, endpoints, 0))
		reset(t, p, tab)
		for n := 1; n < 10; n++ {
			changes := planetest.Changes(tab.Replace(manyPorts(w, ports, endpoints, n)))
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

// manyPorts is a Service whose ports share endpoints, all but one.
func manyPorts(w planetest.World, ports, endpoints, without int) (o lb.Owner, fronts []*lb.Frontend) {
	var pods []lb.Endpoint
	for i := range endpoints {
		if i != without {
			pods = append(pods, lb.Endpoint{Addr: w.Addr(100, i)})
		}
	}
	list := lb.EndpointsOf(pods...)
	for i := range ports {
		s := &lb.BackendSet{ID: lb.SetID{Service: fmt.Sprint("shop/web:p", i), Proto: lb.TCP, Scope: lb.Cluster}}
		s.Backends.Add(uint16(8000+i), list)
		fronts = append(fronts, &lb.Frontend{Key: lb.Key{Addr: w.Addr(10, 1), Port: uint16(1 + i), Proto: lb.TCP},
			Service: s.ID.Service, Kind: lb.ClusterIP,
			Routes: []lb.Route{{From: lb.Anywhere, Do: lb.Balance, To: s}}})
	}
	return lb.Owner{Name: "shop/web"}, fronts
}
