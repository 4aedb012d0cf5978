package slots

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"kube-proxy/lb"
)

// No number is assigned twice, even with crashes at any moment: a process may die before or after
// the kernel accepted its batch. A later process knows only the table's record, and the numbers in
// use.
func TestNumbersAreUsedOnce(t *testing.T) {
	for seed := range uint64(6) {
		rnd := rand.New(rand.NewPCG(seed, 6))
		used := map[uint32]bool{}
		table := struct{ reserved, seen uint32 }{}
		for range 20 { // processes
			var c Counter
			c.Saw(table.seen)
			c.GoOn(table.reserved)
			for range rnd.IntN(30) { // changes
				before := c.Reserved
				var batch []uint32
				for range rnd.IntN(2 * Block / 3) {
					batch = append(batch, c.Next())
				}
				if c.Short() {
					c.Reserve()
				}
				if len(batch) > 0 && batch[len(batch)-1] > c.Reserved {
					t.Fatalf("seed %d: number %d is written, reserved are %d", seed, batch[len(batch)-1], c.Reserved)
				}
				// refused: the numbers are not written, and the record is unchanged.
				if rnd.IntN(4) == 0 {
					c.Reserved = before
					continue
				}
				table.reserved = c.Reserved
				for _, n := range batch {
					if used[n] {
						t.Fatalf("seed %d: number %d was used before", seed, n)
					}
					used[n] = true
				}
				if rnd.IntN(3) == 0 && len(batch) > 0 {
					table.seen = batch[0]
				}
			}
		}
	}
}

func TestReserveInBlocks(t *testing.T) {
	var c Counter
	writes := 0
	for range 10 * Block {
		c.Next()
		if c.Short() {
			c.Reserve()
			writes++
		}
	}
	if writes > 10 {
		t.Errorf("%d numbers, one by one, were reserved in %d writes", 10*Block, writes)
	}
	c.Saw(End - 1)
	if !c.Left() {
		t.Error("none left before the end")
	}
	c.Next()
	if c.Left() {
		t.Error("some left behind the end")
	}
}

// kernel is the state that an earlier process left for some sets.
type kernel struct {
	backends  map[uint32][]netip.AddrPort
	allocated map[lb.Key]bool
	asked     int
}

func (k *kernel) Backends(id uint32) map[uint32]netip.AddrPort {
	k.asked++
	return byIndex(k.backends[id])
}

func (k *kernel) Allocated(f *lb.Frontend) bool { return k.allocated[f.Key] }

func set(name string, backends ...int) *lb.BackendSet {
	var all []lb.Backend
	for _, b := range backends {
		all = append(all, lb.Backend{Addr: addr(b)})
	}
	slices.SortFunc(all, lb.Backend.Compare)
	return &lb.BackendSet{ID: lb.SetID{Service: name, Proto: lb.TCP, Scope: lb.Cluster},
		Backends: lb.BackendsOf(all...)}
}

