package config

import (
	"net/netip"
	"time"

	"kube-proxy/mode"
)

// Config is all that the process was asked to do, validated.
type Config struct {
	// Mode is the data plane that is asked for: one of those that this version contains, one that gives way, or ""
	// for the best that this machine can do. What depends on the mode that runs in the end, [Config.For] says.
	Mode string
	// Version is the Kubernetes version to report as the one that this proxy stands in for, as "v1.37.2".
	Version string
	// NodeName is the name of this machine's Node: lower case, no blanks around, never empty.
	NodeName string
	// BindAddress stands for the node instead of its Node object's addresses; unspecified (0.0.0.0 or ::)
	// leaves it to the Node object.
	BindAddress netip.Addr

	// MachineID and BootID are what the host calls itself and its present life; "" if unknown.
	MachineID, BootID string

	// Manifests is the folder to serve from; "" means an API server.
	Manifests string
	API       API

	// ClusterCIDRs are the pod networks, at most one of each family, without host bits.
	ClusterCIDRs []netip.Prefix
	DetectLocal  DetectLocal
	// NodePorts are as asked for. What it means in a mode if nobody asked, [Config.For] says.
	NodePorts NodePorts

	// ExternalIPCIDRs are the only networks of which spec.externalIPs are served; none means all.
	ExternalIPCIDRs []netip.Prefix
	// MaxNamespaceObjects is how many objects the Services of a namespace may have in a family; 0 for any number.
	MaxNamespaceObjects int

	NFTables  Tables
	IPTables  Tables
	EBPF      Tables
	IPVS      IPVS
	Userspace Userspace
	Windows   Windows

	Servers   Servers
	Conntrack Conntrack
	// OOMScoreAdj is for /proc/self/oom_score_adj, -1000 to 1000.
	OOMScoreAdj int
	// Gates is the state of every feature gate that a proxy of today knows; see [Config.GateStages].
	Gates map[string]bool

	// Cleanup names the modes whose rules are to be removed instead of running; none, to run.
	Cleanup []string
	// InitOnly: make the settings that need full privileges, and exit.
	InitOnly bool
	// WriteConfigTo is the file to write [Config.YAML] to before the process ends; "" for none.
	WriteConfigTo string
	// File is the configuration file, to be watched; "" if flags say all.
	File string

	Logging Logging
	// Flags has a line for each flag, as the log shows them at verbosity 1 and more (FL-05).
	Flags []string
	// Warnings are for the log: what was ignored, and what has no effect in any mode. [Config.For] has those that
	// depend on the mode.
	Warnings []string

	file  settings
	modes mode.List
	// unchecked and inMode are problems and warnings that count only if the mode runs.
	unchecked map[string]Problems
	inMode    map[string][]string
	names     map[string]string // of fields, as the user knows them
}

// Name returns what the user knows a field by: the flag that stands for it, or the field where the file says it.
func (c *Config) Name(field string) string { return c.names[field] }

// API says how to reach the API server. With neither Kubeconfig nor Master the pod's own credentials serve.
type API struct {
	Kubeconfig string
	Master     string
	// QPS is requests a second, negative for no limit; Burst is how many may come at once.
	QPS   float32
	Burst int
	// ContentType is the media type of requests, AcceptContentTypes those of answers; "" for the client's own.
	ContentType, AcceptContentTypes string
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
	// Unset: nobody asked for any of that, it is the default of the mode (CF-64).
	Unset bool
}

// Tables holds what nftables, iptables and ebpf have each for itself. iptables' also serve ipvs and userspace.
type Tables struct {
	// MasqueradeBit is the bit of the packet mark that asks for masquerading, 0 to 31.
	MasqueradeBit int
	// MasqueradeAll: every connection to a cluster IP is masqueraded (SV-58).
	MasqueradeAll bool
	// LocalhostNodePorts: NodePorts answer on 127.0.0.1.
	LocalhostNodePorts bool
	// SyncPeriod is the time between two full comparisons with the kernel; 0 leaves it to the engine.
	SyncPeriod time.Duration
	// MinSyncPeriod is the least time between two writes; 0 for none.
	MinSyncPeriod time.Duration
}

