package inspect

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/debug/changes"
	"kube-proxy/engine"
	"kube-proxy/failover"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/nodetrace"
	"kube-proxy/policy"
	"kube-proxy/trace"
)

// Config configures an Inspector. Store and Families must be set; other fields may be nil or zero
// for unknown, and answers say so.
type Config struct {
	// Version is the version of the program, as "v1.37.2".
	Version string
	Started time.Time
	// Mode is the running mode, Configured the one in flags or file, "" for none, and Reason the
	// reason why Mode differs.
	Mode               mode.Mode
	Configured, Reason string
	// Offline: no proxy runs, and there is no kernel to inspect.
	Offline bool
	// Manifests is the folder of the running proxy's Services; "" for an API server.
	Manifests string

	Store    *cluster.Store
	Families []Family

	// Local returns the addresses of this machine, or those that are known offline, besides the
	// Node's; nil for no others.
	Local func() ([]netip.Addr, error)
	// Pods returns the addresses of a Pod, or, without a namespace, of all Pods of that name; nil
	// if Pods are not watched.
	Pods func(context.Context, cluster.Name) (map[cluster.Name][]netip.Addr, error)
	// Snapshot returns the time of the facts in force, if they come from a snapshot, else nil. It
	// may be nil.
	Snapshot func() *time.Time
	// Follow computes the path of a packet through the rest of this node: [nodetrace.Ask]; nil if
	// that is not read.
	Follow func(context.Context, nodetrace.Question) (trace.Node, error)
	// Conntrack returns the number of entries in the connection table and its limit; not ok without
	// a table. It may be nil.
	Conntrack func() (entries, limit uint64, ok bool)
	// NodeProblems returns problems of this node and of the configuration on it; nil for none to
	// report.
	NodeProblems func() []Finding
	// Connected reports whether the source of Services is watched; nil without a source.
	Connected func() bool
	// Changes is the record of changes; nil without one.
	Changes *changes.Ring
	// Failover returns what does not answer, and the action: off, rescue or avoid. Serves reports
	// whether a frontend of the Service leads to the endpoint. Nil where no proxy runs.
	Failover func() (failover.Status, string)
	Serves   func(cluster.Name, netip.AddrPort) bool
	// Configuration returns the effective configuration, as an object for encoding/json; nil where
	// no proxy runs.
	Configuration func() (any, error)
}

// Family is one IP family. Query must be set.
type Family struct {
	Family lb.Family
	// Query calls its argument with the desired table; see [engine.Engine.Query].
	Query func(func(*lb.Table))
	// Stats is [engine.Engine.Stats]; nil where no engine runs.
	Stats func() engine.Stats
	// Settings returns the current settings for the frontends of a Service.
	Settings func(cluster.Name) policy.Settings
	// Trace is the mode's treatment of the table.
	Trace trace.Mode
	// Counted calls its argument with the traffic per second of Services that the mode counts; nil
	// where it counts none.
	Counted func(context.Context, func(service string, connections, bytes float64)) error
	// Sockets is that of [mode.SocketServer]; nil in modes without.
	Sockets func() mode.Sockets
	// Tracer reads the kernel; nil where the mode, or the lack of one, has nothing to read.
	Tracer mode.Tracer
}

// Inspector answers questions. Make one with [New]. It is safe for concurrent use.
type Inspector struct {
	cfg       Config
	comparing chan struct{} // has a value while a query compares the whole kernel
	following chan struct{} // has a value while a query follows a packet through the node
	watching  chan struct{} // has a value for each query that counts connections

	names struct { // of all Services, sorted, as of the newest change with this number
		mu      sync.Mutex
		sorted  []cluster.Name
		changes uint64
		newest  uint64
		known   bool
		until   time.Time // they are not listed again before
	}
	odd odd
}

// New returns an Inspector.
func New(cfg Config) *Inspector {
	return &Inspector{cfg: cfg, comparing: make(chan struct{}, 1), following: make(chan struct{}, 1),
		watching: make(chan struct{}, maxWatching)}
}

// Node returns the name of the node of the answers.
func (i *Inspector) Node() string { return i.cfg.Store.Facts().NodeName }

// Configuration returns the effective configuration of the running proxy.
func (i *Inspector) Configuration() (any, error) {
	if i.cfg.Configuration == nil {
		return nil, Problemf(Unavailable, "no proxy runs: only a running proxy has a configuration in force")
	}
	return i.cfg.Configuration()
}

// Offline reports whether the answers are about manifests and not a running proxy.
func (i *Inspector) Offline() bool { return i.cfg.Offline }
