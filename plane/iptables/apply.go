package iptables

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strconv"

	"kube-proxy/lb"
	"kube-proxy/plane"
)

// Apply writes the chains that the changes touch, in one restore, or in several where there are very many. See
// package plane for its contract.
func (p *Plane) Apply(ctx context.Context, changes []lb.Change) (written bool, err error) {
	if p.st == nil {
		return false, fmt.Errorf("iptables: apply before a reset: %w", plane.ErrStateLost)
	}
	for _, c := range changes {
		if err := check(p.family, c.Key, c.New); err != nil {
			return false, fmt.Errorf("iptables: %w", err)
		}
	}
	p.begin()
	defer p.owned()
	for len(changes) > 0 {
		n, used := 0, 0
		var weight lb.Weight
		for n < len(changes) && (n == 0 || used < p.Pace()) {
			used += weight.Of(changes[n].New)
			n++
		}
		ran, err := p.write(ctx, changes[:n])
		if err != nil {
			p.count(func(s *Stats) { s.PartialFailures++ })
			return false, fmt.Errorf("iptables: apply %d changes: %w", n, err)
		}
		written = written || ran
		changes = changes[n:]
	}
	return written, nil
}

// write applies changes in one restore, if there is anything to write. If that fails without having done anything, the
// state is as before.
//
// The filter table refuses what was not translated. So rows are added to it before nat changes, and removed
// after: a packet in between must not pass as it is, and leave a flow behind that nothing translates.
func (p *Plane) write(ctx context.Context, changes []lb.Change) (ran bool, err error) {
	st := p.st
	plan := st.plan(changes)
	w := &writer{st: st, wrote: map[chainID]digest{}, dropped: map[chainID]bool{}}
	w.chains(plan.chainsOf(filter))
	w.dispatch(filter, &plan.adds)
	w.chains(plan.chainsOf(nat))
	w.dispatch(nat, &plan.adds, &plan.removals)
	w.drop(plan.goneOf(nat)...)
	w.dispatch(filter, &plan.removals)
	w.drop(plan.goneOf(filter)...)
	if err := p.run(ctx, &w.batch); err != nil {
		w.undo()
		return false, err
	}
	w.keep()
	st.keep(plan)
	return w.batch.count() > 0, nil
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
	if b.count() == 0 {
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

// restore runs iptables-restore once. The error wraps plane.ErrStateLost where a part may be in force.
func (p *Plane) restore(ctx context.Context, b *batch) error {
	text := b.text()
	err := p.restoreOwn(ctx, b.count(), func(ctx context.Context) error { return p.tool.restoreText(ctx, text) })
	p.count(func(s *Stats) {
		s.Restores++
		s.Bytes += uint64(len(text))
		for _, sec := range b.sections {
			s.Chains += uint64(len(sec.write))
			s.Last.add(sec)
		}
		if err != nil {
			s.Failures++
		}
	})
	if err == nil {
		return nil
	}
	if ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded) || wasKilled(err) || b.count() > 1 && failedLine(err) > b.firstLines() {
		return fmt.Errorf("%w: a part may be in force: %w", err, plane.ErrStateLost)
	}
	return err
}

// wasKilled reports whether a signal ended the program, which may have been after its work.
func wasKilled(err error) bool {
	var exit *exec.ExitError
	return errors.As(err, &exit) && !exit.Exited()
}

var lineNumber = regexp.MustCompile(`[Ll]ine:? (\d+)`)

// failedLine returns the line of which iptables-restore complained, a high number if it did not say.
func failedLine(err error) int {
	var run *runError
	if !errors.As(err, &run) {
		return 0 // it did not start
	}
	m := lineNumber.FindStringSubmatch(run.said)
	if m == nil {
		return 1 << 30
	}
	n, err := strconv.Atoi(m[1])
	if err != nil {
		return 1 << 30
	}
	return n
}

// firstLines returns the number of lines of the first section.
func (b *batch) firstLines() int {
	for _, s := range b.sections {
		if s.empty() {
			continue
		}
		n := 0
		for _, c := range s.appendText(nil) {
			if c == '\n' {
				n++
			}
		}
		return n
	}
	return 0
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
	if err := p.rewrite(ctx, r); err != nil {
		return fmt.Errorf("iptables: set node: %w: %w", err, plane.ErrStateLost)
	}
	return nil
}

// rewrite renders all rows anew, and writes what differs from what the kernel is known to hold.
func (p *Plane) rewrite(ctx context.Context, r renderer) error {
	old := p.st
	p.st = nil
	return p.hold(ctx, r, old.fronts(), &snapshot{chains: old.kernel, jumps: old.jumps, kubelet: old.kubelet})
}

// byPath orders frontends as dispatchers do.
func byPath(a, b *lb.Frontend) int { return cmp.Compare(path(a.Key), path(b.Key)) }
