package mode

import (
	"context"

	"kube-proxy/lb"
	"kube-proxy/trace"
)

// Looker is a plane that tells what the kernel holds. Its methods may be called at any time from any goroutine in the network
// namespace of the plane, also while a write is under way; they change nothing, and take no time of the plane's other callers.
type Looker interface {
	// Follow says what the state that the kernel holds makes of a packet. Its cost does not grow with the table, but where only
	// programs that list all can read it. An error is of reading.
	Follow(ctx context.Context, p trace.Packet) (trace.Kernel, error)
	// Differences compares the kernel with the table, of which the caller lets nobody change anything meanwhile, and calls each for what
	// differs until it returns false. What is being written at that moment may differ: who must know looks again.
	Differences(ctx context.Context, want *lb.Table, each func(trace.Difference) bool) error
}
