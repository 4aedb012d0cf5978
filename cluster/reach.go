package cluster

import (
	"maps"
	"net/netip"
	"slices"
)

// Unreachable holds what this node does not reach, according to its own probes (package failover).
// It is immutable. The zero Unreachable is empty.
type Unreachable struct {
	// Endpoints are TCP endpoints without an answer. The value reports whether that alone counts;
	// else an endpoint counts with a node of Nodes that its slice names.
	Endpoints map[netip.AddrPort]bool
	// Nodes are unreachable nodes, by name. The value reports whether all endpoints on the node
	// count, or, of TCP, only those of Endpoints.
	Nodes map[string]bool
}

// IsZero reports whether nothing is unreachable.
func (u Unreachable) IsZero() bool { return len(u.Endpoints) == 0 && len(u.Nodes) == 0 }

// Equal reports whether the same is unreachable.
func (u Unreachable) Equal(o Unreachable) bool {
	return maps.Equal(u.Endpoints, o.Endpoints) && maps.Equal(u.Nodes, o.Nodes)
}

// Has reports whether an endpoint on a node is unreachable, and whether that is because of the
// node.
func (u Unreachable) Has(at netip.AddrPort, proto Protocol, node string) (is, byNode bool) {
	alone, silent := u.Endpoints[at]
	silent, alone = silent && proto == TCP, alone && proto == TCP
	if whole, dead := u.Nodes[node]; dead && node != "" && (whole || silent || proto != TCP) {
		return true, true
	}
	return alone, false
}

// UnreachableSet replaces what this node does not reach.
type UnreachableSet struct{ Unreachable Unreachable }

// foldInto marks the Services with endpoints that became reachable or unreachable.
func (ev UnreachableSet) foldInto(s *Store, d *Dirty) {
	was, is := s.facts.Unreachable, ev.Unreachable
	s.facts.Unreachable = is
	found := map[*entry]struct{}{}
	for a := range differences(was.Endpoints, is.Endpoints) {
		s.index.addrs.each(a.Addr(), func(e *entry) { found[e] = struct{}{} })
	}
	for n := range differences(was.Nodes, is.Nodes) {
		s.index.nodes.each(n, func(e *entry) { found[e] = struct{}{} })
	}
	for e := range found {
		if e.service != nil {
			d.Services = append(d.Services, Ref{Name: e.service.Name, V4: e.service.in(false), V6: e.service.in(true)})
		}
	}
}

// differences returns the keys whose values differ.
func differences[K comparable](a, b map[K]bool) map[K]struct{} {
	out := map[K]struct{}{}
	for k, v := range a {
		if w, is := b[k]; !is || w != v {
			out[k] = struct{}{}
		}
	}
	for k := range b {
		if _, was := a[k]; !was {
			out[k] = struct{}{}
		}
	}
	return out
}

// index finds Services by the addresses and nodes of their endpoints. Its maps are nil while
// nothing asks for it.
type index struct {
	addrs holders[netip.Addr]
	nodes holders[string]
}

// holders counts, for each key, the endpoints that each Service has there.
type holders[K comparable] map[K]held

// held is nearly always one Service.
type held struct {
	one  *entry // of no meaning while n is 0
	n    int
	more map[*entry]int
}

func (h holders[K]) add(k K, e *entry) {
	x := h[k]
	switch {
	case x.n == 0, x.one == e:
		x.one = e
		x.n++
	case x.more == nil:
		x.more = map[*entry]int{e: 1}
	default:
		x.more[e]++
	}
	h[k] = x
}

func (h holders[K]) remove(k K, e *entry) {
	x := h[k]
	if x.one == e && x.n > 0 {
		x.n--
	} else {
		x.more[e]--
		if x.more[e] <= 0 {
			delete(x.more, e)
		}
	}
	if x.n == 0 && len(x.more) == 0 {
		delete(h, k)
		return
	}
	h[k] = x
}

func (h holders[K]) each(k K, f func(*entry)) {
	x := h[k]
	if x.n > 0 {
		f(x.one)
	}
	for e := range x.more {
		f(e)
	}
}

// add and remove keep the index at a change of a slice of e. Their cost is that of the slice.
func (x *index) add(e *entry, sl *Slice) {
	if x.addrs == nil {
		return
	}
	for ep := range sl.Endpoints.All() {
		x.addrs.add(ep.Addr, e)
		if node := ep.Place().Node; node != "" {
			x.nodes.add(node, e)
		}
	}
}

func (x *index) remove(e *entry, sl *Slice) {
	if x.addrs == nil {
		return
	}
	for ep := range sl.Endpoints.All() {
		x.addrs.remove(ep.Addr, e)
		if node := ep.Place().Node; node != "" {
			x.nodes.remove(node, e)
		}
	}
}

// IndexEndpoints has the Store find Services by their endpoints, for [Store.WithAddr],
// [Store.OnNode] and [UnreachableSet]; false ends that. The index takes about 100 bytes for each
// endpoint.
func (s *Store) IndexEndpoints(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if on == (s.index.addrs != nil) {
		return
	}
	s.index = index{}
	if !on {
		return
	}
	s.index = index{holders[netip.Addr]{}, holders[string]{}}
	for _, e := range s.services {
		for _, sl := range e.slices {
			s.index.add(e, sl)
		}
	}
}

// WithAddr returns at most limit names of Services with an endpoint at the address, sorted.
func (s *Store) WithAddr(a netip.Addr, limit int) []Name {
	s.mu.Lock()
	defer s.mu.Unlock()
	return namesOf(s.index.addrs, a, limit)
}

// OnNode returns at most limit names of Services with an endpoint that a slice places on the node,
// sorted.
func (s *Store) OnNode(node string, limit int) []Name {
	s.mu.Lock()
	defer s.mu.Unlock()
	return namesOf(s.index.nodes, node, limit)
}

func namesOf[K comparable](h holders[K], k K, limit int) []Name {
	found := map[Name]struct{}{}
	h.each(k, func(e *entry) {
		if e.service != nil && len(found) < limit {
			found[e.service.Name] = struct{}{}
		}
	})
	return slices.SortedFunc(maps.Keys(found), Name.Compare)
}
