package main

import (
	"errors"
	"slices"

	"kube-proxy/event"
	"kube-proxy/internal/system"
)

// setHost applies host settings with set, for the chosen mode, and reports the result.
func (p *proxy) setHost(set func(system.Host, system.Settings) (system.Report, error)) error {
	report, err := set(system.Host{}, p.config().Host())
	p.reportOfHost(report)
	return err
}

func (p *proxy) reportOfHost(r system.Report) {
	for _, s := range slices.Concat(r.Wrote, r.Kept) {
		p.log.Info(s)
	}
	for _, w := range r.Warnings {
		p.log.Warn(w.Text)
		if w.Event == system.ReadOnlySysFS {
			p.publish(event.ReadOnlySysFS(p.config().NodeName, errors.New(w.Text)))
		}
	}
}
