package lb

import (
	"net/netip"
	"slices"
)

// Node is what a plane must know of the machine besides the rows.
type Node struct {
	// NodePorts are the prefixes whose addresses, where this machine holds them, answer NodePorts. A /0
	// means every local address. Sorted, no overlaps. Empty: NodePorts answer nowhere.
	NodePorts []netip.Prefix
	// Localhost is 127.0.0.1 or ::1 if a prefix that was asked for has loopback addresses alone and this one among them; not valid
	// else. A wider prefix of NodePorts may have it too and says nothing of that.
	Localhost netip.Addr
	// Pods recognises sources for routes from [Pods].
	Pods Detector
	// ServiceCIDRs is the service network: an address in it that no row of kind ClusterIP has is dropped
	// (SV-63). Sorted, no overlaps.
	ServiceCIDRs []netip.Prefix
	// APIServers are addresses of API servers, sorted. A plane that takes whole addresses for rows leaves these, but for cluster
	// IPs, where they are (TN-66). The text form of a table does not have them.
	APIServers []netip.Addr
}

// Equal reports whether two nodes are the same.
func (n Node) Equal(o Node) bool {
	return slices.Equal(n.NodePorts, o.NodePorts) && n.Localhost == o.Localhost && slices.Equal(n.ServiceCIDRs, o.ServiceCIDRs) && n.Pods.Equal(o.Pods) &&
		slices.Equal(n.APIServers, o.APIServers)
}

// Lends reports whether the row's address is of the service network though it is no cluster IP, so that its Service has
// it only until the address is assigned (SV-24). A nil row has none.
func (n Node) Lends(f *Frontend) bool {
	return f != nil && (f.Kind == ExternalIP || f.Kind == LoadBalancer) &&
		slices.ContainsFunc(n.ServiceCIDRs, func(p netip.Prefix) bool { return p.Contains(f.Key.Addr) })
}

// Detector tells traffic of pods from other traffic (CF-33). At most one field is set; the zero
// value recognises nothing (SV-67).
type Detector struct {
	// Prefixes: the source address lies in one of them (ClusterCIDR, NodeCIDR). Sorted, no overlaps.
	Prefixes []netip.Prefix
	// Interface: the packet came in through the interface of this name (BridgeInterface).
	Interface string
	// InterfacePrefix: the packet came in through an interface whose name starts so (InterfaceNamePrefix).
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
