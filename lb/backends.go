package lb

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"
	"sort"

	"kube-proxy/internal/addrs"
)

// Backend is one place that a connection may be sent to.
type Backend struct {
	Addr netip.AddrPort
	// Local: the backend runs on this node, so it may be its own client (SV-60).
	Local bool
	// Unplaced: the API does not name the backend's node, which may be this one (TN-68). Never set
	// with Local.
	Unplaced bool
	// Draining: the backend is terminating and serves only because no other can (SV-36, SV-37).
	Draining bool
}

// Compare orders backends by port, and then by address.
func (b Backend) Compare(o Backend) int { return comparePlaces(b.Addr, o.Addr) }

func comparePlaces(a, b netip.AddrPort) int {
	return cmp.Or(cmp.Compare(a.Port(), b.Port()), a.Addr().Compare(b.Addr()))
}

// Endpoint is a [Backend] without its port.
type Endpoint struct {
	Addr                      netip.Addr
	Local, Unplaced, Draining bool
}

// Endpoints is an immutable list of endpoints, which many backend sets may share. Lists with the
// same endpoints are ==. Comparing lists that share memory is free.
type Endpoints struct{ list addrs.List }

// The flags of endpoints in a list.
const (
	local addrs.Flags = 1 << iota
	unplaced
	draining
)

// EndpointsOf returns the list of these endpoints. For [Backends] they are sorted by address,
// without duplicates.
func EndpointsOf(all ...Endpoint) Endpoints {
	return EndpointsBy(len(all), func(i int) Endpoint { return all[i] })
}

// EndpointsBy returns the list of n endpoints, as [EndpointsOf] does.
func EndpointsBy(n int, at func(i int) Endpoint) Endpoints {
	return Endpoints{addrs.Of(n, func(i int) (netip.Addr, addrs.Flags) {
		e, f := at(i), addrs.Flags(0)
		if e.Local {
			f |= local
		}
		if e.Unplaced {
			f |= unplaced
		}
		if e.Draining {
			f |= draining
		}
		return e.Addr, f
	})}
}

// Len returns the number of endpoints.
func (l Endpoints) Len() int { return l.list.Len() }

// At returns endpoint i.
func (l Endpoints) At(i int) Endpoint {
	a, f := l.list.At(i)
	return Endpoint{a, f&local != 0, f&unplaced != 0, f&draining != 0}
}

func (l Endpoints) addr(i int) netip.Addr {
	a, _ := l.list.At(i)
	return a
}

// find returns the place of the endpoint at the address, or where it would be.
func (l Endpoints) find(a netip.Addr) (i int, ok bool) {
	return sort.Find(l.Len(), func(i int) int { return a.Compare(l.addr(i)) })
}

// Backends is an immutable list of backends, sorted as [Backend.Compare] does and without
// duplicates. It is a list of endpoints for each port, and nearly always there is one port. Many
// lists share the endpoints: a Service with 87 ports and 3,000 endpoints costs 3,000 endpoints, not
// 261,000 backends. The zero Backends is empty.
type Backends struct {
	only run
	more *[]run // all runs; nil if there is but one
}

// run is the backends of one port.
type run struct {
	endpoints Endpoints
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
		b.Add(port, EndpointsOf(endpoints...))
	}
	return b
}

// Add appends one or more endpoints under a port higher than all ports of the list. They are sorted
// by address, without duplicates. Only the creator of a list calls Add, before it shares the list.
func (b *Backends) Add(port uint16, endpoints Endpoints) {
	r := run{endpoints, port, uint32(b.Len() + endpoints.Len())}
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
		return b.only.endpoints.Len()
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
	return r.at(i - int(r.end) + r.endpoints.Len())
}

func (r *run) at(i int) Backend {
	e := r.endpoints.At(i)
	return Backend{netip.AddrPortFrom(e.Addr, r.port), e.Local, e.Unplaced, e.Draining}
}

// All iterates over the backends.
func (b *Backends) All() iter.Seq[Backend] {
	return func(yield func(Backend) bool) {
		for i := range b.runs() {
			r := b.run(i)
			for j := range r.endpoints.Len() {
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

// HasAddr reports whether there is a backend at the address, at any port.
func (b *Backends) HasAddr(a netip.Addr) bool {
	for i := range b.runs() {
		if _, found := b.run(i).endpoints.find(a); found {
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
		i, found := slices.BinarySearchFunc(*b.more, a.Port(), func(r run, port uint16) int {
			return cmp.Compare(r.port, port)
		})
		if !found {
			return 0, false
		}
		r = &(*b.more)[i]
	}
	if r.port != a.Port() {
		return 0, false
	}
	i, ok = r.endpoints.find(a.Addr())
	return int(r.end) - r.endpoints.Len() + i, ok
}

// Without returns the addresses and ports of backends that o lacks, in their order. The comparison
// is free if both share a list of endpoints.
func (b *Backends) Without(o *Backends) (all []netip.AddrPort) {
	for i, at := 0, 0; i < b.runs(); i++ {
		r := b.run(i)
		for at < o.runs() && o.run(at).port < r.port {
			at++
		}
		var others Endpoints
		if at < o.runs() && o.run(at).port == r.port {
			others = o.run(at).endpoints
		}
		all = r.without(all, others)
	}
	return all
}

// without appends the members of all that others lacks.
func (r *run) without(all []netip.AddrPort, others Endpoints) []netip.AddrPort {
	if others == r.endpoints {
		return all
	}
	at := 0
	for i := range r.endpoints.Len() {
		a := r.endpoints.addr(i)
		for at < others.Len() && others.addr(at).Less(a) {
			at++
		}
		if at == others.Len() || others.addr(at) != a {
			all = append(all, netip.AddrPortFrom(a, r.port))
		}
	}
	return all
}

// Equal reports whether two lists have the same backends.
func (b *Backends) Equal(o *Backends) bool {
	if b.runs() != o.runs() {
		return false
	}
	for i := range b.runs() {
		if r, s := b.run(i), o.run(i); r.port != s.port || r.endpoints != s.endpoints {
			return false
		}
	}
	return true
}

// Shared returns the port and the endpoints of a list with one port. A list with several ports, or
// none, has no such endpoints.
func (b *Backends) Shared() (port uint16, endpoints Endpoints) {
	if b.more != nil {
		return 0, Endpoints{}
	}
	return b.only.port, b.only.endpoints
}

func (b *Backends) runs() int {
	switch {
	case b.more != nil:
		return len(*b.more)
	case b.only.endpoints.Len() > 0:
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
