package hns

import (
	"context"
	"encoding/json"
)

// HNS is what this package asks of the Host Networking Service of Windows: calls of schema version 2, by the client on Windows, and by
// package hnsfake in tests. Each of them is a round trip, or several, to a service of the system; there are no transactions.
//
// An error is an [*Error], whose Kind tells what became of the call. A call that ends with its context returns one of kind
// [ErrTimeout]: what it asked for may still happen. The lists are of all objects, of other programs too; they are a picture of no
// one moment, for HNS lists ids and is then asked for each.
//
// It is safe for concurrent use: the planes of both families use one.
type HNS interface {
	// Features tells what this version of HNS can.
	Features(context.Context) (Features, error)
	// Networks lists the networks of that name, which HNS does not keep from being several; none is no error.
	Networks(ctx context.Context, name string) ([]Network, error)
	// Endpoints lists the endpoints of the network with that id.
	Endpoints(ctx context.Context, network string) ([]Endpoint, error)
	// EndpointsAt asks HNS for those of the network that have that address, such as a pod's that came after the last list. HNS may ignore
	// the filter and return all of the network, or know it not and return none though there is one.
	EndpointsAt(ctx context.Context, network, address string) ([]Endpoint, error)
	// CreateEndpoint makes an endpoint in the network e.HostComputeNetwork, and returns it with its ID, which HNS makes.
	CreateEndpoint(ctx context.Context, e Endpoint) (Endpoint, error)
	// DeleteEndpoint deletes an endpoint that no load balancer uses.
	DeleteEndpoint(ctx context.Context, id string) error
	// LoadBalancers lists all load balancers.
	LoadBalancers(context.Context) ([]LoadBalancer, error)
	// CreateLoadBalancer makes a load balancer, and returns it with its ID, which HNS makes.
	CreateLoadBalancer(ctx context.Context, l LoadBalancer) (LoadBalancer, error)
	// ModifyLoadBalancer makes the load balancer l.ID what l says, where [Features.ModifyLoadbalancer] is set. Only its endpoints
	// may be others: what it answers to stays.
	ModifyLoadBalancer(ctx context.Context, l LoadBalancer) (LoadBalancer, error)
	// DeleteLoadBalancer deletes a load balancer. Its endpoints stay.
	DeleteLoadBalancer(ctx context.Context, id string) error
}

// Features are what a version of HNS can, with the names of hcn.SupportedFeatures.
type Features struct {
	// DSR: load balancers may have [FlagDSR].
	DSR bool
	// SessionAffinity: port mappings may have a Distribution other than [PerConnection].
	SessionAffinity bool
	// IPv6DualStack: endpoints may have an address of each family, load balancers may have [FlagIPv6].
	IPv6DualStack bool
	// ModifyLoadbalancer: load balancers may get other endpoints.
	ModifyLoadbalancer bool
	// RemoteSubnet: overlay networks lead to the pods of other nodes.
	RemoteSubnet bool
	// V2: the calls of schema version 2, without which there is none of the others.
	V2 bool
	// Build is that of Windows, "10.0.20348"; "" where it is not known.
	Build string
}

// Version is that of a schema. Requests have 2.0.
type Version struct{ Major, Minor int }

// Version2 is the schema's version of all requests.
var Version2 = Version{Major: 2}

// NetworkType is how a network carries packets.
type NetworkType string

// The types of networks that this package serves. HNS has others. It writes them in any case.
const (
	L2Bridge NetworkType = "L2Bridge"
	L2Tunnel NetworkType = "L2Tunnel"
	Overlay  NetworkType = "Overlay"
)

// Network is an HNS network (hcn.HostComputeNetwork).
type Network struct {
	ID       string      `json:",omitempty"`
	Name     string      `json:",omitempty"`
	Type     NetworkType `json:",omitempty"`
	Policies []Policy    `json:",omitempty"`
	Ipams    []Ipam      `json:",omitempty"`
	// ManagementIP is the node's own IPv4 address in the network. Only schema version 1 has it, which the client asks for it; it is empty
	// while HNS is still making the network.
	ManagementIP string `json:",omitempty"`
	// HostMAC is the hardware address of the node's interface with the ManagementIP, "00-15-5D-00-00-01"; HNS does not know it, the
	// client asks Windows.
	HostMAC string `json:",omitempty"`
}

// Ipam is an address space of a network.
type Ipam struct {
	Type    string   `json:",omitempty"` // "Static" or "DHCP"
	Subnets []Subnet `json:",omitempty"`
}

// Subnet is a part of an address space.
type Subnet struct {
	IPAddressPrefix string   `json:"IpAddressPrefix,omitempty"`
	Policies        []Policy `json:",omitempty"`
	Routes          []Route  `json:",omitempty"`
}

// Route is a route of a subnet or an endpoint.
type Route struct {
	NextHop           string `json:",omitempty"`
	DestinationPrefix string `json:",omitempty"`
	Metric            uint16 `json:",omitempty"`
}

