//go:build linux

package ebpf

import (
	"encoding/binary"
	"iter"
	"maps"
	"net/netip"
	"sync"
	"time"

	"kube-proxy/lb"
	"kube-proxy/plane/ebpf/bpf"
	"kube-proxy/plane/internal/slots"
)

// state is what the tables shall hold. Changes of it return what has to be written.
type state struct {
	// pods: the node recognises pods, so that rows may treat them in their own way.
	pods bool
	mu   sync.RWMutex // held to change rows; only front runs beside that
	rows map[lb.Key]*row
	sets map[lb.SetID]*set

	numbers struct{ set, backend slots.Counter }
	packer  slots.Packer
	counted *counted // notes whose the sets are; nil without counting
}

type row struct {
	front *lb.Frontend
	value bpf.LBFrontend
	sets  []*set // that the value refers to, each once
}

type set struct {
	id       lb.SetID
	number   uint32
	refs     int
	list     lb.Backends
	order    slots.Packed
	backends []uint32 // by slot
	// draining are the numbers of UDP backends that left and still serve: flows stay there (DP-50).
	// It is nil without any.
	draining map[netip.AddrPort]uint32
}

func newState(node lb.Node) *state {
	return &state{pods: !node.Pods.IsZero(), rows: map[lb.Key]*row{}, sets: map[lb.SetID]*set{}}
}

// classes are the kinds of clients, in the order of the programs.
var classes = [...]lb.From{lb.Pods, lb.Host}

// refuses are the values of that name in the tables, by what the packet path does.
var refuses = map[lb.Action]uint8{lb.Reject: 1, lb.Drop: 2}

// routeOf returns the route of a kind of client.
func (st *state) routeOf(f *lb.Frontend, from lb.From) lb.Route {
	for _, r := range f.Routes {
		if r.From == from && (from != lb.Pods || st.pods) {
			return r
		}
	}
	return f.Last()
}

// balances reports whether the programs can serve a row. The packet path serves others: SCTP, whose
// sockets have no hooks, and source ranges, because most sockets have no address yet when they
// connect.
func balances(f *lb.Frontend) bool {
	return (f.Key.Proto == lb.TCP || f.Key.Proto == lb.UDP) && len(f.Sources) == 0
}

// change makes a row f, or removes it if f is nil.
func (st *state) change(b *batch, k lb.Key, f *lb.Frontend) {
	old := st.rows[k]
	if f == nil || f.Kind == lb.HealthCheck {
		if old != nil {
			st.put(k, nil)
			b.fronts.remove(frontOf(k))
		}
	} else {
		is := st.row(b, f)
		if old == nil || old.value != is.value {
			b.fronts.set(is.value.Front, is.value)
		}
		st.put(k, is)
	}
	if old != nil {
		st.release(b, old.sets)
	}
}

func (st *state) put(k lb.Key, is *row) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.rows[k] = is; is == nil {
		delete(st.rows, k)
	}
}

// front returns the frontend of a destination, or of the NodePort there; nil for none.
func (st *state) front(to bpf.LBFront) *lb.Frontend {
	if st == nil { // nothing was read yet
		return nil
	}
	st.mu.RLock()
	defer st.mu.RUnlock()
	key := keyOf(to)
	for _, a := range []netip.Addr{key.Addr, {}} {
		key.Addr = a
		if r := st.rows[key]; r != nil {
			return r.front
		}
	}
	return nil
}

// row returns the row of a frontend, whose sets it holds.
func (st *state) row(b *batch, f *lb.Frontend) *row {
	is := &row{front: f, value: bpf.LBFrontend{Front: frontOf(f.Key), Affinity: uint32(f.Affinity / time.Second)}}
	for class, from := range classes {
		r := st.routeOf(f, from)
		if is.value.Passes[class] = passes(f, from, r); is.value.Passes[class] != 0 {
			continue
		}
		is.value.Refuses[class] = refuses[r.Do]
		if to := st.setOf(f, class); to != nil {
			s := st.hold(b, f, to)
			is.value.Set[class] = s.number
			is.sets = append(is.sets, s)
		}
	}
	return is
}

// passes returns why the packet path serves a kind of client; 0 if programs do.
func passes(f *lb.Frontend, from lb.From, r lb.Route) uint8 {
	switch {
	case !balances(f):
		return bySources
	case from == lb.Pods && f.Kind == lb.ExternalIP: // in the API anyone names any address
		return byExternalIP
	case from == lb.Pods && r.Masq && r.Do == lb.Balance && f.Kind == lb.ClusterIP: // masqueradeAll asks for that
		return byMasquerade
	}
	return 0
}

// setOf returns the set of a class of clients, or nil if the packet path serves them.
func (st *state) setOf(f *lb.Frontend, class int) *lb.BackendSet {
	r := st.routeOf(f, classes[class])
	if passes(f, classes[class], r) != 0 || r.Do != lb.Balance {
		return nil
	}
	return r.To
}

// hold counts a reference of a frontend to a set, and makes it what the row has.
func (st *state) hold(b *batch, f *lb.Frontend, want *lb.BackendSet) *set {
	s := st.sets[want.ID]
	if s == nil {
		s = &set{id: want.ID, number: st.numbers.set.Next()}
		st.sets[want.ID] = s
		st.counted.add(s.number, s.id.Service)
	}
	s.refs++
	if !s.list.Equal(&want.Backends) || s.order.Len() == 0 {
		st.fill(b, s, &want.Backends)
	}
	for a, id := range s.draining {
		if f.Key.Proto != lb.UDP || !f.Serves(a) {
			delete(s.draining, a)
			b.backends.remove(id)
		}
	}
	if len(s.draining) == 0 {
		s.draining = nil
	}
	return s
}

