package engine

import (
	"slices"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/debug/changes"
	"kube-proxy/lb"
)

// notice is the record of marks of one Service: their number, and the times from which those with a
// known time wait.
type notice struct {
	changes  cluster.Changes
	triggers []int64 // as in cluster.Ref
	// For Config.Changes: the event, the oldest times at which the API server had it and Mark
	// received it, 0 if unknown; the changed frontends, and the failed writes with any of them.
	api, learned   int64
	rows, failures uint32
	what           changes.What
	elsewhere      bool // the Service had no address of the family when it was resolved last
}

// maxTriggers limits the memory for a Service that changes repeatedly while it cannot be written.
// The oldest triggers count: they wait longest.
const maxTriggers = 1000

// count records one change. A trigger from before the start of this process counts for another
// one's latency (SV-35).
func (n *notice) count(ref cluster.Ref, started, now int64) {
	switch ref.Cause {
	case cluster.ByService:
		n.changes.Services++
		n.what |= serviceVerbs[ref.Verb]
	case cluster.BySlice:
		n.changes.Slices++
		n.what |= sliceVerbs[ref.Verb]
	default:
		return
	}
	n.learned = oldest(n.learned, now)
	if ref.Trigger >= started {
		n.api = oldest(n.api, ref.Trigger)
	}
	if ref.Trigger != 0 && ref.Trigger >= started && len(n.triggers) < maxTriggers {
		n.triggers = append(n.triggers, ref.Trigger)
	}
}

// add adds o, with as many of its triggers as room allows.
func (n *notice) add(o notice, room int) {
	n.changes.Services += o.changes.Services
	n.changes.Slices += o.changes.Slices
	n.triggers = append(n.triggers, o.triggers[:min(len(o.triggers), max(0, room))]...)
	n.what |= o.what
	n.api, n.learned = oldest(n.api, o.api), oldest(n.learned, o.learned)
	n.rows += o.rows
	n.failures += o.failures
	if !o.isZero() {
		n.elsewhere = o.elsewhere
	}
}

func (n *notice) isZero() bool { return n.learned == 0 }

// unprogrammed holds the changes of one Service that are not in force. They are in force when the
// plane has accepted all pending changes that they made, and the Service's frontends could be
// computed.
type unprogrammed struct {
	name cluster.Name
	notice
	open       int // pending changes
	unresolved bool
	// For Config.Changes: the last failed write, and whether it is counted with others and not
	// reported separately.
	failed  uint64
	counted bool
}

// programming holds the marked changes that are not in force yet. The zero value is empty.
type programming struct {
	// open has only Services with waiting changes. Only a Reset ranges over it.
	open map[cluster.Name]*unprogrammed
	peak int // of len(open) since the map was made
	// reset holds the changes that wait for the next Reset.
	reset map[cluster.Name]notice
	// done is in force and not reported yet; so is settled, each entry by itself.
	done    notice
	settled []*unprogrammed
	// If a Reset brings very many changes, only their number is reported, with together. taking is
	// true while that number is taken over, and loading while the frontends that the Reset
	// postponed are written.
	taking, loading bool
	together        cluster.Changes
	failed          uint64 // writes that failed
}

// of returns the waiting changes of the Service, including the new marks; nil means none.
func (p *programming) of(name cluster.Name, n notice) *unprogrammed {
	u := p.open[name]
	if u == nil {
		if n.isZero() {
			return nil
		}
		if p.open == nil {
			p.open = map[cluster.Name]*unprogrammed{}
		}
		u = &unprogrammed{name: name, counted: p.taking}
		p.open[name] = u
		p.peak = max(p.peak, len(p.open))
	}
	u.counted = u.counted && (p.taking || n.isZero())
	u.add(n, maxTriggers-len(u.triggers))
	return u
}

