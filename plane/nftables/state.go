//go:build linux

package nftables

import (
	"net/netip"
	"slices"

	"kube-proxy/internal/nft/wire"
	"kube-proxy/lb"
	"kube-proxy/plane/internal/slots"
)

// state is what the kernel holds, as we last wrote it.
type state struct {
	node lb.Node
	rows map[lb.Key]row
	sets map[lb.SetID]*set
	// The lists of source ranges, by their content and by their numbers, and the last number given out.
	lists       map[string]*sourceList
	listNumbers map[uint32]*sourceList
	lastList    uint32
	// leaving are sets that no row has any more, and of which elements are left, by the key of the row that left last.
	leaving map[lb.Key][]*set
	// ids counts the set ids.
	ids slots.Counter
	// seed is that of the hash of clients with affinity.
	seed uint32

	// How many rows need the address; an element exists while the number is not 0.
	clusterIPs map[netip.Addr]int32

	classes map[class]bool
	shapes  map[shape]bool    // their parts
	chains  map[string]string // name → digest of the rules
}

// newState returns an empty state with room for a number of rows.
func newState(rows int) *state {
	return &state{
		rows: make(map[lb.Key]row, rows), sets: make(map[lb.SetID]*set, rows),
		lists: map[string]*sourceList{}, listNumbers: map[uint32]*sourceList{},
		clusterIPs: make(map[netip.Addr]int32, rows), leaving: map[lb.Key][]*set{},
		classes: map[class]bool{}, shapes: map[shape]bool{}, chains: map[string]string{},
	}
}

// row is a frontend in the kernel.
type row struct {
	front          *lb.Frontend
	class          class
	cluster, local *set // nil where no route balances over that scope
	list           *sourceList
}

// set is a backend set in the kernel. The elements of its slots are backends{id . slot}. Removal moves the
// last slot into the hole and addition appends, so one endpoint's change is one or two elements.
type set struct {
	id      uint32
	source  *lb.BackendSet // the backends in slots; nil before the first write
	held    slots.Packed   // the slots that packets draw
	members []uint32       // with affinity, the member in each slot, see slots.Members; else nil
	seconds uint32         // of affinity
	refs    int32          // rows that balance over it
	// goal is what slots shall be, where more is to be written than a batch may have; nil otherwise. tail are elements of backends behind
	// those that packets draw, which are still to go: behind slots, or with affinity from 0 on.
	goal, tail []netip.AddrPort
	lastKey    lb.Key // of the row that left last

	// What the present batch wants; equal to source and seconds between batches.
	wantSource  *lb.BackendSet
	wantSeconds uint32
	touched     bool
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

// maps are the maps from a row's key to its class and its sets.
func mapsOf(k lb.Key) (classes, cluster, local setIndex) {
	if k.IsNodePort() {
		return sNodePorts, sNodePortClusterSets, sNodePortLocalSets
	}
	return sServices, sClusterSets, sLocalSets
}

// records calls f for each element that the state wants in the kernel, verdict maps and what packets fill
// left out. rec is only valid during the call.
func (st *state) records(f func(i setIndex, rec []byte)) {
	b := make([]byte, 0, 64)
	for _, r := range st.rows {
		rowRecords(r, f)
	}
	for _, s := range st.sets {
		s.records(f)
	}
	for _, l := range st.lists {
		l.records(f)
	}
	st.reserved(f)
	for a := range st.clusterIPs {
		f(sClusterIPs, wire.AppendAddr(b[:0], a))
	}
	for n := range 256 {
		f(sEqualBytes, wire.AppendOctet(wire.AppendOctet(b[:0], byte(n)), byte(n)))
	}
}

// rowRecords calls f for the elements of one row.
func rowRecords(r row, f func(i setIndex, rec []byte)) {
	classes, cluster, local := mapsOf(r.front.Key)
	b := wire.AppendKey(make([]byte, 0, 80), r.front.Key)
	f(classes, wire.AppendNumber(b, uint32(r.class)))
	if r.cluster != nil {
		f(cluster, wire.AppendNumber(b, r.cluster.id))
	}
	if r.local != nil {
		f(local, wire.AppendNumber(b, r.local.id))
	}
	if r.list != nil {
		f(sSourceLists, wire.AppendNumber(b, r.list.key()))
	}
}

// records calls f for the elements of one set.
func (s *set) records(f func(i setIndex, rec []byte)) { s.some(0, s.places(), f) }

// places is how many slots the set has, with those that packets no longer draw.
func (s *set) places() int { return s.held.Len() + len(s.tail) }

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
		f(sBackends, wire.AppendAddrPort(wire.AppendNumber(wire.AppendNumber(b[:0], s.id), uint32(behind+n)), s.tail[n]))
	}
}

// plain are the set's elements of backends, whether packets draw them or not.
func (s *set) plain() []netip.AddrPort {
	switch {
	case s.members != nil || s.held.Len() == 0:
		return s.tail
	case len(s.tail) == 0:
		return s.slots()
	}
	return slices.Concat(s.slots(), s.tail)
}

// unfinished returns the keys of changes of which a part is still to be written.
func (st *state) unfinished(changes []lb.Change) (later []lb.Key) {
	for _, ch := range changes {
		r := st.rows[ch.Key]
		if (len(st.leaving[ch.Key]) > 0 || r.cluster.unfinished() || r.local.unfinished()) && !slices.Contains(later, ch.Key) {
			later = append(later, ch.Key)
		}
	}
	return later
}

func (s *set) unfinished() bool { return s != nil && (s.goal != nil || len(s.tail) > 0) }

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
