package engine

import (
	"slices"

	"kube-proxy/lb"
)

// observe tells the observers of accepted changes, as far as they may know of them.
func (e *Engine) observe(changes []lb.Change) { e.tell(e.withhold(changes)) }

// withheld is a row of a health check that observers are not told of yet.
type withheld struct {
	lb.Change
	await lb.Key // one of those that it waits for
}

// withhold takes out of accepted changes what observers must not know yet, and keeps it until [Engine.tellWithheld]: that a health
// check has more endpoints to tell of, while a row that leads outside traffic to the Service is not in force (HT-16). To
// most planes the row of a health check is nothing, so that it is accepted while all others are refused. Fewer endpoints
// are told at once: a load balancer that goes elsewhere too early does no harm.
func (e *Engine) withhold(changes []lb.Change) []lb.Change {
	if !slices.ContainsFunc(changes, func(c lb.Change) bool { return c.Old.Accepts() || c.New.Accepts() }) {
		return changes
	}
	out := make([]lb.Change, 0, len(changes))
	for _, c := range changes {
		if was, is := e.withheld[c.Key]; is {
			c.Old = was.Old
			delete(e.withheld, c.Key)
		}
		await, waits := lb.Key{}, false
		if c.New.Accepts() {
			await, waits = e.awaited(c.New)
		}
		if !waits {
			out = append(out, c)
			continue
		}
		if c.Old != nil && c.Old.Service != c.New.Service { // the port is another's: what was told of it ends now
			out = append(out, lb.Change{Key: c.Key, Old: c.Old})
			c.Old = nil
		}
		if c.Old != nil && c.Old.LocalEndpoints >= c.New.LocalEndpoints || c.New.LocalEndpoints == 0 {
			out = append(out, c)
			continue
		}
		if e.withheld == nil {
			e.withheld = map[lb.Key]withheld{}
		}
		e.withheld[c.Key] = withheld{c, await}
	}
	return out
}

// awaited returns a row by which traffic from outside comes to the Service of a health check, and that the plane still has
// to take; false if there is none.
func (e *Engine) awaited(check *lb.Frontend) (lb.Key, bool) {
	rows := e.table.Owned(check.Service)
	i := slices.IndexFunc(rows, func(f *lb.Frontend) bool {
		return f.Kind != lb.ClusterIP && f.Kind != lb.HealthCheck && e.pending.byKey[f.Key] != nil
	})
	if i < 0 {
		return lb.Key{}, false
	}
	return rows[i].Key, true
}

// stillAwaited does not look at all rows of a Service while the one that was found before has not been taken.
func (e *Engine) stillAwaited(k lb.Key, h withheld) bool {
	if f := e.table.Get(h.await); e.pending.byKey[h.await] != nil && f != nil {
		if lb.OwnerOf(f.Service) == h.New.Service && f.Kind != lb.ClusterIP && f.Kind != lb.HealthCheck {
			return true
		}
	}
	await, waits := e.awaited(h.New)
	if waits {
		h.await = await
		e.withheld[k] = h
	}
	return waits
}

// tellWithheld tells the observers what was kept from them and has no reason to be any more.
func (e *Engine) tellWithheld() {
	if len(e.withheld) == 0 || e.resets.due {
		return
	}
	var changes []lb.Change
	for k, h := range e.withheld {
		if !e.stillAwaited(k, h) {
			changes = append(changes, h.Change)
			delete(e.withheld, k)
		}
	}
	if len(e.withheld) == 0 {
		e.withheld = nil // what was large once costs its largest size
	}
	e.tell(changes)
}

// tell tells the observers of changes.
func (e *Engine) tell(changes []lb.Change) {
	if len(changes) == 0 {
		return
	}
	for _, o := range e.cfg.Observers {
		e.toObserver(func() { o.Applied(changes) })
	}
}

// tellNode tells the observers of the node that is in force.
func (e *Engine) tellNode() {
	for _, o := range e.cfg.Observers {
		if o, ok := o.(NodeObserver); ok {
			e.toObserver(func() { o.NodeApplied(e.table.Node) })
		}
	}
}

func (e *Engine) toObserver(tell func()) {
	err := e.guard("observer", "", func() error {
		tell()
		return nil
	})
	if err != nil && e.said.first("observer "+err.Error()) {
		e.cfg.Log.Error("observer failed", "err", err)
	}
}
