package userspace

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/plane/userspace/redirect"
)

// Reset makes the kernel redirect exactly as the table says. Frontends of the previous process keep
// its ports, if those are free. It leaves new frontends for later ([plane.Postpone]), and those
// without a listener.
func (p *Plane) Reset(ctx context.Context, want *lb.Table) (res plane.ResetResult, err error) {
	if err := ctx.Err(); err != nil {
		return res, fmt.Errorf("userspace: reset: %w", err)
	}
	routes, err := p.redirect.Known(ctx)
	if err != nil {
		return res, p.lost("reset", err)
	}
	was := map[lb.Key][]redirect.Route{}
	for _, l := range routes {
		was[l.Key] = l.Routes
	}
	p.node = want.Node
	p.origins.Detect(want.Node.Pods)
	if err := p.findAddresses(); err != nil {
		return res, fmt.Errorf("userspace: reset: %w", err)
	}

	b := &batch{p: p}
	p.ports.promised = map[port]bool{}
	for k, routes := range was {
		for _, r := range routes {
			p.ports.promised[port{k.Proto, r.Port}] = true
		}
	}
	serves := func(f *lb.Frontend) bool { return f.Accepts() || p.rows[f.Key] != nil || was[f.Key] != nil }
	now, later := plane.Postpone(p, slices.Values(want.Sorted()), p.maxBatchWeight, serves)
	res.Later = plane.Keys(later)
	var known, fresh []*lb.Frontend
	for _, f := range now {
		switch {
		case f.Accepts():
		case serves(f):
			known = append(known, f)
		default:
			fresh = append(fresh, f)
		}
	}
	write := func(rows []*lb.Frontend) {
		for _, f := range rows {
			if !b.change(f.Key, f, was[f.Key]) {
				res.Later = append(res.Later, f.Key)
			}
		}
	}
	write(known) // before those that take any port
	p.ports.promised = nil
	write(fresh)
	for k := range p.rows {
		if f := want.Get(k); f == nil || f.Accepts() {
			b.change(k, nil, nil)
			was[k] = nil
		}
	}
	res.Dropped = plane.Dropped(maps.Keys(was), want)

	unwritten, err := p.redirect.Reset(ctx, want.Node, b.leads())
	p.ready = err == nil
	for i := range b.steps {
		b.steps[i].writes = true
	}
	b.end(err == nil)
	if err != nil {
		return plane.ResetResult{}, p.lost("reset", err)
	}
	for _, k := range unwritten {
		p.rows[k].written = false
		res.Later = append(res.Later, k)
	}
	return res, nil
}

// portFor returns the port of the routes for a source; 0 for none.
func portFor(from lb.From, routes []redirect.Route) uint16 {
	for _, r := range routes {
		if r.From == from || r.From == lb.Anywhere {
			return r.Port
		}
	}
	return 0
}

// leads returns the entries of all rows, except removed ones.
func (b *batch) leads() []redirect.Entry {
	goes := map[lb.Key]bool{}
	for _, s := range b.steps {
		goes[s.key] = s.new == nil
	}
	all := make([]redirect.Entry, 0, len(b.p.rows))
	for k, r := range b.p.rows {
		if !goes[k] {
			all = append(all, r.lead)
		}
	}
	slices.SortFunc(all, func(x, y redirect.Entry) int { return x.Key.Compare(y.Key) })
	return all
}

// SetNode applies a change of the node. Listeners of NodePorts move to the current addresses.
func (p *Plane) SetNode(ctx context.Context, n lb.Node) error {
	if err := p.usable(ctx); err != nil {
		return fmt.Errorf("userspace: set node: %w", err)
	}
	if err := p.lost("set node", p.redirect.SetNode(ctx, n)); err != nil {
		return err
	}
	p.node = n
	p.origins.Detect(n.Pods)
	_, err := p.follow(ctx)
	return err
}

// Audit makes the redirector compare the kernel with the applied state, and repair it.
func (p *Plane) Audit(ctx context.Context, full bool) (repaired int, err error) {
	if err := p.usable(ctx); err != nil {
		return 0, fmt.Errorf("userspace: audit: %w", err)
	}
	moved, err := p.follow(ctx)
	if !p.ready {
		return 0, err // the desired state may have changed
	}
	repaired, audit := p.redirect.Audit(ctx, full)
	return repaired + moved, errors.Join(err, p.lost("audit", audit))
}
