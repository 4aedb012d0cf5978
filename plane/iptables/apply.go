//go:build linux

package iptables

import (
	"context"
	"fmt"
	"slices"

	"kube-proxy/internal/rollback"
	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/plane"
)

// Apply writes the chains that the changes touch in one restore, or in several if there are very
// many. Large changes of one service port are split into stages. See package plane for its
// contract.
func (p *Plane) Apply(ctx context.Context, changes []lb.Change) (res plane.ApplyResult, err error) {
	if p.st == nil {
		return res, fmt.Errorf("iptables: apply: %w", plane.ErrNotSetUp)
	}
	p.newSync()
	defer p.owned()
	fail := func(err error) (plane.ApplyResult, error) {
		p.Count(func(s *xtables.Stats) { s.PartialFailures++ })
		return plane.ApplyResult{}, fmt.Errorf("iptables: apply %d changes: %w", len(changes), err)
	}
	rest, waiting := p.st.underWay(changes)
	for len(rest) > 0 {
		piece := rest[:p.piece(rest)]
		wrote, much, err := p.write(ctx, piece)
		switch {
		case err != nil:
			return fail(err)
		case len(much) > 0:
			var more []lb.Change
			rest, more = p.st.aim(rest, much)
			waiting = append(waiting, more...)
		default:
			res.Written = res.Written || wrote
			rest = rest[len(piece):]
		}
	}
	if len(waiting) == 0 {
		return res, nil
	}
	reached, err := p.goOn(ctx, p.st.goalOf(waiting[0]))
	if err != nil {
		return fail(err)
	}
	for _, c := range waiting {
		if !slices.ContainsFunc(reached, func(is lb.Change) bool { return is.Key == c.Key && is.New == c.New }) {
			res.Later = append(res.Later, c.Key)
		}
	}
	res.Written = true
	return res, nil
}

// piece returns how many of the changes fit in one restore. Twice the recommended weight does: the
// last frontend of an Apply may exceed it, and a second restore would cost as much again.
func (p *Plane) piece(changes []lb.Change) (n int) {
	var now, old lb.Weight
	used, most := 0, p.MaxBatchWeight()
	for n < len(changes) && (n == 0 || used/2 < most) {
		var was *lb.Frontend
		if r := p.st.rows[changes[n].Key]; r != nil {
			was = r.front
		}
		used += max(now.Of(changes[n].New), old.Of(was))
		n++
	}
	p.left = max(0, p.left-used)
	return n
}

// write applies changes in one restore, if anything must be written. If too much of a service port
// would be written, it does nothing and returns these service ports. If it fails without effect,
// the state stays as before.
func (p *Plane) write(ctx context.Context, changes []lb.Change) (wrote bool, much []portID, err error) {
	st := p.st
	kept := len(st.kept) > 0
	st.Log = &rollback.Log{}
	defer func() { st.Log = nil }()
	c := st.apply(changes)
	if much := p.tooMuch(c); len(much) > 0 {
		st.Log.Undo()
		return false, much, nil
	}
	w := newWriter(st)
	w.change(c)
	if err := p.commit(ctx, w); err != nil {
		return false, nil, err
	}
	if kept && len(st.kept) == 0 {
		p.Doubt() // so that the next audit finds the unneeded chains
	}
	return len(w.Sections) > 0, nil, nil
}

// commit runs a restore. If that fails without effect, the state stays as before.
func (p *Plane) commit(ctx context.Context, w *writer) error {
	err := p.run(ctx, &w.Batch)
	if err != nil {
		w.st.Log.Undo()
	}
	return err
}

// writer collects the changes of one restore; the state has them at once.
type writer struct {
	xtables.Change
	st *state
}

func newWriter(st *state) *writer { return &writer{xtables.Change{Applied: &st.Applied}, st} }

// change collects the kernel's part of a change.
//
// The filter table refuses untranslated packets. So frontends are added to it before nat changes,
// and removed after: a packet in between must not pass and leave an untranslated flow behind.
func (w *writer) change(c *change) {
	w.Write(xtables.Filter, c.chains...)
	w.dispatch(xtables.Filter, &c.adds)
	w.Write(xtables.NAT, c.chains...)
	w.dispatch(xtables.NAT, &c.adds, &c.deletes)
	w.Drop(xtables.NAT, c.drops...)
	w.dispatch(xtables.Filter, &c.deletes)
	w.Drop(xtables.Filter, c.drops...)
}

// dispatch changes the dispatchers of a table.
func (w *writer) dispatch(t xtables.Table, lists ...*[dispatchers][]xtables.Entry) {
	for i, d := range w.st.dispatchers {
		if d.Table != t {
			continue
		}
		var changes []xtables.Entry
		for _, list := range lists {
			changes = append(changes, list[i]...)
		}
		w.Dispatch(d, changes)
	}
}

// run passes a batch to iptables-restore. A chain that a rule of other software jumps to cannot be
// deleted, and would fail the whole batch. run empties and keeps such a chain.
func (p *Plane) run(ctx context.Context, b *xtables.Batch) error {
	if len(b.Sections) == 0 {
		return nil
	}
	err := p.Restore(ctx, b)
	if err == nil || !slices.ContainsFunc(b.Sections, func(s *xtables.Section) bool { return len(s.Drop) > 0 }) ||
		ctx.Err() != nil {
		return err
	}
	var stuck []xtables.ChainID
	for _, s := range b.Sections {
		drop := s.Drop
		s.Drop = nil
		stuck = append(stuck, drop...)
		for _, id := range drop {
			s.Put(xtables.Chain{ID: id})
		}
	}
	if p.Restore(ctx, b) != nil {
		return err
	}
	p.Stuck(stuck...) // at most these: the next audit deletes the others
	p.Doubt()
	return nil
}

// SetNode changes the node's facts. It renders everything that depends on them, and writes what
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
