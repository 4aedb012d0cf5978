package policy

import (
	"kube-proxy/cluster"
	"kube-proxy/lb"
)

// Cost is the amount of data that [Resolve] reads for one Service in one family.
type Cost struct {
	Slices    int // EndpointSlices of both families
	Ports     int // ports of the Service and of its slices
	Frontends int // frontends that the Service requests
	Backends  int // endpoints, each once for every port that it may serve
}

// CostOf returns the cost to resolve v. It counts each slice without reading its endpoints.
func CostOf(v cluster.View, f lb.Family) Cost {
	c := Cost{Slices: len(v.Slices)}
	if v.Service == nil {
		return c
	}
	c.Ports = len(v.Service.Ports)
	outer := len(v.Service.LoadBalancerIPs) + len(v.Service.ExternalIPs)
	c.Frontends = 2*c.Ports + min(maxOuterFrontends, c.Ports*outer)
	s := Settings{Family: f}
	for _, sl := range v.Slices {
		if s.searched(sl) {
			c.Ports += len(sl.Ports)
			c.Backends += sl.Endpoints.Len() * max(1, min(len(sl.Ports), len(v.Service.Ports)))
		}
	}
	c.Ports = min(c.Ports, len(v.Service.Ports)+maxSlicePorts)
	return c
}
