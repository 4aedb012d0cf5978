package engine

import (
	"fmt"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/internal/ratelimit"
	"kube-proxy/lb"
)

// absorb takes in what was marked: dirty services are resolved, and the changes of their rows become
// pending. Before all sources have listed it does nothing (SV-05).
func (e *Engine) absorb() {
	if !e.synced && !e.cfg.Store.Synced() {
		return
	}
	t := e.inbox.take()
	if !e.synced {
		e.synced, t.all, t.facts = true, true, true
		e.inbox.begin()
	}
	now := time.Now()
	if t.facts || e.facts && !e.factsWait.until.After(now) {
		e.resolveNode(now)
	}
	var told claims
	for name, n := range t.names {
		e.renewed(name)
		e.resolve(&told, name, n, now)
	}
	if t.all {
		for _, name := range e.cfg.Store.Names() {
			if _, done := t.names[name]; !done {
				e.resolve(&told, name, notice{}, now)
			}
		}
	}
	for _, name := range e.unresolved.due(now) {
		e.resolve(&told, name, notice{}, now)
	}
	if e.rebuild {
		e.rebuildTable(&told)
	}
	e.programmed()
	e.tellClaims(told, now)
}

// renewed makes the backoff of a service that could not be resolved start anew: it has changed.
func (e *Engine) renewed(name cluster.Name) {
	if w := e.unresolved.entries[name]; w != nil {
		w.pause.delay = 0
	}
}

// planResolve remembers when something that could not be resolved is due again.
func (e *Engine) planResolve(a *agenda) {
	if t, ok := e.unresolved.next(); ok {
		a.due(t)
	}
	if e.facts {
		a.due(e.factsWait.until)
	}
	for _, m := range []*ratelimit.Messages{&e.contested, &e.loans} {
		if t, ok := m.Due(); ok {
			a.due(t)
		}
	}
}

// resolve computes the rows of one service and replaces them in the table. n is what was marked for the
// service.
func (e *Engine) resolve(told *claims, name cluster.Name, n notice, now time.Time) {
	e.stats.update(func(s *Stats) { s.Resolved++ })
	view := e.cfg.Store.View(name)
	owner := lb.Owner{Name: name.String()}
	if view.Service != nil {
		owner.Created = view.Service.Created
	}
	var fronts []*lb.Frontend
	_, suspect := e.unresolved.entries[name]
	err := e.guard("policy, service "+owner.Name, func() error {
		fronts = e.cfg.Resolve(view)
		if suspect { // it may be the table that cannot take the rows: try that aside
			(&lb.Table{Family: e.cfg.Family}).Replace(owner, fronts)
		}
		return nil
	})
	if err != nil {
		e.unresolved.fail(name, now)
		e.pending.debts.unresolved(name, n)
		e.failedResolve(owner.Name, err)
		return
	}
	changes, contests, err := e.replace(owner, fronts)
	if err != nil {
		// The table may be half changed: it is made anew, with the old rows of this service.
		e.unresolved.fail(name, now)
		e.pending.debts.unresolved(name, n)
		e.failedResolve(owner.Name, err)
		e.rebuild = true
		return
	}
	e.unresolved.forget(name)
	if e.begun {
		for _, c := range changes {
			e.pending.add(c)
		}
	}
	if e.lost {
		e.pending.debts.untilReset(name, n)
	} else {
		e.pending.owe(name, n, changes)
	}
	told.add(e.table, owner.Name, changes, contests)
}

func (e *Engine) failedResolve(service string, err error) {
	e.stats.update(func(s *Stats) {
		s.LastError, s.LastFailure = "resolve service "+service+": "+err.Error(), time.Now()
	})
	if e.said.first("resolve " + service + err.Error()) {
		e.cfg.Log.Error("service not resolved, its present rows stay", "service", service, "err", err)
	}
}

func (e *Engine) replace(o lb.Owner, fronts []*lb.Frontend) (changes []lb.Change, contests []lb.Contest, err error) {
	var again bool
	var refused []lb.Refused
	err = e.guard("table, service "+o.Name, func() error {
		e.tableMu.Lock()
		defer e.tableMu.Unlock()
		again = e.table.Refused(o.Name) != nil
		changes, contests = e.table.Replace(o, fronts)
		refused = e.table.Refused(o.Name)
		return nil
	})
	if again || refused != nil {
		e.tellRefused(o.Name, refused)
	}
	return changes, contests, err
}

// tellRefused tells of rows of a service that break a rule of the table, so that no plane is offered them.
func (e *Engine) tellRefused(service string, refused []lb.Refused) {
	e.stats.malformed(service, refused)
	if len(refused) == 0 {
		return
	}
	err := fmt.Errorf("%d rows of service %s are malformed: %w", len(refused), service, refused[0].Err)
	e.stats.update(func(s *Stats) { s.LastError, s.LastFailure = err.Error(), time.Now() })
	if e.said.first(err.Error()) {
		e.cfg.Log.Error("malformed rows left out, what was in force for their keys stays", "service", service, "rows", len(refused), "first", refused[0].Err)
	}
}

// rebuildTable makes a new table after a panic in the old one, and has the plane reset to it. Services that
// cannot be resolved keep the rows that they had.
func (e *Engine) rebuildTable(told *claims) {
	old := e.table
	e.visited += old.Visited
	e.tableMu.Lock()
	e.table = &lb.Table{Family: old.Family, Node: old.Node}
	e.tableMu.Unlock()
	e.rebuild, e.lost = false, true
	// Until the Reset nothing is written, so what happens to pending here only tells observers.
	for _, name := range e.cfg.Store.Names() {
		view := e.cfg.Store.View(name)
		if view.Service == nil {
			continue
		}
		owner := lb.Owner{Name: name.String(), Created: view.Service.Created}
		fronts := old.Owned(owner.Name)
		if _, bad := e.unresolved.entries[name]; !bad {
			err := e.guard("policy, service "+owner.Name, func() error {
				fronts = e.cfg.Resolve(view)
				return nil
			})
			if err != nil {
				e.unresolved.fail(name, time.Now())
				e.failedResolve(owner.Name, err)
			}
		}
		changes, contests, err := e.replace(owner, fronts)
		if err != nil {
			e.unresolved.fail(name, time.Now())
			e.failedResolve(owner.Name, err)
		}
		told.add(e.table, owner.Name, changes, contests)
	}
	if !e.begun {
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

// resolveNode computes what the plane must know of this machine.
func (e *Engine) resolveNode(now time.Time) {
	var n lb.Node
	err := e.guard("policy, node", func() error {
		n = e.cfg.ResolveNode(e.cfg.Store.Facts())
		return nil
	})
	if err != nil {
		e.facts = true
		e.factsWait.fail(now)
		e.failedNode(err)
		return
	}
	e.facts, e.factsWait, e.nodeKnown = false, pause{}, true
	if e.table.Node.Equal(n) {
		return
	}
	e.tableMu.Lock()
	e.table.Node = n
	e.tableMu.Unlock()
	e.nodeStale, e.nodeWait = true, pause{}
}

func (e *Engine) failedNode(err error) {
	e.stats.update(func(s *Stats) { s.LastError, s.LastFailure = "resolve node: "+err.Error(), time.Now() })
	if e.said.first("node " + err.Error()) {
		e.cfg.Log.Error("node not resolved, what was known of it stays", "err", err)
	}
}
