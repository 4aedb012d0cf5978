package plane

import (
	"cmp"
	"iter"
	"slices"

	"kube-proxy/lb"
)

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

// Postpone divides the frontends that a Reset of a plane should write. If those that the kernel
// does not serve yet exceed the weight most ([Weights]), Apply writes them later, those of a
// Service together. So a Reset writes a bounded number of new frontends, and repairs what is served
// before them.
func Postpone(p Plane, rows iter.Seq[*lb.Frontend], most int, served func(*lb.Frontend) bool) (now,
	later []*lb.Frontend) {
	weigh, total := Weights(p), 0
	for f := range rows {
		if served(f) {
			now = append(now, f)
			continue
		}
		later = append(later, f)
		total += weigh(f)
	}
	if total <= most {
		return slices.Collect(rows), nil
	}
	slices.SortFunc(later, func(a, b *lb.Frontend) int {
		return cmp.Or(cmp.Compare(a.Service, b.Service), a.Key.Compare(b.Key))
	})
	return now, later
}

// Dropped returns those of the keys that the kernel serves, and that the table does not have, each
// once and sorted.
func Dropped(served iter.Seq[lb.Key], want *lb.Table) (keys []lb.Key) {
	for k := range served {
		if want.Get(k) == nil {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, lb.Key.Compare)
	return slices.Compact(keys)
}

// Keys returns the keys of frontends.
func Keys(rows []*lb.Frontend) []lb.Key {
	keys := make([]lb.Key, len(rows))
	for i, f := range rows {
		keys[i] = f.Key
	}
	return keys
}
