package engine

import (
	"sync"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/lb"
)

// inbox gathers what is dirty between two looks of the loop, and knows how long it waits.
type inbox struct {
	wake chan struct{} // has a value when the loop should look

	mu     sync.Mutex
	dirty  dirty
	synced bool            // the Store is, and all that was folded before is marked
	listed bool            // the loop has seen the sources listed
	busy   bool            // the loop has something in hand or waiting
	since  time.Time       // when the oldest mark came, or the sources had listed; zero before that
	last   time.Time       // when the newest mark came
	idle   time.Time       // when nothing fresh was left to write, last
	owed   cluster.Changes // that were marked and are not in force
}

// dirty is what was marked.
type dirty struct {
	names      map[cluster.Name]notice // nil when empty: a map that was large once is never ranged over again
	facts, all bool
}

func (d *dirty) isZero() bool { return len(d.names) == 0 && !d.facts && !d.all }

func (b *inbox) ring() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// Mark tells the engine what a fold changed. It is cheap and may be called from any goroutine, after the
// fold. It must be called after every fold until the Store is synced, also after one that changed nothing:
// the lists that everything waits for may be empty (SV-05). Until then, no fold may come between another and its Mark:
// what is in the lists counts with the first write.
func (e *Engine) Mark(d cluster.Dirty) {
	b := &e.inbox
	now := time.Now()
	b.mu.Lock()
	b.synced = b.synced || e.cfg.Store.Synced()
	heard := !b.listed
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
		heard = true
	}
	if d.Facts {
		b.dirty.facts, heard = true, true
	}
	if heard && (b.synced || len(d.Services) > 0) { // facts alone ask for nothing before the lists are there
		b.queued(now)
	}
	b.mu.Unlock()
	if heard {
		b.ring()
	}
}

// ResolveAll makes every service and the node dirty: what Resolve or ResolveNode decide by has changed.
func (e *Engine) ResolveAll() {
	b := &e.inbox
	b.mu.Lock()
	b.dirty.all, b.dirty.facts = true, true
	b.queued(time.Now())
	b.mu.Unlock()
	b.ring()
}

// queued takes note of when a mark came; b.mu is held.
func (b *inbox) queued(now time.Time) {
	b.last = now
	if b.listed && b.since.IsZero() {
		b.since = b.last
	}
}

// take takes what is dirty.
func (b *inbox) take() dirty {
	b.mu.Lock()
	defer b.mu.Unlock()
	d := b.dirty
	b.dirty, b.busy = dirty{}, true
	return d
}

// complete reports whether all was marked that everything waits for.
func (b *inbox) complete() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.synced
}

// sourcesListed says that now something waits to be written.
func (b *inbox) sourcesListed() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.listed, b.since = true, time.Now()
}

// waiting reports whether a mark came that nothing was written for since.
func (b *inbox) waiting() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.since.IsZero()
}

// accepted says that the kernel takes writes. all says that nothing else waits for one: what came meanwhile waits from now on;
// else a piece was written, and the rest has not waited since then. synced says that nothing fresh is left to write (MT-05).
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

// rest is called when the loop has nothing to write now. busy says that something waits for its time, told that this
// is only rows that the kernel refuses while it takes others, and Services without rows because their policy fails, and more
// that Services are left to be resolved.
func (b *inbox) rest(busy, told, more bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.busy = busy || more
	if !b.listed {
		return
	}
	if more || !b.dirty.isZero() {
		if told && !b.since.IsZero() { // what was resolved so far needs no write: the rest waits from now on
			b.since = time.Now()
		}
		return
	}
	if !busy && b.idle.Before(b.last) { // also where a probe has ended the wait, and then the row went unwritten
		b.idle = time.Now()
	}
	if !busy || told {
		b.since = time.Time{}
	}
}

// programmed says that changes are in force.
func (b *inbox) programmed(done cluster.Changes) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.owed.Services -= done.Services
	b.owed.Slices -= done.Slices
}
