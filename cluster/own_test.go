package cluster_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"kube-proxy/cluster"
)

// Services that name an address of this machine are resolved again when that address comes or goes,
// and when a health check NodePort takes or releases one of their ports; others are not (TN-98).
func TestOwnPortsTN98(t *testing.T) {
	here, other := netip.MustParseAddr("172.18.0.2"), netip.MustParseAddr("172.18.0.9")
	service := func(name string, at netip.Addr, port uint16, proto cluster.Protocol) *cluster.Service {
		return &cluster.Service{Name: cluster.Name{Namespace: "tenant", Name: name}, ExternalIPs: []netip.Addr{at},
			Ports: []cluster.ServicePort{{Port: port, Protocol: proto}}}
	}
	check := func(name string, port uint16, policy cluster.TrafficPolicy) *cluster.Service {
		return &cluster.Service{Name: cluster.Name{Namespace: "shop", Name: name}, Type: cluster.TypeLoadBalancer,
			ExternalPolicy: policy, HealthCheckNodePort: port}
	}
	s := cluster.NewStore("node1")
	for _, svc := range []*cluster.Service{service("same", here, 31000, cluster.TCP),
		service("elsewhere", other, 31000, cluster.TCP), service("udp", here, 31000, cluster.UDP),
		service("port", here, 31001, cluster.TCP)} {
		s.Fold(cluster.ServiceSet{Service: svc})
	}
	for _, step := range []struct {
		name  string
		event cluster.Event
		dirty string
		ports []uint16 // of tenant/same, taken by health checks
	}{
		{"the node's address", cluster.NodeHolds{Addrs: []netip.Addr{here}}, "[tenant/port tenant/same tenant/udp]",
			nil},
		{"the same address", cluster.NodeHolds{Addrs: []netip.Addr{here}}, "[]", nil},
		{"policy Cluster has no health check", cluster.ServiceSet{Service: check("a", 31000, cluster.PolicyCluster)},
			"[shop/a]", nil},
		{"a health check", cluster.ServiceSet{Service: check("a", 31000, cluster.PolicyLocal)}, "[shop/a tenant/same]",
			[]uint16{31000}},
		{"a second one at the port", cluster.ServiceSet{Service: check("b", 31000, cluster.PolicyLocal)}, "[shop/b]",
			[]uint16{31000}},
		{"the first one goes", cluster.ServiceGone{Name: cluster.Name{Namespace: "shop", Name: "a"}}, "[shop/a]",
			[]uint16{31000}},
		{"the second one moves", cluster.ServiceSet{Service: check("b", 31001, cluster.PolicyLocal)},
			"[shop/b tenant/port tenant/same]", nil},
		{"the Service moves to its port", cluster.ServiceSet{Service: service("same", here, 31001, cluster.TCP)},
			"[tenant/same]", []uint16{31001}},
		{"the second one goes", cluster.ServiceGone{Name: cluster.Name{Namespace: "shop", Name: "b"}},
			"[shop/b tenant/port tenant/same]", nil},
		{"a health check of a type without one", cluster.ServiceSet{Service: &cluster.Service{
			Name: cluster.Name{Namespace: "shop", Name: "b"}, Type: cluster.TypeNodePort,
			ExternalPolicy: cluster.PolicyLocal, HealthCheckNodePort: 31001}}, "[shop/b]", nil},
		{"the address moves", cluster.NodeHolds{Addrs: []netip.Addr{other}},
			"[tenant/elsewhere tenant/port tenant/same tenant/udp]", nil},
		{"a health check where the address was", cluster.ServiceSet{Service: check("b", 31001, cluster.PolicyLocal)},
			"[shop/b]", nil},
		{"it goes", cluster.ServiceGone{Name: cluster.Name{Namespace: "shop", Name: "b"}}, "[shop/b]", nil},
		{"the Node names the first", cluster.NodeSet{Node: &cluster.Node{Name: "node1", Addrs: []netip.Addr{here}}},
			"[tenant/elsewhere tenant/port tenant/same tenant/udp]", nil},
		{"the machine holds what the Node names", cluster.NodeHolds{Addrs: []netip.Addr{other, here}}, "[]", nil},
	} {
		var dirty []string
		for _, ref := range s.Fold(step.event).Services {
			dirty = append(dirty, ref.Name.String())
			if !ref.V4 || !ref.V6 {
				t.Errorf("%s: %v is dirty in one family only", step.name, ref)
			}
		}
		slices.Sort(dirty)
		if got := fmt.Sprint(slices.Compact(dirty)); got != step.dirty {
			t.Errorf("%s: dirty %s, want %s", step.name, got, step.dirty)
		}
		v := s.View(cluster.Name{Namespace: "tenant", Name: "same"})
		if !slices.Equal(v.HealthPorts, step.ports) {
			t.Errorf("%s: health check ports %v, want %v", step.name, v.HealthPorts, step.ports)
		}
	}
}
