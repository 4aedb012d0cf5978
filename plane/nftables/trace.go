//go:build linux

package nftables

import (
	"context"
	"fmt"

	"kube-proxy/internal/nft/rule"
	"kube-proxy/mode"
	"kube-proxy/trace"
)

// ruleset returns the plane's ruleset without node and seed.
func (l *layout) ruleset() *ruleset { return &ruleset{layout: *l} }

// TracePacket implements mode.Tracer: walk reads the rules and elements that the packet meets. So
// the answer describes the kernel, whatever this process believes to be there.
func (p *Plane) TracePacket(ctx context.Context, packet trace.Packet, walk mode.Walk) (trace.Kernel, error) {
	k, err := walk(ctx, p.readLayout.table(), packet)
	if err != nil {
		return trace.Kernel{}, fmt.Errorf("nftables %s: follow a packet to %s: %w", p.readLayout.IP.Family, packet.To,
			err)
	}
	return p.localhost.TracePacket(packet, k), nil
}

// table returns the table in the form that a packet walk needs.
func (l *layout) table() rule.Table {
	return rule.Table{Family: l.Proto, Name: TableName, Chains: l.ruleset().skeleton(), Sets: l.sets[:]}
}
