package main

import (
	"context"

	"kube-proxy/lb"
	"kube-proxy/mode"
)

// choose decides which data plane runs, and tells of each that it is not.
func (p *proxy) choose(ctx context.Context, primary lb.Family) error {
	cfg := p.config()
	var err error
	p.choice, err = mode.Choose(cfg.Mode, p.annotated(ctx), func(m string) error { return able(m, cfg, primary) })
	if p.choice.Ignored != "" {
		p.log.Warn(p.choice.Ignored)
	}
	if err != nil {
		return err
	}
	for _, s := range p.choice.Steps {
		p.log.Warn(s.String())
	}
	p.log.Info("serving", "mode", p.choice.Mode, "asked", p.choice.Asked, "family", primary)
	return nil
}

// annotated returns what the Node's annotation says of the mode, where that counts (S0).
func (p *proxy) annotated(context.Context) string { return "" }
