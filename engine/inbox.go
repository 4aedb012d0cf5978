package engine

import (
	"sync"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/lb"
)

// inbox gathers what is dirty between two looks of the loop.
type inbox struct {
	wake chan struct{} // has a value when the loop should look

	mu    sync.Mutex
	names map[cluster.Name]notice // nil when empty: a map that was large once is never ranged over again
	facts bool
	all   bool
	since time.Time       // when the oldest mark came, or the sources had listed; zero before that
	last  time.Time       // when the newest mark came
	idle  time.Time       // when nothing fresh was left to write, last
	owed  cluster.Changes // that were marked and are not in force
	begun bool            // the loop has seen the sources listed
	busy  bool            // the loop has something in hand or waiting
}

func (b *inbox) ring() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// Mark tells the engine what a fold changed. It is cheap and may be called from any goroutine, after the
// fold. It must be called after every fold until the Store is synced, also after one that changed nothing:
// the lists that everything waits for may be empty (SV-05).
func (e *Engine) Mark(d cluster.Dirty) {
	b := &e.inbox
	b.mu.Lock()
	heard := !b.begun
	for _, ref := range d.Services {
		if e.cfg.Family == lb.IPv4 && !ref.V4 || e.cfg.Family == lb.IPv6 && !ref.V6 {
			continue
		}
		if b.names == nil {
			b.names = make(map[cluster.Name]notice)
		}
		n := b.names[ref.Name]
		before := n.changes
		n.mark(ref, e.began)
		b.names[ref.Name] = n
		b.owed.Services += n.changes.Services - before.Services
		b.owed.Slices += n.changes.Slices - before.Slices
		heard = true
	}
	if d.Facts {
		b.facts, heard = true, true
	}
	if heard {
		b.queued()
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
	b.all, b.facts = true, true
	b.queued()
	b.mu.Unlock()
	b.ring()
}

// queued takes note of when a mark came; b.mu is held.
func (b *inbox) queued() {
	b.last = time.Now()
	if b.begun && b.since.IsZero() {
		b.since = b.last
	}
}

// begin says that the sources have listed: now something waits to be written.
func (b *inbox) begin() {
	b.mu.Lock()
	b.begun, b.since = true, time.Now()
	b.mu.Unlock()
}

// taken is what the loop takes out of the inbox.
type taken struct {
	names      map[cluster.Name]notice
	facts, all bool
}

func (b *inbox) take() taken {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := taken{b.names, b.facts, b.all}
	b.names, b.facts, b.all = nil, false, false
	b.busy = true
	return t
}

func (b *inbox) empty() bool { return len(b.names) == 0 && !b.facts && !b.all }

// rest is called when the loop has nothing to do now. busy says that something waits for its time, and told that this
// is only rows that the kernel refuses while it takes others, and Services without rows because their policy fails.
func (b *inbox) rest(busy, told bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.busy = busy
	if !b.begun || !b.empty() {
		return
	}
	if !busy && b.idle.Before(b.last) { // also where a proof has ended the wait, and then the row went unwritten
		b.idle = time.Now()
	}
	if !busy || told {
		b.since = time.Time{}
	}
}

// waiting reports whether a mark came that nothing was written for since.
func (b *inbox) waiting() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.since.IsZero()
}

// synced says that nothing fresh is left to write, but for rows that are refused.
func (b *inbox) synced() {
	b.mu.Lock()
	b.idle = time.Now()
	b.mu.Unlock()
}

// proven is written, but for the sync that there was none of (MT-05).
func (b *inbox) proven() {
	b.mu.Lock()
	b.since = time.Time{}
	if !b.empty() {
		b.since = time.Now()
	}
	b.mu.Unlock()
}

// progressed says that a piece of what waits was written: the rest is being written, and has not waited since then.
func (b *inbox) progressed() {
	b.mu.Lock()
	if !b.since.IsZero() {
		b.since = time.Now()
	}
	b.mu.Unlock()
}

// written forgets when the oldest mark came, unless more has come since.
func (b *inbox) written() {
	b.mu.Lock()
	b.idle = time.Now()
	if b.empty() {
		b.since = time.Time{}
	} else {
		b.since = b.idle
	}
	b.mu.Unlock()
}
