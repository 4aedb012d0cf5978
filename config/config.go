package config

import (
	"net/netip"
	"time"

	"kube-proxy/config/option"
	"kube-proxy/mode"
)

// Config is the validated configuration of the process.
type Config struct {
	// Mode is the configured data plane: one of this version, one with a fallback, or "" for the
	// best that this host supports. [Config.For] returns the values that depend on the running
	// mode.
	Mode string
	// Version is the Kubernetes version to report, the one that this proxy replaces, as "v1.37.2".
	Version string
	// NodeName is the name of this machine's Node: lower case, no blanks around, never empty.
	NodeName string
	// BindAddress replaces the addresses of the Node object; unspecified (0.0.0.0 or ::) leaves the
	// choice to the Node object.
	BindAddress netip.Addr

	// MachineID and BootID identify the host and its current boot; "" if unknown.
	MachineID, BootID string

	// Manifests is the folder to serve from; "" means an API server.
	Manifests string
	API       API

	// ClusterCIDRs are the pod networks, at most one of each family, without host bits.
	ClusterCIDRs []netip.Prefix
	DetectLocal  DetectLocal
	// NodePorts are as configured. [Config.For] applies the default of the mode.
	NodePorts NodePorts

	// ExternalIPCIDRs are the networks whose spec.externalIPs are served; empty means all.
	ExternalIPCIDRs []netip.Prefix
	// MaxNamespaceObjects is how many objects the Services of a namespace may have in a family; 0
	// for any number.
	MaxNamespaceObjects int

	// Blocks are the values of the modes' own sections.
	Blocks option.Blocks
	// WindowsService: the process is a service of Windows.
	WindowsService bool

	Servers   Servers
	Snapshot  Snapshot
	Failover  Failover
	Conntrack Conntrack
	// OOMScoreAdj is for /proc/self/oom_score_adj, -1000 to 1000.
	OOMScoreAdj int
	// Gates is the state of every feature gate that a current proxy has; see [Config.GateStages].
	Gates map[string]bool

	// Cleanup names the modes whose rules the process removes before it exits; empty: it runs.
	Cleanup []string
	// InitOnly: make the settings that need full privileges, and exit.
	InitOnly bool
	// WriteConfigTo is the file to write [Config.YAML] to before the process ends; "" for none.
	WriteConfigTo string
	// File is the watched configuration file; "" if flags configure everything.
	File string

	Logging Logging
	// Flags has a line for each flag, as the log shows them at verbosity 1 and more (FL-05).
	Flags []string
	// Warnings are for the log: ignored settings, and settings without effect in any mode.
	// [Config.For] has those that depend on the mode.
	Warnings []string

	file  *settings
	table table
	modes mode.List
	// unchecked and inMode are problems and warnings that count only if the mode runs.
	unchecked map[string]Problems
	inMode    map[string][]string
	names     map[string]string // of fields, as the user wrote them
}

// Removal returns what to remove, and where the rules of the running mode are. A mode that shares
// tables with another recognizes its own rules by their marks.
func (c *Config) Removal() mode.Removal {
	what := mode.Removal{Blocks: c.Blocks}
	for _, m := range c.modes {
		if m.Among != "" {
			what.MasqueradeBit = c.Tables(m).MasqueradeBit
		}
	}
	return what
}

// Name returns the user's name of a field: the flag that sets it, or the field if the file sets it.
func (c *Config) Name(field string) string { return c.names[field] }

// Tables has the values that every mode has, some in the block of another.
type Tables struct {
	// MasqueradeBit is the bit of the packet mark for masquerading, 0 to 31.
	MasqueradeBit int
	// MasqueradeAll: every connection to a cluster IP is masqueraded (SV-58).
	MasqueradeAll bool
	// LocalhostNodePorts: NodePorts answer on 127.0.0.1.
	LocalhostNodePorts bool
	// SyncPeriod is the time between two full comparisons with the kernel; 0 leaves it to the
	// engine.
	SyncPeriod time.Duration
	// MinSyncPeriod is the least time between two writes; 0 for none.
	MinSyncPeriod time.Duration
}
