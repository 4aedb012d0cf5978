package engine

import (
	"context"

	"kube-proxy/lb"
)

// Plane is a data plane as the engine sees it; package plane has the rules that every plane keeps.
type Plane interface {
	// Apply sets each change's key to its new row, or removes it. Applying twice does no harm. After an
	// error any part of the changes may be in force.
	Apply(ctx context.Context, changes []lb.Change) error
	// Reset makes the kernel hold exactly the table, whatever is there, changing only what differs. After
	// an error the kernel holds some mixture; the table that was in force before keeps serving.
	Reset(ctx context.Context, want *lb.Table) error
}

// RowsRefused is an error of Reset after which the plane holds the table but for some rows, which it cannot
// hold. They are retried alone, as if an Apply of each had failed.
type RowsRefused interface {
	error
	RefusedRows() []lb.Key
}

// Deferrer is a plane that need not write a large table at once.
type Deferrer interface {
	// ResetSome is Reset, but it may leave out rows that the kernel does not serve, where to write them all would keep other
	// changes waiting. It returns their keys, in the order in which they are best written: the engine hands them to Apply,
	// in pieces.
	ResetSome(ctx context.Context, want *lb.Table) (later []lb.Key, err error)
}

// Pacer is a plane that knows how much it writes in a fraction of a second.
type Pacer interface {
	// Pace is the weight ([lb.Weight]) that the changes of an Apply should have at most.
	Pace() int
}

// Dropper is a plane that knows which keys its last Reset took out of the kernel: those of services that went
// while no proxy ran. Observers are told of them, so that what they left behind can be cleaned up.
type Dropper interface {
	Dropped() []lb.Key
}

// NodeSetter is a plane that takes a change of [lb.Node] without a Reset.
type NodeSetter interface {
	SetNode(ctx context.Context, n lb.Node) error
}

// Prover is a plane that can show that the kernel takes its writes when there is nothing to write.
type Prover interface {
	// Prove makes a write that changes nothing, and that the kernel takes or refuses as it would take or refuse another:
	// nil if it took it. An error that wraps plane.ErrStateLost asks for a Reset.
	Prove(ctx context.Context) error
}

// Auditor is a plane that finds and mends what others did to our objects.
type Auditor interface {
	// Drift has a value when somebody else may have changed our objects.
	Drift() <-chan struct{}
	// Audit compares the kernel with what was applied and mends what differs. With full it looks for what
	// was not noticed, a part of it in each call where all would take long; otherwise it looks at what the
	// notifications since the last call named. It returns the number of objects mended. An error that wraps plane.ErrStateLost asks for a Reset.
	Audit(ctx context.Context, full bool) (mended int, err error)
}

// Observer is told of every change after the plane has accepted it. It must not block: the next write
// waits for it.
type Observer interface {
	Applied(changes []lb.Change)
}

// NodeObserver is an observer that is also told of the node whenever the plane has taken it, before it is told of changes
// that came with it. It must not block either.
type NodeObserver interface {
	NodeApplied(n lb.Node)
}
