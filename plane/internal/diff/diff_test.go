package diff

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

// From any elements to any others: removed and changed elements existed, added ones did not, none
// is reported twice, and applying the reports gives the wanted elements.
func TestElements(t *testing.T) {
	for seed := range uint64(500) {
		rnd := rand.New(rand.NewPCG(seed, 2))
		key := 1 + rnd.IntN(maxSize/2)
		size := key + rnd.IntN(maxSize/2)
		random := func() (Records, map[string]string) {
			r, m := Records{Size: size}, map[string]string{}
			for range rnd.IntN(20) {
				rec := bytes.Repeat([]byte{7}, size)
				rec[rnd.IntN(min(key, 2))] = byte(rnd.IntN(9)) // so that many keys are equal
				if key < size {
					rec[key] = byte(rnd.IntN(2))
				}
				if _, has := m[string(rec[:key])]; has {
					continue
				}
				m[string(rec[:key])] = string(rec[key:])
				for range 1 + rnd.IntN(2) { // as while the kernel resizes
					r.Bytes = append(r.Bytes, rec...)
				}
			}
			return r, m
		}
		is, kernel := random()
		want, wanted := random()
		different := 0
		for k, v := range kernel {
			if w, has := wanted[k]; !has || w != v {
				different++
			}
		}
		for k := range wanted {
			if _, has := kernel[k]; !has {
				different++
			}
		}
		must := func(verb string, rec []byte, there bool) {
			if _, is := kernel[string(rec[:key])]; is != there {
				t.Fatalf("seed %d: %s %x, there: %v", seed, verb, rec, is)
			}
		}
		compare := Elements
		if seed%2 == 1 { // one by one, in any order, each key once
			compare = func(is, want Records, key int, differs func(is, want []byte)) int {
				p, seen := Compare(is, key, differs), map[string]bool{}
				for rec := range want.All() {
					if !seen[string(rec[:key])] {
						p.Want(rec)
					}
					seen[string(rec[:key])] = true
				}
				return p.End()
			}
		}
		n := compare(is, want, key, func(is, want []byte) {
			if is != nil {
				must("remove", is, true)
				delete(kernel, string(is[:key]))
			}
			if want != nil {
				must("add", want, false)
				kernel[string(want[:key])] = string(want[key:])
			}
		})
		if !maps.Equal(kernel, wanted) || n != different {
			t.Fatalf("seed %d: %d calls for %d differences, and then\ngot  %q\nwant %q", seed, n, different, kernel,
				wanted)
		}
	}
}

// Each finds all records with the prefix, also the first and the last.
func TestEach(t *testing.T) {
	r := Records{Size: 8}
	for i := range 100 {
		r.Bytes = binary.BigEndian.AppendUint32(r.Bytes, uint32((99-i)/10))
		r.Bytes = binary.BigEndian.AppendUint32(r.Bytes, uint32(i))
	}
	r = r.Sorted()
	for i := range uint32(11) {
		n := 0
		r.Each(binary.BigEndian.AppendUint32(nil, i), func(rec []byte) {
			n++
			if got := binary.BigEndian.Uint32(rec); got != i {
				t.Errorf("a record of %d is said to be one of %d", got, i)
			}
		})
		if want := map[bool]int{true: 10}[i < 10]; n != want {
			t.Errorf("%d records begin with %d, want %d", n, i, want)
		}
	}
	(Records{}).Each(nil, func([]byte) { t.Error("a record of nothing") })
}

// Sorting a million sorted records allocates no memory.
func TestSortedAllocates(t *testing.T) {
	r := Records{Size: 16, Bytes: make([]byte, 16<<10)}
	for i := range r.Len() {
		binary.BigEndian.PutUint64(r.At(i), uint64(i))
	}
	if n := testing.AllocsPerRun(10, func() { Elements(r, r, 8, nil) }); n > 4 {
		t.Errorf("%v allocations for %d equal records", n, r.Len())
	}
}

func TestSorted(t *testing.T) {
	for _, tc := range []struct{ is, want, calls string }{
		{"", "", ""},
		{"", "ab", "+a+b"},
		{"ab", "", "-a-b"},
		{"abc", "abc", ""},
		{"bd", "abce", "+a+c-d+e"},
	} {
		calls := ""
		n := Sorted([]byte(tc.is), []byte(tc.want), cmp.Compare[byte],
			func(b byte) { calls += "-" + string(b) }, func(b byte) { calls += "+" + string(b) })
		if calls != tc.calls || 2*n != len(tc.calls) {
			t.Errorf("from %q to %q: %d calls %s, want %s", tc.is, tc.want, n, calls, tc.calls)
		}
	}
}

// Named reports removed, changed and added objects, always in the same order.
func TestNamed(t *testing.T) {
	is := map[string]int{"same": 1, "gone": 2, "changed": 3, "also gone": 4}
	want := map[string]int{"same": 1, "changed": 5, "new": 6, "also new": 7}
	for range 20 {
		var calls []string
		n := Named(is, want, func(name string, had, has bool) {
			calls = append(calls, fmt.Sprintf("%s %t %t", name, had, has))
		})
		if want := []string{"also gone true false", "also new false true", "changed true true", "gone true false",
			"new false true"}; !slices.Equal(calls, want) || n != len(want) {
			t.Fatalf("%d calls %v, want %v", n, calls, want)
		}
	}
}
