//go:build linux

package ebpf

import (
	"iter"
	"net/netip"

	"kube-proxy/lb"
	"kube-proxy/plane/ebpf/bpf"
	"kube-proxy/plane/internal/slots"
)

// add gives the state the rows of a table.
func (st *state) add(want *lb.Table) {
	discard := &batch{}
	for f := range want.All() {
		st.change(discard, f.Key, f)
		*discard = batch{}
	}
}

// left reports whether there are numbers left.
func (st *state) left() bool { return st.numbers.set.Left() && st.numbers.backend.Left() }

// adopt gives the state the rows of a table, with the numbers and slots that the kernel has, so
// that clients stay with their backends and little is written.
func (st *state) adopt(have *snapshot, want *lb.Table) {
	for n := range have.sets {
		st.numbers.set.Saw(n)
	}
	for n := range have.backends {
		st.numbers.backend.Saw(n)
	}
	for p, is := range have.slots {
		st.numbers.set.Saw(p.Set)
		st.numbers.backend.Saw(is.Backend)
	}
	for _, f := range have.fronts { // whose sets may have been in a map of another layout
		for _, n := range f.Set {
			st.numbers.set.Saw(n)
		}
	}
	known := slots.AdoptIDs(len(have.sets), st.claims(have, want), have)
	for f := range want.All() {
		for _, r := range f.Routes {
			if n, ok := known[setOf(r)]; ok && st.sets[r.To.ID] == nil && balances(f) {
				st.sets[r.To.ID] = st.adoptSet(have, r.To, n)
			}
		}
	}
	st.adoptDraining(have)
	st.add(want)
	for id, s := range st.sets {
		if s.refs == 0 { // no class of clients has the route
			delete(st.sets, id)
		}
	}
}

func setOf(r lb.Route) lb.SetID {
	if r.To == nil {
		return lb.SetID{}
	}
	return r.To.ID
}

// claims yields the numbers that rows of the kernel have where the table has sets.
func (st *state) claims(have *snapshot, want *lb.Table) iter.Seq[slots.Claim] {
	return func(yield func(slots.Claim) bool) {
		for f := range want.All() {
			is, ok := have.fronts[frontOf(f.Key)]
			if !ok || !balances(f) {
				continue
			}
			for class, from := range classes {
				r := st.routeOf(f, from)
				if n := is.Set[class]; n != 0 && r.To != nil && !yield(slots.Claim{Front: f, Set: r.To, ID: n}) {
					return
				}
			}
		}
	}
}

// Backends is part of slots.Kernel.
func (s *snapshot) Backends(set uint32) map[uint32]netip.AddrPort {
	all := map[uint32]netip.AddrPort{}
	for slot := range s.sets[set].Count {
		if b, ok := s.backendAt(set, slot); ok {
			all[slot] = placeOf(b.Addr, b.Port)
		}
	}
	return all
}

func (s *snapshot) backendAt(set, slot uint32) (bpf.LBBackend, bool) {
	b, ok := s.backends[s.slots[bpf.LBPlace{Set: set, Slot: slot}].Backend]
	return b, ok && b.Set == set
}

// Allocated is part of slots.Kernel.
func (s *snapshot) Allocated(f *lb.Frontend) bool {
	return f.Kind == lb.ClusterIP || f.Kind == lb.NodePort
}

// adoptSet returns a set in which as many backends as possible have the slots and numbers that they
// have in the kernel.
func (st *state) adoptSet(have *snapshot, want *lb.BackendSet, number uint32) *set {
	s := &set{id: want.ID, number: number, list: want.Backends}
	at := have.Backends(number)
	numbers := make(map[netip.AddrPort]uint32, len(at))
	for slot, a := range at {
		b, _ := have.backendAt(number, slot)
		numbers[a] = b.Backend
	}
	s.order = st.packer.Pack(slots.Adopt(at, &want.Backends), &want.Backends)
	for i := range s.order.Len() {
		a := s.order.At(&s.list, i)
		id, ok := numbers[a]
		if !ok {
			id = st.numbers.backend.Next()
		}
		delete(numbers, a)
		s.backends = append(s.backends, id)
	}
	return s
}

// adoptDraining gives the sets the backends without a slot that the kernel has. A frontend then
// keeps those that serve.
func (st *state) adoptDraining(have *snapshot) {
	udp := map[uint32]*set{}
	for id, s := range st.sets {
		if id.Proto == lb.UDP {
			udp[s.number] = s
		}
	}
	for id, b := range have.backends {
		s := udp[b.Set]
		if s == nil {
			continue
		}
		if a := placeOf(b.Addr, b.Port); !s.list.Has(a) {
			if s.draining == nil {
				s.draining = map[netip.AddrPort]uint32{}
			}
			s.draining[a] = id
		}
	}
}

// setNode takes what rows need of the node.
func (st *state) setNode(b *batch, n lb.Node) {
	if pods := !n.Pods.IsZero(); pods != st.pods {
		st.pods = pods
		for k, r := range st.rows {
			st.change(b, k, r.front)
		}
	}
}
