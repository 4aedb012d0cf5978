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
