package redirect

import (
	"context"
	"iter"

	"kube-proxy/lb"
	"kube-proxy/trace"
)

// Tracer is a redirector whose state in the kernel can be read. As those of mode.Tracer, its
// methods may be called at any time from any goroutine in the network namespace of the redirector.
type Tracer interface {
	// TracePacket follows a packet through the kernel. The listener is its only backend if it
	// balances.
	TracePacket(ctx context.Context, p trace.Packet) (trace.Kernel, error)
	// Differences calls each for every difference from these entries, until it returns false.
	Differences(ctx context.Context, n lb.Node, leads iter.Seq[Entry], each func(trace.Difference) bool) error
}
