package main

import (
	"errors"
	"slices"

	"kube-proxy/event"
	"kube-proxy/internal/system"
	"kube-proxy/lb"
)

// setHost makes settings of the host, as set does it, for the mode that was chosen, and tells what became of them.
func (p *proxy) setHost(set func(system.Host, system.Settings) (system.Report, error)) error {
	report, err := set(system.Host{}, hostSettings(p.config()))
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

// hostSettings are what the configuration asks of the host. The pods' networks tell which families the cluster uses.
func hostSettings(cfg *configured) system.Settings {
	s := system.Settings{
		Mode: cfg.mode.Mode, Asked: planeSettings(cfg, lb.IPv4),
		Conntrack: system.Conntrack(cfg.Conntrack), OOMScoreAdj: cfg.OOMScoreAdj,
	}
	for _, pods := range cfg.ClusterCIDRs {
		s.IPv4, s.IPv6 = s.IPv4 || pods.Addr().Is4(), s.IPv6 || pods.Addr().Is6()
	}
	return s
}
