package slots

import (
	"net/netip"
	"slices"

	"kube-proxy/lb"
)

// Packed is the content of a set's slots as a plane stores it: as indices into the set's own list
// of backends. Slots in the order of the list take no memory, and the ports of a Service share one
// order. The zero Packed has no slots.
type Packed struct {
	n  int
	in *Order // nil for the order of the list
}

// Order is the content of slots that are not in the order of their list. It is immutable: several
// Packed may share it.
type Order struct {
	index []uint32         // of the backend in each slot
	loose []netip.AddrPort // instead of index, if a slot has a backend that is not in the list
}

// Len returns the number of slots.
func (p *Packed) Len() int { return p.n }

// At returns the backend in a slot. The list is the one passed to Pack.
func (p *Packed) At(list *lb.Backends, slot int) netip.AddrPort {
	switch {
	case p.in == nil:
	case p.in.loose != nil:
		return p.in.loose[slot]
	default:
		slot = int(p.in.index[slot])
	}
	return list.At(slot).Addr
}

// Slots returns the backends in all slots. The list is the one passed to Pack.
func (p *Packed) Slots(list *lb.Backends) []netip.AddrPort {
	if p.in.isLoose() {
		return p.in.loose
	}
	slots := make([]netip.AddrPort, p.n)
	for i := range slots {
		slots[i] = p.At(list, i)
	}
	return slots
}

// Order returns the order of the slots; nil for the order of the list.
func (p *Packed) Order() *Order { return p.in }

func (o *Order) isLoose() bool { return o != nil && o.loose != nil }

// Packer packs the slots of sets. Sets with the same order of slots share it, if they are packed
// soon after each other.
type Packer struct {
	orders []*Order
	moves  []move
}

// recent is the number of orders and moves that a Packer keeps: a port has at most two sets.
const recent = 4

// move is a cached result of Next.
type move struct {
	from, to lb.Endpoints
	order    *Order
	next     Packed
	differ   []int
}

// Next returns slots for the backends want that differ as little as possible from held, which has
// exactly the backends was. It also returns the slots that differ, in order. Ports that share
// endpoints share the result, if they are computed soon after each other.
func (r *Packer) Next(held Packed, was, want *lb.Backends) (next Packed, differ []int) {
	m := move{order: held.Order()}
	var oldPort, port uint16
	oldPort, m.from = was.Shared()
	port, m.to = want.Shared()
	shared := port == oldPort && m.from.Len() > 0 && m.to.Len() > 0 && !m.order.isLoose()
	if shared {
		for _, have := range r.moves {
			if have.from == m.from && have.to == m.to && have.order == m.order {
				return have.next, have.differ
			}
		}
	}
	old := held.Slots(was)
	is := Next(old, was, want)
	for i := range max(len(old), len(is)) {
		if i >= len(old) || i >= len(is) || old[i] != is[i] {
			m.differ = append(m.differ, i)
		}
	}
	m.next = r.Pack(is, want)
	if shared && !m.next.in.isLoose() {
		if len(r.moves) == recent {
			r.moves = r.moves[1:]
		}
		r.moves = append(r.moves, m)
	}
	return m.next, m.differ
}

// Pack packs slots with the list of backends of their set. The caller must not modify slots
// afterwards.
func (r *Packer) Pack(slots []netip.AddrPort, list *lb.Backends) Packed {
	if inTurn(slots, list) {
		return Packed{n: len(slots)}
	}
	order := make([]uint32, len(slots))
	for i, ap := range slots {
		j, ok := list.Index(ap)
		if !ok {
			return Packed{len(slots), &Order{loose: slots}}
		}
		order[i] = uint32(j)
	}
	for _, have := range r.orders {
		if slices.Equal(have.index, order) {
			return Packed{len(order), have}
		}
	}
	if len(r.orders) == recent {
		r.orders = r.orders[1:]
	}
	in := &Order{index: order}
	r.orders = append(r.orders, in)
	return Packed{len(order), in}
}

// inTurn reports whether slot i has backend i of the list, for all slots.
func inTurn(slots []netip.AddrPort, list *lb.Backends) bool {
	if len(slots) > list.Len() {
		return false
	}
	for i, ap := range slots {
		if list.At(i).Addr != ap {
			return false
		}
	}
	return true
}
