//go:build linux

package iptables

import (
	"context"
	"errors"
	"fmt"

	"kube-proxy/internal/kernel"
	"kube-proxy/lb"
	"kube-proxy/trace"
)

// Follow is part of mode.Looker: it goes a packet's way through the chains that the kernel holds, whoever made them, and reads those alone;
// of the legacy back end the tables in which they are, for it has nothing less. One packet at a time is followed.
//
// What becomes of a packet follows from what is read: rules of others count as ours do, if all in them is understood. Of those that are not it
// is told that they are there; and what others drop after such a rule is told, and not judged. Of the kernel's lists of clients it is taken
// where a client went before (Affine), and the shares are those of other clients. Masquerade says whether backends see the node's address,
// where a backend is not the client itself.
func (p *Plane) Follow(ctx context.Context, packet trace.Packet) (trace.Kernel, error) {
	k, err := p.follow(ctx, packet)
	if err != nil {
		return trace.Kernel{}, fmt.Errorf("iptables: follow a packet to %s: %w", packet.To, err)
	}
	return k, nil
}

// attempts is how often a packet is followed where rules change meanwhile.
const attempts = 4

func (p *Plane) follow(ctx context.Context, packet trace.Packet) (trace.Kernel, error) {
	if f := lb.FamilyOf(packet.To.Addr()); f != p.family {
		return trace.Kernel{}, fmt.Errorf("it is of %s, and these chains are of %s", f, p.family)
	}
	select {
	case p.looking <- struct{}{}:
		defer func() { <-p.looking }()
	case <-ctx.Done():
		return trace.Kernel{}, ctx.Err()
	}
	around, err := lookAround()
	if err != nil {
		return trace.Kernel{}, err
	}
	defer around.close()
	for attempt := 1; ; attempt++ {
		k, same, err := p.followOnce(ctx, packet, around)
		if same || attempt == attempts || ctx.Err() != nil {
			return k, err
		}
	}
}

// followOnce follows a packet, and reports whether no rule changed meanwhile, as far as that can be told.
func (p *Plane) followOnce(ctx context.Context, packet trace.Packet, around *surroundings) (_ trace.Kernel, same bool, _ error) {
	h, err := p.holding()
	if err != nil {
		return trace.Kernel{}, true, err
	}
	defer h.close()
	before, err := h.generation()
	if err != nil {
		return trace.Kernel{}, true, err
	}
	w := &walk{ctx: ctx, family: p.family, packet: packet, holds: h, around: around, read: map[chainID]*chainState{}, said: map[saying]bool{}}
	w.all()
	after, err := h.generation()
	if err = errors.Join(w.err, err); err != nil {
		return trace.Kernel{}, before == after, err
	}
	return w.answer(), before == after, nil
}

// holding opens what reads the back end's chains, in the network namespace of the calling thread.
func (p *Plane) holding() (holding, error) {
	if p.tool.backend == Legacy {
		return openLegacy(p.family)
	}
	nf, err := kernel.OpenNetfilter()
	if err != nil {
		return nil, err
	}
	return &nftHolding{nf: nf, family: p.family}, nil
}
