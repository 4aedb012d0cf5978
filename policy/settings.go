package policy

import (
	"net/netip"

	"kube-proxy/lb"
)

// LocalMode is how traffic of pods is told from other traffic: --detect-local-mode.
type LocalMode string

// The local-traffic detectors of CF-33.
const (
	ClusterCIDR         LocalMode = "ClusterCIDR"
	NodeCIDR            LocalMode = "NodeCIDR"
	BridgeInterface     LocalMode = "BridgeInterface"
	InterfaceNamePrefix LocalMode = "InterfaceNamePrefix"
)

// Settings are the parts of the configuration that rows depend on, for one family.
type Settings struct {
	Family lb.Family
	// MasqueradeAll: every connection to a cluster IP is masqueraded (SV-58).
	MasqueradeAll bool
	// DetectLocal chooses the detector; "" means ClusterCIDR.
	DetectLocal LocalMode
	// ClusterCIDRs are the pod networks of the cluster, of any family; those of another family are
	// ignored (CF-66).
	ClusterCIDRs []netip.Prefix
	// PodInterface is the bridge's name, or the prefix of interface names, in the modes BridgeInterface
	// and InterfaceNamePrefix.
	PodInterface string
	// NoExternalIPs: spec.externalIPs are not served (SV-13, the feature gate AllowServiceExternalIPs). Whoever may
	// write Services can otherwise take an address of others for the cluster's traffic to it.
	NoExternalIPs bool
	// ExternalIPCIDRs are the only networks, of any family, whose addresses are served where spec.externalIPs names them
	// (--external-ip-cidrs); empty means all. Load-balancer addresses, which no tenant writes, need no leave.
	ExternalIPCIDRs []netip.Prefix
	// Weigh says how many objects the plane writes for a Service (mode.Mode has what it is); nil: objects are not bounded.
	Weigh func(lb.Size) int
	// MaxObjects is how many objects the Services of a namespace may have in the family, each of them a quarter at most; 0: any
	// number. Older is how many of them older Services of the namespace have.
	MaxObjects, Older int
	// NodePortAddrs chooses the addresses that answer NodePorts.
	NodePortAddrs NodePortAddrs

	// reserved are the addresses of API servers with whose port the Service in hand names them, see [Settings.reserve].
	reserved []netip.Addr
}

// NodePortAddrs is the parsed --nodeport-addresses.
type NodePortAddrs struct {
	// Primary adds the node's own address (the keyword "primary").
	Primary bool
	// Prefixes adds all local addresses in them. Prefixes of the other family are ignored; if Prefixes
	// has none of this family and Primary is false, every local address answers (CF-65).
	Prefixes []netip.Prefix
	// NodeIP overrides the Node object's address for Primary and for source ranges (--bind-address).
	NodeIP netip.Addr
}
