package hns

import (
	"context"
	"errors"
	"fmt"

	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane"
)

// remove implements --cleanup: it removes the objects that a Reset would adopt. Without a network
// no objects exist.
func remove(ctx context.Context, open func() (HNS, error), what mode.Removal) (r mode.Report, err error) {
	h, err := open()
	if errors.Is(err, plane.ErrUnsupported) {
		return r, nil // the mode never ran here
	} else if err != nil {
		return r, err
	}
	var errs []error
	for _, f := range what.Families {
		p, err := New(Config{Family: f, HNS: h, Network: optionsOf(what.Blocks).Winkernel.NetworkName})
		if err != nil {
			r.Leave("load balancers of HNS: %v", err)
			return r, nil
		}
		errs = append(errs, p.removeAll(ctx, &r))
	}
	return r, errors.Join(errs...)
}

// removeAll removes our load balancers and endpoints from the network, and reports the others.
func (p *Plane) removeAll(ctx context.Context, report *mode.Report) error {
	all, err := p.hns.Networks(ctx, p.cfg.Network)
	if err == nil && len(all) == 0 {
		return nil
	}
	pic, err := p.read(ctx, lb.Node{})
	if err != nil {
		return fmt.Errorf("hns: remove: %w", err)
	}
	r := p.reconciliation(pic, nil, nil)
	r.run(ctx)
	report.Count(len(r.stale), "load balancers of HNS for %s in the network %q", p.cfg.Family, p.cfg.Network)
	report.Count(r.repaired-len(r.stale), "endpoints of HNS for %s on other nodes", p.cfg.Family)
	if n := len(p.st.others); n > 0 {
		report.Leave("%d addresses and ports of %s of other programs' HNS load balancers", n, p.cfg.Family)
	}
	p.st = nil
	if err := errors.Join(append(r.rest, r.stopped)...); err != nil {
		return fmt.Errorf("hns: remove: %w", err)
	}
	return nil
}
