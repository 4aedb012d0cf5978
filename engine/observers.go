package engine

import (
	"slices"

	"kube-proxy/lb"
)

// observe reports accepted changes to the observers, without the withheld ones.
func (e *Engine) observe(changes []lb.Change) { e.report(e.withhold(changes)) }

// withheld is a frontend of a health check that observers must not see yet.
type withheld struct {
	lb.Change
	await lb.Key // one of the keys that it waits for
}

// withhold removes changes from accepted ones that observers must not see yet, and keeps them until
// [Engine.reportWithheld]. It withholds more endpoints of a health check while a frontend for
// outside traffic to the same Service is not in force (HT-16). Most planes have nothing to write
// for a health check, so they accept its frontend while they refuse all others. Fewer endpoints are
// reported at once: a load balancer that switches to another node too early does no harm.
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
		if c.Old != nil && c.Old.Service != c.New.Service { // another Service has the port
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

// awaited returns a frontend for outside traffic to the Service of a health check that the plane
// still has to accept; false if none is left.
func (e *Engine) awaited(check *lb.Frontend) (lb.Key, bool) {
	rows := e.table.Owned(check.Service)
	i := slices.IndexFunc(rows, e.pendingOutside)
	if i < 0 {
		return lb.Key{}, false
	}
	return rows[i].Key, true
}

// pendingOutside reports whether a frontend is for outside traffic, and the plane still has to
// accept it.
func (e *Engine) pendingOutside(f *lb.Frontend) bool {
	return f.Kind != lb.ClusterIP && f.Kind != lb.HealthCheck && e.pending.byKey[f.Key] != nil
}

// stillAwaited does not inspect all frontends of a Service while the plane has not accepted the one
// found before.
func (e *Engine) stillAwaited(k lb.Key, h withheld) bool {
	f := e.table.Get(h.await)
	if f != nil && lb.OwnerOf(f.Service) == h.New.Service && e.pendingOutside(f) {
		return true
	}
	await, waits := e.awaited(h.New)
	if waits {
		h.await = await
		e.withheld[k] = h
	}
	return waits
}

// reportWithheld reports withheld changes that no longer have a reason to wait.
func (e *Engine) reportWithheld() {
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
		e.withheld = nil // a map that was large once keeps its size
	}
	e.report(changes)
}

// report reports changes to the observers.
func (e *Engine) report(changes []lb.Change) {
	if len(changes) == 0 {
		return
	}
	for _, o := range e.cfg.Observers {
		e.toObserver(func() { o.Applied(changes) })
	}
}

// reportNode reports the node in force to the observers.
func (e *Engine) reportNode() {
	for _, o := range e.cfg.Observers {
		if o, ok := o.(NodeObserver); ok {
			e.toObserver(func() { o.NodeApplied(e.table.Node) })
		}
	}
}

func (e *Engine) toObserver(call func()) {
	err := e.guard("observer", "", func() error {
		call()
		return nil
	})
	if err != nil && e.said.First("observer "+err.Error()) {
		e.cfg.Log.Error("Observer failed", "err", err)
	}
}
