package lb

import "net/netip"

// Weight is the amount of work of frontends for a plane: one for each frontend and source range,
// and one for each backend. A set, or a slice of ranges, that frontends share counts once. The zero
// Weight has counted nothing.
type Weight struct {
	seen  map[*BackendSet]struct{}
	lists map[*netip.Prefix]struct{}
}

// Of returns the weight that a frontend adds; nil is a deleted frontend.
func (w *Weight) Of(f *Frontend) int {
	n := 1
	if f == nil {
		return n
	}
	if len(f.Sources) > 0 {
		list := &f.Sources[0]
		if _, again := w.lists[list]; !again {
			if w.lists == nil {
				w.lists = map[*netip.Prefix]struct{}{}
			}
			w.lists[list] = struct{}{}
			n += len(f.Sources)
		}
	}
	for _, r := range f.Routes {
		if r.To == nil {
			continue
		}
		if _, again := w.seen[r.To]; again {
			continue
		}
		if w.seen == nil {
			w.seen = map[*BackendSet]struct{}{}
		}
		w.seen[r.To] = struct{}{}
		n += r.To.Backends.Len()
	}
	return n
}
