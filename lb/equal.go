package lb

import (
	"net/netip"
	"slices"
)

// Equal reports whether two frontends ask for the same treatment of the same key.
func (f *Frontend) Equal(o *Frontend) bool { return (*Comparison)(nil).Equal(f, o) }

// Equal reports whether two routes do the same.
func (r Route) Equal(o Route) bool { return (*Comparison)(nil).routes(r, o) }

// Equal reports whether two sets have the same name and the same backends.
func (s *BackendSet) Equal(o *BackendSet) bool { return (*Comparison)(nil).sets(s, o) }

// Comparison compares many rows as [Frontend.Equal] does, and remembers what it has compared: rows of one Service
// share their backend sets and sources, and to compare those anew for each row would cost rows times backends. The zero
// Comparison is ready to use; it is not safe for concurrent use, and keeps what it was given.
type Comparison struct {
	endpoints map[listPair[Endpoint]]bool
	sources   map[listPair[netip.Prefix]]bool
}

// listPair is two lists of one length, by the first of each.
type listPair[T any] struct {
	a, b *T
	n    int
}

// short is the length up to which lists are compared again rather than remembered.
const short = 16

// Equal reports whether two frontends ask for the same treatment of the same key.
func (c *Comparison) Equal(f, o *Frontend) bool {
	if f == o {
		return true
	}
	return f != nil && o != nil && f.Key == o.Key && f.Service == o.Service && f.Kind == o.Kind &&
		f.Affinity == o.Affinity && f.LocalEndpoints == o.LocalEndpoints && f.PreserveDestination == o.PreserveDestination && c.prefixes(f.Sources, o.Sources) &&
		slices.EqualFunc(f.Routes, o.Routes, c.routes) && c.sets(f.Serving, o.Serving)
}

func (c *Comparison) routes(r, o Route) bool {
	return r.From == o.From && r.Do == o.Do && r.Masq == o.Masq && c.sets(r.To, o.To)
}

func (c *Comparison) sets(s, o *BackendSet) bool {
	return s == o || s != nil && o != nil && s.ID == o.ID && c.backends(&s.Backends, &o.Backends)
}

func (c *Comparison) backends(a, b *Backends) bool {
	if a.runs() != b.runs() || a.Len() != b.Len() {
		return false
	}
	for i := range a.runs() {
		r, s := a.run(i), b.run(i)
		if r.port != s.port || len(r.endpoints) != len(s.endpoints) {
			return false
		}
	}
	for i := range a.runs() {
		if !c.lists(a.run(i).endpoints, b.run(i).endpoints) {
			return false
		}
	}
	return true
}

func (c *Comparison) lists(a, b []Endpoint) bool {
	if c == nil {
		return slices.Equal(a, b)
	}
	return equalLists(&c.endpoints, a, b)
}

func (c *Comparison) prefixes(a, b []netip.Prefix) bool {
	if c == nil {
		return slices.Equal(a, b)
	}
	return equalLists(&c.sources, a, b)
}

// equalLists compares two lists. It remembers the result for long ones.
func equalLists[T comparable](known *map[listPair[T]]bool, a, b []T) bool {
	switch {
	case len(a) != len(b):
		return false
	case len(a) == 0 || &a[0] == &b[0]:
		return true
	case len(a) <= short:
		return slices.Equal(a, b)
	}
	pair := listPair[T]{&a[0], &b[0], len(a)}
	equal, ok := (*known)[pair]
	if !ok {
		if equal = slices.Equal(a, b); *known == nil {
			*known = map[listPair[T]]bool{}
		}
		(*known)[pair] = equal
	}
	return equal
}
