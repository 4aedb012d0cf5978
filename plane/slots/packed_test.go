package slots

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

// Whatever slots hold, they come back as they were; those of the set's own list take indices at most, those in its order nothing.
func TestPacked(t *testing.T) {
	for seed := range uint64(500) {
		rnd := rand.New(rand.NewPCG(seed, 9))
		var r Packer
		list := some(rnd, rnd.IntN(12), 20)
		for _, slots := range [][]netip.AddrPort{First(list), shuffled(rnd, First(list)), First(some(rnd, rnd.IntN(12), 20)), nil} {
			p := r.Pack(slices.Clone(slots), list)
			if got := p.Slots(list); !slices.Equal(got, slots) || p.Len() != len(slots) {
				t.Fatalf("seed %d: packed %v of %v, unpacked %v", seed, slots, list, got)
			}
			own := !slices.ContainsFunc(slots, func(ap netip.AddrPort) bool { return !list.Has(ap) })
			if own && p.loose != nil || slices.Equal(slots, First(list)) && p.order != nil {
				t.Fatalf("seed %d: %v of %v takes more memory than it must", seed, slots, list)
			}
		}
	}
}

func shuffled(rnd *rand.Rand, slots []netip.AddrPort) []netip.AddrPort {
	rnd.Shuffle(len(slots), func(i, j int) { slots[i], slots[j] = slots[j], slots[i] })
	return slots
}
