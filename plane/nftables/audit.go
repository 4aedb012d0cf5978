package nftables

import (
	"context"
	"fmt"

	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/plane/rollback"
)

// Drift has a value when somebody else changed our table.
func (p *Plane) Drift() <-chan struct{} { return p.mon.signal }

// Audit mends what others did to our table. With full it looks for what was not noticed: everything is compared,
// of a large table another part in each call. Otherwise it looks at what the kernel's notifications named. It
// returns the number of objects that differed, and an error that wraps plane.ErrStateLost where the table or one
// of its sets is gone or no longer as we make it.
func (p *Plane) Audit(_ context.Context, full bool) (int, error) {
	if p.st == nil {
		return 0, fmt.Errorf("nftables %s: not set up yet: %w", p.fam, plane.ErrStateLost)
	}
	notes := p.mon.take()
	n, err := p.audit(&notes, full)
	if err != nil {
		p.mon.giveBack(notes)
	} else if full {
		err = p.measureAffinity()
	}
	return n, err
}

// audit takes out of the notes what it has mended.
func (p *Plane) audit(notes *notes, full bool) (int, error) {
	if full {
		if err := p.tidy(); err != nil {
			return 0, err
		}
	}
	if notes.everything || full && p.elements() <= p.window {
		return p.auditAll(allSets)
	}
	mended, err := p.mendElements(notes.elements)
	if err != nil {
		return mended, err
	}
	notes.elements = nil
	if !full && !notes.structure {
		return mended, nil
	}
	n, err := p.auditAll(smallSets)
	mended += n
	if err != nil || !full {
		return mended, err
	}
	c := p.begin(p.st)
	n, err = p.auditSome(c)
	if err == nil {
		err = p.commit(c.batch)
	}
	if err != nil {
		return mended, fmt.Errorf("nftables %s: compare elements: %w", p.fam, err)
	}
	return mended + n, nil
}

// elements is about how many elements of large maps the state has.
func (p *Plane) elements() int {
	n := 4 * len(p.st.rows)
	for _, s := range p.st.sets {
		n += 1 + len(s.slots)
	}
	for _, l := range p.st.lists {
		n += len(l.ranges)
	}
	return n
}

// auditAll compares the structure, and the elements of some sets, with the state.
func (p *Plane) auditAll(which func(*setDef) bool) (int, error) {
	snap, _, err := p.readTable(which)
	if err != nil {
		return 0, err
	}
	if !snap.ours {
		return 0, fmt.Errorf("nftables %s: somebody removed or replaced table %s or one of its sets: %w", p.fam, TableName, plane.ErrStateLost)
	}
	c := p.begin(p.st)
	n := c.mendStructure(snap)
	n += c.mendSets(snap, which)
	if err := p.commit(c.batch); err != nil {
		c.log.Undo()
		return 0, err
	}
	return n, nil
}

// mendElements mends single elements of which the last word is known.
func (p *Plane) mendElements(elements map[elementKey]elementNote) (int, error) {
	c := p.begin(p.st)
	w := wishes{st: p.st, defs: &p.rules.sets}
	n := 0
	for k, note := range elements {
		want, wanted := w.of(k.set, []byte(k.key))
		if note.present == wanted && (!wanted || note.data == string(want)) {
			continue
		}
		n++
		if note.present {
			c.remove(k.set, []byte(k.key+note.data))
		}
		if wanted {
			c.add(k.set, append([]byte(k.key), want...))
		}
	}
	if err := p.commit(c.batch); err != nil {
		return 0, err
	}
	return n, nil
}

// wishes answers what the state wants of single elements. Its indexes are made when they are first needed.
type wishes struct {
	st   *state
	defs *[setCount]setDef

	byID map[uint32]*set
}

// of returns the data that an element of that key shall have, and whether there shall be one.
func (w *wishes) of(i setIndex, key []byte) (data []byte, ok bool) {
	d := &w.defs[i]
	find := func(j setIndex, rec []byte) {
		if n := len(rec) - d.dataLen(); j == i && string(rec[:n]) == string(key) {
			data, ok = append([]byte(nil), rec[n:]...), true
		}
	}
	addrLen := d.key[0].size
	switch i {
	case sServices, sClusterSets, sLocalSets, sSourceLists:
		if r, is := w.st.rows[parseKey(key, addrLen)]; is {
			rowRecords(r, find)
		}
	case sNodePorts, sNodePortClusterSets, sNodePortLocalSets:
		if r, is := w.st.rows[parseKey(key, 0)]; is {
			rowRecords(r, find)
		}
	case sSourceRanges:
		l := w.st.listNumbers[order.Uint32(key)>>lengthBits]
		ok = l != nil && l.has(key)
	case sClusterIPs:
		ok = w.st.clusterIPs[parseAddr(key, addrLen)] > 0
	case sEqualBytes:
		ok = key[0] == key[4]
	case sReserved:
		w.st.reserved(find)
	default:
		if s := w.setOf(i, key); s != nil {
			s.records(find)
		}
	}
	return data, ok
}