// unresolved records that the frontends of the Service could not be computed.
func (p *programming) unresolved(name cluster.Name, n notice) {
	if u := p.of(name, n); u != nil {
		u.unresolved, u.counted = true, false
	}
}

// untilReset records that the Service was resolved, and that the plane takes its frontends with the
// next Reset.
func (p *programming) untilReset(name cluster.Name, n notice) {
	if u := p.open[name]; u != nil {
		u.unresolved = false
	}
	if n.isZero() {
		return
	}
	if p.reset == nil {
		p.reset = map[cluster.Name]notice{}
	}
	all := p.reset[name]
	all.add(n, maxTriggers-len(all.triggers))
	p.reset[name] = all
}

// takeOver counts changes that come into force with very many others.
func (p *programming) takeOver(n notice) {
	p.done.add(n, len(n.triggers))
	p.together.Services += n.changes.Services
	p.together.Slices += n.changes.Slices
}

// settle records that the changes are in force if they wait for nothing.
func (p *programming) settle(u *unprogrammed) {
	if u.open > 0 || u.unresolved {
		return
	}
	if u.counted && (p.taking || p.loading) {
		p.takeOver(u.notice)
	} else {
		p.done.add(u.notice, len(u.triggers))
		p.settled = append(p.settled, u)
	}
	delete(p.open, u.name)
	if len(p.open) == 0 && p.peak > 100 { // give the memory back
		p.open, p.peak = nil, 0
	}
}

// afterReset takes over the changes that were not in force before a Reset. They are in force now,
// except those of Services that could not be resolved or that have postponed frontends.
func (p *pending) afterReset(before programming, t *lb.Table) {
	p.programming.done, p.programming.settled = before.done, before.settled
	p.programming.taking = len(before.reset)+len(before.open) > manyTogether
	take := func(name cluster.Name, n notice) {
		var later []lb.Change
		if len(p.byKey) > 0 {
			for _, f := range t.Owned(name.String()) {
				if p.byKey[f.Key] != nil {
					later = append(later, lb.Change{Key: f.Key})
				}
			}
		}
		switch {
		case len(later) > 0:
		case p.programming.taking:
			p.programming.takeOver(n)
			return
		case n.rows == 0:
			n.rows = uint32(len(t.Owned(name.String())))
		}
		p.await(name, n, later)
	}
	for name, n := range before.reset {
		take(name, n)
	}
	for name, u := range before.open {
		if u.unresolved {
			p.programming.unresolved(name, u.notice)
		} else {
			take(name, u.notice)
		}
	}
	p.programming.loading = p.programming.taking && p.left > 0
	p.programming.taking = false
}

// await records the pending changes that the Service's changes wait for: those of the keys. Without
// any, no write was needed, and they are in force at once.
func (p *pending) await(name cluster.Name, n notice, changes []lb.Change) {
	u := p.programming.of(name, n)
	if u == nil {
		return
	}
	u.unresolved = false
	// Many Services may claim one key in turn. One that waits for nothing yet need not be searched
	// for among them.
	first := u.open == 0
	for _, c := range changes {
		if pc := p.byKey[c.Key]; first || !slices.Contains(pc.waiters, u) {
			pc.waiters = append(pc.waiters, u)
			u.open++
			u.rows++
		}
	}
	p.programming.settle(u)
}

// programmed reports changes that came into force: their latency (MT-04), and that they no longer
// wait.
func (e *Engine) programmed() {
	e.reportSettled()
	done := e.pending.programming.done
	e.pending.programming.done = notice{}
	if done.isZero() {
		return
	}
	e.inbox.programmed(done.changes)
	if e.cfg.Programmed == nil || len(done.triggers) == 0 {
		return
	}
	now := time.Now().UnixNano()
	took := make([]time.Duration, len(done.triggers))
	for i, t := range done.triggers {
		took[i] = time.Duration(max(0, now-t)) // the trigger's clock may be ahead of ours
	}
	e.cfg.Programmed(took)
}
