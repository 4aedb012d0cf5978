package lb

import (
	"net/netip"
	"slices"
)

// Node holds the facts of this machine that a plane needs beside the frontends.
type Node struct {
	// NodePorts are the prefixes whose addresses, where this machine holds them, answer NodePorts.
	// A /0 means every local address. Sorted, no overlaps. Empty: NodePorts answer nowhere.
	NodePorts []netip.Prefix
	// Localhost is 127.0.0.1 or ::1 if a configured prefix other than /0 contains it; otherwise
	// invalid.
	Localhost netip.Addr
	// Pods recognises sources for routes from [Pods].
	Pods Detector
	// ServiceCIDRs is the service network: packets to an address in it without a frontend of kind
	// ClusterIP are dropped (SV-63). Sorted, no overlaps.
	ServiceCIDRs []netip.Prefix
	// APIServers are addresses of API servers, sorted. A plane that takes over whole addresses for
	// frontends leaves these out, except for cluster IPs (TN-66). The text form of a table does not
	// have them.
	APIServers []netip.Addr
}

// Equal reports whether two nodes are the same.
func (n Node) Equal(o Node) bool {
	return slices.Equal(n.NodePorts, o.NodePorts) && n.Localhost == o.Localhost && slices.Equal(n.ServiceCIDRs,
		o.ServiceCIDRs) && n.Pods.Equal(o.Pods) && slices.Equal(n.APIServers, o.APIServers)
}

// IsProvisional reports whether the frontend's address is of the service network but not a cluster
// IP. Its Service is then only the provisional owner, until the address is assigned (SV-24). For a
// nil frontend it returns false.
func (n Node) IsProvisional(f *Frontend) bool {
	return f != nil && (f.Kind == ExternalIP || f.Kind == LoadBalancer) && Within(n.ServiceCIDRs, f.Key.Addr)
}

// Within reports whether one of the prefixes contains the address.
func Within(all []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(all, func(p netip.Prefix) bool { return p.Contains(a) })
}

// Detector distinguishes pods' traffic from other traffic (CF-33). At most one field is set; the
// zero value recognises nothing (SV-67).
type Detector struct {
	// Prefixes contain the source address (ClusterCIDR, NodeCIDR). Sorted, no overlaps.
	Prefixes []netip.Prefix
	// Interface: the packet's input interface has this name (BridgeInterface).
	Interface string
	// InterfacePrefix: the name of the packet's input interface has this prefix
	// (InterfaceNamePrefix).
	InterfacePrefix string
}

// IsZero reports whether d recognises nothing.
func (d Detector) IsZero() bool {
	return len(d.Prefixes) == 0 && d.Interface == "" && d.InterfacePrefix == ""
}

// Equal reports whether two detectors recognise the same.
func (d Detector) Equal(o Detector) bool {
	return d.Interface == o.Interface && d.InterfacePrefix == o.InterfacePrefix && slices.Equal(d.Prefixes, o.Prefixes)
}
