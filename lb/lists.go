package lb

import (
	"hash/maphash"
	"slices"
)

// lists makes backend sets share equal lists of endpoints: ports of a Service whose endpoints changed one by one, and sets
// of different scopes that have the same endpoints. Short lists stay as they are. The zero lists is ready to use.
type lists struct {
	byHash map[uint64][][]Endpoint
	same   map[*Endpoint][]Endpoint // the list to use, by the first endpoint of a list
	sets   map[*BackendSet]*BackendSet
}

var listSeed = maphash.MakeSeed()

// share returns s, or a copy of it with lists that came before.
func (l *lists) share(s *BackendSet) *BackendSet {
	if is := l.sets[s]; is != nil {
		return is
	}
	if l.sets == nil {
		l.byHash, l.same, l.sets = map[uint64][][]Endpoint{}, map[*Endpoint][]Endpoint{}, map[*BackendSet]*BackendSet{}
	}
	is, copied := s, BackendSet{ID: s.ID}
	for i := range s.Backends.runs() {
		r := s.Backends.run(i)
		list := l.list(r.endpoints)
		copied.Backends.Add(r.port, list)
		if &list[0] != &r.endpoints[0] {
			is = &copied
		}
	}
	l.sets[s] = is
	return is
}

// list returns the first of the lists that are equal to this one.
func (l *lists) list(list []Endpoint) []Endpoint {
	if len(list) <= short {
		return list
	}
	if is := l.same[&list[0]]; len(is) == len(list) {
		return is
	}
	h := hashOf(list)
	i := slices.IndexFunc(l.byHash[h], func(is []Endpoint) bool { return slices.Equal(is, list) })
	if i < 0 {
		i = len(l.byHash[h])
		l.byHash[h] = append(l.byHash[h], list)
	}
	l.same[&list[0]] = l.byHash[h][i]
	return l.byHash[h][i]
}

func hashOf(list []Endpoint) uint64 {
	var h maphash.Hash
	h.SetSeed(listSeed)
	for _, e := range list {
		a := e.Addr.As16()
		h.Write(a[:])
		maphash.WriteComparable(&h, [3]bool{e.Local, e.Unplaced, e.Draining})
	}
	return h.Sum64()
}
