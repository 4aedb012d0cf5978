package lb

import (
	"net/netip"
	"slices"
)

// Equal reports whether two frontends describe the same treatment of the same key.
func (f *Frontend) Equal(o *Frontend) bool { return (*Comparison)(nil).Equal(f, o) }

// Equal reports whether two routes do the same.
func (r Route) Equal(o Route) bool { return (*Comparison)(nil).routes(r, o) }

// Equal reports whether two sets have the same name and the same backends.
func (s *BackendSet) Equal(o *BackendSet) bool { return (*Comparison)(nil).sets(s, o) }

// Comparison compares many frontends as [Frontend.Equal] does, and remembers its results: frontends
// of one Service share their backend sets and sources, and comparing those again for each frontend
// would cost frontends times backends. The zero Comparison is ready to use; it is not safe for
// concurrent use, and keeps its arguments.
type Comparison struct {
	known   map[[2]*BackendSet]bool
	sources map[listPair]bool
}

// listPair is two lists of one length, by the first of each.
type listPair struct {
	a, b *netip.Prefix
	n    int
}

// short is the length up to which lists are compared again, not remembered.
const short = 16

// Equal reports whether two frontends describe the same treatment of the same key.
func (c *Comparison) Equal(f, o *Frontend) bool {
	if f == o {
		return true
	}
	return f != nil && o != nil && f.Key == o.Key && f.Service == o.Service && f.Kind == o.Kind &&
		f.Affinity == o.Affinity && f.LocalEndpoints == o.LocalEndpoints &&
		f.PreserveDestination == o.PreserveDestination && c.prefixes(f.Sources, o.Sources) &&
		slices.EqualFunc(f.Routes, o.Routes, c.routes) && c.sets(f.Serving, o.Serving)
}

func (c *Comparison) routes(r, o Route) bool {
	return r.From == o.From && r.Do == o.Do && r.Masq == o.Masq && c.sets(r.To, o.To)
}

func (c *Comparison) sets(s, o *BackendSet) bool {
	if s == o {
		return true
	}
	if s == nil || o == nil || s.ID != o.ID || s.Backends.Len() != o.Backends.Len() {
		return false
	}
	if c == nil || s.Backends.Len() <= short {
		return s.Backends.Equal(&o.Backends)
	}
	return remembered(&c.known, [2]*BackendSet{s, o}, func() bool { return s.Backends.Equal(&o.Backends) })
}

func (c *Comparison) prefixes(a, b []netip.Prefix) bool {
	switch {
	case len(a) != len(b):
		return false
	case len(a) == 0 || &a[0] == &b[0]:
		return true
	case c == nil || len(a) <= short:
		return slices.Equal(a, b)
	}
	return remembered(&c.sources, listPair{&a[0], &b[0], len(a)}, func() bool { return slices.Equal(a, b) })
}

// remembered returns the result of equal for a pair. It calls equal once.
func remembered[K comparable](known *map[K]bool, pair K, equal func() bool) bool {
	is, ok := (*known)[pair]
	if !ok {
		is = equal()
		if *known == nil {
			*known = map[K]bool{}
		}
		(*known)[pair] = is
	}
	return is
}
