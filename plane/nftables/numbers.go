package nftables

import (
	"crypto/rand"
	"fmt"

	"kube-proxy/plane"
)

// counter gives out numbers, each once in the life of a table: what packets left in the affinity map must not come to
// mean something else. The map survives the process, so the table itself says, in reserved, up to where numbers may
// have been used; a later process goes on behind that. They are reserved in blocks, so that most changes do not write
// there.
type counter struct{ last, reserved uint32 }

const (
	numberBlock = 1024
	// lastNumber is where a table ends, and is replaced by a new one that knows no clients. At a thousand new
	// backends a second that takes three weeks.
	lastNumber = 1 << 31
)

func (c *counter) next() uint32 { c.last++; return c.last }

// saw notes a number that is in use.
func (c *counter) saw(n uint32) { c.last = max(c.last, n) }

// The keys of the map reserved.
const (
	reservedIDs = iota + 1
	reservedMembers
	reservedSeed
	reservedEnd
)

// reserved calls f for the elements of the map of that name.
func (st *state) reserved(f func(i setIndex, rec []byte)) {
	for key, v := range map[uint32]uint32{reservedIDs: st.ids.reserved, reservedMembers: st.members.reserved, reservedSeed: st.seed} {
		f(sReserved, appendNum(appendNum(nil, key), v))
	}
}

// numbered reports whether the table says which numbers were used. Somebody may have removed that; then nobody knows
// what its clients remember, and only a new table will do.
func (s *snapshot) numbered() bool {
	keys := map[uint32]bool{}
	for rec := range s.records[sReserved].All() {
		keys[order.Uint32(rec)] = true
	}
	return keys[reservedIDs] && keys[reservedMembers] && keys[reservedSeed]
}

// adoptReserved goes on where the kernel's table stands.
func (st *state) adoptReserved(snap *snapshot) {
	for rec := range snap.records[sReserved].All() {
		switch v := order.Uint32(rec[4:]); order.Uint32(rec) {
		case reservedIDs:
			st.ids.reserved = v
			st.ids.saw(v)
		case reservedMembers:
			st.members.reserved = v
			st.members.saw(v)
		case reservedSeed:
			st.seed = v
		}
	}
}

// chooseSeed keeps the seed of the kernel's table, or else of the process. A new one is drawn: who does not know it
// cannot choose with whom to share a place in the affinity map.
func (p *Plane) chooseSeed(st *state) {
	if st.seed == 0 {
		st.seed = p.rules.seed
	}
	for st.seed == 0 {
		var b [4]byte
		rand.Read(b[:])
		st.seed = order.Uint32(b[:])
	}
	p.rules.seed = st.seed
}

// reserve sees to it that the numbers which the change gave out are reserved in its own transaction. The error wraps
// plane.ErrStateLost where none are left: the Reset to come makes a new table.
func (c *change) reserve() error {
	for key, n := range map[uint32]*counter{reservedIDs: &c.st.ids, reservedMembers: &c.st.members} {
		was := n.reserved
		if n.last <= was {
			continue
		}
		n.reserved = n.last + numberBlock
		c.undo = append(c.undo, func() { n.reserved = was })
		rec := appendNum(c.rec[:0], key)
		c.remove(sReserved, appendNum(rec, was))
		c.add(sReserved, appendNum(rec, n.reserved))
	}
	if !c.st.numbersLeft() {
		return fmt.Errorf("nftables %s: the table has used up its numbers: %w", c.fam, plane.ErrStateLost)
	}
	return nil
}

func (st *state) numbersLeft() bool { return st.ids.last < lastNumber && st.members.last < lastNumber }
