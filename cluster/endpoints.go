package cluster

import (
	"iter"
	"net/netip"
	"slices"
	"unique"

	"kube-proxy/internal/addrs"
)

// Endpoint is one endpoint of a slice, with the API's defaults for absent conditions filled in
// (SV-32).
type Endpoint struct {
	Addr netip.Addr
	// Where is the endpoint's place; the zero Handle if the API object has none. With handles a
	// million endpoints share a few places: as many as nodes, unless the author of the slices is
	// malicious; never more than endpoints.
	Where                       unique.Handle[Place]
	Ready, Serving, Terminating bool
	// Hints are the topology hints; nil if the endpoint has none.
	Hints *Hints
}

// Place is the location of an endpoint, each part "" if the API object does not have it.
type Place struct {
	Node string
	// Zone is for display: no packet depends on it, so two endpoints that differ only in it are
	// equal. Hints select the nodes that use an endpoint.
	Zone string
}

// At returns the [Endpoint].Where of a node and a zone.
func At(node, zone string) unique.Handle[Place] {
	if node == "" && zone == "" {
		return unique.Handle[Place]{}
	}
	return unique.Make(Place{node, zone})
}

// Hints are the zones and nodes that an endpoint is meant for (SV-38).
type Hints struct{ Zones, Nodes []string }

// Place returns where the endpoint runs.
func (e *Endpoint) Place() Place {
	if e.Where == (unique.Handle[Place]{}) {
		return Place{}
	}
	return e.Where.Value()
}

// OnNode reports whether the endpoint runs on the node of that name; false if either is unknown
// (SV-33).
func (e *Endpoint) OnNode(name string) bool { return name != "" && e.Place().Node == name }

// Equal reports whether two hints have the same zones and nodes; nil means none.
func (h *Hints) Equal(o *Hints) bool {
	if h == nil || o == nil {
		return h == o
	}
	return slices.Equal(h.Zones, o.Zones) && slices.Equal(h.Nodes, o.Nodes)
}

// Endpoints is an immutable list of endpoints, in little memory: an endpoint of IPv4 takes 5 bytes,
// 8 more if one of the list has a place, and 8 if one has hints. Addresses have no zones. The zero
// Endpoints is empty.
type Endpoints struct {
	list addrs.List // with the conditions
	// where and hints are by endpoint, nil if no endpoint has any.
	where []unique.Handle[Place]
	hints []*Hints
}

// The conditions of endpoints in a list.
const (
	ready addrs.Flags = 1 << iota
	serving
	terminating
)

// EndpointsOf returns the list of these endpoints.
func EndpointsOf(all ...Endpoint) (l Endpoints) {
	l.list = addrs.Of(len(all), func(i int) (netip.Addr, addrs.Flags) {
		e, f := &all[i], addrs.Flags(0)
		if e.Ready {
			f |= ready
		}
		if e.Serving {
			f |= serving
		}
		if e.Terminating {
			f |= terminating
		}
		return e.Addr, f
	})
	for i := range all {
		if all[i].Where != (unique.Handle[Place]{}) {
			set(&l.where, len(all), i, all[i].Where)
		}
		if all[i].Hints != nil {
			set(&l.hints, len(all), i, all[i].Hints)
		}
	}
	return l
}

// set sets item i of n, of a list that is nil before the first.
func set[T any](list *[]T, n, i int, to T) {
	if *list == nil {
		*list = make([]T, n)
	}
	(*list)[i] = to
}

// Len returns the number of endpoints.
func (l *Endpoints) Len() int { return l.list.Len() }

// At returns endpoint i.
func (l *Endpoints) At(i int) Endpoint {
	a, f := l.list.At(i)
	e := Endpoint{Addr: a, Ready: f&ready != 0, Serving: f&serving != 0, Terminating: f&terminating != 0}
	if l.where != nil {
		e.Where = l.where[i]
	}
	if l.hints != nil {
		e.Hints = l.hints[i]
	}
	return e
}

// All iterates over the endpoints.
func (l *Endpoints) All() iter.Seq[Endpoint] {
	return func(yield func(Endpoint) bool) {
		for i := range l.Len() {
			if !yield(l.At(i)) {
				return
			}
		}
	}
}

// With returns the list with more endpoints behind it.
func (l Endpoints) With(more ...Endpoint) Endpoints {
	return EndpointsOf(append(slices.Collect(l.All()), more...)...)
}

// Edited returns the list as edit leaves each endpoint.
func (l Endpoints) Edited(edit func(i int, e *Endpoint)) Endpoints {
	all := slices.Collect(l.All())
	for i := range all {
		edit(i, &all[i])
	}
	return EndpointsOf(all...)
}

// equal reports whether two lists are the same in everything that decides about packets.
func (l *Endpoints) equal(o *Endpoints) bool {
	if l.list != o.list {
		return false
	}
	if !slices.Equal(l.where, o.where) { // else not even a zone is another
		for i := range l.Len() {
			if e, f := l.At(i), o.At(i); e.Place().Node != f.Place().Node {
				return false
			}
		}
	}
	return slices.EqualFunc(l.hints, o.hints, (*Hints).Equal)
}
