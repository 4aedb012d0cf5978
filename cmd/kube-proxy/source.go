package main

import (
	"context"
	"sync"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/internal/pause"
	"kube-proxy/internal/wiring"
	"kube-proxy/policy"
	"kube-proxy/source/convert"
	"kube-proxy/source/kube"
	"kube-proxy/source/manifests"
)

// source follows Services, EndpointSlices, the Node and ServiceCIDRs somewhere.
type source struct {
	run func(ctx context.Context, sink func(cluster.Event)) error
	// connected reports whether it can be followed now. It may be called from any goroutine.
	connected func() bool
	// factsWait is how much later than the Services and EndpointSlices the Node and the
	// ServiceCIDRs may arrive.
	factsWait time.Duration
}

// apiFactsWait is how long the first write waits for the Node and the ServiceCIDRs of an API
// server, once Services and EndpointSlices are listed (PR-03).
const apiFactsWait = 10 * time.Second

func (p *proxy) newSource() (source, error) {
	cfg := p.config()
	if cfg.Manifests != "" {
		s, err := manifests.New(manifests.Config{Dir: cfg.Manifests, Log: p.log, OnProblem: p.malformed})
		if err != nil {
			return source{}, err
		}
		return source{run: s.Run, connected: s.Connected}, nil // it lists all at once
	}
	p.store.WaitForFacts(true)
	if cfg.DetectLocal.Mode == string(policy.NodeCIDR) {
		p.store.WaitForPodCIDRs()
		p.log.Info("Waiting for the Node's pod CIDRs before writing rules",
			cfg.Name("detectLocalMode"), cfg.DetectLocal.Mode, "longest", podCIDRsWait)
	}
	kc := p.kubeConfig()
	kc.OnProblem = p.malformed
	s, err := kube.New(kc)
	if err != nil {
		return source{}, err
	}
	return source{s.Run, s.Connected, apiFactsWait}, nil
}

// malformed reports a problem of an object by log and event, as far as the share of its namespace
// allows.
func (p *proxy) malformed(problem convert.Problem) {
	if !p.problems.Allow(problem.Name.Namespace) {
		return
	}
	p.log.Warn("Malformed object", "problem", problem.String())
	if e, ok := kube.ProblemEvent(problem); ok {
		p.publish(e)
	}
}

// kubeConfig returns the configuration for the API server.
func (p *proxy) kubeConfig() kube.Config { return wiring.API(p.config().Config, p.log) }

// follow runs the source until ctx ends or it fails.
func (p *proxy) follow(ctx context.Context, src source) error {
	p.restore(ctx)
	var seen, folded lists
	var waiting sync.WaitGroup
	defer waiting.Wait()
	return src.run(ctx, func(ev cluster.Event) {
		switch complete := seen.take(ev); {
		case complete && src.factsWait == 0:
			p.waiveFacts()
		case complete:
			waiting.Go(func() {
				if pause.For(ctx, src.factsWait) {
					p.waiveFacts()
				}
			})
		}
		p.fold(ev)
		if folded.take(ev) {
			p.listsComplete()
		}
	})
}

// fold folds an event and notifies the engines, also of events that change nothing: an empty list
// may be the one that they wait for.
func (p *proxy) fold(ev cluster.Event) {
	p.folding.Lock()
	dirty := p.store.Fold(ev)
	p.mark(dirty)
	p.folding.Unlock()
	p.snapshots.changed(dirty)
	if dirty.Facts {
		p.factsChanged()
	}
}

func (p *proxy) mark(d cluster.Dirty) {
	for _, f := range p.families {
		f.engine.Mark(d)
	}
}

// lists records which of the required lists have arrived.
type lists struct {
	mu               sync.Mutex
	services, slices bool
}

// take reports whether the event makes the lists complete, which happens once.
func (l *lists) take(ev cluster.Event) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.services && l.slices
	switch ev.(type) {
	case cluster.ServicesListed:
		l.services = true
	case cluster.SlicesListed:
		l.slices = true
	}
	return !before && l.services && l.slices
}
