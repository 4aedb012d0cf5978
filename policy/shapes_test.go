package policy_test

import (
	"fmt"
	"net/netip"
	"testing"

	"kube-proxy/cluster"
	"kube-proxy/lb"
	"kube-proxy/test/cputest"
)

// shape is one large Service: its number of ports, each in every one of its slices, and of
// endpoints over all slices.
type shape struct {
	ports, slices, endpoints int
	externalIPs, ranges      int
}

// changerOf returns a cluster with a Service of the shape, with one endpoint that moves to another
// address and back.
func changerOf(s shape) *changer {
	c := &changer{store: cluster.NewStore("node-1"), table: &lb.Table{}, settings: benchSettings()}
	c.store.Fold(cluster.NodeSet{
		Node: &cluster.Node{Name: "node-1", Addrs: []netip.Addr{netip.MustParseAddr("100.0.0.1")}}})
	svc := benchService(0)
	svc.Type, svc.Ports, svc.ExternalPolicy, svc.HealthCheckNodePort = cluster.TypeLoadBalancer, nil,
		cluster.PolicyLocal, 32000
	svc.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	for i := range s.externalIPs {
		svc.ExternalIPs = append(svc.ExternalIPs, netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}))
	}
	for i := range s.ranges {
		svc.SourceRanges = append(svc.SourceRanges,
			netip.PrefixFrom(netip.AddrFrom4([4]byte{100, byte(i >> 8), byte(i), 0}), 24))
	}
	var ports []cluster.SlicePort
	for i := range s.ports {
		name := fmt.Sprintf("p%d", i)
		svc.Ports = append(svc.Ports, cluster.ServicePort{Name: name, Protocol: cluster.TCP, Port: uint16(1 + i)})
		ports = append(ports, cluster.SlicePort{Name: name, Protocol: cluster.TCP, Port: uint16(10_000 + i)})
	}
	for i := range s.slices {
		sl := benchSlice(0, 0)
		sl.Name.Name, sl.Ports = fmt.Sprintf("web-%d", i), ports
		all := make([]cluster.Endpoint, s.endpoints/s.slices)
		for e := range all {
			all[e] = cluster.Endpoint{Addr: netip.AddrFrom4([4]byte{100, 64 + byte(i), byte(e >> 8), byte(e)}),
				Ready: true, Serving: true}
		}
		sl.Endpoints = cluster.EndpointsOf(all...)
		c.apply(cluster.SliceSet{Slice: sl})
		if i == s.slices-1 { // its last endpoint moves; a comparison reaches it last
			moved := *sl
			all[len(all)-1].Addr = netip.AddrFrom4([4]byte{100, 127, 255, 254})
			moved.Endpoints = cluster.EndpointsOf(all...)
			c.states = [2]*cluster.Slice{&moved, sl}
		}
	}
	c.apply(cluster.ServiceSet{Service: svc})
	return c
}

// Twice as many ports in twice as many slice entries, or twice as many frontends with twice as many
// shared endpoints, must not cost four times as much.
func TestOddShapesAreLinear(t *testing.T) {
	for _, test := range []struct {
		story        string
		small, large shape
	}{
		{"ports", shape{ports: 200, slices: 10, endpoints: 10}, shape{ports: 3200, slices: 10, endpoints: 10}},
		{"rows of one port with many endpoints", shape{ports: 1, slices: 5, endpoints: 200, externalIPs: 50},
			shape{ports: 1, slices: 5, endpoints: 3200, externalIPs: 800}},
		{"ports with source ranges", shape{ports: 100, slices: 1, endpoints: 1, ranges: 100},
			shape{ports: 1600, slices: 1, endpoints: 1, ranges: 1600}},
	} {
		small, large := changerOf(test.small), changerOf(test.large)
		ratio := cputest.Ratio(func() { small.change() }, func() { large.change() })
		if ratio > 80 { // 16 is linear, 256 is the square
			t.Errorf("%s: a change costs %.0f times as much at sixteen times the size", test.story, ratio)
		}
	}
}
