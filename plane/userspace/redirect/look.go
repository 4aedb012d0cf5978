package redirect

import (
	"context"
	"iter"

	"kube-proxy/lb"
	"kube-proxy/trace"
)

// Looker is a redirector that tells what the kernel holds. As those of mode.Looker its methods may be called at any time from any goroutine in the
// network namespace of the redirector.
type Looker interface {
	// Follow says where the kernel leads a packet: one that balances, to the listener that is its only backend.
	Follow(ctx context.Context, p trace.Packet) (trace.Kernel, error)
	// Differences calls each for what differs from these leads until that returns false.
	Differences(ctx context.Context, n lb.Node, leads iter.Seq[Entry], each func(trace.Difference) bool) error
}
