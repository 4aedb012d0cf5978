package iptables

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"kube-proxy/internal/kernel"
	"kube-proxy/lb"
)

// refused is the error of a Reset that left out rows.
type refused struct {
	keys []lb.Key
	err  error // of the first
}

func (r *refused) Error() string {
	return fmt.Sprintf("iptables: %d rows cannot be written, the first: %v", len(r.keys), r.err)
}

func (r *refused) Unwrap() error { return r.err }

// RefusedRows returns the keys of the rows that are not written (engine.RowsRefused).
func (r *refused) RefusedRows() []lb.Key { return r.keys }

// Reset lists the kernel's rules once, and writes the chains that differ from what the table asks for. Rules of an
// earlier process, ours or upstream's, serve until ours are complete. See package plane for its contract.
func (p *Plane) Reset(ctx context.Context, want *lb.Table) error {
	p.st = nil
	p.stats.Saves++
	have, err := p.tool.snapshot(ctx, false)
	if err != nil {
		return fmt.Errorf("iptables: reset: %w", err)
	}
	var bad refused
	rows := make([]*lb.Frontend, 0, want.Len())
	endpoints := map[unitID]int{}
	for f := range want.All() {
		if err := check(p.family, f.Key, f); err != nil {
			bad.keys = append(bad.keys, f.Key)
			if bad.err == nil {
				bad.err = err
			}
			continue
		}
		rows = append(rows, f)
		endpoints[unitOf(f)] = max(endpoints[unitOf(f)], endpointsOf([]*lb.Frontend{f}))
	}
	r := p.base
	r.node = want.Node
	total := 0
	for _, n := range endpoints {
		total += n
	}
	r.plain = total > manyEndpoints
	if err := p.hold(ctx, r, rows, have); err != nil {
		return fmt.Errorf("iptables: reset to %d rows: %w", want.Len(), err)
	}
	if len(bad.keys) > 0 {
		return &bad
	}
	return nil
}

// hold makes the kernel, of which have is known, hold exactly the rows.
func (p *Plane) hold(ctx context.Context, r renderer, rows []*lb.Frontend, have *snapshot) error {
	st := newState(r)
	slices.SortFunc(rows, byPath)
	changes := make([]lb.Change, len(rows))
	for i, f := range rows {
		changes[i] = lb.Change{Key: f.Key, New: f}
	}
	plan := st.plan(changes)
	for i, d := range st.dispatchers {
		d.set(plan.adds[i])
		d.update(pathsOf(plan.adds[i]))
	}
	plan.chains = nil // rendered again when they are written: all at once would take much memory
	st.keep(plan)
	l := &loader{p: p, st: st, have: have, left: map[string]int{}, done: map[unitID]bool{}}
	if err := l.load(ctx, rows); err != nil {
		return err
	}
	if st.localnet() && !p.dry {
		if _, err := kernel.SetSysctl("net.ipv4.conf.all.route_localnet", "1"); err != nil {
			return fmt.Errorf("NodePorts on 127.0.0.1 (--iptables-localhost-nodeports): %w", err)
		}
	}
	p.st = st
	return nil
}

// loader writes a whole state, in restores of bounded size.
//
// What is there already serves until the end: chains of services are written first, then the chains that lead to
// them, from the leaves of the dispatchers to their roots. Where there is nothing yet, the roots come first, so that
// each service answers as soon as its part is written.
type loader struct {
	p     *Plane
	st    *state
	have  *snapshot
	batch batch
	lines int
	left  map[string]int // leaves of nat's dispatchers, by name: entries whose unit is not written yet
	done  map[unitID]bool
}

// put adds a chain to the restore unless the kernel holds it so.
func (l *loader) put(c chain) {
	d := digestOf(c.rules)
	l.st.kernel[c.id] = d
	if is, known := l.have.chains[c.id]; known && is == d {
		return
	}
	l.batch.only(c.id.table).put(c)
	l.lines += 1 + len(c.rules)
}

// flush runs the restore, if it is long enough or must be.
func (l *loader) flush(ctx context.Context, must bool) error {
	if l.lines < l.p.maxLines && !must {
		return nil
	}
	err := l.p.run(ctx, &l.batch)
	l.batch, l.lines = batch{}, 0
	return err
}

func (l *loader) load(ctx context.Context, rows []*lb.Frontend) error {
	root := chainID{nat, services}
	is, known := l.have.chains[root]
	cold := !known || is == digestOf(nil)
	l.begin(cold)
	if err := l.flush(ctx, false); err != nil {
		return err
	}
	for _, f := range rows {
		if err := l.unit(ctx, unitOf(f)); err != nil {
			return err
		}
	}
	if !cold {
		l.inner(l.st.dispatchers[inServices], "")
		l.inner(l.st.dispatchers[inNodePorts], "")
		l.refusals()
	}
	if err := l.flush(ctx, true); err != nil {
		return err
	}
	return l.sweep(ctx)
}

