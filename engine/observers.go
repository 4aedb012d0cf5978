package engine

import "kube-proxy/lb"

// tell tells the observers of accepted changes.
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
