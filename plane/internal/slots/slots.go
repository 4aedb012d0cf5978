// Package slots numbers backend sets and their backends so that the numbers stay.
//
// A plane that balances by a map from set id and slot to a backend writes little for an endpoint
// change if the other endpoints keep their slots. State that packets left in the kernel, such as a
// client's backend, stays valid over changes and restarts if numbers keep their meaning. [Counter]
// never assigns a set id twice, [Members] numbers the backends of one set, and [AdoptIDs] finds the
// owner of each id that an earlier process wrote (ADR 0015).
//
// The package has no side effects. A plane decides how numbers and slots are written.
package slots

import (
	"net/netip"
	"slices"

	"kube-proxy/lb"
)

// First returns the slots of a new set: its backends in their order.
func First(want *lb.Backends) []netip.AddrPort {
	slots := make([]netip.AddrPort, 0, want.Len())
	for b := range want.All() {
		slots = append(slots, b.Addr)
	}
	return slots
}

// Next returns slots that hold exactly the backends want, with as few differences as possible from
// slots, which hold the backends was. Remaining backends keep their slots, new ones take the free
// slots, and the backends in the last slots move into slots that are still free.
func Next(slots []netip.AddrPort, was, want *lb.Backends) []netip.AddrPort {
	next := make([]netip.AddrPort, len(slots), max(len(slots), want.Len()))
	copy(next, slots)
	var newcomers []netip.AddrPort
	for b := range want.All() {
		if !was.Has(b.Addr) {
			newcomers = append(newcomers, b.Addr)
		}
	}
	for i := 0; i < len(next); {
		switch {
		case want.Has(next[i]):
			i++
		case len(newcomers) > 0:
			next[i] = newcomers[0]
			newcomers = newcomers[1:]
			i++
		default:
			next[i] = next[len(next)-1]
			next = next[:len(next)-1]
		}
	}
	return append(next, newcomers...)
}

// Step computes one step of the way from have to want, which changes at most most slots. have is
// the present content of the slots; packets draw from the first drawn of them. The results have the
// same meaning. Every slot that packets draw from holds a backend of have or of want, so each state
// on the way serves. Slots beyond those are removed last. The way is complete when next equals want
// and packets draw from all of it. Step does not modify have.
func Step(have []netip.AddrPort, drawn int, want []netip.AddrPort, most int) (next []netip.AddrPort, draw int) {
	next = slices.Clone(have)
	at := 0
	for ; at < len(want) && (at < len(have) && have[at] == want[at] || most > 0); at++ {
		switch {
		case at == len(next):
			next = append(next, want[at])
		case next[at] == want[at]:
			continue
		default:
			next[at] = want[at]
		}
		most--
	}
	if at < len(want) {
		return next, max(drawn, at)
	}
	return next[:max(len(want), len(next)-most)], len(want)
}

// Adopt returns slots for the backends such that as many as possible keep their slot in the kernel.
// The kernel's content may be damaged: slots may be missing or have foreign backends, or one
// backend twice.
func Adopt(kernel map[uint32]netip.AddrPort, want *lb.Backends) []netip.AddrPort {
	if len(kernel) == 0 || inOrder(kernel, want) {
		return First(want)
	}
	slots := make([]netip.AddrPort, want.Len())
	placed := make(map[netip.AddrPort]bool, want.Len())
	for i := range slots {
		if ap, ok := kernel[uint32(i)]; ok && want.Has(ap) && !placed[ap] {
			slots[i] = ap
			placed[ap] = true
		}
	}
	free := 0
	for b := range want.All() {
		if placed[b.Addr] {
			continue
		}
		for slots[free].IsValid() {
			free++
		}
		slots[free] = b.Addr
	}
	return slots
}

// inOrder reports whether the kernel has the backends in the slots of a new set. That holds for
// most sets, and is quick to check.
func inOrder(kernel map[uint32]netip.AddrPort, want *lb.Backends) bool {
	for i := range want.Len() {
		if kernel[uint32(i)] != want.At(i).Addr {
			return false
		}
	}
	return true
}

// Members returns a number for the backend in each slot that no other backend of the set has: its
// previous one, or the lowest free one. A later backend of the same set reuses the number of one
// that left. So a set never has a number above its maximum count of backends (ADR 0015).
func Members(slots []netip.AddrPort, had map[netip.AddrPort]uint32) []uint32 {
	members, taken := make([]uint32, len(slots)), make(map[uint32]bool, len(had))
	for i, ap := range slots {
		if m, ok := had[ap]; ok {
			members[i], taken[m] = m, true
		}
	}
	free := uint32(1)
	for i, ap := range slots {
		if _, ok := had[ap]; ok {
			continue
		}
		for taken[free] {
			free++
		}
		members[i] = free
		free++
	}
	return members
}
