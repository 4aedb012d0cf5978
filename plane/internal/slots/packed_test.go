package slots

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"kube-proxy/lb"
)

// Packed returns any slots unchanged. Slots with backends of the set's own list take indices only;
// slots in its order take nothing.
func TestPacked(t *testing.T) {
	for seed := range uint64(500) {
		rnd := rand.New(rand.NewPCG(seed, 9))
		var r Packer
		list := some(rnd, rnd.IntN(12), 20)
		for _, slots := range [][]netip.AddrPort{First(list), shuffled(rnd, First(list)),
			First(some(rnd, rnd.IntN(12), 20)), nil} {
			p := r.Pack(slices.Clone(slots), list)
			if got := p.Slots(list); !slices.Equal(got, slots) || p.Len() != len(slots) {
				t.Fatalf("seed %d: packed %v of %v, unpacked %v", seed, slots, list, got)
			}
			own := !slices.ContainsFunc(slots, func(ap netip.AddrPort) bool { return !list.Has(ap) })
			if own && p.in.isLoose() || slices.Equal(slots, First(list)) && p.in != nil {
				t.Fatalf("seed %d: %v of %v takes more memory than it must", seed, slots, list)
			}
		}
	}
}

func shuffled(rnd *rand.Rand, slots []netip.AddrPort) []netip.AddrPort {
	rnd.Shuffle(len(slots), func(i, j int) { slots[i], slots[j] = slots[j], slots[i] })
	return slots
}

// For any number of ports, with shared endpoints or not, in any order, and when the port itself
// changes, a Packer returns the same as Next for each alone, and exactly the slots that differ
// (TN-89).
func TestPackerNext(t *testing.T) {
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 10))
		lists := make([][]lb.Endpoint, 3)
		for i := range lists {
			for n := range 8 {
				if rnd.IntN(2) == 0 {
					lists[i] = append(lists[i], lb.Endpoint{Addr: addr(n).Addr()})
				}
			}
		}
		of := func(port uint16) *lb.Backends {
			b := &lb.Backends{}
			for range 1 + rnd.IntN(4)/3 {
				if all := lists[rnd.IntN(len(lists))]; len(all) > 0 {
					b.Add(port, lb.EndpointsOf(all...))
				}
				port += 100
			}
			return b
		}
		var r Packer
		for port := range uint16(20) {
			was, want := of(port), of(port+uint16(rnd.IntN(4)/3))
			old := First(was)
			if rnd.IntN(3) == 0 {
				slices.Reverse(old)
			}
			next, differ := r.Next(r.Pack(slices.Clone(old), was), was, want)
			is := next.Slots(want)
			if !slices.Equal(is, Next(old, was, want)) {
				t.Fatalf("seed %d, port %d: %v, want %v", seed, port, is, Next(old, was, want))
			}
			for i := range max(len(old), len(is)) {
				same := i < len(old) && i < len(is) && old[i] == is[i]
				if _, found := slices.BinarySearch(differ, i); found == same {
					t.Fatalf("seed %d, port %d: slots %v are said to differ of %v and %v", seed, port, differ, old, is)
				}
			}
		}
	}
}
