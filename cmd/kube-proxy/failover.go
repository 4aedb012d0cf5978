package main

import (
	"context"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/event"
	"kube-proxy/failover"
	"kube-proxy/failover/control"
	"kube-proxy/failover/probe"
	"kube-proxy/lb"
	"kube-proxy/source/kube"
	"kube-proxy/source/manifests"
	"kube-proxy/status"
)

// newFailover makes the controller of failover, which is off until it is configured.
func (p *proxy) newFailover() *control.Controller {
	reported := map[string]time.Time{}
	return control.New(control.Config{
		Store: p.store, Serves: p.serves, ServiceOf: p.serviceOf, Fold: p.fold, Probe: probe.Run,
		Lookup: p.nodeLookup(),
		NodeChanged: func(node string, unreachable bool, endpoints int) {
			if last, was := reported[node]; unreachable && (!was || time.Since(last) > nodeEventEvery) {
				reported[node] = time.Now()
				p.publish(event.NodeUnreachable(p.config().NodeName, node, endpoints))
			}
		},
		Avoided: func(took time.Duration) { p.servers.metrics.Avoided(took) },
		Log:     p.log,
	})
}

// nodeEventEvery is the least time between two events about one unreachable node.
const nodeEventEvery = 10 * time.Minute

// failoverSettings are those of the configuration.
func (p *proxy) failoverSettings() control.Settings {
	f := p.config().Failover
	return control.Settings{Mode: control.Mode(f.Mode), Reset: f.Reset}
}

// configureFailover applies the configuration to the controller.
func (p *proxy) configureFailover() {
	s := p.failoverSettings()
	if s.Mode != control.Off && !p.failover.Able() {
		p.log.Warn("Failover has no effect: this mode does not notice unanswered packets", "mode", p.choice.Mode.Name,
			"setting", p.config().Name("failover"))
	}
	p.failover.Configure(s)
}

// serves reports whether a frontend of the Service balances over the endpoint.
func (p *proxy) serves(name cluster.Name, at netip.AddrPort) (is bool) {
	for _, f := range p.families {
		if f.name == lb.FamilyOf(at.Addr()) {
			f.engine.Query(func(t *lb.Table) {
				is = slices.ContainsFunc(t.Owned(name.String()), func(f *lb.Frontend) bool { return f.Serves(at) })
			})
		}
	}
	return is
}

// serviceOf returns the Service of a frontend.
func (p *proxy) serviceOf(key lb.Key) (name cluster.Name, ok bool) {
	for _, f := range p.families {
		if f.name != lb.FamilyOf(key.Addr) {
			continue
		}
		f.engine.Query(func(t *lb.Table) {
			row := t.Get(key)
			if row == nil {
				row = t.Get(lb.Key{Port: key.Port, Proto: key.Proto})
			}
			ok = row != nil
			if ok {
				owner := lb.OwnerOf(row.Service)
				name.Namespace = lb.NamespaceOf(row.Service)
				name.Name = owner[len(name.Namespace)+1:]
			}
		})
	}
	return name, ok
}

// nodeLookup returns a function that reads a Node from the folder or the API server.
func (p *proxy) nodeLookup() func(context.Context, string) ([]netip.Addr, []netip.Prefix, bool, error) {
	reader := sync.OnceValues(func() (*kube.Nodes, error) { return kube.NewNodes(p.kubeConfig()) })
	return func(ctx context.Context, name string) ([]netip.Addr, []netip.Prefix, bool, error) {
		if dir := p.config().Manifests; dir != "" {
			return manifests.Node(os.DirFS(dir), name)
		}
		nodes, err := reader()
		if err != nil {
			return nil, nil, false, err
		}
		return nodes.Get(ctx, name)
	}
}

// failoverCounts are the values of metrics.
func (p *proxy) failoverCounts() status.Failover {
	counts := p.failover.Counts()
	out := status.Failover{Notices: counts.Notices, Probes: counts.Probes, Rescued: counts.Rescued, Reset: counts.Reset}
	s, mode := p.failover.Status()
	out.UnreachableNodes = len(s.Nodes)
	if mode != control.Avoid || s.OwnLink {
		return out
	}
	for _, n := range s.Nodes {
		out.AvoidedByNode += n.Endpoints
	}
	for _, e := range s.Endpoints {
		if e.Unreachable {
			out.AvoidedAlone++
		}
	}
	return out
}

// failoverStatus is for people.
func (p *proxy) failoverStatus() (failover.Status, string) {
	s, mode := p.failover.Status()
	return s, string(mode)
}
