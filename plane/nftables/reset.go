package nftables

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/plane/diff"
	"kube-proxy/plane/slots"
)

// pace is how much an Apply writes in a fraction of a second, as [lb.Weight] counts; constant but for tests.
const pace = 15_000

// Pace is what an Apply should weigh at most.
func (p *Plane) Pace() int { return p.pace }

// Reset makes the table hold exactly what want says, in one transaction. It reads the kernel and changes only
// what differs; a table of another layout, such as that of upstream's nftables mode, is replaced whole, in
// that same transaction, while another one stands in (standin.go). Only where there is no table at all a large one is
// filled before, see load.
//
// It leaves rows for later that cannot be held and, where a table of ours is in force, those that it does not have, if they
// are more than an Apply should have. A table that is not there, or another's, is written whole: from its first moment it
// refuses what no row matches, though rules of another mode may serve that (docs/adr/0009).
func (p *Plane) Reset(_ context.Context, want *lb.Table) (plane.ResetResult, error) {
	before := *p.rules
	refused, stoodIn := 0, false
	for try := 0; ; try++ {
		p.mon.take() // what others did so far, the reading shows
		snap, gen, err := p.readTable(allSets)
		if err != nil {
			*p.rules = before
			return plane.ResetResult{}, err
		}
		snap.ours = snap.ours && snap.numbered() && refused < 2
		if snap.present && !snap.ours && !stoodIn {
			// Without it packets under way may go astray; what the kernel refuses, it refuses of the table proper too.
			_ = p.standIn(want)
			stoodIn = true
			continue
		}
		// Somebody may have changed our table since it was read. After some tries against a busy
		// neighbour we go without the guard: the audit would find what we missed.
		if try >= 3 {
			gen = 0
		}
		rows, later := want.All(), []lb.Key(nil)
		if snap.ours {
			rows, later = p.postpone(snap, want)
		}
		dropped := p.gone(snap, want)
		c, bad, err := p.plan(snap, want, rows, gen)
		if err == nil {
			err = p.commit(c.batch)
		}
		if errors.Is(err, unix.ERESTART) && try < 3 {
			continue
		}
		// The kernel holds something else than was read. If that is so twice, there is something that we cannot
		// see, such as a foreign element of a map that is read by key: then the table is replaced.
		if errors.Is(err, plane.ErrStateLost) && refused < 2 {
			refused++
			continue
		}
		if err != nil {
			*p.rules = before
			return plane.ResetResult{}, err
		}
		p.st = c.st
		_ = p.measureAffinity() // what is in the way of it, the next full audit reports
		if err := p.standDown(); err != nil {
			return plane.ResetResult{}, err
		}
		return plane.ResetResult{Later: append(later, bad.keys...), Dropped: dropped}, nil
	}
}

// plan stages the way from the snapshot to the table, for a ruleset of that generation, if it is not 0. Rows
// that cannot be held are left out, and bad names them.
func (p *Plane) plan(snap *snapshot, want *lb.Table, rows iter.Seq[*lb.Frontend], gen uint32) (c *change, bad badRows, err error) {
	p.rules.node = want.Node
	st, bad := p.desired(snap, want, rows)
	if !st.numbersLeft() { // then begin again, with clients forgotten
		snap.ours = false
		st, bad = p.desired(snap, want, rows)
	}
	c = p.begin(st)
	c.generation = gen
	if snap.ours {
		c.mend(snap)
		return c, bad, nil
	}
	if snap.present {
		c.deleteTable()
	}
	c.addTable()
	for i := range setCount {
		c.addSet(i)
	}
	err = p.load(c, !snap.present)
	return c, bad, err
}

// loadStep is how many elements of a new table one transaction writes.
const loadStep = 50_000

