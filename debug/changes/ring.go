package changes

import (
	"cmp"
	"hash/maphash"
	"slices"
	"strings"
	"sync"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/lb"
)

// ringSize is how many entries a Ring has: some 690 KB, and a text of up to [maxWhy] bytes for
// each.
const ringSize = 4096

// buckets is the number of buckets for namespaces; the first holds entries without a namespace.
const buckets = 64

// Ring holds the newest entries. All its methods may be called from any goroutine. Those of a nil
// Ring do nothing.
type Ring struct {
	seed maphash.Seed

	mu    sync.Mutex
	slots []slot
	used  int // slots with an entry; the others were never used
	by    [buckets]bucket
	seq   uint64 // of the newest entry
	gone  uint64 // entries that were pushed out
}

// slot is a place for an entry, with the next younger one of its bucket.
type slot struct {
	Entry
	next int32
}

// bucket is the list of the entries of some namespaces, the oldest first.
type bucket struct {
	n           int32
	first, last int32
}

// New returns an empty Ring. Numbers of entries start at the current microsecond, so that they are
// larger than those of the previous process, and a reader that continues after a restart misses
// nothing.
func New() *Ring { return newRing(ringSize) }

func newRing(size int) *Ring {
	return &Ring{seed: maphash.MakeSeed(), slots: make([]slot, size), seq: uint64(time.Now().UnixMicro())}
}

// Add adds an entry.
func (r *Ring) Add(e Entry) {
	if r == nil {
		return
	}
	e.Why = shortened(e.Why)
	b := &r.by[r.bucketOf(e.Service.Namespace)]
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seq++
	e.Seq, e.Times = r.seq, 1
	if last := &r.slots[b.last].Entry; b.n > 0 && last.repeats(&e) {
		e.Times, e.Frontends = last.Times+1, last.Frontends+e.Frontends
		e.Learned, e.Why = last.Learned, cmp.Or(e.Why, last.Why)
		*last = e
	} else {
		i := r.place()
		r.slots[i] = slot{Entry: e}
		b.add(r.slots, i)
	}
}

func shortened(s string) string {
	if len(s) > maxWhy {
		s = strings.ToValidUTF8(s[:maxWhy], "") + "…"
	}
	return s
}

// name has the newest entry about changes of a Service in a family name endpoints.
func (r *Ring) name(family lb.Family, service cluster.Name, endpoints string) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	b := &r.by[r.bucketOf(service.Namespace)]
	is := func(s *slot) bool { return s.Kind == Service && s.Family == family && s.Service == service }
	newest := &r.slots[b.last]
	for i, at := int32(0), b.first; i < b.n && !is(&r.slots[b.last]); i, at = i+1, r.slots[at].next {
		if is(&r.slots[at]) {
			newest = &r.slots[at]
		}
	}
	if is(newest) {
		newest.Endpoints = shortened(endpoints)
	}
}

// repeats reports whether o repeats e: a program that undoes writes all the time, in whatever
// process, or a kernel that refuses all, does not fill the ring.
func (e *Entry) repeats(o *Entry) bool {
	return (o.Kind == Repaired || o.Kind == Failed) && e.Kind == o.Kind && e.Family == o.Family &&
		e.Service == o.Service && e.Key == o.Key && (e.Why == o.Why || e.Kind == Repaired)
}

// bucketOf returns the bucket of a namespace; tenants cannot predict which namespaces share one.
func (r *Ring) bucketOf(namespace string) int {
	if namespace == "" {
		return 0
	}
	return 1 + int(maphash.String(r.seed, namespace)%(buckets-1))
}

// place returns a slot that is free, after the oldest entry of the fullest bucket was pushed out if
// need be.
func (r *Ring) place() int32 {
	if r.used < len(r.slots) {
		r.used++
		return int32(r.used - 1)
	}
	fullest := &r.by[0]
	for i := range r.by {
		if r.by[i].n > fullest.n {
			fullest = &r.by[i]
		}
	}
	r.gone++
	return fullest.pop(r.slots)
}

func (b *bucket) add(slots []slot, i int32) {
	if b.n > 0 {
		slots[b.last].next = i
	} else {
		b.first = i
	}
	b.last = i
	b.n++
}

func (b *bucket) pop(slots []slot) int32 {
	i := b.first
	b.first = slots[i].next
	b.n--
	return i
}

// atOnce is how many entries a reader looks at under the lock.
const atOnce = 16

// After returns the entries after number seq, oldest first, and the number of the newest, to pass
// in the next call; 0 requests all. An entry that repeats one that a reader has seen is returned
// again, with a new number. Entries dropped since are missing; [Ring.Counts] has their total. The
// caller owns the entries.
func (r *Ring) After(seq uint64) (entries []Entry, newest uint64) {
	if r == nil {
		return nil, 0
	}
	r.mu.Lock()
	newest, used := r.seq, r.used
	r.mu.Unlock()
	if newest <= seq {
		return nil, newest
	}
	for from := 0; from < used; from += atOnce {
		var buf [atOnce]Entry
		n := 0
		r.mu.Lock()
		for i := from; i < min(from+atOnce, used); i++ {
			if e := &r.slots[i].Entry; e.Seq > seq && e.Seq <= newest {
				buf[n] = *e
				n++
			}
		}
		r.mu.Unlock()
		entries = append(entries, buf[:n]...)
	}
	slices.SortFunc(entries, func(a, b Entry) int { return int(int64(a.Seq - b.Seq)) })
	return entries, newest
}

// Counts returns the number of the newest entry, and how many entries have been dropped so far.
func (r *Ring) Counts() (newest, gone uint64) {
	if r == nil {
		return 0, 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seq, r.gone
}
