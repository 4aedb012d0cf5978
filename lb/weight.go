package lb

// Weight tells how much work rows are for a plane: one for each row and source range, and one for each backend. A set that
// rows share counts once. The zero Weight has counted nothing.
type Weight struct {
	seen map[*BackendSet]struct{}
}

// Of returns how much a row adds; a nil row is a row that goes.
func (w *Weight) Of(f *Frontend) int {
	n := 1
	if f == nil {
		return n
	}
	n += len(f.Sources)
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
		n += len(r.To.Backends)
	}
	return n
}
