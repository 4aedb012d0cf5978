package iptables

import (
	"context"
	"fmt"
	"slices"
	"time"

	"kube-proxy/lb"
	"kube-proxy/plane"
)

// Apply writes the chains that the changes touch, in one restore, or in several where there are very many. See
// package plane for its contract.
func (p *Plane) Apply(ctx context.Context, changes []lb.Change) (written bool, err error) {
	if p.st == nil {
		return false, fmt.Errorf("iptables: apply: %w", plane.ErrNotSetUp)
	}
	p.newSync()
	defer p.owned()
	for len(changes) > 0 {
		n, used := 0, 0
		var weight lb.Weight
		for n < len(changes) && (n == 0 || used < p.Pace()) {
			used += weight.Of(changes[n].New)
			n++
		}
		wrote, err := p.write(ctx, changes[:n])
		if err != nil {
			p.count(func(s *Stats) { s.PartialFailures++ })
			return false, fmt.Errorf("iptables: apply %d changes: %w", n, err)
		}
		written = written || wrote
		changes = changes[n:]
	}
	return written, nil
}

// write applies changes in one restore, if there is anything to write. If that fails without having done anything, the state
// is as before.
//
// The filter table refuses what was not translated. So rows are added to it before nat changes, and removed
// after: a packet in between must not pass as it is, and leave a flow behind that nothing translates.
func (p *Plane) write(ctx context.Context, changes []lb.Change) (wrote bool, err error) {
	st := p.st
	plan := st.plan(changes)
	w := &writer{st: st, now: map[chainID]held{}}
	w.write(filter, plan.chains...)
	w.dispatch(filter, &plan.adds)
	w.write(nat, plan.chains...)
	w.dispatch(nat, &plan.adds, &plan.deletes)
	w.drop(nat, plan.drops...)
	w.dispatch(filter, &plan.deletes)
	w.drop(filter, plan.drops...)
	if err := p.run(ctx, &w.batch); err != nil {
		w.undo()
		return false, err
	}
	w.keep()
	if st.keep(plan) {
		p.listed = time.Time{} // so that the next audit finds the chains that are not needed any more
	}
	return len(w.sections) > 0, nil
}

// writer collects what one restore does to the chains.
type writer struct {
	batch
	st     *state
	now    map[chainID]held // what it has changed
	undone []undone
}

// held is what the kernel holds of a chain, if there is such a chain.
type held struct {
	digest
	there bool
}

// undone is how a dispatcher was.
type undone struct {
	to      dispatcherIndex
	entries []entry
}

// holds returns what the kernel holds once the restore has come this far.
func (w *writer) holds(id chainID) held {
	if h, changed := w.now[id]; changed {
		return h
	}
	d, there := w.st.kernel[id]
	return held{d, there}
}

// write writes those of the chains of a table that the kernel does not hold so.
func (w *writer) write(t table, chains ...chain) {
	for _, c := range chains {
		if want := (held{digestOf(c.rules), true}); c.id.table == t && w.holds(c.id) != want {
			w.section(t).put(c)
			w.now[c.id] = want
		}
	}
}

// drop deletes chains of a table to which nothing of ours leads any more.
func (w *writer) drop(t table, ids ...chainID) {
	for _, id := range ids {
		if id.table == t && w.holds(id).there {
			w.section(t).delete(id)
			w.now[id] = held{}
		}
	}
}

// dispatch changes the dispatchers of a table.
func (w *writer) dispatch(t table, lists ...*[dispatchers][]entry) {
	for i, d := range w.st.dispatchers {
		if d.table != t {
			continue
		}
		var changes []entry
		for _, list := range lists {
			changes = append(changes, list[i]...)
		}
		if len(changes) == 0 {
			continue
		}
		w.undone = append(w.undone, undone{dispatcherIndex(i), d.set(changes)})
		write, drop := d.update(pathsOf(changes))
		for _, at := range drop {
			w.drop(t, chainID{t, d.name(at)})
		}
		for _, at := range write {
			w.write(t, d.chain(at))
		}
	}
}

func pathsOf(entries []entry) []string {
	out := make([]string, len(entries))
	for i, e := range entries {
		out[i] = e.path
	}
	slices.Sort(out)
	return out
}

// undo makes the dispatchers what they were.
func (w *writer) undo() {
	for _, u := range slices.Backward(w.undone) {
		d := w.st.dispatchers[u.to]
		slices.Reverse(u.entries)
		d.set(u.entries)
		d.update(pathsOf(u.entries))
	}
}

// keep notes what the kernel holds now.
func (w *writer) keep() {
	for id, h := range w.now {
		if h.there {
			w.st.holds(id, h.digest)
		} else {
			w.st.lacks(id)
		}
	}
}

// run hands a batch to iptables-restore. A chain to which a rule of somebody else leads cannot be deleted, and would
// keep all the rest from happening: it is emptied, and left.
func (p *Plane) run(ctx context.Context, b *batch) error {
	if len(b.sections) == 0 {
		return nil
	}
	err := p.restore(ctx, b)
	if err == nil || !slices.ContainsFunc(b.sections, func(s *section) bool { return len(s.drop) > 0 }) || ctx.Err() != nil {
		return err
	}
	var stuck []chainID
	for _, s := range b.sections {
		drop := s.drop
		s.drop = nil
		stuck = append(stuck, drop...)
		for _, id := range drop {
			s.put(chain{id: id})
		}
	}
	if p.restore(ctx, b) != nil {
		return err
	}
	p.stuck(stuck...) // at most these: the next audit deletes the others
	p.seen = fingerprint{}
	return nil
}

// SetNode changes what the plane knows of the node. What depends on it is rendered anew, and written where it
// differs.
func (p *Plane) SetNode(ctx context.Context, n lb.Node) error {
	if p.st == nil {
		return fmt.Errorf("iptables: set node: %w", plane.ErrNotSetUp)
	}
	if p.st.node.Equal(n) {
		return nil
	}
	r := p.st.renderer
	r.node = n
	if err := p.rewrite(ctx, r, p.st.snapshot()); err != nil {
		return fmt.Errorf("iptables: set node: %w", err)
	}
	return nil
}
