package engine

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/lb"
	"kube-proxy/policy"
)

// Stats holds the counters and the state of an engine. The counters never decrease.
type Stats struct {
	Resolved  uint64 // services resolved
	Slices    uint64 // EndpointSlices of the services resolved ([policy.Cost])
	Ports     uint64 // their ports
	Backends  uint64 // and their backends
	Visited   uint64 // frontends that the table inspected
	Applies   uint64 // calls of Plane.Apply
	Resets    uint64 // calls of Plane.Reset
	Offered   uint64 // changes in calls of Apply
	Changes   uint64 // changes that were accepted
	Failures  uint64 // calls of the plane that returned an error or panicked
	Retries   uint64 // calls of the plane that repeated failed changes
	Panics    uint64 // panics caught in the plane, the policy or an observer
	Audits    uint64 // calls of Plane.Audit
	Probes    uint64 // calls of Plane.Probe
	Repaired  uint64 // objects that audits repaired; frontends, where a Reset had to repair them
	Conflicts uint64 // times that a Service lost a key to another (SV-24)

	Pending  int // keys that the plane has not accepted yet
	Doubtful int // those of them that were offered in a failed write
	// Owed counts changes that were marked and are not in force yet (MT-07, MT-08): not resolved,
	// not written, or not accepted.
	Owed cluster.Changes
	// Contested is the number of keys that more than one Service claims (SV-24).
	Contested int
	// NoLocal counts the frontends in force.
	NoLocal NoLocal
	// Unresolved is the number of Services whose frontends could not be computed.
	Unresolved int
	// Failing lists frontends that fail alone or are malformed ([lb.Check]), ordered by key; at
	// most 100 of each are kept.
	Failing []Failing

	// LastError is the text of the last failure; the next success does not clear it.
	LastError string
	// LastFailure is the time of the last failed call, zero if none failed.
	LastFailure time.Time
	// LastSuccess is when the plane last accepted a write or a Reset (DP-62), zero before the
	// first. A probe does not count: it updates nothing.
	LastSuccess time.Time
	// QueuedSince is the time of the oldest event that no successful write or probe has followed;
	// zero if none. So a frontend that the kernel refuses while it accepts others waits, but its
	// event does not. It is zero while the sources have not listed, and never earlier than their
	// lists, because nothing waits for the kernel before (HT-04).
	QueuedSince time.Time

	// LastQueued is the time of the newest event (MT-06), zero before the first.
	LastQueued time.Time
	// LastSynced is when the plane last accepted a write after which nothing new was left, or when
	// nothing was left to write after an event that changed no frontend (MT-05); zero before the
	// first. It passes LastQueued in normal operation.
	LastSynced time.Time

	// Begun: the plane serves the listed objects, except frontends that it refuses.
	Begun bool
	// Lost: the plane waits for a Reset.
	Lost bool
	// Settled: the plane holds all marked changes; none is being written and none waits.
	Settled bool
}

// Failing is a frontend that the plane refuses, or that is malformed and not offered to it.
type Failing struct {
	Key     lb.Key
	Service string
	Err     string
	Since   time.Time
	Tries   int // 0: it is malformed
}

const maxFailing = 100

// ledger holds the counters; it is safe for concurrent use.
type ledger struct {
	mu      sync.Mutex
	stats   Stats
	failing map[lb.Key]*Failing
	// refused has the malformed frontends of each Service: several may claim a key.
	refused  map[string][]Failing
	nRefused int
}

func (l *ledger) update(f func(*Stats)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(&l.stats)
}

// resolved counts a service that is resolved.
func (l *ledger) resolved(c policy.Cost) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stats.Resolved++
	l.stats.Slices += uint64(c.Slices)
	l.stats.Ports += uint64(c.Ports)
	l.stats.Backends += uint64(c.Backends)
}

// called counts one finished call of the plane.
func (l *ledger) called(w *Write, end time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := &l.stats
	switch w.Verb {
	case "apply":
		s.Applies++
		s.Offered += uint64(w.Changes)
		if w.Err == nil {
			s.Changes += uint64(w.Changes)
		}
	case "reset":
		s.Resets++
	case "audit":
		s.Audits++
		s.Repaired += uint64(w.Changes)
	case "probe":
		s.Probes++
	}
	if w.again {
		s.Retries++
	}
	switch {
	case w.Err != nil:
		s.Failures++
		s.LastError, s.LastFailure = w.Err.Error(), end
	case w.wrote:
		s.LastSuccess = end
	}
}

// failed records a failure outside calls of the plane.
func (l *ledger) failed(text string, now time.Time) {
	l.update(func(s *Stats) { s.LastError, s.LastFailure = text, now })
}

func (l *ledger) fails(k lb.Key, service string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.failing[k]
	if f == nil {
		if len(l.failing) >= maxFailing {
			return
		}
		if l.failing == nil {
			l.failing = map[lb.Key]*Failing{}
		}
		f = &Failing{Key: k, Since: time.Now()}
		l.failing[k] = f
	}
	f.Service, f.Err = service, err.Error()
	f.Tries++
}

func (l *ledger) works(k lb.Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.failing, k)
}

// malformed records the malformed frontends of a Service.
func (l *ledger) malformed(service string, refused []lb.Refused) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.refused[service]
	l.nRefused -= len(before)
	delete(l.refused, service)
	var rows []Failing
	for _, r := range refused[:min(len(refused), max(0, maxFailing-l.nRefused))] {
		f := Failing{Key: r.Key, Service: service, Err: r.Err.Error(), Since: time.Now()}
		if i := slices.IndexFunc(before, func(f Failing) bool { return f.Key == r.Key }); i >= 0 {
			f.Since = before[i].Since
		}
		rows = append(rows, f)
	}
	if len(rows) == 0 {
		return
	}
	if l.refused == nil {
		l.refused = map[string][]Failing{}
	}
	l.refused[service] = rows
	l.nRefused += len(rows)
}

func (l *ledger) allWork() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failing = nil
}

// Stats returns a copy of the counters; it may be called from any goroutine.
func (e *Engine) Stats() Stats {
	b := &e.inbox
	b.mu.Lock()
	settled, since := b.listed && !b.busy && b.dirty.isZero(), b.since
	last, idle, owed := b.last, b.idle, b.owed
	b.mu.Unlock()

	l := &e.stats
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.stats
	s.Settled, s.QueuedSince, s.LastQueued, s.Owed = settled, since, last, owed
	s.LastSynced = idle
	for _, f := range l.failing {
		s.Failing = append(s.Failing, *f)
	}
	for _, rows := range l.refused {
		s.Failing = append(s.Failing, rows...)
	}
	slices.SortFunc(s.Failing, func(f, g Failing) int {
		return cmp.Or(f.Key.Compare(g.Key), cmp.Compare(f.Service, g.Service))
	})
	return s
}

// publish updates the loop's part of Stats.
func (e *Engine) publish() {
	l := &e.stats
	l.mu.Lock()
	defer l.mu.Unlock()
	s := &l.stats
	s.Visited = e.resolver.visited + e.table.Visited
	s.Pending, s.Doubtful = len(e.pending.byKey), e.pending.doubtful
	s.Unresolved, s.Contested = len(e.resolver.unresolved.entries), e.table.Contested()
	s.Begun, s.Lost, s.NoLocal = e.resets.whole, e.resets.due, e.noLocal.count
}
