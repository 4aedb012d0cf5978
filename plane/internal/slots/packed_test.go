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

// Ports that share endpoints share the memory of their slots and of the difference, and a Packer
// remembers only a few of both (TN-89).
func TestPortsShareMemory(t *testing.T) {
	endpoints := func(numbers ...int) lb.Endpoints {
		var all []lb.Endpoint
		for _, n := range numbers {
			all = append(all, lb.Endpoint{Addr: addr(n).Addr()})
		}
		return lb.EndpointsOf(all...)
	}
	before, after := endpoints(1, 2, 3, 4), endpoints(1, 2, 4, 5)
	var r Packer
	next := func(port uint16, from, to lb.Endpoints) (Packed, []int) {
		var was, want lb.Backends
		was.Add(port, from)
		want.Add(port, to)
		old := First(&was)
		slices.Reverse(old)
		return r.Next(r.Pack(old, &was), &was, &want)
	}
	first, differ := next(80, before, after)
	second, same := next(81, before, after)
	if first.in == nil || first.in != second.in || len(differ) == 0 || &differ[0] != &same[0] {
		t.Errorf("two ports have the slots %v and %v, and differ in %v and %v", first.in, second.in, differ, same)
	}
	for n := range 20 {
		next(80, endpoints(1, 2, 3, 4, 10+n), endpoints(2, 3, 4, 10+n, 40+n))
	}
	if len(r.orders) != recent || len(r.moves) != recent {
		t.Errorf("%d orders and %d moves are kept, want %d of each", len(r.orders), len(r.moves), recent)
	}
}
