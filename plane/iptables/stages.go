//go:build linux

package iptables

import (
	"context"
	"slices"

	"kube-proxy/internal/rollback"
	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
)

// goal is a change that is too large for one restore, and is written in stages (TN-72). A chain is
// written after those that it jumps to, so that each stage works. Then the dispatchers change, and
// unneeded chains are deleted. Later changes of the same service ports wait for the goal: otherwise
// a tenant who changes constantly would leave ever more chains behind.
type goal struct {
	changes []lb.Change
	ports   []portID
	written []xtables.ChainID // before the state refers to them
	drops   []xtables.ChainID // still to be deleted
}

// goals are the changes in progress, by their keys and by the service ports that they touch.
type goals struct {
	byKey  map[lb.Key]*goal
	byPort map[portID]*goal
}

func newGoals() goals { return goals{map[lb.Key]*goal{}, map[portID]*goal{}} }

func (gs *goals) add(g *goal) {
	for _, c := range g.changes {
		gs.byKey[c.Key] = g
	}
	for _, id := range g.ports {
		gs.byPort[id] = g
	}
}

func (gs *goals) remove(g *goal) {
	for _, c := range g.changes {
		delete(gs.byKey, c.Key)
	}
	for _, id := range g.ports {
		delete(gs.byPort, id)
	}
}

// portsOf returns the service ports whose chains a change concerns.
func (st *state) portsOf(c lb.Change) (ids []portID) {
	if old := st.rows[c.Key]; old != nil {
		ids = append(ids, portOf(old.front))
	}
	if c.New != nil {
		ids = append(ids, portOf(c.New))
	}
	return ids
}

// stageLines is the approximate number of lines of service ports' chains in a stage. A larger
// change of a service port is split into stages.
func (p *Plane) stageLines() int { return 4 * p.MaxBatchWeight() }

// tooMuch returns the service ports whose change is too large for one restore.
func (p *Plane) tooMuch(c *change) (ids []portID) {
	for id, n := range c.lines {
		if n > p.stageLines() {
			ids = append(ids, id)
		}
	}
	return ids
}

// goalOf returns the goal that a change waits for, or nil.
func (st *state) goalOf(c lb.Change) *goal {
	if g := st.goals.byKey[c.Key]; g != nil {
		return g
	}
	for _, id := range st.portsOf(c) {
		if g := st.goals.byPort[id]; g != nil {
			return g
		}
	}
	return nil
}

// underWay separates the changes that must wait for a goal from the others.
func (st *state) underWay(changes []lb.Change) (others, waiting []lb.Change) {
	if len(st.goals.byKey) == 0 {
		return changes, nil
	}
	for _, c := range changes {
		if st.goalOf(c) != nil {
			waiting = append(waiting, c)
		} else {
			others = append(others, c)
		}
	}
	return others, waiting
}

// aim makes goals of the changes of some service ports, and returns the other changes and these.
func (st *state) aim(changes []lb.Change, ids []portID) (others, waiting []lb.Change) {
	for _, id := range ids {
		st.goals.byPort[id] = &goal{ports: []portID{id}}
	}
	for _, c := range changes {
		g := st.goalOf(c)
		if g == nil {
			others = append(others, c)
			continue
		}
		g.changes, g.ports = append(g.changes, c), append(g.ports, st.portsOf(c)...)
		st.goals.add(g)
		waiting = append(waiting, c)
	}
	return others, waiting
}

// goOn writes the next stage of a goal. It returns the goal's changes if it is reached.
func (p *Plane) goOn(ctx context.Context, g *goal) (reached []lb.Change, err error) {
	done, err := p.stage(ctx, g)
	if done || err != nil {
		p.st.goals.remove(g)
	}
	if err != nil {
		p.abandon(g)
		return nil, err
	}
	if done {
		return g.changes, nil
	}
	return nil, nil
}

// stage writes the next stage of a goal.
func (p *Plane) stage(ctx context.Context, g *goal) (done bool, err error) {
	st := p.st
	st.Log = &rollback.Log{}
	defer func() { st.Log = nil }()
	w := newWriter(st)
	if len(g.drops) == 0 {
		c := st.apply(g.changes)
		next, all := c.next(st, p.stageLines())
		if !all {
			st.Log.Undo()
			for _, ch := range next {
				g.written = append(g.written, ch.ID)
			}
			w.Write(xtables.NAT, next...)
			return false, p.commit(ctx, w)
		}
		g.drops, c.drops = c.drops, nil
		w.change(c)
	}
	now := g.drops[:min(len(g.drops), max(1, (p.stageLines()-w.Lines())/2))]
	for _, id := range now {
		if st.lists[id] == nil { // of another Service by now
			w.Drop(id.Table, id)
		}
	}
	if err := p.commit(ctx, w); err != nil {
		return false, err
	}
	g.drops = g.drops[len(now):]
	return len(g.drops) == 0, nil
}

// next returns the chains of nat that differ from the kernel, or the first of them, up to about
// most lines.
func (c *change) next(st *state, most int) (next []xtables.Chain, all bool) {
	lines := 0
	for _, ch := range c.chains {
		if ch.ID.Table != xtables.NAT || st.Has(ch) {
			continue
		}
		if lines >= most {
			return next, false
		}
		next, lines = append(next, ch), lines+1+len(ch.Rules)
	}
	return next, true
}

// abandon gives up a goal that iptables refuses. The next audit deletes its unneeded chains.
func (p *Plane) abandon(g *goal) {
	needed := map[xtables.ChainID]bool{}
	for _, id := range g.ports {
		if port := p.st.ports[id]; port != nil {
			for _, name := range port.chains {
				needed[xtables.NAT.Chain(name)] = true
			}
		}
	}
	for _, id := range slices.Concat(g.written, g.drops) {
		if !needed[id] {
			p.st.Forget(id)
		}
	}
	p.Doubt()
}
