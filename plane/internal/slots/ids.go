package slots

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"

	"kube-proxy/lb"
)

// Counter gives out numbers from 1, each once in the life of a table: what packets left in the kernel must not come to mean
// something else. The table survives the process, so it says itself up to where numbers may have been used, and a later
// process goes on behind that. They are reserved in blocks, so that most changes need not write there.
type Counter struct {
	Last     uint32 // the last number given out, or seen in use
	Reserved uint32 // up to where the table says that numbers may have been used
}

// Block is how many numbers are reserved at a time; End is where a table ends, and only a new one helps. At a thousand new
// backends a second that takes three weeks.
const (
	Block = 1024
	End   = 1 << 31
)

// Next gives out a number. It must not be written before the table has it reserved.
func (c *Counter) Next() uint32 { c.Last++; return c.Last }

// Saw notes a number that is in use.
func (c *Counter) Saw(n uint32) { c.Last = max(c.Last, n) }

// GoOn goes on behind what the table has reserved.
func (c *Counter) GoOn(reserved uint32) {
	c.Reserved = reserved
	c.Saw(reserved)
}

// Short reports whether numbers were given out that are not reserved.
func (c *Counter) Short() bool { return c.Last > c.Reserved }

// Reserve makes Reserved what is to be written with the numbers that were given out.
func (c *Counter) Reserve() { c.Reserved = c.Last + Block }

// Left reports whether the table has numbers left.
func (c *Counter) Left() bool { return c.Last < End }

// Claim says that the kernel has an id where the table has a set: the row that refers to the set has the key under which
// the kernel has the id.
type Claim struct {
	Front *lb.Frontend
	Set   *lb.BackendSet
	ID    uint32
}

// Kernel answers for [AdoptIDs] what an earlier process left.
type Kernel interface {
	// Backends returns the slots of an id, until the next call.
	Backends(id uint32) map[uint32]netip.AddrPort
	// Allocated reports whether the row's key belongs to one Service alone, and did so before: cluster IPs and NodePorts are
	// allocated, while anybody may ask for an external address.
	Allocated(f *lb.Frontend) bool
}

// AdoptIDs returns the ids that sets keep. claims is ranged over once, and again if they contradict each other: where keys
// have other owners than before, a set may be found under several ids, or several sets under one. n is about how many sets
// there are.
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

// adopt gives the set the id, and reports whether it has it then.
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

// rankedClaim is a claim with what speaks for it.
type rankedClaim struct {
	set       *lb.BackendSet
	id        uint32
	allocated bool
	same      int // backends of the set that the id has in the kernel
}

// rank puts the claims first by which the id is most likely the set's own: those by keys that are allocated, and of those the
// ones with the most backends in common. A set with another's id would forget its clients, and so would the other; nobody
// would be led astray (ADR 0015).
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

// first puts the true before the false.
func first(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return +1
}
