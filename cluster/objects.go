package cluster

import (
	"net/netip"
	"slices"
	"unique"
)

// Name is a namespaced name.
type Name struct{ Namespace, Name string }

// String returns "namespace/name".
func (n Name) String() string { return n.Namespace + "/" + n.Name }

// Protocol is a transport protocol, by its IANA protocol number.
type Protocol uint8

// The protocols that a Service may have.
const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

// ServiceType is spec.type. ExternalName Services are not proxied, but are kept: a change of type must be seen.
type ServiceType uint8

// The types of a Service. TypeClusterIP is the API's default.
const (
	TypeClusterIP ServiceType = iota
	TypeNodePort
	TypeLoadBalancer
	TypeExternalName
)

// TrafficPolicy is spec.internalTrafficPolicy or spec.externalTrafficPolicy (SV-19).
type TrafficPolicy uint8

// The traffic policies. PolicyCluster is the API's default.
const (
	PolicyCluster TrafficPolicy = iota
	PolicyLocal
)

// Service is what the proxy uses of a core/v1 Service.
type Service struct {
	Name    Name
	Created int64 // metadata.creationTimestamp, seconds since 1970; 0 if unknown

	Type ServiceType
	// ClusterIPs has at most one address of each family, in the order of the API; none for headless
	// Services and those that have no address yet (SV-10, SV-11).
	ClusterIPs []netip.Addr
	// ExternalIPs are the parsable spec.externalIPs (SV-13).
	ExternalIPs []netip.Addr
	// LoadBalancerIPs are the status.loadBalancer.ingress[].ip whose ipMode is VIP or unset (SV-14).
	LoadBalancerIPs []netip.Addr
	// SourceRanges are spec.loadBalancerSourceRanges, parsed and masked (SV-15).
	SourceRanges []netip.Prefix

	InternalPolicy, ExternalPolicy TrafficPolicy
	// AffinitySeconds is the client affinity in seconds, 1..86400; 0 without affinity (SV-18).
	AffinitySeconds int32
	// HealthCheckNodePort is spec.healthCheckNodePort; 0 if none (SV-21).
	HealthCheckNodePort uint16
	// PreserveDestination is the annotation preserve-destination: pods get packets to external and load-balancer
	// addresses as they were sent, where the node can do that.
	PreserveDestination bool

	Ports []ServicePort
}

// ServicePort is one entry of spec.ports.
type ServicePort struct {
	Name     string
	Protocol Protocol
	Port     uint16
	NodePort uint16 // 0 if none (SV-17)
}

// Equal reports whether two Services are the same in everything that the proxy uses (SV-23).
func (s *Service) Equal(o *Service) bool {
	if s == nil || o == nil {
		return s == o
	}
	return s.Name == o.Name && s.Created == o.Created && s.Type == o.Type &&
		slices.Equal(s.ClusterIPs, o.ClusterIPs) &&
		slices.Equal(s.ExternalIPs, o.ExternalIPs) &&
		slices.Equal(s.LoadBalancerIPs, o.LoadBalancerIPs) &&
		slices.Equal(s.SourceRanges, o.SourceRanges) &&
		s.InternalPolicy == o.InternalPolicy && s.ExternalPolicy == o.ExternalPolicy &&
		s.AffinitySeconds == o.AffinitySeconds && s.HealthCheckNodePort == o.HealthCheckNodePort &&
		s.PreserveDestination == o.PreserveDestination &&
		slices.Equal(s.Ports, o.Ports)
}

// Slice is what the proxy uses of a discovery.k8s.io/v1 EndpointSlice.
type Slice struct {
	Name    Name
	Service Name // from the label kubernetes.io/service-name (SV-30)
	IPv6    bool // the address type; endpoints of another family are not in Endpoints
	Ports   []SlicePort
	// Endpoints have one address each, the API object's first (SV-31).
	Endpoints []Endpoint
	// Trigger is the annotation endpoints.kubernetes.io/last-change-trigger-time in nanoseconds since
	// 1970, 0 if absent (SV-35). It is no difference between two slices.
	Trigger int64
}

// SlicePort is one entry of a slice's ports. A port without a name has Name "" (a single unnamed port).
type SlicePort struct {
	Name     string
	Protocol Protocol
	Port     uint16
}

