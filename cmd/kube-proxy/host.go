package main

import (
	"errors"
	"slices"

	"kube-proxy/event"
	"kube-proxy/internal/system"
)

// setHost makes settings of the host, as set does it, for the mode that was chosen, and tells what became of them.
func (p *proxy) setHost(set func(system.Host, system.Settings) (system.Report, error)) error {
	report, err := set(system.Host{}, p.config().Host())
	p.tellOfHost(report)
	return err
}

func (p *proxy) tellOfHost(r system.Report) {
	for _, s := range slices.Concat(r.Wrote, r.Kept) {
		p.log.Info(s)
	}
	for _, w := range r.Warnings {
		p.log.Warn(w.Text)
		if w.Event == system.ReadOnlySysFS {
			p.tell(event.ReadOnlySysFS(p.config().NodeName, errors.New(w.Text)))
		}
	}
}
