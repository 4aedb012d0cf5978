package policy_test

import (
	"testing"

	"kube-proxy/cluster"
	"kube-proxy/lb"
	"kube-proxy/policy"
)

// TN-03: the cost of a Service is available before it is resolved.
func TestCostOf(t *testing.T) {
	v := cluster.View{Service: &cluster.Service{Ports: make([]cluster.ServicePort, 3)}, Slices: []*cluster.Slice{
		{Ports: make([]cluster.SlicePort, 2), Endpoints: cluster.EndpointsOf(make([]cluster.Endpoint, 10)...)},
		{Ports: make([]cluster.SlicePort, 20_000), Endpoints: cluster.EndpointsOf(make([]cluster.Endpoint, 1)...)},
		{Endpoints: cluster.EndpointsOf(make([]cluster.Endpoint, 7)...)},
		{IPv6: true, Ports: make([]cluster.SlicePort, 5),
			Endpoints: cluster.EndpointsOf(make([]cluster.Endpoint, 5)...)},
	}}
	if got, want := policy.CostOf(v, lb.IPv4),
		(policy.Cost{Slices: 4, Ports: 20_005, Frontends: 6, Backends: 30}); got != want {
		t.Errorf("IPv4 costs %+v, want %+v", got, want)
	}
	if got, want := policy.CostOf(v, lb.IPv6),
		(policy.Cost{Slices: 4, Ports: 8, Frontends: 6, Backends: 15}); got != want {
		t.Errorf("IPv6 costs %+v, want %+v", got, want)
	}
	v.Service = nil
	if got, want := policy.CostOf(v, lb.IPv4), (policy.Cost{Slices: 4}); got != want {
		t.Errorf("without a Service it costs %+v, want %+v", got, want)
	}
}