// The types of policies that this package reads or writes.
const (
	// PolicyProviderAddress, of endpoints and networks: the address of the node that an overlay network sends packets to, in an
	// [AddressSetting].
	PolicyProviderAddress = "ProviderAddress"
	// PolicyRemoteSubnetRoute, of networks: the pods of another node, in a [RemoteSubnet].
	PolicyRemoteSubnetRoute = "RemoteSubnetRoute"
)

// Policy is a setting of a network or an endpoint.
type Policy struct {
	Type     string
	Settings json.RawMessage `json:",omitempty"`
}

// AddressSetting are the Settings of PolicyProviderAddress.
type AddressSetting struct {
	ProviderAddress string `json:",omitempty"`
}

// RemoteSubnet are the Settings of PolicyRemoteSubnetRoute.
type RemoteSubnet struct {
	DestinationPrefix           string
	IsolationId                 uint16 // its name in the schema
	ProviderAddress             string
	DistributedRouterMacAddress string
}

// EndpointFlags are settings of an endpoint.
type EndpointFlags uint32

// RemoteEndpoint: the endpoint is on another node, or is not one of HNS on this.
const RemoteEndpoint EndpointFlags = 1

// Endpoint is an HNS endpoint (hcn.HostComputeEndpoint): an address that load balancers may send to.
type Endpoint struct {
	ID                 string `json:",omitempty"`
	Name               string `json:",omitempty"`
	HostComputeNetwork string `json:",omitempty"` // the network's ID
	// HostComputeNamespace is the network namespace of the container that has the endpoint; only HNS sets it.
	HostComputeNamespace string        `json:",omitempty"`
	Policies             []Policy      `json:",omitempty"`
	IPConfigurations     []IPConfig    `json:"IpConfigurations,omitempty"`
	MacAddress           string        `json:",omitempty"` // "02-11-0A-01-02-0E"
	Flags                EndpointFlags `json:",omitempty"`
	SchemaVersion        Version
}

// IPConfig is an address of an endpoint.
type IPConfig struct {
	IPAddress    string `json:"IpAddress,omitempty"`
	PrefixLength uint8  `json:",omitempty"`
}

// LoadBalancerFlags are settings of a load balancer.
type LoadBalancerFlags uint32

// The flags of load balancers.
const (
	// FlagDSR: backends answer clients directly; the node does not put its own address in the client's place.
	FlagDSR LoadBalancerFlags = 1
	// FlagIPv6: the addresses are of IPv6.
	FlagIPv6 LoadBalancerFlags = 2
)

// LoadBalancer is an HNS load balancer (hcn.HostComputeLoadBalancer): it leads packets to its frontends' addresses and external ports
// to its endpoints' internal ports. Without FrontendVIPs it answers on the node's own addresses.
type LoadBalancer struct {
	ID                   string        `json:",omitempty"`
	HostComputeEndpoints []string      `json:",omitempty"` // their IDs
	SourceVIP            string        `json:",omitempty"` // the client's address as backends see it, without FlagDSR
	FrontendVIPs         []string      `json:",omitempty"`
	PortMappings         []PortMapping `json:",omitempty"`
	SchemaVersion        Version
	Flags                LoadBalancerFlags `json:",omitempty"`
}

// PortMappingFlags are settings of a port mapping.
type PortMappingFlags uint32

// The flags of port mappings.
const (
	// MappingILB: only who is behind this node's virtual switch may use it. Without it who comes from outside of the node may too
	//.
	MappingILB PortMappingFlags = 1
	// MappingLocalRoutedVIP: the node itself may use it and, where there are no FrontendVIPs, this node's pods
	// (kubernetes/kubernetes#74825).
	MappingLocalRoutedVIP PortMappingFlags = 2
	// MappingUseMux: a multiplexer in front of the nodes has chosen this one; with FlagDSR.
	MappingUseMux PortMappingFlags = 4
	// MappingPreserveDIP: the destination stays the frontend's address, as the load balancer in front of the nodes sent it; with
	// FlagDSR.
	MappingPreserveDIP PortMappingFlags = 8
	// MappingVIPExternal: the frontend's address is one of clients outside; connections stay with their endpoint while others come and
	// go (kubernetes/kubernetes#113742). Windows Server 2022 and later have it.
	MappingVIPExternal PortMappingFlags = 16
)

// Distribution is how a load balancer chooses an endpoint.
type Distribution uint32

// The distributions.
const (
	// PerConnection: each connection by itself.
	PerConnection Distribution = 0
	// PerClientAndProtocol: a client's connections of one protocol go to the same endpoint.
	PerClientAndProtocol Distribution = 1
	// PerClient: a client's connections go to the same endpoint.
	PerClient Distribution = 2
)

// PortMapping leads a frontend's port to the endpoints' port.
type PortMapping struct {
	Protocol         uint32           `json:",omitempty"` // of IANA
	InternalPort     uint16           `json:",omitempty"`
	ExternalPort     uint16           `json:",omitempty"`
	DistributionType Distribution     `json:",omitempty"`
	Flags            PortMappingFlags `json:",omitempty"`
}