// Endpoint is one endpoint of a slice, with the API's defaults for absent conditions filled in (SV-32).
type Endpoint struct {
	Addr netip.Addr
	// Where it runs; the zero Handle if the API object does not say. Handles make a million endpoints share
	// the few places there are: as many as nodes, unless who writes slices means harm; never more than endpoints.
	Where                       unique.Handle[Place]
	Ready, Serving, Terminating bool
	// Hints are the topology hints; nil if the endpoint has none.
	Hints *Hints
}

// Place is where an endpoint runs, each part "" if the API object does not say.
type Place struct {
	Node string
	// Zone is for people: no packet depends on it, so that it is no difference between two endpoints. Who an endpoint
	// is meant for, its Hints say.
	Zone string
}

// At returns what [Endpoint].Where is on a node in a zone.
func At(node, zone string) unique.Handle[Place] {
	if node == "" && zone == "" {
		return unique.Handle[Place]{}
	}
	return unique.Make(Place{node, zone})
}

// Hints say for whom an endpoint is meant (SV-38).
type Hints struct{ Zones, Nodes []string }

// Place returns where the endpoint runs.
func (e *Endpoint) Place() Place {
	if e.Where == (unique.Handle[Place]{}) {
		return Place{}
	}
	return e.Where.Value()
}

// OnNode reports whether the endpoint runs on the node of that name; false if either is unknown (SV-33).
func (e *Endpoint) OnNode(name string) bool { return name != "" && e.Place().Node == name }

func (e Endpoint) equal(o Endpoint) bool {
	if e.Where != o.Where && e.Place().Node == o.Place().Node {
		o.Where = e.Where // only the zone is another
	}
	h, g := e.Hints, o.Hints
	e.Hints, o.Hints = nil, nil
	if e != o {
		return false
	}
	if h == nil || g == nil {
		return h == g
	}
	return slices.Equal(h.Zones, g.Zones) && slices.Equal(h.Nodes, g.Nodes)
}

// Equal reports whether two slices are the same in everything that decides about packets.
func (s *Slice) Equal(o *Slice) bool {
	if s == nil || o == nil {
		return s == o
	}
	return s.Name == o.Name && s.Service == o.Service && s.IPv6 == o.IPv6 &&
		slices.Equal(s.Ports, o.Ports) && slices.EqualFunc(s.Endpoints, o.Endpoints, Endpoint.equal)
}

// SamePlaces reports whether the endpoints of two equal slices run in the same places.
func (s *Slice) SamePlaces(o *Slice) bool {
	for i := range s.Endpoints {
		if s.Endpoints[i].Where != o.Endpoints[i].Where {
			return false
		}
	}
	return true
}

// Node is what the proxy uses of its own core/v1 Node.
type Node struct {
	Name string
	// Addrs are the node's addresses, internal ones before external ones, each group in the API's order
	// (PR-03).
	Addrs []netip.Addr
	// Zone is the label topology.kubernetes.io/zone; "" if absent.
	Zone string
	// PodCIDRs is spec.podCIDRs.
	PodCIDRs []netip.Prefix
	// Leaving: the node is being deleted or has the taint ToBeDeletedByClusterAutoscaler (HT-06).
	Leaving bool
}

// Equal reports whether two nodes are the same in everything that the proxy uses.
func (n *Node) Equal(o *Node) bool {
	if n == nil || o == nil {
		return n == o
	}
	return n.Name == o.Name && slices.Equal(n.Addrs, o.Addrs) && n.Zone == o.Zone &&
		slices.Equal(n.PodCIDRs, o.PodCIDRs) && n.Leaving == o.Leaving
}

// Addr returns the node's first address of the family, or the zero Addr.
func (n *Node) Addr(ipv6 bool) netip.Addr {
	if n != nil {
		for _, a := range n.Addrs {
			if a.Is6() == ipv6 {
				return a
			}
		}
	}
	return netip.Addr{}
}

// ServiceCIDR is a networking.k8s.io/v1 ServiceCIDR.
type ServiceCIDR struct {
	Name     string
	Prefixes []netip.Prefix
}
