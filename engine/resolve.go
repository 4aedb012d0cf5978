package engine

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/debug/changes"
	"kube-proxy/lb"
	"kube-proxy/policy"
)

// resolver computes the frontends of Services. It resolves Services in turns of bounded work; the
// engine writes the changes of a turn before the next one.
type resolver struct {
	synced     bool                    // the lists have been marked, and all Services are in the table
	dirty      queue[cluster.Name]     // services for later turns
	notices    map[cluster.Name]notice // marks of Services that are not resolved yet
	one        [1]cluster.Name
	unresolved waitlist[cluster.Name] // services whose policy panicked
	weighed    bool                   // the budget has all Services of this turn
	rebuild    bool                   // the table itself cannot be trusted
	visited    uint64                 // frontends visited by tables before a rebuild
}

// turnWork limits the work of a turn: slices, ports, frontends and backends. One Service may exceed
// it.
const turnWork = 1 << 15

// waiting reports whether Services are left for another turn.
func (r *resolver) waiting() bool { return r.dirty.len() > 0 }

// absorb takes in the marks, and resolves dirty Services, as many as one turn may: the changes of
// their frontends become pending. Before all sources have listed it does nothing (SV-05).
func (e *Engine) absorb() {
	r := &e.resolver
	if !r.synced && !e.inbox.complete() {
		return
	}
	d := e.inbox.take()
	if !r.synced {
		r.synced, d.all, d.facts = true, true, true
		e.inbox.sourcesListed()
	}
	r.weighed = d.all
	if r.weighed {
		e.weighAll()
	}
	now := time.Now()
	if d.facts || e.node.changed && !e.node.wait.until.After(now) {
		e.resolveNode(now)
	}
	for name := range d.names {
		r.unresolved.renew(name)
	}
	var found claims
	for _, name := range e.turn(d, now) {
		n := r.notices[name]
		delete(r.notices, name)
		e.resolve(&found, name, n, now)
		e.writer.awaits = max(0, e.writer.awaits-1)
	}
	if len(r.notices) == 0 || !e.resets.done {
		r.notices = nil // a map that was large once keeps its size
	}
	if r.rebuild {
		e.rebuildTable(&found, now)
	}
	e.programmed()
	e.reportClaims(found)
}

// turn returns the Services to resolve now. Before the first Reset it returns all, since the Reset
// writes the whole table.
func (e *Engine) turn(d dirty, now time.Time) []cluster.Name {
	r := &e.resolver
	r.notice(d.names)
	if !e.resets.done {
		return e.everything(d.all, now)
	}
	if d.all {
		e.later(e.names())
	}
	e.later(r.unresolved.due(now))
	if r.dirty.len() == 0 && len(d.names) == 1 { // nearly always
		for name := range d.names {
			r.one[0] = name
		}
		return r.one[:]
	}
	for name, n := range d.names {
		if n.isZero() { // the node changed, and with it very many Services
			r.dirty.later(name, name.Namespace)
		} else {
			r.dirty.push(name, name.Namespace)
		}
	}
	return r.dirty.take(turnWork, e.workOf)
}

// everything returns all dirty Services, and with all the clean ones as well.
func (e *Engine) everything(all bool, now time.Time) []cluster.Name {
	r := &e.resolver
	e.later(r.unresolved.due(now))
	names := r.dirty.take(math.MaxInt, func(cluster.Name) int { return 1 })
	names = slices.Grow(names, len(r.notices))
	for name := range r.notices {
		names = append(names, name)
	}
	if all {
		for _, name := range e.names() {
			if _, marked := r.notices[name]; !marked {
				names = append(names, name)
			}
		}
	}
	// Each mark leaves this map and returns to it: a second one would take much memory.
	if p := &e.pending.programming; p.reset == nil {
		p.reset = r.notices
	}
	return names
}

// notice merges the marks of Services.
func (r *resolver) notice(names map[cluster.Name]notice) {
	if len(r.notices) == 0 {
		r.notices = names
		return
	}
	for name, n := range names {
		all := r.notices[name]
		all.add(n, maxTriggers-len(all.triggers))
		r.notices[name] = all
	}
}

// later queues Services to be resolved beside those that were marked one by one.
func (e *Engine) later(names []cluster.Name) {
	for _, name := range names {
		e.resolver.dirty.later(name, name.Namespace)
	}
}

// workOf returns the work to resolve a Service, or to remove its frontends.
func (e *Engine) workOf(name cluster.Name) int {
	var c policy.Cost
	e.cfg.Store.Look(name, func(v cluster.View) { c = policy.CostOf(v, e.cfg.Family) })
	return 1 + c.Slices + c.Ports + c.Frontends + c.Backends
}

// planResolve schedules the retry of Services that could not be resolved.
func (e *Engine) planResolve(a *agenda) {
	if t, ok := e.resolver.unresolved.next(); ok {
		a.due(t)
	}
	if e.node.changed {
		a.due(e.node.wait.until)
	}
}

// resolve computes the frontends of one Service and replaces them in the table. n holds the
// Service's marks.
func (e *Engine) resolve(found *claims, name cluster.Name, n notice, now time.Time) {
	r := &e.resolver
	view := e.cfg.Store.View(name)
	e.stats.resolved(policy.CostOf(view, e.cfg.Family))
	if !r.weighed {
		e.later(e.cfg.Budget.Weigh(view))
	}
	owner := ownerOf(view)
	_, suspect := r.unresolved.entries[name] // the table may be the part that fails
	fronts, err := e.rows(view, owner, suspect)
	var diff []lb.Change
	if err == nil {
		diff, err = e.replace(found, owner, fronts)
		r.rebuild = r.rebuild || err != nil // it may be half changed
	}
	if err != nil {
		e.unresolved(name, err, now)
		e.pending.programming.unresolved(name, n)
		return
	}
	r.unresolved.forget(name)
	if e.resets.done {
		for _, c := range diff {
			e.pending.add(c)
		}
	}
	if n.what&changes.ServiceCreated != 0 && owner.Created*1e9 >= e.started {
		n.api = oldest(n.api, owner.Created*1e9)
	}
	n.elsewhere = e.elsewhere(&view)
	switch {
	case e.resets.due:
		e.pending.programming.untilReset(name, n)
	case n.isZero() && len(diff) > 0 && e.pending.programming.open[name] == nil:
		// the node or the configuration changed
		e.pending.await(cluster.Name{}, notice{learned: now.UnixNano()}, diff)
	default:
		e.pending.await(name, n, diff)
	}
}

