//go:build linux

package nftables

import (
	"context"
	"fmt"

	"kube-proxy/internal/follow"
	"kube-proxy/internal/nft/walk"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/trace"
)

// ruleset returns the plane's ruleset without node and seed.
func (l *layout) ruleset() *ruleset { return &ruleset{layout: *l} }

// TracePacket implements mode.Tracer. It reads the rules and elements that the packet meets on its
// own socket, and evaluates them. So the answer describes the kernel, whatever this process
// believes to be there.
func (p *Plane) TracePacket(ctx context.Context, packet trace.Packet) (trace.Kernel, error) {
	k, err := p.readLayout.follow(ctx, packet)
	if err != nil {
		return trace.Kernel{}, fmt.Errorf("nftables %s: follow a packet to %s: %w", p.readLayout.IP.Family, packet.To,
			err)
	}
	return p.localhost.TracePacket(packet, k), nil
}

// table returns the table in the form that a packet walk needs.
func (l *layout) table() walk.Table {
	return walk.Table{Family: l.Proto, Name: TableName, Chains: l.ruleset().skeleton(), Sets: l.sets[:]}
}

func (l *layout) follow(ctx context.Context, packet trace.Packet) (trace.Kernel, error) {
	sock, err := wire.Open()
	if err != nil {
		return trace.Kernel{}, err
	}
	defer sock.Close()
	all, lines, err := walk.Go(ctx, sock, l.table(), packet)
	if err != nil {
		return trace.Kernel{}, err
	}
	return follow.Answer(packet, all, lines), nil
}
