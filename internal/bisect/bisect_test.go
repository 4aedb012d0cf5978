package bisect

import (
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"
)

// run searches among n items with those in bad refused, and returns the culprits found, the
// accepted items, and the number of attempts.
func run(n int, bad map[int]bool) (s *Search[int], found, taken []int, attempts int) {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	s = New(Halves(all), 1)
	for g := s.Next(); g != nil; g = s.Next() {
		attempts++
		if slices.ContainsFunc(g, func(i int) bool { return bad[i] }) {
			if s.Refused(g) {
				found = append(found, g[0])
			}
			continue
		}
		s.Took()
		taken = append(taken, g...)
	}
	return s, found, taken, attempts
}

func keys(bad map[int]bool) []int {
	var out []int
	for i := range bad {
		out = append(out, i)
	}
	slices.Sort(out)
	return out
}

// For any set of refused items: no acceptable one is blamed, no refused one is accepted, none is
// lost, and the number of attempts is limited. If the search does not give up it has found all, and
// with up to three it never gives up.
func TestSearch(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 4000 {
		n := 1 + rnd.IntN(1<<rnd.IntN(14))
		bad := map[int]bool{}
		culprits := rnd.IntN(4)
		if rnd.IntN(4) == 0 {
			culprits = rnd.IntN(n + 1)
		}
		first := rnd.IntN(n)
		for i := range culprits {
			if rnd.IntN(2) == 0 {
				bad[(first+i)%n] = true // side by side
			} else {
				bad[rnd.IntN(n)] = true
			}
		}
		s, found, taken, attempts := run(n, bad)
		all := slices.Concat(found, taken, s.Left())
		slices.Sort(all)
		if len(all) != n || len(slices.Compact(all)) != n {
			t.Fatalf("%d things, %d bad: %d found, %d taken, %d left", n, len(bad), len(found), len(taken),
				len(s.Left()))
		}
		for _, i := range found {
			if !bad[i] {
				t.Fatalf("%d is blamed, of the bad %v", i, keys(bad))
			}
		}
		slices.Sort(found)
		if !s.GaveUp() && !slices.Equal(found, keys(bad)) {
			t.Fatalf("%d things: found %v, want %v", n, found, keys(bad))
		}
		if s.GaveUp() && len(bad) <= 3 {
			t.Fatalf("%d things: gave up with the bad %v", n, keys(bad))
		}
		if most := 2*(4*bits.Len(uint(n))+16) + 2; attempts > most {
			t.Fatalf("%d things, %d bad: %d attempts, want %d at most", n, len(bad), attempts, most)
		}
	}
}

// One culprit costs two attempts for each time that its company is halved.
func TestOneCulprit(t *testing.T) {
	for _, n := range []int{2, 100, 1000, 100_000} {
		for _, at := range []int{0, n / 3, n - 1} {
			_, found, taken, attempts := run(n, map[int]bool{at: true})
			if len(found) != 1 || found[0] != at || len(taken) != n-1 || attempts > 2*bits.Len(uint(n)) {
				t.Errorf("%d of %d: found %v, took %d, %d attempts", at, n, found, len(taken), attempts)
			}
		}
	}
}

// If all are refused the search ends soon, and leaves the rest undecided.
func TestAllRefused(t *testing.T) {
	bad := map[int]bool{}
	for i := range 10_000 {
		bad[i] = true
	}
	s, found, _, attempts := run(10_000, bad)
	if !s.GaveUp() || s.Promising() || attempts > bits.Len(10_000)+8 || len(found)+len(s.Left()) != 10_000 {
		t.Errorf("gave up: %t, promising: %t, %d attempts, %d found", s.GaveUp(), s.Promising(), attempts, len(found))
	}
}

// The number of refusals is limited, however often groups are accepted: 4·log2(n) and 16.
func TestRefusals(t *testing.T) {
	s, refusals := New([][]int{make([]int, 1000)}, 0), 0
	for !s.GaveUp() {
		s.Refused(nil)
		s.Took()
		refusals++
	}
	if want := 4*bits.Len(1000) + 16; refusals != want {
		t.Errorf("%d refusals, want %d", refusals, want)
	}
}

// So is the number of refusals in a row: log2(n) and 8, less those before the search. An accepted
// group makes the rest promising.
func TestRefusalsInARow(t *testing.T) {
	for _, before := range []int{0, 5} {
		s, refusals := New([][]int{make([]int, 1000)}, before), before
		if s.Promising() {
			t.Error("promising before anything was tried")
		}
		for !s.GaveUp() {
			s.Refused(nil)
			refusals++
		}
		if want := bits.Len(1000) + 8 + 1; refusals != want {
			t.Errorf("gave up after %d refusals in a row, want %d", refusals, want)
		}
		s.Took()
		if !s.Promising() || s.GaveUp() {
			t.Error("it gave up, though a group was accepted")
		}
	}
}

// A group that got smaller before it was tried, or empty, is searched as it is then.
func TestShrunk(t *testing.T) {
	s := New([][]string{{}, {"a", "b", "c"}}, 0)
	g := s.Next()
	if s.Refused(g[1:2]) != true || s.Next() != nil || s.GaveUp() {
		t.Errorf("after a group of one: %v left", s.Left())
	}
}
