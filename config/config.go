package config

import (
	"net/netip"
	"time"
)

// Config is all that the process was asked to do, validated.
type Config struct {
	// Mode is the data plane: always "nftables" so far.
	Mode string
	// NodeName is the name of this machine's Node: lower case, no blanks around, never empty.
	NodeName string
	// BindAddress stands for the node instead of its Node object's addresses; unspecified (0.0.0.0 or ::)
	// leaves it to the Node object.
	BindAddress netip.Addr

	// Manifests is the folder to serve from; "" means an API server.
	Manifests string
	API       API

	// ClusterCIDRs are the pod networks, at most one of each family, without host bits.
	ClusterCIDRs []netip.Prefix
	DetectLocal  DetectLocal
	NodePorts    NodePorts

	// MasqueradeAll: every connection to a cluster IP is masqueraded (SV-58).
	MasqueradeAll bool
	NFTables      NFTables

	// Verbosity is how much is logged, from 0.
	Verbosity int
	// Warnings are for the log: what was ignored, and what has no effect.
	Warnings []string
}

// API says how to reach the API server. With neither Kubeconfig nor Master the pod's own credentials serve.
type API struct {
	Kubeconfig string
	Master     string
	// QPS is requests a second, negative for no limit; Burst is how many may come at once.
	QPS   float32
	Burst int
}

// DetectLocal says how traffic of this node's pods is recognised.
type DetectLocal struct {
	// Mode is ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix.
	Mode string
	// Interface is the bridge's name, or what interface names begin with; "" in the other modes.
	Interface string
}

// NodePorts says which addresses of this machine answer NodePorts.
type NodePorts struct {
	// Primary: the node's own addresses.
	Primary bool
	// Prefixes: all local addresses in them; a /0 means all of its family. Without host bits.
	Prefixes []netip.Prefix
}

// NFTables holds what only the mode nftables uses.
type NFTables struct {
	// MasqueradeBit is the bit of the packet mark that asks for masquerading, 0 to 31.
	MasqueradeBit int
	// SyncPeriod is the time between two full comparisons with the kernel; 0 leaves it to the engine.
	SyncPeriod time.Duration
	// MinSyncPeriod is the least time between two writes; 0 for none.
	MinSyncPeriod time.Duration
}