// setOf returns the set whose id stands in the key.
func (w *wishes) setOf(i setIndex, key []byte) *set {
	if i == sMemberBackends {
		key = key[4:]
	}
	return w.set(order.Uint32(key))
}

// set returns the set of that id, or nil.
func (w *wishes) set(id uint32) *set {
	if w.byID == nil {
		w.byID = make(map[uint32]*set, len(w.st.sets))
		for _, s := range w.st.sets {
			w.byID[s.id] = s
		}
	}
	return w.byID[id]
}

// SetNode brings the rules that follow from the node up to date, in one transaction.
func (p *Plane) SetNode(_ context.Context, n lb.Node) error {
	if p.st == nil {
		return fmt.Errorf("nftables %s: not set up yet: %w", p.fam, plane.ErrStateLost)
	}
	before := *p.rules
	c := p.begin(p.st)
	rollback.Value(c.log, &p.rules.node)
	rollback.Value(c.log, &p.st.node)
	p.rules.node, p.st.node = n, n
	for _, ch := range c.skeleton() {
		c.rewrite(ch)
	}
	c.classRules(&before)
	if err := p.commit(c.batch); err != nil {
		c.log.Undo()
		return err
	}
	return nil
}

// rewrite stages the rules of a chain that is there, if they are others now.
func (c *change) rewrite(ch chain) {
	is, now := c.st.chains[ch.name], digest(ch.rules)
	if is == now {
		return
	}
	if is != "" {
		c.flushChain(ch.name)
	}
	c.addRules(ch)
	rollback.Put(c.log, c.st.chains, ch.name, now)
}

// classRules stages the chains of all classes that another detector gives other rules.
func (c *change) classRules(before *ruleset) {
	for cl := range c.st.classes {
		was, oldFilter, oldNAT := before.classChains(cl)
		now, filter, nat := c.classChains(cl)
		for _, ch := range now {
			if _, ok := c.st.chains[ch.name]; ok {
				c.rewrite(ch)
			} else {
				c.needChain(ch)
			}
		}
		key := appendNum(nil, uint32(cl))
		c.replaceVerdict(sFilterClasses, key, oldFilter, filter)
		c.replaceVerdict(sNATClasses, key, oldNAT, nat)
		for _, ch := range was {
			if !hasChain(now, ch.name) {
				c.dropChain(ch.name)
			}
		}
	}
}

func (c *change) replaceVerdict(i setIndex, key []byte, was, now elementVerdict) {
	if was != now {
		c.remove(i, key)
		c.addVerdict(i, key, now)
	}
}

func hasChain(chains []chain, name string) bool {
	for _, c := range chains {
		if c.name == name {
			return true
		}
	}
	return false
}

// tidy removes the chains of classes and shapes that nothing has any more.
func (p *Plane) tidy() error {
	classes, shapes := map[class]bool{}, map[shape]bool{}
	for _, r := range p.st.rows {
		classes[r.class] = true
	}
	for _, s := range p.st.sets {
		for _, part := range s.shape().parts() {
			shapes[part] = true
		}
	}
	c := p.begin(p.st)
	for cl := range p.st.classes {
		if !classes[cl] {
			key := appendNum(nil, uint32(cl))
			c.remove(sFilterClasses, key)
			c.remove(sNATClasses, key)
			chains, _, _ := c.classChains(cl)
			for _, ch := range chains {
				c.dropChain(ch.name)
			}
		}
	}
	for s := range p.st.shapes {
		if !shapes[s] {
			c.remove(shapesOf(s.scope), appendNum(nil, s.number()))
			c.dropChain(s.chain())
		}
	}
	if err := p.commit(c.batch); err != nil {
		c.log.Undo()
		return err
	}
	p.st.classes, p.st.shapes = classes, shapes
	return nil
}

// dropChain stages the end of a chain.
func (c *change) dropChain(name string) {
	c.flushChain(name)
	c.deleteChain(name)
	rollback.Delete(c.log, c.st.chains, name)
}
