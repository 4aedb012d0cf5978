//go:build linux

package iptables

import (
	"context"

	"kube-proxy/mode"
	"kube-proxy/trace"
)

// TracePacket is part of mode.Tracer: walk follows the packet through the chains in the kernel,
// including those of other programs.
func (p *Plane) TracePacket(ctx context.Context, packet trace.Packet, walk mode.Walk) (trace.Kernel, error) {
	return walk(ctx, p.Tool, packet)
}
