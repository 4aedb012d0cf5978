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
		return false, fmt.Errorf("iptables: apply before a reset: %w", plane.ErrStateLost)
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
	w := &writer{st: st, wrote: map[chainID]digest{}, dropped: map[chainID]bool{}}
	w.chains(plan.chainsOf(filter))
	w.dispatch(filter, &plan.adds)
	w.chains(plan.chainsOf(nat))
	w.dispatch(nat, &plan.adds, &plan.deletes)
	w.drop(plan.dropsOf(nat)...)
	w.dispatch(filter, &plan.deletes)
	w.drop(plan.dropsOf(filter)...)
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
	st      *state
	wrote   map[chainID]digest
	dropped map[chainID]bool
	undone  []undone
}

// undone is how a dispatcher was.
type undone struct {
	to      dispatcherIndex
	entries []entry
}

// holds returns what the kernel holds once the restore has come this far.
func (w *writer) holds(id chainID) (digest, bool) {
	if d, written := w.wrote[id]; written {
		return d, true
	}
	if w.dropped[id] {
		return digest{}, false
	}
	d, known := w.st.kernel[id]
	return d, known
}

// chains writes those of the chains that the kernel does not hold so.
func (w *writer) chains(chains []chain) {
	for _, c := range chains {
		d := digestOf(c.rules)
		if have, known := w.holds(c.id); known && have == d {
			continue
		}
		w.section(c.id.table).put(c)
		w.wrote[c.id] = d
		delete(w.dropped, c.id)
	}
}

// drop deletes chains to which nothing of ours leads any more.
func (w *writer) drop(ids ...chainID) {
	for _, id := range ids {
		if _, known := w.holds(id); !known {
			continue
		}
		w.section(id.table).delete(id)
		delete(w.wrote, id)
		w.dropped[id] = true
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
			w.drop(chainID{t, d.name(at)})
		}
		for _, at := range write {
			w.chains([]chain{d.chain(at)})
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
	for id, d := range w.wrote {
		w.st.holds(id, d)
	}
	for id := range w.dropped {
		w.st.lacks(id)
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
		return fmt.Errorf("iptables: set node before a reset: %w", plane.ErrStateLost)
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
