//go:build linux

package nftables

import (
	"net/netip"
	"slices"

	"kube-proxy/internal/nft/wire"
	"kube-proxy/internal/rollback"
	"kube-proxy/lb"
	"kube-proxy/plane/internal/slots"
)

// set is a backend set in the kernel. The elements of its slots are backends{id . slot}. Removal moves the
// last slot into the hole and addition appends, so one endpoint's change is one or two elements.
type set struct {
	id      uint32
	seconds uint32         // of affinity
	source  *lb.BackendSet // the backends in slots; nil before the first write
	held    slots.Packed   // the slots that packets draw
	members []uint32       // with affinity, the member in each slot, see slots.Members; else nil
	rest    *rest          // nil if all is written

	// What the present batch wants; equal to source and seconds between batches.
	wantSource  *lb.BackendSet
	wantSeconds uint32
	refs        int32        // rows that balance over it
	last        *lb.Frontend // the row that left last, until another refers to the set
	touched     bool         // by the present batch
}

// rest is what later batches write of a set that is too much for one. It is immutable.
type rest struct {
	goal []netip.AddrPort // what slots shall be; nil if they are so
	tail []netip.AddrPort // elements to remove behind those that packets draw: behind slots, or with affinity from 0 on
}

func (s *set) goal() []netip.AddrPort {
	if s.rest == nil {
		return nil
	}
	return s.rest.goal
}

func (s *set) tail() []netip.AddrPort {
	if s.rest == nil {
		return nil
	}
	return s.rest.tail
}

// later sets what later batches write.
func (s *set) later(goal, tail []netip.AddrPort) {
	s.rest = nil
	if goal != nil || len(tail) > 0 {
		s.rest = &rest{goal, tail}
	}
}

// slots returns the backends in the slots that packets draw.
func (s *set) slots() []netip.AddrPort {
	if s.source == nil {
		return nil
	}
	return s.held.Slots(&s.source.Backends)
}

// at returns the backend in a slot.
func (s *set) at(slot int) netip.AddrPort { return s.held.At(&s.source.Backends, slot) }

func (s *set) shape() shape {
	return shape{s.source.ID.Scope, roundSize(uint32(s.held.Len())), s.seconds > 0, s.seconds}
}

func (s *set) unfinished() bool { return s != nil && s.rest != nil }

// records calls f for the elements of one set.
func (s *set) records(f func(i setIndex, rec []byte)) { s.some(0, s.places(), f) }

// places is how many slots the set has, with those that packets no longer draw.
func (s *set) places() int { return s.held.Len() + len(s.tail()) }

// some calls f for the elements of places from to to, and with the first for that of the shape.
func (s *set) some(from, to int, f func(i setIndex, rec []byte)) {
	b := make([]byte, 0, 64)
	if from == 0 && s.held.Len() > 0 {
		f(sSetShapes, wire.AppendNumber(wire.AppendNumber(b, s.id), s.shape().number()))
	}
	behind := s.held.Len()
	if s.members != nil {
		behind = 0
	}
	for i := from; i < to; i++ {
		if i < s.held.Len() {
			s.slot(i, b, f)
			continue
		}
		n := i - s.held.Len()
		f(sBackends, wire.AppendAddrPort(wire.AppendNumber(wire.AppendNumber(b[:0], s.id), uint32(behind+n)), s.tail()[n]))
	}
}

// plain are the set's elements of backends, whether packets draw them or not.
func (s *set) plain() []netip.AddrPort {
	switch {
	case s.members != nil || s.held.Len() == 0:
		return s.tail()
	case len(s.tail()) == 0:
		return s.slots()
	}
	return slices.Concat(s.slots(), s.tail())
}

// slot calls f for the elements of one slot; b is scratch.
func (s *set) slot(i int, b []byte, f func(i setIndex, rec []byte)) {
	b = wire.AppendNumber(wire.AppendNumber(b[:0], s.id), uint32(i))
	if s.members == nil {
		f(sBackends, wire.AppendAddrPort(b, s.at(i)))
		return
	}
	f(sMembers, wire.AppendNumber(b, s.members[i]))
	f(sMemberBackends, wire.AppendAddrPort(wire.AppendNumber(wire.AppendNumber(b[:0], s.members[i]), s.id), s.at(i)))
}

// setBefore is how a set was that a batch may change.
type setBefore struct {
	*set
	differ []int // the slots that differ now, in their order, where that is known
	known  bool
}