// load stages all of a new table. If there was none before, inSteps, it writes the most of a large one already:
// the elements, in transactions of their own. No packet sees them before the chains are there, which come all
// at once in the last one. If that does not come about, the next Reset finds a table that is not ours.
//
// In a single transaction the kernel needs far more time for each element of a large table, because its hash
// tables grow behind the back of the writer, who gets ahead of them; and where somebody listens, memory for a
// notification of each.
func (p *Plane) load(c *change, inSteps bool) error {
	var err error
	n := 0
	c.st.records(func(i setIndex, rec []byte) {
		if n++; inSteps && n%p.loadStep == 0 && err == nil {
			err = p.commit(c.batch)
			c.again()
		}
		if err == nil {
			c.add(i, rec)
		}
	})
	if err == nil {
		c.mendStructure(&snapshot{})
	}
	return err
}

// postpone splits the rows into those to write now and the keys of the others, those of a Service together: rows that the
// kernel has must not wait.
func (p *Plane) postpone(snap *snapshot, want *lb.Table) (now iter.Seq[*lb.Frontend], later []lb.Key) {
	there := make(map[lb.Key]bool, want.Len())
	for k := range p.served(snap) {
		there[k] = true
	}
	var weight lb.Weight
	total := 0
	for f := range want.All() {
		if !there[f.Key] {
			later = append(later, f.Key)
			total += weight.Of(f)
		}
	}
	if total <= p.pace {
		return want.All(), nil
	}
	slices.SortFunc(later, func(a, b lb.Key) int {
		return cmp.Or(cmp.Compare(want.Get(a).Service, want.Get(b).Service), a.Compare(b))
	})
	return func(yield func(*lb.Frontend) bool) {
		for f := range want.All() {
			if there[f.Key] && !yield(f) {
				return
			}
		}
	}, later
}

// served are the keys of the frontends of the kernel.
func (p *Plane) served(snap *snapshot) iter.Seq[lb.Key] {
	return func(yield func(lb.Key) bool) {
		for i, n := range map[setIndex]int{sServices: p.addrLen, sNodePorts: 0} {
			for rec := range snap.records[i].All() {
				if !yield(parseKey(rec, n)) {
					return
				}
			}
		}
	}
}

// gone returns the frontends of the kernel that the table does not have.
func (p *Plane) gone(snap *snapshot, want *lb.Table) []lb.Key {
	var keys []lb.Key
	for k := range p.served(snap) {
		if want.Get(k) == nil {
			keys = append(keys, k)
		}
	}
	return keys
}

// mend stages all differences between a snapshot of our layout and the state, and returns how many objects
// they concern.
func (c *change) mend(snap *snapshot) int {
	return c.mendStructure(snap) + c.mendSets(snap, allSets)
}

// mendSets stages the differences of the elements of some sets.
func (c *change) mendSets(snap *snapshot, which func(*setDef) bool) int {
	n := 0
	var want [setCount]diff.Records
	var read [setCount]bool
	for i := range want {
		d := &c.batch.ruleset.sets[i]
		want[i].Size, read[i] = d.recordLen(), which(d)
		if read[i] { // mostly nothing differs
			want[i].Bytes = make([]byte, 0, len(snap.records[i].Bytes))
		}
	}
	c.st.records(func(i setIndex, rec []byte) {
		if read[i] {
			want[i].Bytes = append(want[i].Bytes, rec...)
		}
	})
	for i := range setCount {
		if read[i] {
			n += c.mendSet(i, snap.records[i], want[i])
		}
	}
	return n
}

func (c *change) mendSet(i setIndex, is, want diff.Records) int {
	d := &c.batch.ruleset.sets[i]
	if d.verdict || d.dynamic() {
		return 0
	}
	return diff.Elements(is, want, func(rec []byte) { c.remove(i, rec) }, func(rec []byte) { c.add(i, rec) })
}

