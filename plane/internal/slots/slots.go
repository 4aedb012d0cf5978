// Package slots numbers backend sets and their backends so that the numbers stay.
//
// A plane that balances by a map from set id and slot to a backend writes little when an endpoint comes or goes, if the others
// keep their slots. And what packets left in the kernel, such as which backend a client had, stays true over changes and
// restarts, if numbers keep their meaning: [Counter] never gives a set id out twice, [Members] numbers the backends of one set, and
// [AdoptIDs] finds which id is whose in what an earlier process wrote (ADR 0015).
//
// Everything here is pure. A plane says how numbers and slots are written.
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

// Next returns the slots that hold exactly the backends want, with as few differences as possible to slots, which hold
// those of was: who stays keeps the slot, newcomers take the free ones, and the last slots move into those that are free then.
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

// Step is a part of the way from have to want, of at most so many slots. have is what the slots hold, of which packets draw the first
// drawn; and so are the results. Every slot that packets draw holds a backend of have or of want, so any state on the way serves. Those
// beyond go last. The way is done where next is want and all of it is drawn; have is left as it is.
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

// Adopt returns slots for the backends such that as many as possible stay in the slot in which the kernel has them. What the
// kernel has may be damaged: slots may be missing or have strange backends, or one backend twice.
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

// inOrder reports whether the kernel has the backends in the slots of a new set. For most it has, and that is quickly seen.
func inOrder(kernel map[uint32]netip.AddrPort, want *lb.Backends) bool {
	for i := range want.Len() {
		if kernel[uint32(i)] != want.At(i).Addr {
			return false
		}
	}
	return true
}

// Members returns a number for the backend in each slot, which no other backend of the set has: the one that it had, or the
// least that is free. A number that a backend leaves behind goes to another of the same set, so a set never has a number above
// the most backends that it has had (ADR 0015).
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
