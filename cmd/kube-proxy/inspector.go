package main

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/debug/inspect"
	"kube-proxy/mode"
	rest "kube-proxy/nodetrace"
	"kube-proxy/source/kube"
	"kube-proxy/source/manifests"
	"kube-proxy/trace"
)

// newInspector makes the inspector of this process. Call it after newFamilies.
func (p *proxy) newInspector() *inspect.Inspector {
	cfg := p.config()
	folder := cfg.Manifests
	if abs, err := filepath.Abs(folder); err == nil && folder != "" { // for commands in another folder
		folder = abs
	}
	ic := inspect.Config{
		Version: cfg.Version, Started: time.Now(), Mode: p.choice.Mode, Configured: p.choice.Configured,
		Reason: p.reason(), Manifests: folder, Store: p.store, Changes: p.changes, Pods: p.pods,
		Snapshot: p.snapshots.serving.Load,
		Failover: p.failoverStatus, Serves: p.serves,
		Follow: rest.Ask, Conntrack: conntrackUse, Connected: func() bool { return p.connected() },
		NodeProblems:  p.nodeProblems,
		Configuration: func() (any, error) { return p.config().Configz() },
	}
	// An address that the node has only as a service address is not one of its own, at which
	// NodePorts and its programs answer.
	ic.Local = func() ([]netip.Addr, error) { return localAddrs(p.choice.Mode.AddressDevice) }
	for _, f := range p.families {
		tracer, _ := f.plane.(mode.Tracer) // nil: its state cannot be read
		how := p.choice.Mode.Trace(cfg.Plane(f.name))
		if knows, ok := f.plane.(interface{ TraceMode(trace.Mode) trace.Mode }); ok { // mode userspace
			how = knows.TraceMode(how)
		}
		of := inspect.Family{
			Family: f.name, Query: f.engine.Query, Stats: f.engine.Stats, Settings: f.budget.Settings,
			Trace: how, Tracer: tracer,
		}
		if s, ok := f.plane.(mode.SocketServer); ok {
			of.Sockets = s.Sockets
		}
		if f.traffic != nil {
			of.Counted = f.traffic.Rates
		}
		ic.Families = append(ic.Families, of)
	}
	return inspect.New(ic)
}

// pods finds a Pod in the folder, or at a query from the API server.
func (p *proxy) pods(ctx context.Context, pod cluster.Name) (map[cluster.Name][]netip.Addr, error) {
	if dir := p.config().Manifests; dir != "" {
		return manifests.Pods(os.DirFS(dir), pod)
	}
	return kube.Pods(ctx, p.kubeConfig(), pod)
}
