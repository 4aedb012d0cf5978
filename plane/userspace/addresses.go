package userspace

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"kube-proxy/lb"
	"kube-proxy/plane"
)

// findAddresses finds the node's addresses that answer NodePorts. It does nothing if rules
// redirect, because they match these addresses.
func (p *Plane) findAddresses() error {
	if p.addresses == nil {
		return nil
	}
	all, err := p.addresses.NodeAddresses()
	if err != nil {
		return fmt.Errorf("list the addresses of this node: %w", err)
	}
	p.nodePorts, p.nodeHas = p.nodePorts[:0:0], make(map[netip.Addr]bool, len(all))
	for _, a := range all {
		p.nodeHas[a] = true
		selected := lb.Within(p.node.NodePorts, a)
		if selected && (!a.IsLoopback() || p.cfg.LocalhostNodePorts && a.Is4()) {
			p.nodePorts = append(p.nodePorts, a)
		}
	}
	slices.SortFunc(p.nodePorts, netip.Addr.Compare)
	p.nodePorts = slices.Compact(p.nodePorts)
	return nil
}

// follow moves the listeners of NodePorts to the node's current addresses, and counts the frontends
// whose listeners moved.
func (p *Plane) follow(ctx context.Context) (moved int, err error) {
	if p.addresses == nil {
		return 0, nil
	}
	before := p.nodePorts
	if err := p.findAddresses(); err != nil {
		return 0, err
	}
	for _, r := range p.rows {
		if err := p.takes(r.f); err != nil { // allowed when it was applied
			return 0, p.lost("look at addresses", fmt.Errorf("%w: %w", err, plane.ErrStateLost))
		}
	}
	if slices.Equal(before, p.nodePorts) {
		return 0, nil
	}
	b := &batch{p: p}
	for k, r := range p.rows {
		if k.IsNodePort() && len(r.doors)+len(p.nodePorts) > 0 {
			b.change(k, r.f, nil)
			moved++
		}
	}
	if len(b.set)+len(b.remove) > 0 { // including rows that an earlier Apply could not redirect
		err = p.lost("move the listeners of NodePorts", p.redirect.Apply(ctx, b.set, b.remove))
	}
	b.end(err == nil)
	return moved, errors.Join(append(b.failed, err)...)
}
