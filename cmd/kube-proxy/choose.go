package main

import (
	"context"
	"time"

	"kube-proxy/event"
	"kube-proxy/internal/wiring"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/source/kube"
)

// choose chooses the mode that runs, and reports each that cannot run.
func (p *proxy) choose(ctx context.Context, primary lb.Family) error {
	cfg := p.config()
	var annotation string
	if cfg.Mode == "" {
		annotation = p.annotated(ctx)
	}
	var err error
	p.choice, err = p.modes.Choose(cfg.Mode, annotation, wiring.Probe(cfg.Config, primary))
	if p.choice.Ignored != "" {
		p.log.Warn("Ignoring the Node's mode annotation", "reason", p.choice.Ignored)
	}
	if err != nil {
		return err
	}
	if p.choice.Annotated != "" {
		p.log.Info("Using the mode from the Node's annotation", "mode", p.choice.Annotated, "annotation",
			mode.Annotation)
		p.publish(event.ModeFromAnnotation(cfg.NodeName, p.choice.Annotated, mode.Annotation))
	}
	for _, s := range p.choice.Steps {
		p.log.Warn("Mode cannot run on this host", "mode", s.From, "instead", s.To, "err", s.Why)
		p.publish(event.ModeFallback(cfg.NodeName, s.From, s.To, s.Why, caution(p.modes, s.To)))
	}
	if m := p.choice.Mode; m.Caution != "" {
		p.log.Warn("Mode has a security impact", "mode", m.Name, "caution", m.Caution)
	}
	if defaultWillChange && cfg.Mode == "" && p.choice.Annotated == "" {
		e := event.DefaultModeWillChange(cfg.NodeName, p.choice.Mode.Name)
		p.log.Warn("The default mode will change", "note", e.Note)
		p.publish(e)
	}
	resolved, err := wiring.Resolve(cfg.Config, p.choice.Mode)
	if err != nil {
		return err
	}
	p.present.Store(resolved)
	warn(p.log, resolved.Resolved.Warnings)
	return nil
}

// caution returns the mode's caution for the administrator; "" for none.
func caution(modes mode.List, name string) string {
	m, _ := modes.Find(name)
	return m.Caution
}

// annotationWait is how long the start waits for the API server to return the Node's annotation.
// Nothing can be served before it answers anyway.
const annotationWait = 5 * time.Second

// annotationWaitSnapshot is that wait if a snapshot can be served, and has the annotation.
const annotationWaitSnapshot = 300 * time.Millisecond

// annotated returns the mode in the Node's annotation (S0).
func (p *proxy) annotated(ctx context.Context) string {
	cfg := p.config()
	if cfg.Manifests != "" {
		return ""
	}
	wait := annotationWait
	if p.snapshots.found != nil {
		wait = annotationWaitSnapshot
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	value, err := kube.NodeAnnotation(ctx, p.kubeConfig(), mode.Annotation)
	switch {
	case err == nil:
		p.snapshots.annotation = value
	case p.snapshots.found != nil:
		p.log.Info("Cannot read the Node's mode annotation; taking it from the snapshot", "err", err)
		return p.snapshots.annotation
	default:
		p.log.Info("Cannot read the Node's mode annotation; assuming none", "err", err)
	}
	return value
}
