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

// Stats is what an engine has done and how it stands. The counters never go back.
type Stats struct {
	Resolved uint64 // services resolved
	Slices   uint64 // EndpointSlices of the services resolved ([policy.Cost])
	Ports    uint64 // their ports
	Backends uint64 // and their backends
	Visited  uint64 // rows that the table looked at
	Applies  uint64 // calls of Plane.Apply
	Resets   uint64 // calls of Plane.Reset
	SetNodes uint64 // calls of Plane.SetNode
	Offered  uint64 // changes in calls of Apply
	Changes  uint64 // changes that were accepted
	Failures uint64 // calls of the plane that returned an error or panicked
	Retries  uint64 // calls of the plane that offered again what had failed
	Panics   uint64 // panics caught in the plane, the policy or an observer
	Audits   uint64 // calls of Plane.Audit
	Probes   uint64 // calls of Plane.Probe
	Mended   uint64 // objects that audits mended; rows, where an audit found that a Reset had to
	Contests uint64 // times that a Service lost a key to another (SV-24)

	Pending  int // keys that the plane has not accepted yet
	Doubtful int // those of them that were offered in a write that failed
	// Owed are changes that were marked and are not in force yet (MT-07, MT-08): not looked at, not written, or
	// not accepted.
	Owed cluster.Changes
	// Contested is the number of keys that more than one Service claims (SV-24).
	Contested int
	// NoLocal is what is in force.
	NoLocal NoLocal
	// Unresolved is the number of services whose rows could not be computed.
	Unresolved int
	// Failing are rows that fail alone or are malformed ([lb.Check]), ordered by key; at most 100 of each are kept.
	Failing []Failing

	// LastError is the text of the last failure; it stays after the next success.
	LastError string
	// LastFailure is when the last call failed, zero if none did.
	LastFailure time.Time
	// LastSuccess is when the plane last accepted a write or a Reset (DP-62), zero before the first. A probe is none: it
	// brings nothing up to date.
	LastSuccess time.Time
	// QueuedSince is when the oldest event came that no successful write or probe has followed; zero if none. So a row that
	// the kernel refuses while it takes others waits, but the event that brought it does not. While the sources have not
	// listed nothing waits for the kernel: it is zero then, and later not before they had (HT-04).
	QueuedSince time.Time

	// LastQueued is when the newest event came (MT-06), zero before the first.
	LastQueued time.Time
	// LastSynced is when the plane last accepted a write after which nothing new was left, or nothing was left to write
	// after an event that changed no row (MT-05); zero before the first. It passes LastQueued when all is well.
	LastSynced time.Time

	// Begun: the plane serves what the sources listed, but for rows that it refuses.
	Begun bool
	// Lost: the plane waits for a Reset.
	Lost bool
	// Settled: the plane holds all that the engine was told of; nothing is in hand and nothing waits.
	Settled bool
}

// Failing is a row that the plane refuses, or that is not offered to it.
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
	// refused has the malformed rows of each service: more than one may want a key.
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
	case "setnode":
		s.SetNodes++
	case "audit":
		s.Audits++
		s.Mended += uint64(w.Changes)
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

// failed takes note of what failed beside calls of the plane.
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

// malformed takes note of the rows of a service that break a rule.
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

// publish brings what Stats says of the loop up to date.
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
