package plane

import (
	"context"

	"kube-proxy/lb"
)

// Plane is a data plane of one IP family, as package engine drives it; the package comment has the rules that every plane keeps. All its methods but Drift are
// called by one goroutine at a time. An error of any of them that wraps ErrStateLost asks for a Reset.
type Plane interface {
	// Reset makes the kernel hold exactly the table but for the rows that it leaves for later, whatever is there, changing only
	// what differs. After an error the kernel holds some mixture; the table that was in force before keeps serving.
	Reset(ctx context.Context, want *lb.Table) (ResetResult, error)
	// Apply sets each change's key to its new row, or removes it. Applying twice does no harm. After an error any part of the
	// changes may be in force. A change that is more than Pace by itself it may take a part of, and leave the rest for later.
	Apply(ctx context.Context, changes []lb.Change) (ApplyResult, error)
	// SetNode takes a change of [lb.Node] without a Reset.
	SetNode(ctx context.Context, n lb.Node) error
	// Probe makes a write that changes nothing, and that the kernel takes or refuses as it would take or refuse another: nil if
	// it took it.
	Probe(ctx context.Context) error
	// Drift has a value when somebody else may have changed our objects.
	Drift() <-chan struct{}
	// Audit compares the kernel with what was applied and mends what differs. With full it looks for what was not noticed, a
	// part of it in each call where all would take long; otherwise it looks at what the notifications since the last call
	// named. It returns the number of objects mended.
	Audit(ctx context.Context, full bool) (mended int, err error)
	// Pace is the weight ([Weights]) that the changes of an Apply should have at most, so that it takes a fraction of a second.
	Pace() int
}
