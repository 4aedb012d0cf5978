package engine

import (
	"container/heap"
	"time"

	"kube-proxy/internal/ordered"
)

// Backoff of failed work: 50 ms at first, doubled on each failure, 30 s at most.
const (
	firstDelay = 50 * time.Millisecond
	lastDelay  = 30 * time.Second
)

func nextDelay(d time.Duration) time.Duration { return min(max(2*d, firstDelay), lastDelay) }

// pause is the backoff of one thing.
type pause struct {
	delay time.Duration
	until time.Time
}

func (p *pause) fail(now time.Time) {
	p.delay = nextDelay(p.delay)
	p.until = now.Add(p.delay)
}

// Limit of failed writes without a success between them: 100 at once, then 5 a second.
const (
	maxCredit    = 100
	creditPeriod = 200 * time.Millisecond
)

// credit limits failed writes across all frontends. When everything fails, neither a storm of
// events nor many frontends with their own backoff may become a storm of writes. The first success
// restores the full credit. The value is the time at which the credit is full again; the zero
// credit is full.
type credit struct{ whole time.Time }

// spend counts a write that failed.
func (c *credit) spend(now time.Time) { c.whole = latest(c.whole, now).Add(creditPeriod) }

// until returns when the next write may start; the zero time means now.
func (c *credit) until() time.Time {
	if c.whole.IsZero() {
		return time.Time{}
	}
	return c.whole.Add(-(maxCredit - 1) * creditPeriod)
}

// waitlist is the backoff of many keys, each with its own delay. A key that is in entries but not
// in the heap is being tried; its delay is kept. The zero waitlist is empty.
type waitlist[K comparable] struct {
	entries map[K]*waiting[K]
	queue   ordered.Heap[*waiting[K]]
}

type waiting[K comparable] struct {
	key   K
	pause pause
	at    int // place in the queue, -1 while it is being tried
}

// Place implements [ordered.Element].
func (e *waiting[K]) Place() *int { return &e.at }

func (e *waiting[K]) before(o *waiting[K]) bool { return e.pause.until.Before(o.pause.until) }

// fail makes k wait, longer than before.
func (w *waitlist[K]) fail(k K, now time.Time) { w.entry(k).wait(w, now) }

// again makes k wait for the first delay: it failed together with other keys, and some of them were
// accepted later.
func (w *waitlist[K]) again(k K, now time.Time) {
	e := w.entry(k)
	e.pause.delay = 0
	e.wait(w, now)
}

func (w *waitlist[K]) entry(k K) *waiting[K] {
	e := w.entries[k]
	if e == nil {
		if w.entries == nil {
			w.entries, w.queue.Before = map[K]*waiting[K]{}, (*waiting[K]).before
		}
		e = &waiting[K]{key: k, at: -1}
		w.entries[k] = e
	}
	return e
}

func (e *waiting[K]) wait(w *waitlist[K], now time.Time) {
	e.pause.fail(now)
	if e.at >= 0 {
		heap.Fix(&w.queue, e.at)
		return
	}
	heap.Push(&w.queue, e)
}

// renew restarts the backoff of k, because k changed.
func (w *waitlist[K]) renew(k K) {
	if e := w.entries[k]; e != nil {
		e.pause.delay = 0
	}
}

// forget drops k and its delay.
func (w *waitlist[K]) forget(k K) {
	e := w.entries[k]
	if e == nil {
		return
	}
	if e.at >= 0 {
		heap.Remove(&w.queue, e.at)
	}
	delete(w.entries, k)
	if len(w.entries) == 0 {
		*w = waitlist[K]{}
	}
}

// due removes the keys whose backoff has passed from the queue, and returns them.
func (w *waitlist[K]) due(now time.Time) []K {
	var keys []K
	for e := w.queue.First(); e != nil && !e.pause.until.After(now); e = w.queue.First() {
		heap.Pop(&w.queue)
		e.at = -1
		keys = append(keys, e.key)
	}
	return keys
}

// next returns when the first key is due, and false if no key waits.
func (w *waitlist[K]) next() (time.Time, bool) {
	if e := w.queue.First(); e != nil {
		return e.pause.until, true
	}
	return time.Time{}, false
}