// fill gives a set other backends. Those that leave drain.
func (st *state) fill(b *batch, s *set, want *lb.Backends) {
	next, differ := st.packer.Next(s.order, &s.list, want)
	had, old := make(map[netip.AddrPort]uint32, len(differ)), s.backends
	for _, i := range differ {
		if i < len(old) {
			had[s.order.At(&s.list, i)] = old[i]
		}
	}
	s.backends = append(make([]uint32, 0, next.Len()), old[:min(len(old), next.Len())]...)
	s.backends = s.backends[:next.Len()]
	for _, i := range differ {
		if i >= next.Len() {
			b.slots.remove(bpf.LBPlace{Set: s.number, Slot: uint32(i)})
			continue
		}
		a := next.At(want, i)
		id, ok := had[a]
		if !ok {
			id, ok = s.draining[a]
		}
		if !ok {
			id = st.numbers.backend.Next()
			b.backends.set(id, backendOf(s.number, id, a))
		}
		delete(had, a)
		delete(s.draining, a)
		s.backends[i] = id
		b.slots.set(slotOf(s.number, uint32(i), id))
	}
	maps.Copy(had, s.draining)
	s.draining = had
	if len(old) != next.Len() {
		b.sets.set(s.number, bpf.LBSet{Set: s.number, Count: uint32(next.Len())})
	}
	s.list, s.order = *want, next
}

// release takes references back, and removes sets without any.
func (st *state) release(b *batch, sets []*set) {
	for _, s := range sets {
		if s.refs--; s.refs > 0 {
			continue
		}
		delete(st.sets, s.id)
		st.counted.remove(s.number)
		b.sets.remove(s.number)
		for i, id := range s.backends {
			b.slots.remove(bpf.LBPlace{Set: s.number, Slot: uint32(i)})
			b.backends.remove(id)
		}
		for _, id := range s.draining {
			b.backends.remove(id)
		}
	}
}

// The records of the tables.

func (st *state) fronts() iter.Seq2[bpf.LBFront, bpf.LBFrontend] {
	return func(yield func(bpf.LBFront, bpf.LBFrontend) bool) {
		for _, r := range st.rows {
			if !yield(r.value.Front, r.value) {
				return
			}
		}
	}
}

func (st *state) counts() iter.Seq2[uint32, bpf.LBSet] {
	return func(yield func(uint32, bpf.LBSet) bool) {
		for _, s := range st.sets {
			if !yield(s.number, bpf.LBSet{Set: s.number, Count: uint32(len(s.backends))}) {
				return
			}
		}
	}
}

func (st *state) places() iter.Seq2[bpf.LBPlace, bpf.LBSlot] {
	return func(yield func(bpf.LBPlace, bpf.LBSlot) bool) {
		for _, s := range st.sets {
			for i, id := range s.backends {
				if !yield(slotOf(s.number, uint32(i), id)) {
					return
				}
			}
		}
	}
}

func (st *state) backends() iter.Seq2[uint32, bpf.LBBackend] {
	return func(yield func(uint32, bpf.LBBackend) bool) {
		for _, s := range st.sets {
			for i, id := range s.backends {
				if !yield(id, backendOf(s.number, id, s.order.At(&s.list, i))) {
					return
				}
			}
			for a, id := range s.draining {
				if !yield(id, backendOf(s.number, id, a)) {
					return
				}
			}
		}
	}
}

// The kinds of keys of frontends. No address stands for a NodePort: in IPv6 the words of none are
// those of ::.
const (
	ofAddress uint8 = iota
	ofNodePort
)

func frontOf(k lb.Key) bpf.LBFront {
	f := bpf.LBFront{Port: bigEndian(k.Port), Proto: uint8(k.Proto), Kind: ofNodePort}
	if !k.IsNodePort() {
		f.Addr, f.Kind = addrOf(k.Addr), ofAddress
	}
	return f
}

// keyOf is the reverse of frontOf.
func keyOf(f bpf.LBFront) lb.Key {
	at := placeOf(f.Addr, f.Port)
	k := lb.Key{Addr: at.Addr(), Port: at.Port(), Proto: lb.Proto(f.Proto)}
	if f.Kind == ofNodePort {
		k.Addr = netip.Addr{}
	}
	return k
}

func slotOf(set, slot, backend uint32) (bpf.LBPlace, bpf.LBSlot) {
	p := bpf.LBPlace{Set: set, Slot: slot}
	return p, bpf.LBSlot{Place: p, Backend: backend}
}

func backendOf(set, id uint32, a netip.AddrPort) bpf.LBBackend {
	return bpf.LBBackend{Backend: id, Set: set, Addr: addrOf(a.Addr()), Port: bigEndian(a.Port())}
}

// addrOf returns the words of an address in network order, as programs have it.
func addrOf(a netip.Addr) (words [4]uint32) {
	b := a.As16()
	for i := range words {
		words[i] = binary.NativeEndian.Uint32(b[4*i:])
	}
	return words
}

// placeOf is the reverse of addrOf, with a port in network order.
func placeOf(words [4]uint32, port uint16) netip.AddrPort {
	var a [16]byte
	for i, w := range words {
		binary.NativeEndian.PutUint32(a[4*i:], w)
	}
	return netip.AddrPortFrom(netip.AddrFrom16(a).Unmap(), bigEndian(port))
}

// bigEndian swaps a port between the host's order and that of the network.
func bigEndian(port uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], port)
	return binary.NativeEndian.Uint16(b[:])
}