// mendStructure stages the differences of chains, rules, verdict maps and foreign sets. What no class or
// shape of the state needs goes.
func (c *change) mendStructure(snap *snapshot) int {
	n := len(snap.foreign)
	for _, name := range snap.foreign {
		c.deleteSet(name)
	}
	chains, verdicts := c.structure()
	needed := make(map[string]bool, len(chains))
	for _, ch := range chains {
		needed[ch.name] = true
		d := digest(ch.rules)
		c.st.chains[ch.name] = d
		is := snap.chains[ch.name]
		if is == nil {
			c.addChain(ch)
		} else if is.digest == d {
			continue
		} else if is.digest != "" {
			c.flushChain(ch.name)
		}
		n++
		c.addRules(ch)
	}
	for name, is := range snap.chains {
		if !needed[name] {
			n++
			if is.digest != "" {
				c.flushChain(name)
			}
			c.deleteChain(name)
		}
	}
	for _, i := range []setIndex{sFilterClasses, sNATClasses, sClusterShapes, sLocalShapes} {
		n += c.mendVerdicts(i, snap.verdicts[i], verdicts[i])
	}
	return n
}

// structure is the chains that the state needs, in a fixed order, and the elements of verdict maps.
func (c *change) structure() ([]chain, [setCount]map[string]elementVerdict) {
	verdicts := [setCount]map[string]elementVerdict{
		sFilterClasses: {}, sNATClasses: {}, sClusterShapes: {}, sLocalShapes: {},
	}
	chains := c.skeleton()
	for _, cl := range slices.Sorted(maps.Keys(c.st.classes)) {
		more, filter, nat := c.classChains(cl)
		chains = append(chains, more...)
		verdicts[sFilterClasses][string(appendNum(nil, uint32(cl)))] = filter
		verdicts[sNATClasses][string(appendNum(nil, uint32(cl)))] = nat
	}
	for _, s := range slices.SortedFunc(maps.Keys(c.st.shapes), shape.compare) {
		chains = append(chains, c.balancer(s))
		verdicts[shapesOf(s.scope)][string(appendNum(nil, s.number()))] = s.verdict()
	}
	return chains, verdicts
}

func (c *change) mendVerdicts(i setIndex, is, want map[string]elementVerdict) int {
	remove := func(key string) { c.remove(i, []byte(key)) }
	add := func(key string) { c.addVerdict(i, []byte(key), want[key]) }
	return diff.Named(is, want, remove, func(key string) { remove(key); add(key) }, add)
}

// desired computes the state for a table, with the ids and slots that the kernel already uses. New ids are given
// out in the order of rows, which are those of the table.
func (p *Plane) desired(snap *snapshot, want *lb.Table, rows iter.Seq[*lb.Frontend]) (st *state, bad badRows) {
	st = newState(want.Len())
	st.node = want.Node
	c := p.begin(st) // what it stages is thrown away; only its state counts
	c.quiet, c.log = true, nil
	if !snap.ours {
		snap = &snapshot{} // its slots and members belong to ids that mean nothing in a new table
	}
	kernel := newOldSets(snap)
	if snap.ours {
		c.adoptIDs(snap, want, kernel)
		c.adoptLists(snap, want)
	}
	p.chooseSeed(st) // before any row
	for f := range rows {
		if err := c.row(f.Key, f); err != nil {
			bad.keys = append(bad.keys, f.Key)
			bad.err = errors.Join(bad.err, fmt.Errorf("nftables %s: %w", p.fam, err))
		}
	}
	c.finishLists()
	for _, s := range c.sets {
		s.touched = false
		old, members := kernel.of(s.id)
		if len(old) == 0 {
			c.fill(s)
		} else {
			s.source, s.seconds = s.wantSource, s.wantSeconds
			s.slots = slots.Adopt(old, s.source.Backends)
			c.enroll(s, members)
		}
		for _, part := range s.shape().parts() {
			st.shapes[part] = true
		}
	}
	_ = c.reserve() // plan asks itself whether numbers are left
	return st, bad
}

// badRows are rows that cannot be held, and why.
type badRows struct {
	keys []lb.Key
	err  error
}

