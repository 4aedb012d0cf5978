package engine

import (
	"slices"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/lb"
)

// notice is what was marked for one service: how many changes, and since when those wait that know it.
type notice struct {
	changes  cluster.Changes
	triggers []int64 // as in cluster.Ref
}

// maxTriggers bounds the memory for a service that changes again and again while it cannot be written. Of more
// triggers the oldest count: they wait longest.
const maxTriggers = 1000

// mark takes note of one change. What was triggered before this process began is another one's latency (SV-35).
func (n *notice) mark(ref cluster.Ref, began int64) {
	switch ref.Cause {
	case cluster.ByService:
		n.changes.Services++
	case cluster.BySlice:
		n.changes.Slices++
	}
	if ref.Trigger != 0 && ref.Trigger >= began && len(n.triggers) < maxTriggers {
		n.triggers = append(n.triggers, ref.Trigger)
	}
}

func (n *notice) add(o notice) {
	n.changes.Services += o.changes.Services
	n.changes.Slices += o.changes.Slices
	n.triggers = append(n.triggers, o.triggers...)
}

func (n *notice) isZero() bool { return n.changes == cluster.Changes{} }

// debt is what one service waits for: its changes are in force when the plane has accepted all of its wishes that
// they made, and its rows could be computed.
type debt struct {
	name cluster.Name
	notice
	open       int // wishes
	unresolved bool
}

// debts are the changes that were marked and are not in force yet. The zero value is empty.
type debts struct {
	// open has only services of which something waits. It is never ranged over but in a Reset.
	open map[cluster.Name]*debt
	peak int // of len(open) since the map was made
	// reset is what waits for the next Reset.
	reset map[cluster.Name]notice
	// paid is in force, and nobody has been told yet.
	paid notice
}

// owe adds what was marked for the service to its debt, if there is anything; nil means that it has none.
func (ds *debts) owe(name cluster.Name, n notice) *debt {
	d := ds.open[name]
	if d == nil {
		if n.isZero() {
			return nil
		}
		if ds.open == nil {
			ds.open = map[cluster.Name]*debt{}
		}
		d = &debt{name: name}
		ds.open[name] = d
		ds.peak = max(ds.peak, len(ds.open))
	}
	n.triggers = n.triggers[:min(len(n.triggers), maxTriggers-len(d.triggers))]
	d.add(n)
	return d
}

// unresolved says that the rows of the service could not be computed.
func (ds *debts) unresolved(name cluster.Name, n notice) {
	if d := ds.owe(name, n); d != nil {
		d.unresolved = true
	}
}

// untilReset says that the service was resolved, and that the plane takes its rows with the next Reset.
func (ds *debts) untilReset(name cluster.Name, n notice) {
	if d := ds.open[name]; d != nil {
		d.unresolved = false
	}
	if n.isZero() {
		return
	}
	if ds.reset == nil {
		ds.reset = map[cluster.Name]notice{}
	}
	all := ds.reset[name]
	n.triggers = n.triggers[:min(len(n.triggers), max(0, maxTriggers-len(all.triggers)))]
	all.add(n)
	ds.reset[name] = all
}

// settle pays the debt if nothing of it is open.
func (ds *debts) settle(d *debt) {
	if d.open > 0 || d.unresolved {
		return
	}
	ds.paid.add(d.notice)
	delete(ds.open, d.name)
	if len(ds.open) == 0 && ds.peak > 100 { // give the memory back
		ds.open, ds.peak = nil, 0
	}
}

// afterReset takes over the debts from before a Reset. They are paid, but for those of services that could not be
// resolved, or of which rows were left for later.
func (p *pending) afterReset(before debts, t *lb.Table) {
	p.debts.paid = before.paid
	take := func(name cluster.Name, n notice) {
		var later []lb.Change
		if len(p.wishes) > 0 {
			for _, f := range t.Owned(name.String()) {
				if p.wishes[f.Key] != nil {
					later = append(later, lb.Change{Key: f.Key})
				}
			}
		}
		p.owe(name, n, later)
	}
	for name, n := range before.reset {
		take(name, n)
	}
	for name, d := range before.open {
		if d.unresolved {
			p.debts.unresolved(name, d.notice)
		} else {
			take(name, d.notice)
		}
	}
}

// owe says which of the pending wishes the service's changes wait for: those of the keys. With none, nothing had to
// be written for them, and they are in force at once.
func (p *pending) owe(name cluster.Name, n notice, changes []lb.Change) {
	d := p.debts.owe(name, n)
	if d == nil {
		return
	}
	d.unresolved = false
	// Many services may want one key in turn. A debt that waits for nothing yet need not be searched for among theirs.
	fresh := d.open == 0
	for _, c := range changes {
		if w := p.wishes[c.Key]; fresh || !slices.Contains(w.debts, d) {
			w.debts = append(w.debts, d)
			d.open++
		}
	}
	p.debts.settle(d)
}

// programmed tells of changes that are in force now: of how long they took (MT-04), and that nobody waits for them.
func (e *Engine) programmed() {
	paid := e.pending.debts.paid
	e.pending.debts.paid = notice{}
	if paid.isZero() {
		return
	}
	b := &e.inbox
	b.mu.Lock()
	b.owed.Services -= paid.changes.Services
	b.owed.Slices -= paid.changes.Slices
	b.mu.Unlock()
	if e.cfg.Programmed == nil || len(paid.triggers) == 0 {
		return
	}
	now := time.Now().UnixNano()
	took := make([]time.Duration, len(paid.triggers))
	for i, t := range paid.triggers {
		took[i] = time.Duration(max(0, now-t)) // the trigger's clock may be ahead of ours
	}
	e.cfg.Programmed(took)
}
