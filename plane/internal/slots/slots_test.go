package slots

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"kube-proxy/lb"
)

func addr(n int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}), 80)
}

// some returns n random backends below of, sorted.
func some(rnd *rand.Rand, n, of int) *lb.Backends {
	var out []lb.Backend
	for _, i := range rnd.Perm(of)[:n] {
		out = append(out, lb.Backend{Addr: addr(i)})
	}
	return sorted(out)
}

func sorted(all []lb.Backend) *lb.Backends {
	slices.SortFunc(all, lb.Backend.Compare)
	b := lb.BackendsOf(all...)
	return &b
}

// exactly fails unless the slots hold each backend once, and no other.
func exactly(t *testing.T, slots []netip.AddrPort, want *lb.Backends) {
	t.Helper()
	sorted := slices.SortedFunc(slices.Values(slots), netip.AddrPort.Compare)
	if !slices.Equal(sorted, First(want)) {
		t.Fatalf("slots %v, want those of %v", slots, want)
	}
}

// Repeatedly from any backends to any others: the slots hold them exactly, and only the minimum of
// slots changes.
func TestNext(t *testing.T) {
	for seed := range uint64(100) {
		rnd := rand.New(rand.NewPCG(seed, 4))
		was := some(rnd, rnd.IntN(12), 20)
		slots := First(was)
		for range 50 {
			want := some(rnd, rnd.IntN(12), 20)
			before := slices.Clone(slots)
			next := Next(slots, was, want)
			if !slices.Equal(slots, before) {
				t.Fatal("the slots of before were changed: a batch that is refused could not take it back")
			}
			exactly(t, next, want)
			// Leaving backends must be replaced, new ones placed, and slots beyond the end removed:
			// one change can do two of these.
			left, changed := 0, 0
			for _, ap := range slots {
				if !want.Has(ap) {
					left++
				}
			}
			for i := range max(len(slots), len(next)) {
				if i >= len(slots) || i >= len(next) || slots[i] != next[i] {
					changed++
				}
			}
			moved := 0
			for i, ap := range next {
				if at := slices.Index(slots, ap); at >= 0 && at != i {
					moved++
					if at < len(next) {
						t.Fatalf("seed %d: %v moved from slot %d to %d, though the slot stays", seed, ap, at, i)
					}
				}
			}
			if most := left + max(0, len(next)-len(slots)) + moved; changed > most {
				t.Fatalf("seed %d: %d slots changed, want %d at most\n%v\n%v", seed, changed, most, slots, next)
			}
			slots, was = next, want
		}
	}
}

// Whatever the kernel has, the slots hold the backends exactly, and each backend in a remaining
// slot stays there.
func TestAdopt(t *testing.T) {
	for seed := range uint64(2000) {
		rnd := rand.New(rand.NewPCG(seed, 5))
		want := some(rnd, rnd.IntN(10), 12)
		kernel := map[uint32]netip.AddrPort{}
		for i := range uint32(10) {
			if rnd.IntN(5) > 0 {
				kernel[i] = addr(rnd.IntN(15)) // some foreign, some twice
			}
		}
		got := Adopt(kernel, want)
		exactly(t, got, want)
		seen := map[netip.AddrPort]bool{}
		for i := range got {
			ap, ok := kernel[uint32(i)]
			if ok && want.Has(ap) && !seen[ap] && got[i] != ap {
				t.Fatalf("seed %d: slot %d had %v and has %v", seed, i, ap, got[i])
			}
			seen[ap] = true
		}
		if again := Adopt(byIndex(got), want); !slices.Equal(again, got) {
			t.Fatalf("seed %d: adopted once %v, twice %v", seed, got, again)
		}
	}
}

// From any state to any other in steps, also if the goal changes on the way: packets draw only old
// or new backends, no step exceeds its limit, and the steps end (TN-30).
func TestStep(t *testing.T) {
	for seed := range uint64(500) {
		rnd := rand.New(rand.NewPCG(seed, 9))
		have, drawn := []netip.AddrPort(nil), 0
		for range 6 {
			want := Adopt(byIndex(have), some(rnd, 1+rnd.IntN(30), 40))
			most, done, bound := 1+rnd.IntN(6), false, len(have)+len(want)
			for step := 0; !done && rnd.IntN(12) > 0; step++ {
				if step > bound {
					t.Fatalf("seed %d: no end of steps", seed)
				}
				before := slices.Clone(have)
				next, draw := Step(have, drawn, want, most)
				if !slices.Equal(have, before) {
					t.Fatal("the slots of before were changed: a batch that is refused could not take it back")
				}
				changed := 0
				for i := range max(len(have), len(next)) {
					if i >= len(have) || i >= len(next) || have[i] != next[i] {
						changed++
					}
				}
				if changed > most || draw == 0 || draw > len(next) {
					t.Fatalf("seed %d: %d slots changed of %d, %d of %d are drawn", seed, changed, most, draw,
						len(next))
				}
				for i, ap := range next[:draw] {
					if (i >= drawn || have[i] != ap) && want[i] != ap {
						t.Fatalf("seed %d: slot %d has %v", seed, i, ap)
					}
				}
				have, drawn = next, draw
				done = slices.Equal(next, want) && draw == len(want)
			}
		}
	}
}

// Whatever the changes: remaining backends keep their number, no two have the same, and none is
// above the set's maximum count of backends (TN-32).
func TestMembers(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 8))
		var had map[netip.AddrPort]uint32
		most := 0
		for range 50 {
			in := First(some(rnd, rnd.IntN(12), 20))
			rnd.Shuffle(len(in), func(i, j int) { in[i], in[j] = in[j], in[i] })
			most = max(most, len(in))
			now, taken := map[netip.AddrPort]uint32{}, map[uint32]bool{}
			for i, m := range Members(in, had) {
				if was, ok := had[in[i]]; ok && was != m || taken[m] || m == 0 || int(m) > most {
					t.Fatalf("seed %d: %v has member %d of at most %d, and had %d", seed, in[i], m, most, was)
				}
				now[in[i]], taken[m] = m, true
			}
			had = now
		}
	}
}

func byIndex(slots []netip.AddrPort) map[uint32]netip.AddrPort {
	m := map[uint32]netip.AddrPort{}
	for i, ap := range slots {
		m[uint32(i)] = ap
	}
	return m
}
