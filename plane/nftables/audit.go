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

// Drift has a value when somebody else changed our table.
func (p *Plane) Drift() <-chan struct{} { return p.mon.signal }

// Audit mends what others did to our table. With full it looks for what was not noticed: everything is compared,
// of a large table another part in each call. Otherwise it looks at what the kernel's notifications named. It
// returns the number of objects that differed, and an error that wraps plane.ErrStateLost where the table or one
// of its sets is gone or no longer as we make it.
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

// audit takes out of the notes what it has mended.
func (p *Plane) audit(ctx context.Context, notes *notes, full bool) (int, error) {
	if notes.everything || full && p.elements() <= p.window {
		return p.auditAll(ctx, allSets)
	}
	mended, err := p.mendElements(ctx, notes.elements)
	if err != nil {
		return mended, err
	}
	notes.elements = nil
	if !full && !notes.structure {
		return mended, nil
	}
	n, err := p.auditAll(ctx, smallSets)
	mended += n
	if err != nil || !full {
		return mended, err
	}
	c := p.newChange(p.st)
	n, err = p.auditSome(ctx, c)
	if err == nil {
		err = p.commit(ctx, c.out)
	}
	if err != nil {
		return mended, fmt.Errorf("nftables %s: compare elements: %w", p.ip.Family, err)
	}
	return mended + n, nil
}

// elements is about how many elements of large maps the state has.
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
		return 0, fmt.Errorf("nftables %s: somebody removed or replaced table %s or one of its sets: %w", p.ip.Family, TableName, plane.ErrStateLost)
	}
	c := p.newChange(p.st)
	n := c.mend(snap, which)
	if err := p.write(ctx, c); err != nil {
		return 0, err
	}
	return n, nil
}

// mendElements mends single elements of which the last word is known.
func (p *Plane) mendElements(ctx context.Context, heard map[elementKey]elementNote) (int, error) {
	w := wanted{st: p.st, defs: p.rules.sets}
	var is, want [setCount]diff.Records
	for i := range setCount {
		is[i].Size = p.rules.sets[i].RecordLen()
		want[i].Size = is[i].Size
	}
	for k, note := range heard {
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
		n += c.mendSet(i, is[i], want[i])
	}
	if err := p.commit(ctx, c.out); err != nil {
		return 0, err
	}
	return n, nil
}

// wanted answers which elements the state wants. Its indexes are made when they are first needed.
type wanted struct {
	st   *state
	defs *[setCount]wire.Set

	byID map[uint32]*set
}

// of returns the data that an element of that key shall have, and whether there shall be one.
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

// set returns the set of that id, or nil.
func (w *wanted) set(id uint32) *set {
	if w.byID == nil {
		w.byID = make(map[uint32]*set, len(w.st.sets))
		for _, s := range w.st.sets {
			w.byID[s.id] = s
		}
	}
	return w.byID[id]
}

// SetNode brings the rules that follow from the node up to date, in one transaction.
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

// tidy removes the chains of classes and shapes that nothing has any more. It goes by the state, and so comes when an audit has just
// made the kernel hold that: else what others took away of them would look like a table that is lost.
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

// needs returns the classes and shapes that the rows have.
func (st *state) needs() (map[class]bool, map[shape]bool) {
	classes, shapes := map[class]bool{}, map[shape]bool{}
	for _, r := range st.rows {
		classes[r.class] = true
	}
	for _, s := range st.sets {
		if s.held.Len() == 0 { // it is leaving
			continue
		}
		for _, part := range s.shape().parts() {
			shapes[part] = true
		}
	}
	return classes, shapes
}