// begin writes what does not depend on rows and, if nothing is there, what leads to the leaves.
func (l *loader) begin(cold bool) {
	for _, c := range l.st.skeleton() {
		if _, known := l.have.chains[c.id]; known && c.id.name == nodeFirewall {
			l.st.kernel[c.id] = l.have.chains[c.id]
			continue
		}
		l.put(c)
	}
	if cold {
		l.refusals()
		l.inner(l.st.dispatchers[inServices], "")
		l.inner(l.st.dispatchers[inNodePorts], "")
	} else {
		for _, d := range l.st.dispatchers { // so that jumps have where to go
			id := chainID{d.table, d.root}
			if _, known := l.have.chains[id]; !known {
				l.batch.only(d.table).put(chain{id: id})
				l.have.chains[id] = digestOf(nil)
			}
		}
	}
	for _, j := range jumps() {
		l.st.jumps[j] = true
		if !l.have.jumps[j] {
			s := l.batch.only(j.from.table)
			s.insert = append(s.insert, j)
		}
	}
	l.martian()
	for _, i := range []dispatcherIndex{inServices, inNodePorts} {
		l.countLeaves(l.st.dispatchers[i], "", cold)
	}
}

// martian puts the rule of DP-10 where it belongs, or takes it away.
func (l *loader) martian() {
	if l.st.family != lb.IPv4 {
		return
	}
	j := jump{chainID{filter, nodeFirewall}, martian}
	s := l.batch.only(filter)
	switch {
	case l.st.localnet():
		l.st.jumps[j] = true
		if !l.have.jumps[j] {
			s.insert = append(s.insert, j)
		}
	case l.have.jumps[j]:
		s.remove = append(s.remove, j)
	}
}

// inner writes the nodes of a dispatcher below at, but not its leaves, from below up. A root is written even if it
// is a leaf.
func (l *loader) inner(d *dispatcher, at string) {
	n := d.nodes[at]
	for _, child := range n.children {
		l.inner(d, child)
	}
	if n.children != nil {
		l.put(d.chain(at))
	}
}

// refusals writes the dispatchers of the filter table, which lead to no service.
func (l *loader) refusals() {
	for _, d := range l.st.dispatchers {
		if d.table == filter {
			l.all(d, "")
		}
	}
}

func (l *loader) all(d *dispatcher, at string) {
	for _, child := range d.nodes[at].children {
		l.all(d, child)
	}
	l.put(d.chain(at))
}

// countLeaves counts the entries of each leaf. If nothing is there yet, leaves are made empty, so that roots can
// lead to them.
func (l *loader) countLeaves(d *dispatcher, at string, cold bool) {
	n := d.nodes[at]
	for _, child := range n.children {
		l.countLeaves(d, child, cold)
	}
	if n.children != nil {
		return
	}
	name := d.name(at)
	l.left[name] = len(d.rangeOf(at))
	id := chainID{nat, name}
	_, known := l.have.chains[id]
	switch {
	case l.left[name] == 0:
		l.put(d.chain(at))
	case cold || !known && at == "":
		if !known {
			l.batch.only(nat).put(chain{id: id})
			l.have.chains[id] = digestOf(nil)
		}
	}
}

// unit writes the chains of a service port, and the leaves that are complete with it.
func (l *loader) unit(ctx context.Context, id unitID) error {
	if l.done[id] {
		return nil
	}
	l.done[id] = true
	u := l.st.units[id]
	chains, out := l.st.renderer.unit(id, u.rows)
	for _, c := range chains {
		l.put(c)
	}
	keys := slices.SortedFunc(maps.Keys(out), lb.Key.Compare)
	for _, k := range keys {
		for _, pl := range out[k] {
			d := l.st.dispatchers[pl.to]
			if d.table != nat {
				continue
			}
			at := d.leafOf(path(k))
			name := d.name(at)
			if l.left[name]--; l.left[name] == 0 {
				l.put(d.chain(at))
			}
		}
	}
	return l.flush(ctx, false)
}

// leafOf returns the leaf where a path's entry is.
func (d *dispatcher) leafOf(path string) string {
	at := ""
	for {
		n := d.nodes[at]
		if n.children == nil {
			return at
		}
		at = path[:len(n.children[0])]
	}
}

// sweep deletes the chains that nothing needs any more.
func (l *loader) sweep(ctx context.Context) error {
	var stale []chainID
	for id := range l.have.chains {
		if _, wanted := l.st.kernel[id]; !wanted && (isDynamic(id) || id.name == markOffCluster) {
			stale = append(stale, id)
		}
	}
	for part := range slices.Chunk(stale, max(1, min(l.p.maxLines/3, 2000))) {
		// All are emptied before any is deleted, for they may lead to each other.
		for _, id := range part {
			l.batch.only(id.table).put(chain{id: id})
		}
		if err := l.flush(ctx, true); err != nil {
			return err
		}
	}
	for part := range slices.Chunk(stale, max(1, min(l.p.maxLines/3, 2000))) {
		if err := l.delete(ctx, part); err != nil {
			return err
		}
	}
	return nil
}

// delete deletes empty chains. If one cannot be, the others are.
func (l *loader) delete(ctx context.Context, ids []chainID) error {
	b := batch{}
	slices.SortFunc(ids, func(a, b chainID) int { return int(a.table) - int(b.table) })
	for _, id := range ids {
		b.only(id.table).delete(id)
	}
	err := l.p.restore(ctx, &b)
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return err
	}
	if len(ids) == 1 {
		l.p.stats.Stuck++
		l.st.kernel[ids[0]] = digestOf(nil)
		return nil
	}
	half := len(ids) / 2
	if err := l.delete(ctx, ids[:half]); err != nil {
		return err
	}
	return l.delete(ctx, ids[half:])
}
