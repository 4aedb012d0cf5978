package hns

import "kube-proxy/lb"

// Memory in HNS, in objects of 128 bytes: a load balancer with its policy, a reference to an
// endpoint, a remote endpoint.
const (
	balancerObjects  = 16
	referenceObjects = 1
	endpointObjects  = 16
)

// weigh implements the mode's Weigh: each address has a load balancer that names all endpoints, and
// a cluster IP may have an endpoint.
func weigh(s lb.Size) int {
	copies := s.Copies(1)
	return s.Ports*(copies*balancerObjects+endpointObjects) + s.Backends*(copies*referenceObjects+endpointObjects) +
		s.Ranged*balancerObjects
}
