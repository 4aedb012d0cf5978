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

// ruleset is the plane's for no node and no seed.
func (l *layout) ruleset() *ruleset { return &ruleset{layout: *l} }

// Follow is part of mode.Looker. It reads the rules and elements that the packet meets, on a socket of its own, and carries them out: the
// answer holds of what is in the kernel, whatever this process believes to be there.
func (p *Plane) Follow(ctx context.Context, packet trace.Packet) (trace.Kernel, error) {
	k, err := p.look.follow(ctx, packet)
	if err != nil {
		return trace.Kernel{}, fmt.Errorf("nftables %s: follow a packet to %s: %w", p.look.IP.Family, packet.To, err)
	}
	return p.localhost.Follow(packet, k), nil
}

// table is the table as packets walk through it.
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
