package lb

// lists makes backend sets share equal lists of endpoints: ports of a Service whose endpoints
// changed one by one, and sets of different scopes that have the same endpoints. Short lists stay
// as they are. The zero lists is ready to use.
type lists struct {
	same map[Endpoints]Endpoints // the list to use for an equal one
	sets map[*BackendSet]*BackendSet
}

// share returns s, or a copy of it with equal earlier lists.
func (l *lists) share(s *BackendSet) *BackendSet {
	if is := l.sets[s]; is != nil {
		return is
	}
	if l.sets == nil {
		l.same, l.sets = map[Endpoints]Endpoints{}, map[*BackendSet]*BackendSet{}
	}
	is, copied := s, BackendSet{ID: s.ID}
	for i := range s.Backends.runs() {
		r := s.Backends.run(i)
		list := l.list(r.endpoints)
		copied.Backends.Add(r.port, list)
		if !list.list.Shares(r.endpoints.list) {
			is = &copied
		}
	}
	l.sets[s] = is
	return is
}

// list returns the first of the lists that are equal to this one.
func (l *lists) list(list Endpoints) Endpoints {
	if list.Len() <= short {
		return list
	}
	if is, ok := l.same[list]; ok {
		return is
	}
	l.same[list] = list
	return list
}