// touch notes that the batch may change the set.
func (c *change) touch(s *set) {
	if s.touched {
		return
	}
	if c.log != nil {
		was := *s
		rollback.Func(c.log, func() { *s = was })
		c.before = append(c.before, setBefore{set: &was})
	}
	s.touched = true
	c.touched = append(c.touched, s)
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

// refer has rows refer to their sets, and no longer to those that they had.
func (c *change) refer(rows []rowChange) {
	for i := range rows {
		r := &rows[i]
		r.now.cluster, r.now.local = c.acquire(r.rowPlan.cluster, r.seconds), c.acquire(r.rowPlan.local, r.seconds)
		for _, s := range []*set{r.was.cluster, r.was.local} {
			if s != nil {
				c.touch(s)
				s.refs--
				s.last = r.was.front
			}
		}
	}
}

// acquire adds a reference to the set, which from now on shall have these backends.
func (c *change) acquire(b *lb.BackendSet, seconds uint32) *set {
	if b == nil {
		return nil
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

// finishSet says what the batch makes of a set, now that all rows are known.
func (c *change) finishSet(s *set, was *setBefore) {
	s.touched = false
	if s.refs > 0 {
		s.last = nil
	}
	switch {
	case s.refs == 0 && s.source == nil: // came and went in this batch
		delete(c.st.sets, s.wantSource.ID)
		return
	case s.refs == 0:
		c.empty(s)
	case s.source == s.wantSource && s.seconds == s.wantSeconds && !s.unfinished():
		return
	case s.source == nil && c.few(s):
		c.assign(s, slots.First(&s.wantSource.Backends), nil)
	case s.source != nil && !s.unfinished() && s.members == nil && s.wantSeconds == 0 && c.few(s):
		// Ports that share their endpoints cost what differs.
		next, differ := c.packer.Next(s.held, &s.source.Backends, &s.wantSource.Backends)
		s.source, s.seconds, s.held = s.wantSource, 0, next
		was.differ, was.known = differ, true
	default:
		c.refill(s)
	}
	if s.held.Len() > 0 {
		c.needShape(s.shape())
	}
}

// few reports whether all that is to be written of the set is for one batch.
func (c *change) few(s *set) bool {
	return s.places() <= c.most && (s.wantSource.Backends.Len() <= c.most || s.wantSeconds > 0)
}

// empty takes elements of a set away that no row has. At once it goes out of the sight of packets, in batches out of the kernel.
func (c *change) empty(s *set) {
	plain := s.plain()
	s.held, s.members = slots.Packed{}, nil
	s.later(nil, plain[:max(0, len(plain)-c.most)])
	if s.rest == nil {
		rollback.Delete(c.log, c.st.sets, s.source.ID)
		return
	}
	k := s.last.Key
	rollback.Put(c.log, c.st.leaving, k, append(slices.Clip(c.st.leaving[k]), s))
}

// assign gives a set the backends that it shall have, in those slots; with affinity each keeps its member, or gets a free one.
func (c *change) assign(s *set, in []netip.AddrPort, members map[netip.AddrPort]uint32) {
	s.source, s.seconds, s.held, s.members = s.wantSource, s.wantSeconds, c.packer.Pack(in, &s.wantSource.Backends), nil
	s.rest = nil
	if s.seconds == 0 {
		return
	}
	s.members = slots.Members(in, members)
}

// refill brings a set's slots up to date, or as near to it as a batch may. With affinity it does so at once, as such a set is small.
func (c *change) refill(s *set) {
	was, plain, goal := *s, s.plain(), c.goalOf(s)
	var members map[netip.AddrPort]uint32
	if was.members != nil && s.wantSeconds > 0 {
		members = make(map[netip.AddrPort]uint32, was.held.Len())
		for i, ap := range was.slots() {
			members[ap] = was.members[i]
		}
	}
	switch {
	case c.few(s):
		c.assign(s, goal, members)
	case s.wantSeconds > 0:
		c.assign(s, goal, members)
		s.later(nil, plain[:max(0, len(plain)-c.most)])
	default:
		drawn := was.held.Len()
		if was.members != nil {
			drawn = 0
		}
		next, drawn := slots.Step(plain, drawn, goal, c.most)
		c.assign(s, next[:drawn], nil)
		if slices.Equal(s.slots(), goal) {
			goal = nil
		}
		s.later(goal, next[drawn:])
	}
}

// goalOf returns the slots that a set shall have.
func (c *change) goalOf(s *set) []netip.AddrPort {
	switch want := &s.wantSource.Backends; {
	case s.source == nil:
		return slots.First(want)
	case !s.unfinished():
		return slots.Next(s.slots(), &s.source.Backends, want)
	case s.goal() != nil && s.source == s.wantSource && s.seconds == s.wantSeconds:
		return s.goal()
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
