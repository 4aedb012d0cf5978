//go:build linux

package nftables

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"kube-proxy/internal/nft/rule"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/internal/rollback"
	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/plane/internal/diff"
	"kube-proxy/plane/internal/slots"
)

// change is a batch with what it makes of the state: what it adds to the batch, it changes in the state at once. If the kernel
// refuses the batch, the log takes that back.
type change struct {
	*batch
	st       *state
	undo     rollback.Log
	log      *rollback.Log // undo, or nil for a state that is built anew
	maxSlots int
	most     int // slots of a set that the batch may change

	touchedSets  []*set
	touchedLists []*sourceList
	rowLists     []rowList
	clusterIPs   map[netip.Addr]int32 // the counts before, of addresses that were touched

	adopted     map[lb.SetID]uint32               // ids that the kernel has for sets which the state does not have yet
	chosen      map[*lb.BackendSet]*lb.BackendSet // see stickable
	lastSources []netip.Prefix                    // what lastList is the list of
	lastList    *sourceList
	packer      slots.Packer
	rec         []byte // scratch
}

func (p *Plane) newChange(st *state) *change {
	c := &change{batch: p.rules.newBatch(TableName), st: st, maxSlots: p.maxSlots, most: p.pace, rec: make([]byte, 0, 80)}
	c.log = &c.undo
	return c
}

// write sends the batch. If the kernel refuses it, the state is as before.
func (p *Plane) write(ctx context.Context, c *change) error {
	err := p.commit(ctx, c.batch)
	if err != nil {
		c.log.Undo()
	}
	return err
}

// Apply writes the changes in one transaction: all of them are in force, or none. Of a set of more backends than Pace it writes a
// part, and leaves the rows that change it for later.
func (p *Plane) Apply(ctx context.Context, changes []lb.Change) (plane.ApplyResult, error) {
	if p.st == nil {
		return plane.ApplyResult{}, fmt.Errorf("nftables %s: apply: %w", p.ip.Family, plane.ErrNotSetUp)
	}
	c := p.newChange(p.st)
	if err := c.stage(changes); err != nil {
		c.log.Undo()
		return plane.ApplyResult{}, err
	}
	if err := p.write(ctx, c); err != nil {
		return plane.ApplyResult{}, err
	}
	p.localhost.Apply(changes)
	return plane.ApplyResult{Written: c.Last() > 0, Later: c.st.unfinished(changes)}, nil
}

// stage makes the changes in the state and stages what the kernel needs. Of several changes of one key the
// last counts.
func (c *change) stage(changes []lb.Change) error {
	if len(changes) > 1 {
		changes = lastOfEach(changes)
	}
	for _, ch := range changes {
		if err := c.row(ch.Key, ch.New); err != nil {
			return err
		}
	}
	for _, s := range c.touchedSets {
		c.finishSet(s)
	}
	c.finishLists()
	for a, was := range c.clusterIPs {
		switch is := c.st.clusterIPs[a]; {
		case was == 0 && is > 0:
			c.add(sClusterIPs, wire.AppendAddr(c.rec[:0], a))
		case was > 0 && is == 0:
			c.remove(sClusterIPs, wire.AppendAddr(c.rec[:0], a))
		}
	}
	return c.reserve()
}

func lastOfEach(changes []lb.Change) []lb.Change {
	last := make(map[lb.Key]int, len(changes))
	for i, ch := range changes {
		last[ch.Key] = i
	}
	if len(last) == len(changes) {
		return changes
	}
	out := make([]lb.Change, 0, len(last))
	for i, ch := range changes {
		if last[ch.Key] == i {
			out = append(out, ch)
		}
	}
	return out
}

