package plane

import (
	"context"
	"net/netip"
	"time"

	"kube-proxy/lb"
)

// Choice is the backend that a client with session affinity has in a set, and for how long.
type Choice struct {
	Set     lb.SetID
	Client  netip.Addr
	Backend netip.AddrPort
	For     time.Duration
}

// Plane is a data plane of one IP family, as package engine drives it; the package comment has the
// rules for every plane. Only one goroutine at a time calls its methods, except Drift. An error
// that wraps ErrStateLost requires a Reset.
type Plane interface {
	// Reset makes the kernel hold exactly the table, except frontends that it leaves for later. It
	// starts from any state and changes only differences. After an error the kernel holds some
	// mixture; the table that was in force before keeps serving.
	Reset(ctx context.Context, want *lb.Table) (ResetResult, error)
	// Apply sets each change's key to its new frontend, or removes it. Applying twice does no harm.
	// After an error any part of the changes may be in force. Of a single change that exceeds
	// MaxBatchWeight, Apply may write a part, and leave the rest for later.
	Apply(ctx context.Context, changes []lb.Change) (ApplyResult, error)
	// SetNode applies a change of [lb.Node] without a Reset.
	SetNode(ctx context.Context, n lb.Node) error
	// Probe makes a write that changes nothing, and that the kernel accepts or refuses like any
	// other: nil if it accepted it.
	Probe(ctx context.Context) error
	// Drift has a value when another program may have changed our objects.
	Drift() <-chan struct{}
	// Audit compares the kernel with the applied state and repairs differences. With full it also
	// finds changes without a notification; if that would take long, each call compares a part.
	// Otherwise it compares the objects that the notifications since the last call named. It
	// returns the number of repaired objects.
	Audit(ctx context.Context, full bool) (repaired int, err error)
	// MaxBatchWeight returns the recommended maximum weight ([Weights]) of the changes of an Apply,
	// so that it takes a fraction of a second.
	MaxBatchWeight() int
}
