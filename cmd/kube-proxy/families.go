package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/debug/changes"
	"kube-proxy/debug/traffic"
	"kube-proxy/engine"
	"kube-proxy/event"
	"kube-proxy/internal/ratelimit"
	"kube-proxy/internal/wiring"
	"kube-proxy/lb"
	"kube-proxy/logging"
	"kube-proxy/mode"
	"kube-proxy/policy"
)

// family is all that serves one IP family.
type family struct {
	name   lb.Family
	engine *engine.Engine
	budget *engine.Budget
	plane  mode.Plane
	// traffic is by Service; nil if it is not counted.
	traffic *traffic.Account
	flows   flows // nil where the kernel has no conntrack table to read
}

// flows makes the kernel forget flows to backends that left.
type flows interface {
	engine.Observer
	Run(ctx context.Context)
}

// newFamilies makes the engines and planes of the families. A family that cannot be served does not
// affect the other (G6), except the first.
func (p *proxy) newFamilies(fams []lb.Family) error {
	p.failover = p.newFailover()
	for i, fam := range fams {
		f, err := p.newFamily(fam)
		switch {
		case err == nil:
			p.families = append(p.families, f)
		case i == 0:
			return fmt.Errorf("no support for the primary IP family %s: %w", fam, err)
		default:
			p.log.Error("Not serving the secondary IP family", "family", fam, "err", err)
		}
	}
	p.begun = newFirsts(p.families)
	stack := "single-stack"
	if len(p.families) > 1 {
		stack = "dual-stack"
	}
	// PR-01
	p.log.Info("Serving", "mode", p.choice.Mode.Name, "configured", p.choice.Configured, "stack", stack, "primary",
		p.families[0].name)
	return nil
}

func (p *proxy) newFamily(fam lb.Family) (*family, error) {
	labelled := p.log.With("family", fam.String()) // the engine adds the label itself
	cfg := p.config()
	asked := cfg.Plane(fam)
	asked.Log = labelled
	asked.Writes = &p.writes
	asked.ExternalIPsBounded = func() bool { return len(p.config().ExternalIPCIDRs) > 0 } // a list that may change
	asked.TCPIdle = func() time.Duration { return p.config().Conntrack.TCPEstablished }
	plane, err := p.choice.Mode.New(asked)
	if err != nil {
		return nil, err
	}
	f := &family{name: fam, plane: plane}
	f.budget = wiring.Budget(p.choice.Mode, asked, func() policy.Settings { return p.settings(fam) })
	p.notice(f, labelled)
	var observers []engine.Observer
	f.flows, err = p.newFlows(fam, plane)
	if err != nil {
		labelled.Warn("Cannot clean up stale UDP flows", "err", err)
	} else if f.flows != nil {
		observers = append(observers, f.flows)
	}
	observers = append(observers, p.servers.services.Observer(fam))
	if p.servers.sockets != nil {
		observers = append(observers, p.servers.sockets.Observer(fam))
	}
	p.failover.Add(plane)
	observers = append(observers, p.failover, &changes.Endpoints{Family: fam, Ring: p.changes, Store: p.store,
		Report: endpointLines(labelled)})
	t := cfg.Resolved.Tables
	f.engine = engine.New(engine.Config{
		Family: fam, Plane: plane, Store: p.store, Observers: observers,
		Budget:        f.budget,
		Resolve:       p.resolver(fam, f.budget),
		ResolveNode:   func(facts cluster.Facts) lb.Node { return policy.ResolveNode(facts, p.settings(fam)) },
		MinSyncPeriod: t.MinSyncPeriod, AuditPeriod: t.SyncPeriod, Log: p.log,
		Changes:    p.changes,
		Written:    func(w engine.Write) { p.written(f, labelled, w) },
		Programmed: func(took []time.Duration) { p.servers.metrics.Programmed(fam.String(), took) },
		Contested: func(l engine.Loss) {
			p.publish(event.ContestedKey(l.Loser.Name, l.Winner.Name, l.Key.String(), l.Why(), l.Keys-1))
		},
		Lent: func(l engine.ProvisionalOwner) {
			p.publish(event.AddressLent(l.Owner, l.Key.String(), l.Kind.Words(), l.Keys-1))
		},
	})
	f.traffic = p.newTraffic(f, labelled)
	return f, nil
}

