package plane

import "kube-proxy/lb"

// ResetResult is what a successful Reset did not write, and what it removed.
type ResetResult struct {
	// Later are rows of the table, each once, that the kernel does not hold yet: too many to write at once, or such that the
	// kernel or the plane refused a write with them. The caller hands them to Apply in pieces, in this order; its search
	// finds the culprits.
	Later []lb.Key
	// Dropped are keys that the kernel served before, and that the table does not have: those of Services that went while
	// no proxy ran, among others (DP-51).
	Dropped []lb.Key
}

// ApplyResult is what a successful Apply did.
type ApplyResult struct {
	// Written says that the kernel took a write: rows for which a plane has nothing to write, such as those of health checks, are
	// accepted without one, and show nothing of the kernel.
	Written bool
	// Later are keys of the changes, each once, that are under way: the kernel holds something between the old row and the new
	// one, which serves. The caller offers them again, with work of others in between, until they are no longer named.
	Later []lb.Key
}