// weighAll adds all Services to the budget before the first is resolved, so that the budget serves
// none that it refuses next.
func (e *Engine) weighAll() {
	if e.cfg.Budget == nil {
		return
	}
	for _, name := range e.names() {
		e.cfg.Store.Look(name, func(v cluster.View) { e.cfg.Budget.Weigh(v) }) // all are resolved now
	}
}

// names returns the names of all Services that have an address of the engine's family.
func (e *Engine) names() []cluster.Name { return e.cfg.Store.NamesIn(e.cfg.Family == lb.IPv6) }

// elsewhere reports whether the Service has no address of the engine's family, like a deleted one.
func (e *Engine) elsewhere(v *cluster.View) bool {
	return v.Service == nil || !slices.ContainsFunc(v.Service.ClusterIPs, func(a netip.Addr) bool {
		return lb.FamilyOf(a) == e.cfg.Family
	})
}

func ownerOf(v cluster.View) lb.Owner {
	o := lb.Owner{Name: v.Name.String()}
	if v.Service != nil {
		o.Created = v.Service.Created
	}
	return o
}

// rows computes the frontends of a Service. With apart it tries them in a separate table first.
func (e *Engine) rows(v cluster.View, o lb.Owner, apart bool) (fronts []*lb.Frontend, err error) {
	err = e.guard("policy, service ", o.Name, func() error {
		fronts = e.cfg.Resolve(v)
		if apart {
			(&lb.Table{Family: e.cfg.Family}).Replace(o, fronts)
		}
		return nil
	})
	return fronts, err
}

// unresolved schedules another attempt for a Service whose frontends could not be computed, or not
// be put into the table.
func (e *Engine) unresolved(name cluster.Name, err error, now time.Time) {
	e.resolver.unresolved.fail(name, now)
	e.stats.failed("resolve service "+name.String()+": "+err.Error(), now)
	if e.said.First("resolve "+name.String()+err.Error()) && e.failures.Allow(name.Namespace) {
		e.cfg.Log.Error("Failed to resolve a Service, keeping its frontends", "service", name.String(), "err", err)
		e.reportFailed(name, lb.Key{}, "resolve", err)
	}
}

// replace replaces the frontends of a Service in the table, and records the changed conflicts.
func (e *Engine) replace(found *claims, o lb.Owner, fronts []*lb.Frontend) (changes []lb.Change, err error) {
	var conflicts []lb.Conflict
	var refused []lb.Refused
	again := false
	err = e.guard("table, service ", o.Name, func() error {
		e.tableMu.Lock()
		defer e.tableMu.Unlock()
		again = e.table.Refused(o.Name) != nil
		changes, conflicts = e.table.Replace(o, fronts)
		refused = e.table.Refused(o.Name)
		return nil
	})
	if again || refused != nil {
		e.reportRefused(o.Name, refused)
	}
	if err == nil {
		found.add(e.table, o.Name, changes, conflicts)
	}
	return changes, err
}

// reportRefused reports malformed frontends of a Service, which no plane is offered.
func (e *Engine) reportRefused(service string, refused []lb.Refused) {
	e.stats.malformed(service, refused)
	if len(refused) == 0 {
		return
	}
	text := fmt.Sprintf("%d frontends of service %s are malformed: %v", len(refused), service, refused[0].Err)
	e.stats.failed(text, time.Now())
	if e.said.First(text) && e.failures.Allow(lb.NamespaceOf(service)) {
		e.cfg.Log.Error("Left out malformed frontends, keeping the previous ones", "service", service, "frontends",
			len(refused), "first", refused[0].Err)
		e.reportFailed(nameOf(service), refused[0].Key, "left out", refused[0].Err)
	}
}

// rebuildTable builds a new table from the frontends of the old one after a panic there, requests a
// Reset, and queues all Services to be resolved again.
func (e *Engine) rebuildTable(found *claims, now time.Time) {
	r, old := &e.resolver, e.table
	r.visited += old.Visited
	e.tableMu.Lock()
	e.table = &lb.Table{Family: old.Family, Node: old.Node}
	e.tableMu.Unlock()
	r.rebuild, e.resets.due, e.resets.why = false, true, "the table was rebuilt"
	// Nothing is written before the Reset, so this change of pending only concerns observers.
	names := e.names()
	for _, name := range names {
		var owner lb.Owner
		e.cfg.Store.Look(name, func(v cluster.View) { owner = ownerOf(v) })
		if _, err := e.replace(found, owner, old.Owned(owner.Name)); err != nil {
			e.unresolved(name, err, now)
		}
	}
	e.later(names)
	if !e.resets.done {
		return
	}
	for f := range old.All() {
		if now := e.table.Get(f.Key); !f.Equal(now) {
			e.pending.add(lb.Change{Key: f.Key, Old: f, New: now})
		}
	}
	for f := range e.table.All() {
		if old.Get(f.Key) == nil {
			e.pending.add(lb.Change{Key: f.Key, New: f})
		}
	}
}