// newTraffic returns the counter of traffic by Service; nil if it is not configured.
func (p *proxy) newTraffic(f *family, log *slog.Logger) *traffic.Account {
	services := p.config().Servers.ServiceMetrics
	counter, can := f.plane.(mode.TrafficCounter)
	if services == 0 || !can {
		return nil // of modes that cannot the configuration has warned
	}
	if !counter.Counts() {
		log.Warn("Cannot count connections by Service: the kernel lacks the nftables counter expression " +
			"(CONFIG_NFT_COUNTER)")
		return nil
	}
	account := traffic.New(traffic.Config{Counter: counter, Query: f.engine.Query, Services: services})
	// Counting starts at the counters of an earlier process.
	if err := account.Each(context.Background(), func(string, string, mode.Traffic) {}); err != nil {
		log.Warn("Failed to read connection counters", "err", err)
	}
	return account
}

// measure emits the metrics of the plane of a family, and its traffic by Service.
func (p *proxy) measure(f *family, emit mode.Emit) {
	if err := f.plane.Measure(emit); err != nil {
		p.log.Debug("Failed to read data plane metrics", "family", f.name, "err", err)
	}
	if f.traffic == nil {
		return
	}
	err := f.traffic.Each(context.Background(), func(namespace, name string, t mode.Traffic) {
		emit(mode.ServiceConnections, float64(t.Connections), namespace, name)
		emit(mode.ServiceBytes, float64(t.Bytes), namespace, name)
	})
	if err != nil {
		p.log.Debug("Failed to read connection counters", "family", f.name, "err", err)
	}
}

// written is called after each write of a family.
func (p *proxy) written(f *family, log *slog.Logger, w engine.Write) {
	p.servers.metrics.Written(f.name.String(), w)
	p.notice(f, log)
	if w.Err != nil {
		return // the engine has logged it
	}
	log.Log(context.Background(), logging.LevelWrite, "Wrote rules", "verb", w.Verb, "changes", w.Changes, "took",
		w.Took)
	switch {
	case w.Verb == "reset" && w.Later == 0, w.Verb == "load":
		p.begun.add(f.name)
	case w.Verb == "audit" && w.Changes > 0:
		p.publish(event.DriftRepaired(p.config().NodeName, f.name.String(), w.Changes))
	}
}

// endpointLines returns a function that logs changed endpoints of Services: a limited number of
// lines for each namespace.
func endpointLines(log *slog.Logger) func(cluster.Name, string) {
	messages := ratelimit.New(log, "Endpoints of a Service changed")
	return func(service cluster.Name, text string) {
		if log.Enabled(context.Background(), logging.LevelWrite) && messages.Allow(service.Namespace) {
			log.Log(context.Background(), logging.LevelWrite, "Endpoints of a Service changed", "service",
				service.String(), "endpoints", text)
		}
	}
}

// notice reports new problems of the plane of a family.
func (p *proxy) notice(f *family, log *slog.Logger) {
	for _, n := range f.plane.Notices() {
		log.Warn(n.Text, n.Args...)
		if n.Event != nil {
			p.publish(n.Event(p.config().NodeName))
		}
	}
}

func (f *family) run(ctx context.Context) {
	var running sync.WaitGroup
	if f.flows != nil {
		running.Go(func() { f.flows.Run(ctx) })
	}
	f.engine.Run(ctx)
	running.Wait()
}

// settings returns the parts of the current configuration for the frontends of a family.
func (p *proxy) settings(fam lb.Family) policy.Settings { return p.config().Policy(fam) }

// firsts notes which families have been written as a whole, and reports when all have.
type firsts struct {
	mu   sync.Mutex
	want map[lb.Family]bool
	all  chan struct{} // closed when none is left
}

func newFirsts(families []*family) *firsts {
	f := &firsts{want: map[lb.Family]bool{}, all: make(chan struct{})}
	for _, fam := range families {
		f.want[fam.name] = true
	}
	return f
}

func (f *firsts) add(fam lb.Family) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.want) == 0 {
		return
	}
	delete(f.want, fam)
	if len(f.want) == 0 {
		close(f.all)
	}
}

// done reports whether all families have been written.
func (f *firsts) done() bool {
	select {
	case <-f.all:
		return true
	default:
		return false
	}
}

// closePlanes ends the planes; their rules stay.
func (p *proxy) closePlanes() error {
	var err error
	for _, f := range p.families {
		err = errors.Join(err, f.plane.Close())
	}
	return err
}
