//go:build linux

package nftables

import (
	"fmt"
	"slices"
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
	pods := make([]lb.Endpoint, endpoints)
	for i := range pods {
		pods[i].Addr = w.Addr(100, i)
	}
	rows := func(pods []lb.Endpoint) (out []*lb.Frontend) {
		list := lb.EndpointsOf(pods...)
		for i := range ports {
			s := &lb.BackendSet{ID: lb.SetID{Service: fmt.Sprint("ns/a:", i), Proto: lb.TCP, Scope: lb.Cluster}}
			s.Backends.Add(uint16(8000+i), list)
			out = append(out, &lb.Frontend{Key: lb.Key{Addr: w.Addr(10, 1), Port: uint16(i + 1), Proto: lb.TCP},
				Service: s.ID.Service,
				Kind:    lb.ClusterIP, Routes: []lb.Route{{From: lb.Anywhere, Do: lb.Balance, To: s}}})
		}
		return out
	}
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
	apply(t, p, planetest.Changes(tab.Replace(lb.Owner{Name: "ns/a"}, rows(pods))))
	if n := orders(p); n != 0 {
		t.Errorf("%d orders in memory for new sets, want none", n)
	}
	apply(t, p, planetest.Changes(tab.Replace(lb.Owner{Name: "ns/a"}, rows(slices.Delete(slices.Clone(pods), 10, 11)))))
	if n := orders(p); n != 1 {
		t.Errorf("%d orders in memory after an endpoint left, want 1", n)
	}
	again := newPlane(t, w.Family)
	reset(t, again, tab)
	if n := orders(again); n != 1 {
		t.Errorf("%d orders in memory after a restart, want 1", n)
	}
}
