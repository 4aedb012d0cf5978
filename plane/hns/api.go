package hns

import (
	"context"
	"encoding/json"
)

// HNS are the calls of schema version 2 to the Host Networking Service that this package needs.
// Windows and package hnsfake implement it. Each call is one or more round trips.
//
// Errors are of type [*Error]; their Kind says what happened. A call that ends with its context
// returns [ErrTimeout] and may still take effect. Lists contain all objects, also those of other
// programs. They are not snapshots: HNS lists ids and returns each object separately.
//
// Implementations are safe for concurrent use.
type HNS interface {
	// Features returns the features of this version of HNS.
	Features(context.Context) (Features, error)
	// Networks lists the networks with that name: none, one or several.
	Networks(ctx context.Context, name string) ([]Network, error)
	// Endpoints lists the endpoints of the network with that id.
	Endpoints(ctx context.Context, network string) ([]Endpoint, error)
	// EndpointsAt lists the network's endpoints with an address. HNS may ignore the filter and
	// return all endpoints, or not know it and return none.
	EndpointsAt(ctx context.Context, network, address string) ([]Endpoint, error)
	// CreateEndpoint creates an endpoint in e.HostComputeNetwork, and returns it with its ID.
	CreateEndpoint(ctx context.Context, e Endpoint) (Endpoint, error)
	// DeleteEndpoint deletes an endpoint that no load balancer uses.
	DeleteEndpoint(ctx context.Context, id string) error
	// LoadBalancers lists all load balancers.
	LoadBalancers(context.Context) ([]LoadBalancer, error)
	// CreateLoadBalancer creates a load balancer, and returns it with its ID.
	CreateLoadBalancer(ctx context.Context, l LoadBalancer) (LoadBalancer, error)
	// ModifyLoadBalancer replaces the endpoints of the load balancer l.ID; all else must stay. It
	// requires [Features.ModifyLoadbalancer].
	ModifyLoadBalancer(ctx context.Context, l LoadBalancer) (LoadBalancer, error)
	// DeleteLoadBalancer deletes a load balancer, but not its endpoints.
	DeleteLoadBalancer(ctx context.Context, id string) error
}

// Features are the features of a version of HNS, named as in hcn.SupportedFeatures.
type Features struct {
	// DSR: load balancers may have [FlagDSR].
	DSR bool
	// SessionAffinity: port mappings may have a Distribution other than [PerConnection].
	SessionAffinity bool
	// IPv6DualStack: endpoints may have IPv6 addresses, load balancers [FlagIPv6].
	IPv6DualStack bool
	// ModifyLoadbalancer: endpoints of load balancers can be replaced.
	ModifyLoadbalancer bool
	// RemoteSubnet: overlay networks route to the pods of other nodes.
	RemoteSubnet bool
	// V2: the calls of schema version 2.
	V2 bool
	// Build is the build of Windows, "10.0.20348", and Version the version of HNS, "15.4"; "" if
	// unknown.
	Build, Version string
}

// Version is a schema version.
type Version struct{ Major, Minor int }

// Version2 is the schema version of all requests.
var Version2 = Version{Major: 2}

// NetworkType is how a network carries packets.
type NetworkType string

// The types of networks that this package serves. HNS writes them in any case.
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
	// ManagementIP is the node's IPv4 address in the network, from schema version 1. It is empty
	// while HNS creates the network.
	ManagementIP string `json:",omitempty"`
	// HostMAC is the hardware address of the interface with the ManagementIP, as Windows reports
	// it: "00-15-5D-00-00-01".
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

// The types of policies that this package uses.
const (
	// PolicyProviderAddress is the node to which an overlay network sends an endpoint's packets;
	// its Settings are an [AddressSetting].
	PolicyProviderAddress = "ProviderAddress"
	// PolicyRemoteSubnetRoute, of networks, routes to the pods of another node; its Settings are a
	// [RemoteSubnet].
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

// RemoteEndpoint: the endpoint is not a container of this node.
const RemoteEndpoint EndpointFlags = 1

// Endpoint is an HNS endpoint (hcn.HostComputeEndpoint): an address for load balancers.
type Endpoint struct {
	ID                 string `json:",omitempty"`
	Name               string `json:",omitempty"`
	HostComputeNetwork string `json:",omitempty"` // the network's ID
	// HostComputeNamespace is the network namespace of the endpoint's container; only HNS sets it.
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
	// FlagDSR is direct server return: backends see the client's address and answer it directly.
	FlagDSR LoadBalancerFlags = 1
	// FlagIPv6: the addresses are IPv6.
	FlagIPv6 LoadBalancerFlags = 2
)

// LoadBalancer is an HNS load balancer (hcn.HostComputeLoadBalancer): it sends packets for its
// addresses and external ports to the internal ports of its endpoints. Without FrontendVIPs it
// serves the node's own addresses.
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
	// MappingILB: only clients behind this node's virtual switch are served.
	MappingILB PortMappingFlags = 1
	// MappingLocalRoutedVIP: the node is served and, without FrontendVIPs, its pods
	// (kubernetes/kubernetes#74825).
	MappingLocalRoutedVIP PortMappingFlags = 2
	// MappingUseMux: a multiplexer in front of the nodes selected this one; with FlagDSR.
	MappingUseMux PortMappingFlags = 4
	// MappingPreserveDIP: packets keep the frontend's address as their destination; with FlagDSR.
	MappingPreserveDIP PortMappingFlags = 8
	// MappingVIPExternal: clients outside use the address, and connections keep their endpoint when
	// others change (kubernetes/kubernetes#113742). Windows Server 2022 and later.
	MappingVIPExternal PortMappingFlags = 16
)

// Distribution is how a load balancer chooses an endpoint.
type Distribution uint32

// The distributions.
const (
	// PerConnection: each connection on its own.
	PerConnection Distribution = 0
	// PerClientAndProtocol: all connections of a client and protocol to one endpoint.
	PerClientAndProtocol Distribution = 1
	// PerClient: all connections of a client to one endpoint.
	PerClient Distribution = 2
)

// PortMapping maps a frontend's port to the endpoints' port.
type PortMapping struct {
	Protocol         uint32           `json:",omitempty"` // of IANA
	InternalPort     uint16           `json:",omitempty"`
	ExternalPort     uint16           `json:",omitempty"`
	DistributionType Distribution     `json:",omitempty"`
	Flags            PortMappingFlags `json:",omitempty"`
}
