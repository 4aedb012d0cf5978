package plane

import "kube-proxy/lb"

// ResetResult lists what a successful Reset left for later, and what it removed.
type ResetResult struct {
	// Later are the keys of the table's frontends, each once, that the kernel does not hold yet:
	// too many to write at once, or part of a write that the kernel or the plane refused. The
	// caller passes them to Apply in pieces, in this order; its search finds the faulty ones.
	Later []lb.Key
	// Dropped are keys that the kernel served before, and that the table does not have, for example
	// those of Services deleted while no proxy ran (DP-51).
	Dropped []lb.Key
}

// ApplyResult is the result of a successful Apply.
type ApplyResult struct {
	// Written reports that the kernel accepted a write. Some frontends, such as those of health
	// checks, need no write in some planes; accepting them proves nothing about the kernel.
	Written bool
	// Later are the changes' keys, each once, that are in progress: the kernel holds a state
	// between the old frontend and the new one, which serves. The caller passes them again, with
	// other work in between, until Later no longer lists them.
	Later []lb.Key
}
