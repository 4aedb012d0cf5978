// Package diff compares the kernel's content with the wanted content. A plane's Reset and its Audit
// use it: both read, compare, and write the differences, of everything or of a part.
//
// It compares two kinds of objects. Elements of maps, which are many, are [Records]. Chains,
// programs and other named objects, which are few, are Go maps, see [Named].
package diff

import (
	"bytes"
	"iter"
	"maps"
	"slices"
	"sort"
)

// Records holds the elements of one map end to end, each with Size bytes of key and value, 64 at
// most. So a million elements need no million allocations.
type Records struct {
	Size  int
	Bytes []byte
}

// maxSize is the largest allowed Size.
const maxSize = 64

// Len returns the number of records.
func (r Records) Len() int { return len(r.Bytes) / max(r.Size, 1) }

// At returns the i-th record. The caller must not keep it while r changes.
func (r Records) At(i int) []byte { return r.Bytes[i*r.Size : (i+1)*r.Size] }

// All yields the records; the caller must not keep them.
func (r Records) All() iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for i := range r.Len() {
			if !yield(r.At(i)) {
				return
			}
		}
	}
}

// Sorted returns the records in order, each once, in the memory of r. The kernel may show an
// element twice while it resizes a hash table.
func (r Records) Sorted() Records {
	if s := byBytes(r); !sort.IsSorted(s) {
		sort.Sort(s)
	}
	out := Records{r.Size, r.Bytes[:0]}
	for i := range r.Len() {
		if n := len(out.Bytes); n == 0 || !bytes.Equal(r.At(i), out.Bytes[n-r.Size:]) {
			out.Bytes = append(out.Bytes, r.At(i)...)
		}
	}
	return out
}

// Each calls f for the records that begin with the prefix; r must be sorted.
func (r Records) Each(prefix []byte, f func(rec []byte)) {
	from := sort.Search(r.Len(), func(i int) bool { return bytes.Compare(r.At(i)[:len(prefix)], prefix) >= 0 })
	for i := from; i < r.Len() && bytes.HasPrefix(r.At(i), prefix); i++ {
		f(r.At(i))
	}
}

// byBytes sorts records.
type byBytes Records

func (s byBytes) Len() int           { return Records(s).Len() }
func (s byBytes) Less(i, j int) bool { return bytes.Compare(Records(s).At(i), Records(s).At(j)) < 0 }
func (s byBytes) Swap(i, j int) {
	var tmp [maxSize]byte
	a, b := Records(s).At(i), Records(s).At(j)
	n := copy(tmp[:], a)
	copy(a, b)
	copy(b, tmp[:n])
}

// Elements compares elements whose keys are the first bytes of their records. It calls differs with
// both records for each key whose value differs in want, or that only one of them has; the missing
// record is nil. It returns the number of differences, and sorts both.
func Elements(is, want Records, key int, differs func(is, want []byte)) int {
	is, want = is.Sorted(), want.Sorted()
	changed := 0
	return merge(is.Len(), want.Len(), func(i, j int) int {
		a, b := is.At(i), want.At(j)
		order := bytes.Compare(a[:key], b[:key])
		if order == 0 && !bytes.Equal(a[key:], b[key:]) {
			changed++
			differs(a, b)
		}
		return order
	}, func(i int) { differs(is.At(i), nil) }, func(j int) { differs(nil, want.At(j)) }) + changed
}

// Pending compares as [Elements] does, but takes the wanted elements one by one, which saves a
// second list of a million. It is fast if they arrive in the order of their bytes.
type Pending struct {
	is      Records // sorted
	key     int
	differs func(is, want []byte)
	wanted  []bool // by index in is
	next    int    // the expected index of the next one
	n       int
}

// Compare starts a comparison. It sorts is.
func Compare(is Records, key int, differs func(is, want []byte)) *Pending {
	is = is.Sorted()
	return &Pending{is: is, key: key, differs: differs, wanted: make([]bool, is.Len())}
}

// Want compares one wanted element. Each key may be passed once.
func (p *Pending) Want(rec []byte) {
	key := rec[:p.key]
	there := func(i int) bool { return i < p.is.Len() && bytes.HasPrefix(p.is.At(i), key) }
	at := p.next
	if !there(at) {
		at = sort.Search(p.is.Len(), func(i int) bool { return bytes.Compare(p.is.At(i)[:p.key], key) >= 0 })
	}
	if !there(at) {
		p.n++
		p.differs(nil, rec)
		return
	}
	p.next, p.wanted[at] = at+1, true
	if is := p.is.At(at); !bytes.Equal(is, rec) {
		p.n++
		p.differs(is, rec)
	}
}

// End reports the elements that were not passed to Want, and returns the number of differences.
func (p *Pending) End() int {
	for i, wanted := range p.wanted {
		if !wanted {
			p.n++
			p.differs(p.is.At(i), nil)
		}
	}
	return p.n
}

// Sorted compares two sorted lists without duplicates: it calls remove for each element that only
// is has, and add for each that only want has. It returns the number of calls.
func Sorted[T any](is, want []T, compare func(a, b T) int, remove, add func(T)) int {
	return merge(len(is), len(want), func(i, j int) int { return compare(is[i], want[j]) },
		func(i int) { remove(is[i]) }, func(j int) { add(want[j]) })
}

// merge walks two sorted lists by their indexes, and compares each pair once.
func merge(is, want int, compare func(i, j int) int, remove, add func(int)) (n int) {
	for i, j := 0, 0; i < is || j < want; {
		order := 0
		switch {
		case i == is:
			order = +1
		case j == want:
			order = -1
		default:
			order = compare(i, j)
		}
		switch {
		case order < 0:
			remove(i)
			n, i = n+1, i+1
		case order > 0:
			add(j)
			n, j = n+1, j+1
		default:
			i, j = i+1, j+1
		}
	}
	return n
}

// Named compares objects by their names and digests, or small values. It calls differs, in the
// order of names, for each name whose value differs in want or that only one has. had and has say
// which of them has it. It returns the number of differences.
func Named[V comparable](is, want map[string]V, differs func(name string, had, has bool)) (n int) {
	all := maps.Clone(want)
	maps.Copy(all, is)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		was, had := is[name]
		now, has := want[name]
		if had != has || was != now {
			n++
			differs(name, had, has)
		}
	}
	return n
}
