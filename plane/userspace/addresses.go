package userspace

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"kube-proxy/plane"
)

// NodeAddresses is a redirector that can tell the addresses of the node from those that it has put there itself.
type NodeAddresses interface {
	// NodeAddresses returns the node's addresses of the family.
	NodeAddresses() ([]netip.Addr, error)
}

// Preparer is a redirector by addresses that must be there before a socket can be bound to them, as on Windows.
type Preparer interface {
	// Prepare has the node have the address. It stays if a lead needs it in the end.
	Prepare(ctx context.Context, a netip.Addr) error
}

// prepare has a listener's address be there, where it must be.
func (p *Plane) prepare(a netip.Addr) error {
	if c, ok := p.redirect.(Preparer); ok {
		return c.Prepare(context.Background(), a)
	}
	return nil
}

// findAddresses looks which addresses of the node answer NodePorts; where rules redirect, these know.
func (p *Plane) findAddresses() error {
	of, ok := p.redirect.(NodeAddresses)
	if !ok || !p.redirect.Own() {
		return nil
	}
	all, err := of.NodeAddresses()
	if err != nil {
		return fmt.Errorf("list the addresses of this node: %w", err)
	}
	p.nodePorts, p.nodeHas = p.nodePorts[:0:0], make(map[netip.Addr]bool, len(all))
	for _, a := range all {
		p.nodeHas[a] = true
		selected := slices.ContainsFunc(p.node.NodePorts, func(n netip.Prefix) bool { return n.Contains(a) })
		if selected && (!a.IsLoopback() || p.cfg.LocalhostNodePorts && a.Is4()) {
			p.nodePorts = append(p.nodePorts, a)
		}
	}
	slices.SortFunc(p.nodePorts, netip.Addr.Compare)
	p.nodePorts = slices.Compact(p.nodePorts)
	return nil
}

// follow moves the listeners of NodePorts to where the node's addresses are now, and counts the rows whose listeners moved.
func (p *Plane) follow(ctx context.Context) (moved int, err error) {
	if !p.redirect.Own() {
		return 0, nil
	}
	before := p.nodePorts
	if err := p.findAddresses(); err != nil {
		return 0, err
	}
	for _, r := range p.rows {
		if err := p.takes(r.f); err != nil { // it was served, and the node had the address, or it might be used
			return 0, p.lost("look at addresses", fmt.Errorf("%w: %w", err, plane.ErrStateLost))
		}
	}
	if slices.Equal(before, p.nodePorts) {
		return 0, nil
	}
	b := p.begin()
	for k, r := range p.rows {
		if k.IsNodePort() && len(r.doors)+len(p.nodePorts) > 0 {
			b.change(k, r.f, noPorts)
			moved++
		}
	}
	if len(b.set)+len(b.remove) > 0 { // rows that an Apply before could not lead among them
		err = p.lost("move the listeners of NodePorts", p.redirect.Apply(ctx, b.set, b.remove))
	}
	b.end(err == nil)
	return moved, errors.Join(append(b.failed, err)...)
}
