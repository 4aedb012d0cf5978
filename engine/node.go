package engine

import (
	"context"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/lb"
)

// node is the state of this machine's facts in the plane.
type node struct {
	known   bool // it has been resolved once
	changed bool // it must be resolved again, not before wait
	wait    pause
	stale   bool      // the plane does not have table.Node yet
	since   time.Time // time of the change
	trouble trouble
}

// resolveNode computes the facts of this machine for the plane.
func (e *Engine) resolveNode(now time.Time) {
	var n lb.Node
	err := e.guard("policy, ", "node", func() error {
		n = e.cfg.ResolveNode(e.cfg.Store.Facts())
		return nil
	})
	if err != nil {
		e.node.changed = true
		e.node.wait.fail(now)
		e.stats.failed("resolve node: "+err.Error(), now)
		if e.said.First("node " + err.Error()) {
			e.cfg.Log.Error("Failed to resolve the Node, its last known state stays in force", "err", err)
		}
		return
	}
	e.node.known, e.node.changed, e.node.wait = true, false, pause{}
	if e.table.Node.Equal(n) {
		return
	}
	e.tableMu.Lock()
	e.table.Node = n
	e.tableMu.Unlock()
	e.node.stale, e.node.since, e.node.trouble.pause = true, now, pause{}
}

// setNode writes the node's facts to the plane without a Reset.
func (e *Engine) setNode(ctx context.Context) {
	n := &e.node
	w := &Write{Verb: "setnode", wrote: true, again: n.trouble.logged.Any()}
	err := e.call(w, func() error { return e.cfg.Plane.SetNode(ctx, e.table.Node) })
	switch {
	case err == nil:
		n.stale, n.trouble = false, trouble{}
		e.reportNodeSet()
		e.reportNode()
	case !e.resets.due:
		n.trouble.fail(time.Now())
		if n.trouble.logged.News(err) {
			e.cfg.Log.Error("Failed to write the settings of the Node, retrying", "err", err)
			e.reportFailed(cluster.Name{}, lb.Key{}, "setnode", err)
		}
	}
}