// adoptIDs finds which ids are whose in the kernel, and goes on behind all that are in use there.
func (c *change) adoptIDs(snap *snapshot, want *lb.Table, kernel *oldSets) {
	c.adopted = slots.AdoptIDs(c.claims(snap, want), kernel)
	for _, i := range append([]setIndex{sSetShapes, sBackends, sMembers}, setsOfRows...) { // also ids that no row of want refers to
		at := 0
		if slices.Contains(setsOfRows, i) {
			at = snap.records[i].Size - 4
		}
		for rec := range snap.records[i].All() {
			c.st.ids.Saw(order.Uint32(rec[at:]))
		}
	}
	for rec := range snap.records[sMemberBackends].All() {
		c.st.members.Saw(order.Uint32(rec))
	}
	c.st.adoptReserved(snap)
}

// setsOfRows are the maps from frontends to set ids.
var setsOfRows = []setIndex{sClusterSets, sLocalSets, sNodePortClusterSets, sNodePortLocalSets}

// claims are the rows of want that balance over a set, and for which the kernel has an id.
func (c *change) claims(snap *snapshot, want *lb.Table) iter.Seq[slots.Claim] {
	return func(yield func(slots.Claim) bool) {
		for _, i := range setsOfRows {
			scope, n := lb.Cluster, c.addrLen
			if i == sLocalSets || i == sNodePortLocalSets {
				scope = lb.Local
			}
			if i == sNodePortClusterSets || i == sNodePortLocalSets {
				n = 0
			}
			for rec := range snap.records[i].All() {
				front := want.Get(parseKey(rec, n))
				if front == nil {
					continue
				}
				if s := front.Set(scope); s != nil && !yield(slots.Claim{Front: front, Set: s, ID: order.Uint32(rec[len(rec)-4:])}) {
					return
				}
			}
		}
	}
}

// oldSets finds, for sets whose ids were adopted, the slots and the members of their backends. The records are kept in
// order, so that those of one set stand together: a map of a million slots would take hundreds of megabytes.
type oldSets struct {
	backends, members, memberBackends, clusterIPs diff.Records

	slots map[uint32]netip.AddrPort // of one set; used again for the next
}

func newOldSets(snap *snapshot) *oldSets {
	for _, i := range []setIndex{sBackends, sMembers, sMemberBackends, sClusterIPs} {
		snap.records[i] = snap.records[i].Sorted()
	}
	return &oldSets{snap.records[sBackends], snap.records[sMembers], snap.records[sMemberBackends], snap.records[sClusterIPs], map[uint32]netip.AddrPort{}}
}

// of returns the backends that the kernel has in slots of the set, until the next call, and the members that they have.
func (o *oldSets) of(id uint32) (slots map[uint32]netip.AddrPort, members map[netip.AddrPort]uint32) {
	clear(o.slots)
	key := appendNum(make([]byte, 0, 8), id)
	o.backends.Each(key, func(rec []byte) {
		o.slots[order.Uint32(rec[4:])] = parseBackend(rec[8:], len(rec)-12)
	})
	o.members.Each(key, func(rec []byte) {
		m := order.Uint32(rec[8:])
		o.memberBackends.Each(appendNum(appendNum(nil, m), id), func(backend []byte) {
			ap := parseBackend(backend[8:], len(backend)-12)
			o.slots[order.Uint32(rec[4:])] = ap
			if members == nil {
				members = map[netip.AddrPort]uint32{}
			}
			members[ap] = m
		})
	})
	return o.slots, members
}

// Backends makes oldSets a slots.Kernel.
func (o *oldSets) Backends(id uint32) map[uint32]netip.AddrPort {
	slots, _ := o.of(id)
	return slots
}

// Allocated reports whether the row has a NodePort, or a cluster IP that was one in the kernel too: anybody may ask for an
// external address that becomes a cluster IP later.
func (o *oldSets) Allocated(f *lb.Frontend) bool {
	was := false
	if f.Kind == lb.ClusterIP {
		o.clusterIPs.Each(appendAddr(nil, f.Key.Addr), func([]byte) { was = true })
	}
	return was || f.Key.IsNodePort()
}
