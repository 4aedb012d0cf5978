//go:build linux

package xt

import (
	"context"
	"fmt"

	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/nodetrace/internal/follow"
	"kube-proxy/trace"
)

// Trace follows a packet through the chains in the kernel, including those of other programs. With
// the nft back end it reads only the chains that the packet reaches, with the legacy back end the
// output of iptables-save.
//
// Rules of other programs count as ours do if every part of them is understood. The answer names
// the others. It reports a drop by another program after such a rule, without judging it. Clients
// that the kernel remembers go to the backend of before (Affine); shares are those of other
// clients. Masquerade reports whether backends see the node's address; a backend that is the client
// itself does not count, and the node itself always sees the client's.
func Trace(ctx context.Context, tool *xtables.Tool, packet trace.Packet) (trace.Kernel, error) {
	k, err := inKernel(ctx, tool, packet)
	if err != nil {
		return trace.Kernel{}, fmt.Errorf("iptables: follow a packet to %s: %w", packet.To, err)
	}
	return k, nil
}

func inKernel(ctx context.Context, tool *xtables.Tool, packet trace.Packet) (k trace.Kernel, err error) {
	if f := lb.FamilyOf(packet.To.Addr()); f != tool.Family {
		return k, fmt.Errorf("it is of %s, and these chains are of %s", f, tool.Family)
	}
	around, err := inspectAround()
	if err != nil {
		return k, err
	}
	defer around.close()
	h, err := tool.OpenHolding(ctx)
	if err != nil {
		return k, err
	}
	defer h.Close()
	err = follow.Steady(ctx, h.Generation, func() error {
		w := newWalker(ctx, packet, h, around)
		err := w.all()
		k = w.answer()
		return err
	})
	return k, err
}

func newWalker(ctx context.Context, packet trace.Packet, holds holder, r route) *walker {
	return &walker{ctx: ctx, packet: packet, holds: holds, route: r, conn: Conn{State: "NEW", Known: true},
		read: map[xtables.ChainID]*chain{}}
}