// IPVS holds what only the mode ipvs uses.
type IPVS struct {
	SyncPeriod, MinSyncPeriod time.Duration
	// Scheduler is the kernel's name of it; "" where nobody asks for one.
	Scheduler string
	// ExcludeCIDRs hold virtual servers that are not ours.
	ExcludeCIDRs []netip.Prefix
	StrictARP    bool
	// Timeouts of the kernel, which counts whole seconds; 0 leaves what is there.
	TCPTimeout, TCPFinTimeout, UDPTimeout time.Duration
}

// Userspace holds what only the mode userspace uses.
type Userspace struct {
	// FirstPort to LastPort may be listened on; both 0 for any.
	FirstPort, LastPort uint16
	UDPIdleTimeout      time.Duration
	// TerminationGracePeriod bounds how long connections to what was removed go on; 0 for no bound.
	TerminationGracePeriod time.Duration
	// DrainTimeout bounds how long connections go on when the process is asked to end.
	DrainTimeout time.Duration
	// NodeEndpoints: endpoints at the node's own addresses get connections.
	NodeEndpoints bool
	// Fallback: the mode runs where the one that was asked for cannot.
	Fallback bool
}

// Windows holds what only Windows uses.
type Windows struct {
	Service               bool
	NetworkName           string
	SourceVIP             netip.Addr // not valid if not given
	EnableDSR             bool
	RootHNSEndpointName   string
	ForwardHealthCheckVIP bool
	IgnoreSourceRanges    bool
}

// Servers says where health and metrics are served.
type Servers struct {
	// Healthz and Metrics are not valid where there shall be no server.
	Healthz, Metrics netip.AddrPort
	// HardFail ends the process when one of them cannot listen.
	HardFail  bool
	Profiling bool
	// AdminSocket is the path of the socket for questions of people; "" for none.
	AdminSocket string
	// ServiceMetrics is how many Services have metrics of their traffic, 0 to MostServiceMetrics; 0: none is counted.
	ServiceMetrics int
	// ShowHiddenMetricsFor is "1.36", or "" for none.
	ShowHiddenMetricsFor string
}

// Conntrack holds settings of the kernel's connection tracking.
type Conntrack struct {
	// MaxPerCore times the number of CPUs is the limit, at least Min; MaxPerCore 0 leaves the kernel's.
	MaxPerCore, Min int
	// Timeouts; 0 leaves the kernel's.
	TCPEstablished, TCPCloseWait, UDP, UDPStream time.Duration
	TCPBeLiberal                                 bool
}

// Logging says what is logged, how and where.
type Logging struct {
	// Format is "text" or "json", or "" if nobody asked for a format or a file.
	Format string
	// Verbosity is how much is logged, from 0; VModule beats it for some source files.
	Verbosity int
	VModule   []VModule
	// FlushFrequency is the longest time that lines wait in a buffer.
	FlushFrequency time.Duration
	// SplitStream: errors to stderr, the rest to stdout, there after InfoBufferSize bytes are collected.
	SplitStream    bool
	InfoBufferSize int64

	// What follows is klog's: log files are written if ToStderr is false.
	ToStderr, AlsoToStderr bool
	// StderrThreshold is the least severity that goes to stderr beside files: 0 info, 1 warning, 2 error, 3 fatal.
	StderrThreshold int
	Dir, File       string
	// FileMaxMB is the size at which File begins anew; 0 for no limit.
	FileMaxMB                                            uint32
	OneOutput, SkipHeaders, SkipLogHeaders, AddDirHeader bool
	// BacktraceAt is "file.go:17"; ":0" and "" are none.
	BacktraceAt string
}

// VModule is a verbosity for the source files that match a pattern.
type VModule struct {
	Pattern   string
	Verbosity int
}