// row makes front what the kernel holds for k; nil removes it. A row that accepts is as good as none: our table
// lets through what it does not translate.
func (c *change) row(k lb.Key, front *lb.Frontend) error {
	if front.Accepts() {
		front = nil
	}
	c.goOn(k)
	old, had := c.st.rows[k]
	if had && old.front == front || !had && front == nil {
		return nil
	}
	var now row
	if front != nil {
		var err error
		if now, err = c.newRow(k, front); err != nil {
			return err
		}
		now.list = c.acquireList(front, old.list)
	}
	classes, cluster, local := mapsOf(k)
	c.number(classes, k, had, uint32(old.class), front != nil, uint32(now.class))
	c.number(cluster, k, old.cluster != nil, old.cluster.number(), now.cluster != nil, now.cluster.number())
	c.number(local, k, old.local != nil, old.local.number(), now.local != nil, now.local.number())
	if now.list != old.list {
		c.rowLists = append(c.rowLists, rowList{k, old.list, now.list})
	}
	c.releaseList(old.list)
	c.release(old.cluster, k)
	c.release(old.local, k)
	if isClusterIP(old.front) != isClusterIP(front) { // the address is the key's, so it is the same
		c.countClusterIP(old.front, -1)
		c.countClusterIP(front, +1)
	}

	if front == nil {
		rollback.Delete(c.log, c.st.rows, k)
	} else {
		rollback.Put(c.log, c.st.rows, k, now)
	}
	return nil
}

func (s *set) number() uint32 {
	if s == nil {
		return 0
	}
	return s.id
}

// newRow acquires the class and the sets that a frontend needs. lb.Check has found what is wrong with a frontend in any plane;
// here it is looked whether this one can hold it.
func (c *change) newRow(k lb.Key, f *lb.Frontend) (row, error) {
	r := row{front: f}
	if f.Key != k || !k.IsNodePort() && lb.FamilyOf(k.Addr) != c.IP.Family {
		return r, fmt.Errorf("frontend %s of %s is offered for key %s of %s", f.Key, f.Service, k, c.IP.Family)
	}
	for _, rt := range f.Routes {
		if rt.To != nil && rt.To.Backends.Len() > c.maxSlots {
			return r, fmt.Errorf("frontend %s of %s: backend set %s has %d backends, more than the %d that nftables mode can hold",
				k, f.Service, rt.To.ID, rt.To.Backends.Len(), c.maxSlots)
		}
	}
	r.class = classOf(f)
	c.needClass(r.class)
	if s := f.Set(lb.Cluster); s != nil {
		r.cluster = c.acquire(s, roundSeconds(seconds(f.Affinity)))
	}
	if s := f.Set(lb.Local); s != nil {
		r.local = c.acquire(s, roundSeconds(seconds(f.Affinity)))
	}
	return r, nil
}

// touch notes that the batch may change the set.
func (c *change) touch(s *set) {
	if s.touched {
		return
	}
	rollback.Value(c.log, s)
	s.touched = true
	c.touchedSets = append(c.touchedSets, s)
}

// acquire adds a reference to the set, which from now on shall have these backends.
func (c *change) acquire(b *lb.BackendSet, seconds uint32) *set {
	if seconds > 0 {
		b = c.stickable(b)
	}
	s := c.st.sets[b.ID]
	if s == nil {
		id, ok := c.adopted[b.ID]
		if !ok {
			id = c.st.ids.Next()
		}
		s = &set{id: id}
		rollback.Put(c.log, c.st.sets, b.ID, s)
	}
	c.touch(s)
	s.refs++
	s.wantSource, s.wantSeconds = b, seconds
	return s
}

func (c *change) release(s *set, k lb.Key) {
	if s != nil {
		c.touch(s)
		s.refs--
		s.lastKey = k
	}
}

// goOn has the batch go on with what earlier ones have left of the row.
func (c *change) goOn(k lb.Key) {
	r := c.st.rows[k]
	for _, s := range append([]*set{r.cluster, r.local}, c.st.leaving[k]...) {
		if s.unfinished() {
			c.touch(s)
		}
	}
	if len(c.st.leaving[k]) > 0 {
		rollback.Delete(c.log, c.st.leaving, k)
	}
}

// number stages the change of a number in a map keyed by frontend.
func (c *change) number(i setIndex, k lb.Key, had bool, old uint32, has bool, now uint32) {
	if had == has && old == now {
		return
	}
	rec := wire.AppendKey(c.rec[:0], k)
	if had {
		c.remove(i, wire.AppendNumber(rec, old))
	}
	if has {
		c.add(i, wire.AppendNumber(rec, now))
	}
}

func isClusterIP(f *lb.Frontend) bool { return f != nil && f.Kind == lb.ClusterIP }

