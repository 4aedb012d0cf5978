package policy

import (
	"net/netip"

	"kube-proxy/lb"
)

// LocalMode is the method to distinguish pods' traffic from other traffic: --detect-local-mode.
type LocalMode string

// The local-traffic detectors of CF-33.
const (
	ClusterCIDR         LocalMode = "ClusterCIDR"
	NodeCIDR            LocalMode = "NodeCIDR"
	BridgeInterface     LocalMode = "BridgeInterface"
	InterfaceNamePrefix LocalMode = "InterfaceNamePrefix"
)

// Settings is the part of the configuration that frontends depend on, for one family.
type Settings struct {
	Family lb.Family
	// MasqueradeAll: every connection to a cluster IP is masqueraded (SV-58).
	MasqueradeAll bool
	// DetectLocal chooses the detector; "" means ClusterCIDR.
	DetectLocal LocalMode
	// ClusterCIDRs are the pod networks of the cluster, of any family; those of the other family
	// are ignored (CF-66).
	ClusterCIDRs []netip.Prefix
	// PodInterface is the bridge's name, or the prefix of interface names, in the modes
	// BridgeInterface and InterfaceNamePrefix.
	PodInterface string
	// NoExternalIPs: spec.externalIPs are not served (SV-13, the feature gate
	// AllowServiceExternalIPs). With external IPs, an author of Services can take over the
	// cluster's traffic to an address of others.
	NoExternalIPs bool
	// ExternalIPCIDRs are the only networks, of any family, in which addresses of spec.externalIPs
	// are served (--external-ip-cidrs); empty means all. Load-balancer addresses need no
	// permission, because no tenant writes them.
	ExternalIPCIDRs []netip.Prefix
	// Weigh returns how many objects the plane writes for a Service (see mode.Mode); nil: objects
	// are not limited.
	Weigh func(lb.Size) int
	// MaxObjects is the limit of objects for the Services of a namespace in the family, a quarter
	// of it for each Service; 0: no limit. Older is the number of objects of older Services of the
	// namespace.
	MaxObjects, Older int
	// NodePortAddrs chooses the addresses that answer NodePorts.
	NodePortAddrs NodePortAddrs
	// OwnPorts are the TCP ports of the proxy's servers and of the kubelet on this machine. No
	// Service has them at an address of the machine, nor as NodePorts (TN-98).
	OwnPorts []OwnPort

	// reserved holds the keys that the current Service requests and must not have, and why; see
	// [Settings.reserve].
	reserved map[lb.Key]string
}

// OwnPort is a TCP port of a server of this machine.
type OwnPort struct {
	Port uint16
	// Of is a possessive for sentences: "the kubelet's".
	Of string
}

// KubeletPort is the port of the kubelet's API on every node.
const KubeletPort = 10250

// NodePortAddrs is the parsed --nodeport-addresses.
type NodePortAddrs struct {
	// Primary adds the node's own address (the keyword "primary").
	Primary bool
	// Prefixes adds all local addresses in them. Prefixes of the other family are ignored; if
	// Prefixes has none of this family and Primary is false, every local address answers (CF-65).
	Prefixes []netip.Prefix
	// NodeIP overrides the Node object's address for Primary and for source ranges
	// (--bind-address).
	NodeIP netip.Addr
}