// Keys a to f refer to ids in the kernel, and to sets in the table; upper case marks allocated
// keys.
func TestAdoptIDs(t *testing.T) {
	for _, tc := range []struct {
		story  string
		was    map[uint32]string // ids → their keys
		is     map[string]string // sets → their keys
		common map[string]uint32 // sets → the id that has backends in common
		want   map[string]uint32
	}{
		{story: "nothing changed", was: map[uint32]string{1: "Ab", 2: "Cd"},
			is:   map[string]string{"x": "Ab", "y": "Cd"},
			want: map[string]uint32{"x": 1, "y": 2}},
		{story: "a new set has none", was: map[uint32]string{1: "Ab"}, is: map[string]string{"x": "Ab", "y": "C"},
			want: map[string]uint32{"x": 1}},
		{story: "a key went to another Service", was: map[uint32]string{1: "Ab", 2: "C"},
			is:   map[string]string{"x": "A", "y": "Cb"},
			want: map[string]uint32{"x": 1, "y": 2}},
		{story: "a swap is seen by the allocated keys", was: map[uint32]string{1: "Ab", 2: "Cd"},
			is:     map[string]string{"x": "Ad", "y": "Cb"},
			common: map[string]uint32{"x": 2, "y": 1}, want: map[string]uint32{"x": 1, "y": 2}},
		{story: "a swap without such, by the backends", was: map[uint32]string{1: "abc", 2: "def"},
			is:     map[string]string{"x": "abf", "y": "dec"},
			common: map[string]uint32{"x": 2, "y": 1}, want: map[string]uint32{"x": 2, "y": 1}},
		{story: "one Service in two", was: map[uint32]string{1: "ab"}, is: map[string]string{"x": "a", "y": "b"},
			common: map[string]uint32{"y": 1}, want: map[string]uint32{"y": 1}},
	} {
		t.Run(tc.story, func(t *testing.T) {
			k := &kernel{backends: map[uint32][]netip.AddrPort{}, allocated: map[lb.Key]bool{}}
			ids := map[rune]uint32{}
			for id, keys := range tc.was {
				k.backends[id] = []netip.AddrPort{addr(int(id))}
				for _, r := range keys {
					ids[r] = id
				}
			}
			var claims []Claim
			for name, keys := range tc.is {
				s := set(name, int(tc.common[name]))
				for _, r := range keys {
					f := &lb.Frontend{Key: lb.Key{Port: uint16(r), Proto: lb.TCP}}
					k.allocated[f.Key] = r < 'a'
					if id, ok := ids[r]; ok {
						claims = append(claims, Claim{f, s, id})
					}
				}
			}
			for range 20 {
				rand.Shuffle(len(claims), func(i, j int) { claims[i], claims[j] = claims[j], claims[i] })
				got := map[string]uint32{}
				for set, id := range AdoptIDs(0, slices.Values(claims), k) {
					got[set.Service] = id
				}
				if fmt.Sprint(got) != fmt.Sprint(tc.want) {
					t.Fatalf("got %v, want %v", got, tc.want)
				}
			}
		})
	}
}

// Whatever the claims, no two sets get one id, each set with an id claims it, and for each claim
// the set or the id is assigned. Without contradictions the kernel is not queried.
func TestAdoptIDsOfAnything(t *testing.T) {
	for seed := range uint64(1000) {
		rnd := rand.New(rand.NewPCG(seed, 7))
		k := &kernel{backends: map[uint32][]netip.AddrPort{}, allocated: map[lb.Key]bool{}}
		var sets []*lb.BackendSet
		for i := range 6 {
			sets = append(sets, set(fmt.Sprint(i), rnd.IntN(3), 3+rnd.IntN(3)))
			k.backends[uint32(i)] = []netip.AddrPort{addr(rnd.IntN(6)), addr(rnd.IntN(6))}
		}
		var claims []Claim
		for i := range rnd.IntN(12) {
			f := &lb.Frontend{Key: lb.Key{Port: uint16(i), Proto: lb.TCP}}
			k.allocated[f.Key] = rnd.IntN(3) == 0
			claims = append(claims, Claim{f, sets[rnd.IntN(6)], uint32(rnd.IntN(6))})
		}
		got := AdoptIDs(0, slices.Values(claims), k)
		taken := map[uint32]bool{}
		for set, id := range got {
			if taken[id] {
				t.Fatalf("seed %d: id %d came to two sets", seed, id)
			}
			taken[id] = true
			if !slices.ContainsFunc(claims, func(c Claim) bool { return c.Set.ID == set && c.ID == id }) {
				t.Fatalf("seed %d: %s has id %d, which it did not claim", seed, set, id)
			}
		}
		contradict := false
		for i, a := range claims {
			if _, has := got[a.Set.ID]; !has && !taken[a.ID] {
				t.Fatalf("seed %d: %s lacks an id, and %d a set", seed, a.Set.ID, a.ID)
			}
			for _, b := range claims[:i] {
				contradict = contradict || (a.Set.ID == b.Set.ID) != (a.ID == b.ID)
			}
		}
		if !contradict && k.asked > 0 {
			t.Fatalf("seed %d: the kernel was asked though nothing contradicts", seed)
		}
	}
}
