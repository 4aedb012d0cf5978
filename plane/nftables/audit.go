//go:build linux

package nftables

import (
	"context"
	"fmt"

	"kube-proxy/internal/nft/wire"
	"kube-proxy/internal/rollback"
	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/plane/internal/diff"
)

// Drift has a value when another program changed our table.
func (p *Plane) Drift() <-chan struct{} { return p.mon.signal }

// ChangedBy is part of plane.Witness.
func (p *Plane) ChangedBy() string { return p.mon.ChangedBy() }

// Audit repairs changes that other programs made to our table, and returns the number of objects
// that differed. With full it compares everything, also changes without a notification; of a large
// table each call compares another part. Otherwise it compares the objects that the kernel's
// notifications named. The error wraps plane.ErrStateLost if the table or one of its sets is
// missing or has the wrong type.
func (p *Plane) Audit(ctx context.Context, full bool) (int, error) {
	if p.st == nil {
		return 0, fmt.Errorf("nftables %s: audit: %w", p.ip.Family, plane.ErrNotSetUp)
	}
	notes := p.mon.take()
	n, err := p.audit(ctx, &notes, full)
	if err == nil && full {
		err = p.tidy(ctx)
	}
	if err != nil {
		p.mon.giveBack(notes)
	} else if full {
		err = p.measureAffinity(ctx)
	}
	return n, err
}

// audit removes from the notes what it has repaired.
func (p *Plane) audit(ctx context.Context, notes *notes, full bool) (int, error) {
	if notes.everything || full && p.elements() <= p.window {
		return p.auditAll(ctx, allSets)
	}
	repaired, err := p.repairElements(ctx, notes.elements)
	if err != nil {
		return repaired, err
	}
	notes.elements = nil
	if !full && !notes.structure {
		return repaired, nil
	}
	n, err := p.auditAll(ctx, smallSets)
	repaired += n
	if err != nil || !full {
		return repaired, err
	}
	c := p.newChange(p.st)
	n, err = p.auditSome(ctx, c)
	if err == nil {
		err = p.commit(ctx, c.out)
	}
	if err != nil {
		return repaired, fmt.Errorf("nftables %s: compare elements: %w", p.ip.Family, err)
	}
	return repaired + n, nil
}

// elements returns roughly how many elements of large maps the state has.
func (p *Plane) elements() int {
	n := 4 * len(p.st.rows)
	for _, s := range p.st.sets {
		n += 1 + s.held.Len() + len(s.tail())
	}
	for _, l := range p.st.lists.ByContent {
		n += len(l.Ranges)
	}
	return n
}

// auditAll compares the structure, and the elements of some sets, with the state.
func (p *Plane) auditAll(ctx context.Context, which func(*wire.Set) bool) (int, error) {
	snap, _, err := p.readTable(ctx, which)
	if err != nil {
		return 0, err
	}
	if !snap.ours {
		return 0, fmt.Errorf("nftables %s: another program removed or replaced table %s or one of its sets: %w",
			p.ip.Family, TableName, plane.ErrStateLost)
	}
	c := p.newChange(p.st)
	n := c.repair(snap, which)
	if err := p.write(ctx, c); err != nil {
		return 0, err
	}
	return n, nil
}

// repairElements repairs single elements whose last notification is known.
func (p *Plane) repairElements(ctx context.Context, noticed map[elementKey]elementNote) (int, error) {
	w := wanted{st: p.st, defs: p.rules.sets}
	var is, want [setCount]diff.Records
	for i := range setCount {
		is[i].Size = p.rules.sets[i].RecordLen()
		want[i].Size = is[i].Size
	}
	for k, note := range noticed {
		if note.present {
			is[k.set].Bytes = append(append(is[k.set].Bytes, k.key...), note.data...)
		}
		if data, ok := w.of(k.set, []byte(k.key)); ok {
			want[k.set].Bytes = append(append(want[k.set].Bytes, k.key...), data...)
		}
	}
	c := p.newChange(p.st)
	n := 0
	for i := range setCount {
		n += c.repairSet(i, is[i], want[i])
	}
	if err := p.commit(ctx, c.out); err != nil {
		return 0, err
	}
	return n, nil
}

// wanted finds the elements that the state requires. It builds its indexes on first use.
type wanted struct {
	st   *state
	defs *[setCount]wire.Set

	byID map[uint32]*set
}

// of returns the data that the element of that key must have, and whether it must exist.
func (w *wanted) of(i setIndex, key []byte) (data []byte, ok bool) {
	d := &w.defs[i]
	find := func(j setIndex, rec []byte) {
		if n := len(rec) - d.DataLen(); j == i && string(rec[:n]) == string(key) {
			data, ok = append([]byte(nil), rec[n:]...), true
		}
	}
	if k, is := rowKey(i, key, d.Key[0].Size); is {
		if r, is := w.st.rows[k]; is {
			rowRecords(r, find)
		}
		return data, ok
	}
	switch i {
	case sSourceRanges:
		l := w.st.lists.ByNumber[numberIn(i, key)]
		ok = l != nil && l.Has(key)
	case sClusterIPs:
		ok = w.st.clusterIPs[wire.ParseAddr(key)] > 0
	case sEqualBytes:
		ok = key[0] == key[4]
	case sReserved:
		w.st.reserved(find)
	default:
		if s := w.set(numberIn(i, key)); s != nil {
			s.records(find)
		}
	}
	return data, ok
}

// set returns the set with that id, or nil.
func (w *wanted) set(id uint32) *set {
	if w.byID == nil {
		w.byID = make(map[uint32]*set, len(w.st.sets))
		for _, s := range w.st.sets {
			w.byID[s.id] = s
		}
	}
	return w.byID[id]
}

// SetNode updates the rules that depend on the node, in one transaction.
func (p *Plane) SetNode(ctx context.Context, n lb.Node) error {
	if p.st == nil {
		return fmt.Errorf("nftables %s: set node: %w", p.ip.Family, plane.ErrNotSetUp)
	}
	c := p.newChange(p.st)
	rollback.Value(c.log, &p.rules.node)
	rollback.Value(c.log, &p.st.node)
	c.restructure(func() { p.rules.node, p.st.node = n, n })
	if err := p.write(ctx, c); err != nil {
		return err
	}
	p.localhost.SetNode(n)
	return nil
}

// tidy removes the chains of classes and shapes that nothing uses any more. It relies on the state,
// so it must run right after an audit that made the kernel match it. Otherwise a chain that another
// program removed would look like a lost table.
func (p *Plane) tidy(ctx context.Context) error {
	classes, shapes := p.st.needs()
	if len(classes) == len(p.st.classes) && len(shapes) == len(p.st.shapes) {
		return nil
	}
	c := p.newChange(p.st)
	rollback.Value(c.log, &p.st.classes)
	rollback.Value(c.log, &p.st.shapes)
	c.restructure(func() { p.st.classes, p.st.shapes = classes, shapes })
	return p.write(ctx, c)
}

// needs returns the classes and shapes that the frontends use.
func (st *state) needs() (map[class]bool, map[shape]bool) {
	classes, shapes := map[class]bool{}, map[shape]bool{}
	for _, r := range st.rows {
		classes[r.class] = true
	}
	for _, s := range st.sets {
		if s.held.Len() == 0 { // being removed
			continue
		}
		for _, part := range s.shape().parts() {
			shapes[part] = true
		}
	}
	return classes, shapes
}
