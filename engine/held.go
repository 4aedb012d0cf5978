package engine

import (
	"slices"

	"kube-proxy/lb"
)

// hold takes out of accepted changes what observers must not know yet, and keeps it until [Engine.tellHeld]: that a health
// check has more endpoints to tell of, while a row that leads outside traffic to the Service is not in force (HT-16). To
// most planes the row of a health check is nothing, so that it is accepted while all others are refused. Fewer endpoints
// are told at once: a load balancer that goes elsewhere too early does no harm.
func (e *Engine) hold(changes []lb.Change) []lb.Change {
	if !slices.ContainsFunc(changes, func(c lb.Change) bool { return c.Old.Accepts() || c.New.Accepts() }) {
		return changes
	}
	out := make([]lb.Change, 0, len(changes))
	for _, c := range changes {
		if was, held := e.held[c.Key]; held {
			c.Old = was.Old
			delete(e.held, c.Key)
		}
		if !c.New.Accepts() || !e.awaited(c.New) {
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
		if e.held == nil {
			e.held = map[lb.Key]lb.Change{}
		}
		e.held[c.Key] = c
	}
	return out
}

// awaited reports whether the plane still has to take a row by which traffic from outside comes to the Service of a health
// check.
func (e *Engine) awaited(check *lb.Frontend) bool {
	return slices.ContainsFunc(e.table.Owned(check.Service), func(f *lb.Frontend) bool {
		return f.Kind != lb.ClusterIP && f.Kind != lb.HealthCheck && e.pending.wishes[f.Key] != nil
	})
}

// tellHeld tells the observers what was kept from them and has no reason to be any more.
func (e *Engine) tellHeld() {
	if len(e.held) == 0 || e.lost {
		return
	}
	var changes []lb.Change
	for k, c := range e.held {
		if !e.awaited(c.New) {
			changes = append(changes, c)
			delete(e.held, k)
		}
	}
	if len(e.held) == 0 {
		e.held = nil // what was large once costs its largest size
	}
	e.tell(changes)
}
