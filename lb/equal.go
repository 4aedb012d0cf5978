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
	backends map[[2]*BackendSet]bool
	sources  map[prefixPair]bool
}

// prefixPair is two lists of one length, by the first of each.
type prefixPair struct {
	a, b *netip.Prefix
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
	switch {
	case s == o:
		return true
	case s == nil || o == nil || s.ID != o.ID || len(s.Backends) != len(o.Backends):
		return false
	case c == nil || len(s.Backends) <= short:
		return slices.Equal(s.Backends, o.Backends)
	}
	return remember(&c.backends, [2]*BackendSet{s, o}, func() bool { return slices.Equal(s.Backends, o.Backends) })
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
	return remember(&c.sources, prefixPair{&a[0], &b[0], len(a)}, func() bool { return slices.Equal(a, b) })
}

// remember returns what is known of the pair, and finds it out if nothing is.
func remember[K comparable](known *map[K]bool, pair K, compare func() bool) bool {
	equal, ok := (*known)[pair]
	if !ok {
		if equal = compare(); *known == nil {
			*known = map[K]bool{}
		}
		(*known)[pair] = equal
	}
	return equal
}
