package cluster

import (
	"cmp"
	"net/netip"
	"slices"
)

// Name is a namespaced name.
type Name struct{ Namespace, Name string }

// String returns "namespace/name".
func (n Name) String() string { return n.Namespace + "/" + n.Name }

// Compare orders names by namespace, and then by name.
func (n Name) Compare(o Name) int {
	return cmp.Or(cmp.Compare(n.Namespace, o.Namespace), cmp.Compare(n.Name, o.Name))
}

// Protocol is a transport protocol, by its IANA protocol number.
type Protocol uint8

// The protocols that a Service may have.
const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

// ServiceType is spec.type. ExternalName Services are not proxied, but are kept: a change of type
// must be seen.
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

// Service has the fields of a core/v1 Service that the proxy uses.
type Service struct {
	Name    Name
	Created int64 // metadata.creationTimestamp, seconds since 1970; 0 if unknown

	Type                           ServiceType
	InternalPolicy, ExternalPolicy TrafficPolicy
	// AffinitySeconds is the client affinity in seconds, 1..86400; 0 without affinity (SV-18).
	AffinitySeconds int32
	// HealthCheckNodePort is spec.healthCheckNodePort; 0 if none (SV-21).
	HealthCheckNodePort uint16
	// PreserveDestination is the annotation preserve-destination: pods get packets to external and
	// load-balancer addresses as they were sent, where the node can do that.
	PreserveDestination bool

	// ClusterIPs has at most one address of each family, in the order of the API; none for headless
	// Services and those that have no address yet (SV-10, SV-11).
	ClusterIPs []netip.Addr
	// ExternalIPs are the parsable spec.externalIPs (SV-13).
	ExternalIPs []netip.Addr
	// LoadBalancerIPs are the status.loadBalancer.ingress[].ip whose ipMode is VIP or unset
	// (SV-14).
	LoadBalancerIPs []netip.Addr
	// SourceRanges are spec.loadBalancerSourceRanges, parsed and masked (SV-15).
	SourceRanges []netip.Prefix

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
	return s.Name == o.Name && s.Created == o.Created && s.Type == o.Type && slices.Equal(s.ClusterIPs, o.ClusterIPs) &&
		slices.Equal(s.ExternalIPs, o.ExternalIPs) && slices.Equal(s.LoadBalancerIPs, o.LoadBalancerIPs) &&
		slices.Equal(s.SourceRanges, o.SourceRanges) &&
		s.InternalPolicy == o.InternalPolicy && s.ExternalPolicy == o.ExternalPolicy &&
		s.AffinitySeconds == o.AffinitySeconds && s.HealthCheckNodePort == o.HealthCheckNodePort &&
		s.PreserveDestination == o.PreserveDestination && slices.Equal(s.Ports, o.Ports)
}

// HasHealthCheck reports whether every node answers at the Service's health check NodePort: only a
// Service of type LoadBalancer with external policy Local has one, because with policy Cluster all
// nodes are equal (SV-21).
func (s *Service) HasHealthCheck() bool {
	return s.HealthCheckNodePort != 0 && s.Type == TypeLoadBalancer && s.ExternalPolicy == PolicyLocal
}

// Slice has the fields of a discovery.k8s.io/v1 EndpointSlice that the proxy uses.
type Slice struct {
	Name    Name
	Service Name // from the label kubernetes.io/service-name (SV-30)
	IPv6    bool // the address type; endpoints of another family are not in Endpoints
	Ports   []SlicePort
	// Endpoints have one address each, the API object's first (SV-31).
	Endpoints Endpoints
	// Unused are further addresses of the endpoints, which get no packets; at most [MaxUnused] of
	// them are kept, to be explained.
	Unused []netip.Addr
	// Trigger is the annotation endpoints.kubernetes.io/last-change-trigger-time in nanoseconds
	// since 1970, 0 if absent (SV-35). It is no difference between two slices.
	Trigger int64
}

// MaxUnused bounds Slice.Unused.
const MaxUnused = 8

// Equal reports whether two slices are the same in everything that decides about packets, or
// explains them.
func (s *Slice) Equal(o *Slice) bool {
	if s == nil || o == nil {
		return s == o
	}
	return s.Name == o.Name && s.Service == o.Service && s.IPv6 == o.IPv6 &&
		slices.Equal(s.Ports, o.Ports) && s.Endpoints.equal(&o.Endpoints) && slices.Equal(s.Unused, o.Unused)
}

// SamePlaces reports whether the endpoints of two equal slices run in the same places.
func (s *Slice) SamePlaces(o *Slice) bool { return slices.Equal(s.Endpoints.where, o.Endpoints.where) }

// SlicePort is one entry of a slice's ports. A port without a name has Name "" (a single unnamed
// port).
type SlicePort struct {
	Name     string
	Protocol Protocol
	Port     uint16
}

// Node has the fields of the proxy's own core/v1 Node that the proxy uses.
type Node struct {
	Name string
	// Addrs are the node's addresses, internal ones before external ones, each group in the API's
	// order (PR-03).
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

// ServiceCIDR is a networking.k8s.io/v1 ServiceCIDR.
type ServiceCIDR struct {
	Name     string
	Prefixes []netip.Prefix
}
