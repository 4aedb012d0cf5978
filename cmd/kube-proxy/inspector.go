package main

import (
	"time"

	"kube-proxy/inspect"
	"kube-proxy/mode"
	"kube-proxy/policy"
)

// newInspector makes what answers questions about this process. It comes after the families.
func (p *proxy) newInspector() *inspect.Inspector {
	cfg := p.config()
	ic := inspect.Config{
		Version: cfg.Version, Started: time.Now(), Mode: p.choice.Mode, Asked: p.choice.Asked, Reason: p.reason(),
		Store: p.store, Changes: p.changes, Local: localAddrs,
	}
	for _, f := range p.families {
		looker, _ := f.plane.(mode.Looker) // nil: nothing of it can be read
		ic.Families = append(ic.Families, inspect.Family{
			Family: f.name, Query: f.engine.Query, Stats: f.engine.Stats, Settings: func() policy.Settings { return p.settings(f.name) },
			Trace: p.choice.Mode.Trace(planeSettings(cfg, f.name)), Looker: looker,
		})
	}
	return inspect.New(ic)
}
