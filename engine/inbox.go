package engine

import (
	"sync"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/lb"
)

// inbox collects dirty Services between two turns of the loop, with the time of the oldest.
type inbox struct {
	wake chan struct{} // has a value when the loop should look

	mu     sync.Mutex
	dirty  dirty
	synced bool            // the Store is synced, and all earlier folds are marked
	listed bool            // the loop has seen the sources listed
	busy   bool            // the loop has something in hand or waiting
	since  time.Time       // time of the oldest mark, or when the sources had listed; zero before that
	last   time.Time       // time of the newest mark
	idle   time.Time       // last time without anything fresh to write
	owed   cluster.Changes // that were marked and are not in force
}

// dirty holds the marks.
type dirty struct {
	names      map[cluster.Name]notice // nil when empty: ranging over a map that was large once is slow
	facts, all bool
}

func (d *dirty) isZero() bool { return len(d.names) == 0 && !d.facts && !d.all }

func (b *inbox) ring() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// Mark records the changes of a fold. It is cheap and may be called from any goroutine, after the
// fold. Until the Store is synced, it must be called after every fold, even after one without
// changes: the lists that everything waits for may be empty (SV-05). Until then, no fold may come
// between another and its Mark: the contents of the lists count with the first write.
func (e *Engine) Mark(d cluster.Dirty) {
	b := &e.inbox
	now := time.Now()
	b.mu.Lock()
	b.synced = b.synced || e.cfg.Store.Synced()
	noticed := !b.listed
	for _, ref := range d.Services {
		if e.cfg.Family == lb.IPv4 && !ref.V4 || e.cfg.Family == lb.IPv6 && !ref.V6 {
			continue
		}
		if b.dirty.names == nil {
			b.dirty.names = make(map[cluster.Name]notice, len(d.Services))
		}
		n := b.dirty.names[ref.Name]
		before := n.changes
		n.count(ref, e.started, now.UnixNano())
		b.dirty.names[ref.Name] = n
		b.owed.Services += n.changes.Services - before.Services
		b.owed.Slices += n.changes.Slices - before.Slices
		noticed = true
	}
	if d.Facts {
		b.dirty.facts, noticed = true, true
	}
	if noticed && (b.synced || len(d.Services) > 0) { // facts alone cause no work before the lists are there
		b.queued(now)
	}
	b.mu.Unlock()
	if noticed {
		b.ring()
	}
}

// ResolveAll marks every Service and the node dirty: the settings of Resolve or ResolveNode have
// changed.
func (e *Engine) ResolveAll() {
	b := &e.inbox
	b.mu.Lock()
	b.dirty.all, b.dirty.facts = true, true
	b.queued(time.Now())
	b.mu.Unlock()
	b.ring()
}

// queued records the time of a mark; b.mu is held.
func (b *inbox) queued(now time.Time) {
	b.last = now
	if b.listed && b.since.IsZero() {
		b.since = b.last
	}
}

// take removes and returns the marks.
func (b *inbox) take() dirty {
	b.mu.Lock()
	defer b.mu.Unlock()
	d := b.dirty
	b.dirty, b.busy = dirty{}, true
	return d
}

// complete reports whether all lists that the engine waits for were marked.
func (b *inbox) complete() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.synced
}

// sourcesListed records that changes wait to be written from now on.
func (b *inbox) sourcesListed() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.listed, b.since = true, time.Now()
}

// waiting reports whether a mark arrived since the last write.
func (b *inbox) waiting() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.since.IsZero()
}

// accepted records that the kernel takes writes. all means that no other change waits for a write:
// changes that arrived meanwhile wait from now on. Else the write was a piece, and the rest has not
// waited since then. synced means that nothing fresh is left to write (MT-05).
func (b *inbox) accepted(all, synced bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	switch {
	case all && b.dirty.isZero():
		b.since = time.Time{}
	case all || !b.since.IsZero():
		b.since = now
	}
	if synced {
		b.idle = now
	}
}

// rest is called when the loop has nothing to write now. busy means that something waits for its
// time; reported, that this is only frontends that the kernel refuses while it accepts others, and
// Services without frontends because their policy fails; more, that Services are left to be
// resolved.
func (b *inbox) rest(busy, reported, more bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.busy = busy || more
	if !b.listed {
		return
	}
	if more || !b.dirty.isZero() {
		if reported && !b.since.IsZero() { // the Services resolved so far need no write: the rest waits from now on
			b.since = time.Now()
		}
		return
	}
	if !busy && b.idle.Before(b.last) { // also where a probe ended the wait, and the frontend was never written
		b.idle = time.Now()
	}
	if !busy || reported {
		b.since = time.Time{}
	}
}

// programmed records that changes are in force.
func (b *inbox) programmed(done cluster.Changes) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.owed.Services -= done.Services
	b.owed.Slices -= done.Slices
}