// countClusterIP changes how many rows need the address of a cluster IP.
func (c *change) countClusterIP(f *lb.Frontend, n int32) {
	if !isClusterIP(f) {
		return
	}
	counts, a := c.st.clusterIPs, f.Key.Addr
	if _, ok := c.clusterIPs[a]; !ok && !c.quiet {
		if c.clusterIPs == nil {
			c.clusterIPs = make(map[netip.Addr]int32, 1)
		}
		c.clusterIPs[a] = counts[a]
		rollback.Entry(c.log, counts, a)
	}
	if counts[a] += n; counts[a] == 0 {
		delete(counts, a)
	}
}

// finishSet stages what the batch does to a set, now that all rows are known.
func (c *change) finishSet(s *set) {
	s.touched = false
	switch {
	case s.refs == 0 && s.source == nil: // came and went in this batch
		delete(c.st.sets, s.wantSource.ID)
	case s.refs == 0:
		c.empty(s)
	case s.source == s.wantSource && s.seconds == s.wantSeconds && !s.unfinished():
	case s.source == nil && c.few(s):
		c.assign(s, slots.First(&s.wantSource.Backends), nil)
		s.records(c.add)
		c.needShape(s.shape())
	case s.source != nil && !s.unfinished() && s.members == nil && s.wantSeconds == 0 && c.few(s):
		c.move(s)
	default:
		c.refill(s)
	}
}

// move brings the slots of a set without affinity up to date in one batch. Ports that share their endpoints cost what differs.
func (c *change) move(s *set) {
	was := *s
	next, differ := c.packer.Next(s.held, &s.source.Backends, &s.wantSource.Backends)
	s.source, s.seconds, s.held = s.wantSource, 0, next
	c.reshape(&was, s)
	for _, i := range differ {
		var old, is netip.AddrPort
		if i < was.held.Len() {
			old = was.at(i)
		}
		if i < next.Len() {
			is = s.at(i)
		}
		c.rewriteSlot(s.id, i, old, is)
	}
}

// few reports whether all that is to be written of the set is for one batch.
func (c *change) few(s *set) bool {
	return s.held.Len()+len(s.tail) <= c.most && (s.wantSource.Backends.Len() <= c.most || s.wantSeconds > 0)
}

// empty takes elements of a set away that no row has. At once it goes out of the sight of packets, in batches out of the kernel.
func (c *change) empty(s *set) {
	was := *s
	plain := was.plain()
	s.held, s.members, s.goal, s.tail = slots.Packed{}, nil, nil, plain[:max(0, len(plain)-c.most)]
	c.reshape(&was, s)
	c.rewrite(&was, s)
	if len(s.tail) == 0 {
		rollback.Delete(c.log, c.st.sets, s.source.ID)
		return
	}
	rollback.Put(c.log, c.st.leaving, s.lastKey, append(slices.Clip(c.st.leaving[s.lastKey]), s))
}

// assign gives a set the backends that it shall have, in those slots; with affinity each keeps its member, or gets a free one.
func (c *change) assign(s *set, in []netip.AddrPort, members map[netip.AddrPort]uint32) {
	s.source, s.seconds, s.held, s.members = s.wantSource, s.wantSeconds, c.packer.Pack(in, &s.wantSource.Backends), nil
	s.goal, s.tail = nil, nil
	if s.seconds == 0 {
		return
	}
	s.members = slots.Members(in, members)
}

// refill brings a set's slots up to date, or as near to it as a batch may. With affinity it does so at once, as such a set is small.
func (c *change) refill(s *set) {
	was := *s
	goal := c.goalOf(s)
	var members map[netip.AddrPort]uint32
	if was.members != nil && s.wantSeconds > 0 {
		members = make(map[netip.AddrPort]uint32, was.held.Len())
		for i, ap := range was.slots() {
			members[ap] = was.members[i]
		}
	}
	switch plain := was.plain(); {
	case c.few(s):
		c.assign(s, goal, members)
	case s.wantSeconds > 0:
		c.assign(s, goal, members)
		s.tail = plain[:max(0, len(plain)-c.most)]
	default:
		drawn := was.held.Len()
		if was.members != nil {
			drawn = 0
		}
		next, drawn := slots.Step(plain, drawn, goal, c.most)
		c.assign(s, next[:drawn], nil)
		s.tail = next[drawn:]
		if !slices.Equal(s.slots(), goal) {
			s.goal = goal
		}
	}
	c.reshape(&was, s)
	c.rewrite(&was, s)
}

