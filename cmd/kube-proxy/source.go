package main

import (
	"context"
	"sync"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/config"
	"kube-proxy/source/convert"
	"kube-proxy/source/kube"
	"kube-proxy/source/manifests"
)

// source follows Services, EndpointSlices, the Node and ServiceCIDRs somewhere.
type source struct {
	run func(ctx context.Context, sink func(cluster.Event)) error
	// factsWait is how much later than the Services and EndpointSlices the Node and the ServiceCIDRs may come.
	factsWait time.Duration
}

// apiFactsWait is how long the first write waits for the Node and the ServiceCIDRs of an API server, once
// Services and EndpointSlices are listed (PR-03).
const apiFactsWait = 10 * time.Second

func (p *proxy) newSource() (source, error) {
	cfg := p.config()
	problem := func(problem convert.Problem) { p.log.Warn(problem.String()) }
	if cfg.Manifests != "" {
		s, err := manifests.New(manifests.Config{Dir: cfg.Manifests, Log: p.log, OnProblem: problem})
		if err != nil {
			return source{}, err
		}
		return source{run: s.Run}, nil // it lists all at once
	}
	p.store.WaitForFacts(true)
	kc := kubeConfig(cfg)
	kc.Log, kc.OnProblem = p.log, problem
	s, err := kube.New(kc)
	if err != nil {
		return source{}, err
	}
	return source{s.Run, apiFactsWait}, nil
}

// kubeConfig says how to reach the API server.
func kubeConfig(cfg *config.Config) kube.Config {
	return kube.Config{
		Kubeconfig: cfg.API.Kubeconfig, Master: cfg.API.Master, NodeName: cfg.NodeName,
		QPS: cfg.API.QPS, Burst: cfg.API.Burst, UserAgent: "kube-proxy/" + compatible,
	}
}

// follow runs the source until ctx ends or it fails.
func (p *proxy) follow(ctx context.Context, src source) error {
	var seen lists
	var waiting sync.WaitGroup
	defer waiting.Wait()
	return src.run(ctx, func(ev cluster.Event) {
		switch complete := seen.take(ev); {
		case complete && src.factsWait == 0:
			p.waiveFacts()
		case complete:
			waiting.Go(func() { sleep(ctx, src.factsWait, p.waiveFacts) })
		}
		p.fold(ev)
	})
}

// fold takes an event in and tells the engines. They are also told of events that change nothing: an empty
// list may be the one that they wait for.
func (p *proxy) fold(ev cluster.Event) { p.mark(p.store.Fold(ev)) }

func (p *proxy) mark(d cluster.Dirty) {
	for _, f := range p.families {
		f.engine.Mark(d)
	}
}

// waiveFacts ends the wait for the Node and the ServiceCIDRs when they do not come, for example for want of
// permission: Services are served without.
func (p *proxy) waiveFacts() {
	if !p.store.WaitForFacts(false) {
		return
	}
	if facts := p.store.Facts(); facts.Node == nil {
		p.log.Warn("this node's Node object is not known: NodePorts on its primary address do not answer, and topology hints do not count. "+
			"Is --hostname-override right, and is there a Node of this name that the proxy may read?", "node", facts.NodeName)
	}
	p.mark(cluster.Dirty{})
}

// lists remembers which of the lists without which nothing is served have come.
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

// sleep calls f after a while, unless ctx ends before.
func sleep(ctx context.Context, d time.Duration, f func()) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
		f()
	}
}
