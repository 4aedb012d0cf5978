package lb

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"
)

// Backend is one place that a connection may be sent to.
type Backend struct {
	Addr netip.AddrPort
	// Local: the backend runs on this node, so it may be its own client (SV-60).
	Local bool
	// Unplaced: the API does not say where the backend runs. It may be on this node (TN-68). Never set with Local.
	Unplaced bool
	// Draining: the backend is terminating and serves only because no other can (SV-36, SV-37).
	Draining bool
}

// Compare orders backends by port, and then by address.
func (b Backend) Compare(o Backend) int { return comparePlaces(b.Addr, o.Addr) }

func comparePlaces(a, b netip.AddrPort) int {
	return cmp.Or(cmp.Compare(a.Port(), b.Port()), a.Addr().Compare(b.Addr()))
}

// Endpoint is a [Backend] without its port. Many backend sets share one list of endpoints.
type Endpoint struct {
	Addr                      netip.Addr
	Local, Unplaced, Draining bool
}

// Backends is an immutable list of backends, sorted as [Backend.Compare] does and without duplicates. It is a list of
// endpoints for each port, and nearly always there is one port. Many lists share the endpoints: a Service with 87 ports
// and 3,000 endpoints costs 3,000 endpoints, not 261,000 backends. The zero Backends is empty.
type Backends struct {
	only run
	more *[]run // all runs; nil if there is but one
}

// run is the backends of one port.
type run struct {
	endpoints []Endpoint
	port      uint16
	end       uint32 // the number of backends in this run and those before it
}

// BackendsOf returns the list of these backends, in their order.
func BackendsOf(all ...Backend) (b Backends) {
	for len(all) > 0 {
		port := all[0].Addr.Port()
		var endpoints []Endpoint
		for len(all) > 0 && all[0].Addr.Port() == port {
			endpoints = append(endpoints, Endpoint{all[0].Addr.Addr(), all[0].Local, all[0].Unplaced, all[0].Draining})
			all = all[1:]
		}
		b.Add(port, endpoints)
	}
	return b
}

// Add appends endpoints, one or more, under a port that comes after those that the list has. They are sorted by address,
// without duplicates. The list keeps them and shares them with others, so nobody may modify them. Only who makes a list
// calls Add, before others see the list.
func (b *Backends) Add(port uint16, endpoints []Endpoint) {
	r := run{endpoints, port, uint32(b.Len() + len(endpoints))}
	switch {
	case b.runs() == 0:
		b.only = r
	case b.more == nil:
		b.more = &[]run{b.only, r}
	default:
		*b.more = append(*b.more, r)
	}
}

// Len returns the number of backends.
func (b *Backends) Len() int {
	if b.more == nil {
		return len(b.only.endpoints)
	}
	return int((*b.more)[len(*b.more)-1].end)
}

// At returns backend i, from 0 to Len-1.
func (b *Backends) At(i int) Backend {
	if b.more == nil {
		return b.only.at(i)
	}
	n, _ := slices.BinarySearchFunc(*b.more, uint32(i), func(r run, i uint32) int { return cmp.Compare(r.end, i+1) })
	r := &(*b.more)[n]
	return r.at(i - int(r.end) + len(r.endpoints))
}

func (r *run) at(i int) Backend {
	e := &r.endpoints[i]
	return Backend{netip.AddrPortFrom(e.Addr, r.port), e.Local, e.Unplaced, e.Draining}
}

// All iterates over the backends.
func (b *Backends) All() iter.Seq[Backend] {
	return func(yield func(Backend) bool) {
		for i := range b.runs() {
			r := b.run(i)
			for j := range r.endpoints {
				if !yield(r.at(j)) {
					return
				}
			}
		}
	}
}

// Has reports whether there is a backend at the address and port.
func (b *Backends) Has(a netip.AddrPort) bool {
	_, ok := b.Index(a)
	return ok
}

// HasAddr reports whether there is a backend at the address, at whatever port.
func (b *Backends) HasAddr(a netip.Addr) bool {
	for i := range b.runs() {
		if _, found := b.run(i).find(a); found {
			return true
		}
	}
	return false
}

// Find returns the backend at the address and port.
func (b *Backends) Find(a netip.AddrPort) (is Backend, ok bool) {
	i, ok := b.Index(a)
	if ok {
		is = b.At(i)
	}
	return is, ok
}

// Index returns the index of the backend at the address and port, as At takes it.
func (b *Backends) Index(a netip.AddrPort) (i int, ok bool) {
	r := &b.only
	if b.more != nil {
		i, found := slices.BinarySearchFunc(*b.more, a.Port(), func(r run, port uint16) int { return cmp.Compare(r.port, port) })
		if !found {
			return 0, false
		}
		r = &(*b.more)[i]
	}
	if r.port != a.Port() {
		return 0, false
	}
	i, ok = r.find(a.Addr())
	return int(r.end) - len(r.endpoints) + i, ok
}

func (r *run) find(a netip.Addr) (i int, ok bool) {
	return slices.BinarySearchFunc(r.endpoints, a, func(e Endpoint, a netip.Addr) int { return e.Addr.Compare(a) })
}

// Without returns the addresses and ports of backends that o lacks, in their order. Where both share a list of endpoints
// the comparison is free.
func (b *Backends) Without(o *Backends) (all []netip.AddrPort) {
	for i, at := 0, 0; i < b.runs(); i++ {
		r := b.run(i)
		for at < o.runs() && o.run(at).port < r.port {
			at++
		}
		var others []Endpoint
		if at < o.runs() && o.run(at).port == r.port {
			others = o.run(at).endpoints
		}
		all = r.without(all, others)
	}
	return all
}

// without appends what others lack.
func (r *run) without(all []netip.AddrPort, others []Endpoint) []netip.AddrPort {
	if len(others) == len(r.endpoints) && &others[0] == &r.endpoints[0] {
		return all
	}
	for i := range r.endpoints {
		a := r.endpoints[i].Addr
		for len(others) > 0 && others[0].Addr.Less(a) {
			others = others[1:]
		}
		if len(others) == 0 || others[0].Addr != a {
			all = append(all, netip.AddrPortFrom(a, r.port))
		}
	}
	return all
}

// Equal reports whether two lists have the same backends.
func (b *Backends) Equal(o *Backends) bool { return (*Comparison)(nil).backends(b, o) }

// Shared returns the port and the endpoints of a list with one port. Many lists share them, and who works on many can tell by that;
// nobody may modify them. Of a list with several ports, or none, there are no endpoints.
func (b *Backends) Shared() (port uint16, endpoints []Endpoint) {
	if b.more != nil {
		return 0, nil
	}
	return b.only.port, b.only.endpoints
}

func (b *Backends) runs() int {
	switch {
	case b.more != nil:
		return len(*b.more)
	case len(b.only.endpoints) > 0:
		return 1
	}
	return 0
}

func (b *Backends) run(i int) *run {
	if b.more == nil {
		return &b.only
	}
	return &(*b.more)[i]
}