// goalOf returns the slots that a set shall have.
func (c *change) goalOf(s *set) []netip.AddrPort {
	switch want := &s.wantSource.Backends; {
	case s.source == nil:
		return slots.First(want)
	case !s.unfinished():
		return slots.Next(s.slots(), &s.source.Backends, want)
	case s.goal != nil && s.source == s.wantSource && s.seconds == s.wantSeconds:
		return s.goal
	default:
		in := s.slots()
		if s.wantSeconds == 0 {
			in = s.plain()
		}
		have := make(map[uint32]netip.AddrPort, len(in))
		for i, ap := range in {
			have[uint32(i)] = ap
		}
		return slots.Adopt(have, want)
	}
}

// reshape stages what packets draw of a set.
func (c *change) reshape(was, now *set) {
	had, has := was.held.Len() > 0, now.held.Len() > 0
	if had && has && was.shape() == now.shape() {
		return
	}
	rec := wire.AppendNumber(c.rec[:0], now.id)
	if had {
		c.remove(sSetShapes, wire.AppendNumber(rec, was.shape().number()))
	}
	if has {
		c.add(sSetShapes, wire.AppendNumber(rec, now.shape().number()))
		c.needShape(now.shape())
	}
}

// rewrite stages the slots that differ between two states of a set. With affinity slots and members change apart.
func (c *change) rewrite(was, now *set) {
	old, is := was.plain(), now.plain()
	for i := range max(len(old), len(is)) {
		var had, has netip.AddrPort
		if i < len(old) {
			had = old[i]
		}
		if i < len(is) {
			has = is[i]
		}
		c.rewriteSlot(now.id, i, had, has)
	}
	if was.members == nil && now.members == nil {
		return
	}
	for _, i := range []setIndex{sMembers, sMemberBackends} {
		c.mendSet(i, c.elements(was, i), c.elements(now, i))
	}
}

// rewriteSlot stages the change of one slot; one that is not valid is empty.
func (c *change) rewriteSlot(id uint32, slot int, old, is netip.AddrPort) {
	if old == is {
		return
	}
	rec := wire.AppendNumber(wire.AppendNumber(c.rec[:0], id), uint32(slot))
	if old.IsValid() {
		c.remove(sBackends, wire.AppendAddrPort(rec, old))
	}
	if is.IsValid() {
		c.add(sBackends, wire.AppendAddrPort(rec, is))
	}
}

// elements are those of the set's slots in one map.
func (c *change) elements(s *set, i setIndex) diff.Records {
	recs := diff.Records{Size: c.sets[i].RecordLen()}
	for slot := range s.held.Len() {
		s.slot(slot, c.rec, func(j setIndex, rec []byte) {
			if j == i {
				recs.Bytes = append(recs.Bytes, rec...)
			}
		})
	}
	return recs
}

// needChain stages a chain that is not there yet.
func (c *change) needChain(ch rule.Chain) {
	c.addChain(ch)
	c.addRules(ch)
	rollback.Put(c.log, c.st.chains, ch.Name, ch.Digest())
}

// needClass stages what a class needs that is new. Classes and shapes stay until the next Reset or full audit:
// they are few, and removing them here would make a change dear.
func (c *change) needClass(cl class) {
	if c.st.classes[cl] {
		return
	}
	chains, filter, nat := c.classChains(cl)
	for _, ch := range chains {
		c.needChain(ch)
	}
	key := wire.AppendNumber(c.rec[:0], uint32(cl))
	c.addVerdict(sFilterClasses, key, filter)
	c.addVerdict(sNATClasses, key, nat)
	rollback.Put(c.log, c.st.classes, cl, true)
}

func (c *change) needShape(s shape) {
	for _, part := range s.parts() {
		if c.st.shapes[part] {
			continue
		}
		c.needChain(c.balancer(part))
		c.addVerdict(shapesOf(part.scope), wire.AppendNumber(c.rec[:0], part.number()), part.verdict())
		rollback.Put(c.log, c.st.shapes, part, true)
	}
}
