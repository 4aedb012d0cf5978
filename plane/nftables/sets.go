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

// set is a backend set in the kernel. The elements of its slots are backends{id . slot}. A removal
// moves the last slot into the hole and an addition appends, so an endpoint change is one or two
// elements.
type set struct {
	id      uint32
	seconds uint32         // affinity timeout
	source  *lb.BackendSet // the backends in slots; nil before the first write
	held    slots.Packed   // the slots that packets draw from
	members []uint32       // with affinity, the member in each slot, see slots.Members; else nil
	rest    *rest          // nil if everything is written

	// The goal of the present batch; equal to source and seconds between batches.
	wantSource  *lb.BackendSet
	wantSeconds uint32
	refs        int32        // frontends that balance over it
	last        *lb.Frontend // the last frontend that left, until another refers to the set
	touched     bool         // by the present batch
}

// rest is the part of a large set that later batches write. It is immutable.
type rest struct {
	goal []netip.AddrPort // the final slots; nil if they are done
	// Elements to remove behind those that packets draw from: behind slots, or with affinity from 0
	// on.
	tail []netip.AddrPort
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

// later records the part that later batches write.
func (s *set) later(goal, tail []netip.AddrPort) {
	s.rest = nil
	if goal != nil || len(tail) > 0 {
		s.rest = &rest{goal, tail}
	}
}

// slots returns the backends in the slots that packets draw from.
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

// places returns the number of the set's slots, including those that packets no longer draw from.
func (s *set) places() int { return s.held.Len() + len(s.tail()) }

// some calls f for the elements of places from to to, and with the first place for the shape's
// element.
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
		f(sBackends, wire.AppendAddrPort(wire.AppendNumber(wire.AppendNumber(b[:0], s.id), uint32(behind+n)),
			s.tail()[n]))
	}
}

// plain returns the backends of the set's elements, whether packets draw them or not.
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

// setBefore is the previous state of a set that a batch may change.
type setBefore struct {
	*set
	differ []int // the slots that now differ, in order, if known
	known  bool
}

// touch records that the batch may change the set.
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

// goOn makes the batch continue what earlier batches left unwritten for the key.
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

// refer makes frontends refer to their new sets, and drops their old references.
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

// acquire adds a reference to the set, which must then have these backends.
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

// finishSet computes a set's changes in the batch, after all frontends are planned.
func (c *change) finishSet(s *set, was *setBefore) {
	s.touched = false
	if s.refs > 0 {
		s.last = nil
	}
	switch {
	case s.refs == 0 && s.source == nil: // added and removed in this batch
		delete(c.st.sets, s.wantSource.ID)
		return
	case s.refs == 0:
		c.empty(s)
	case s.source == s.wantSource && s.seconds == s.wantSeconds && !s.unfinished():
		return
	case s.source == nil && c.few(s):
		c.assign(s, slots.First(&s.wantSource.Backends), nil)
	case s.source != nil && !s.unfinished() && s.members == nil && s.wantSeconds == 0 && c.few(s):
		// Ports that share endpoints pay for the difference once.
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

// few reports whether one batch can write all changes of the set.
func (c *change) few(s *set) bool {
	return s.places() <= c.most && (s.wantSource.Backends.Len() <= c.most || s.wantSeconds > 0)
}

// empty removes the elements of a set that no frontend uses: at once from packets' lookups, in
// batches from the kernel.
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

// assign gives a set its wanted backends, in those slots. With affinity each backend keeps its
// member, or gets a free one.
func (c *change) assign(s *set, in []netip.AddrPort, members map[netip.AddrPort]uint32) {
	s.source, s.seconds, s.held, s.members = s.wantSource, s.wantSeconds, c.packer.Pack(in, &s.wantSource.Backends), nil
	s.rest = nil
	if s.seconds == 0 {
		return
	}
	s.members = slots.Members(in, members)
}

// refill updates a set's slots, or as many as a batch may. With affinity it updates all, because
// such a set is small.
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

// goalOf returns the final slots of a set.
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
