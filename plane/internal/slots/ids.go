package slots

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"

	"kube-proxy/lb"
)

// Counter assigns numbers from 1, each once in the life of a table: state that packets left in the
// kernel must not get another meaning. The table outlives the process, so it records the number up
// to which numbers may be used, and a later process continues after that. Numbers are reserved in
// blocks, so that most changes need not update the record.
type Counter struct {
	Last     uint32 // the last number assigned, or found in use
	Reserved uint32 // the table's record: numbers up to this may be used
}

// Block is the number of ids that are reserved at a time. At End a table is used up, and only a new
// one helps; at a thousand new backends a second that takes three weeks.
const (
	Block = 1024
	End   = 1 << 31
)

// Next assigns a number. It must not be written before the table has reserved it.
func (c *Counter) Next() uint32 { c.Last++; return c.Last }

// Saw records a number that is in use.
func (c *Counter) Saw(n uint32) { c.Last = max(c.Last, n) }

// GoOn continues after the numbers that the table has reserved.
func (c *Counter) GoOn(reserved uint32) {
	c.Reserved = reserved
	c.Saw(reserved)
}

// Short reports whether numbers were assigned that are not reserved.
func (c *Counter) Short() bool { return c.Last > c.Reserved }

// Reserve sets Reserved to the value that must be written together with the assigned numbers.
func (c *Counter) Reserve() { c.Reserved = c.Last + Block }

// Left reports whether the table has numbers left.
func (c *Counter) Left() bool { return c.Last < End }

// Claim says that the kernel has an id for the key of a frontend that refers to a set.
type Claim struct {
	Front *lb.Frontend
	Set   *lb.BackendSet
	ID    uint32
}

// Kernel returns the state that an earlier process left, for [AdoptIDs].
type Kernel interface {
	// Backends returns the slots of an id. They are valid until the next call.
	Backends(id uint32) map[uint32]netip.AddrPort
	// Allocated reports whether the frontend's key belongs to one Service alone, and did so before:
	// cluster IPs and NodePorts are allocated, while any tenant may claim an external address.
	Allocated(f *lb.Frontend) bool
}

// AdoptIDs returns the ids that sets keep. It ranges over claims once, and again if they contradict
// each other: if keys have changed owners, a set may have several ids, or several sets one. n is
// the approximate number of sets.
func AdoptIDs(n int, claims iter.Seq[Claim], kernel Kernel) map[lb.SetID]uint32 {
	a := adopted{ids: make(map[lb.SetID]uint32, n), taken: make(map[uint32]struct{}, n)}
	sets, ids := map[lb.SetID]bool{}, map[uint32]bool{} // of contradictions
	for c := range claims {
		if !a.adopt(c.Set.ID, c.ID) {
			sets[c.Set.ID], ids[c.ID] = true, true
		}
	}
	if len(ids) == 0 {
		return a.ids
	}
	var doubtful []rankedClaim
	for c := range claims {
		if sets[c.Set.ID] || ids[c.ID] {
			doubtful = append(doubtful, rankedClaim{set: c.Set, id: c.ID, allocated: kernel.Allocated(c.Front)})
			delete(a.ids, c.Set.ID)
			delete(a.taken, c.ID)
		}
	}
	for _, c := range rank(doubtful, kernel) {
		a.adopt(c.set.ID, c.id)
	}
	return a.ids
}

type adopted struct {
	ids   map[lb.SetID]uint32
	taken map[uint32]struct{}
}

// adopt assigns the id to the set, and reports whether the set has it then.
func (a *adopted) adopt(set lb.SetID, id uint32) bool {
	if has, ok := a.ids[set]; ok {
		return has == id
	}
	if _, is := a.taken[id]; is {
		return false
	}
	a.ids[set], a.taken[id] = id, struct{}{}
	return true
}

// rankedClaim is a claim with the evidence for it.
type rankedClaim struct {
	set       *lb.BackendSet
	id        uint32
	allocated bool
	same      int // backends of the set that the id has in the kernel
}

// rank sorts the claims by how likely the id is the set's own: first those by allocated keys, and
// among those the ones with the most backends in common. A set with another's id would lose its
// clients' affinity, and so would the other; packets would still reach only their own backends (ADR
// 0015).
func rank(claims []rankedClaim, kernel Kernel) []rankedClaim {
	slices.SortFunc(claims, func(a, b rankedClaim) int {
		return cmp.Or(cmp.Compare(a.id, b.id), a.set.ID.Compare(b.set.ID), first(a.allocated, b.allocated))
	})
	claims = slices.CompactFunc(claims, func(a, b rankedClaim) bool { return a.id == b.id && a.set.ID == b.set.ID })
	var slots map[uint32]netip.AddrPort
	for i := range claims {
		c := &claims[i]
		if i == 0 || c.id != claims[i-1].id {
			slots = kernel.Backends(c.id)
		}
		for _, ap := range slots {
			if c.set.Backends.Has(ap) {
				c.same++
			}
		}
	}
	slices.SortStableFunc(claims, func(a, b rankedClaim) int {
		return cmp.Or(first(a.allocated, b.allocated), cmp.Compare(b.same, a.same))
	})
	return claims
}

// first sorts true before false.
func first(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return +1
}
