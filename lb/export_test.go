package lb

import "slices"

// EndpointLists returns the number of lists of endpoints that the Service's frontends keep in
// memory.
func (t *Table) EndpointLists(name string) int {
	var lists []Endpoints
	for _, f := range t.Owned(name) {
		for _, r := range f.Routes {
			for i := range r.To.Backends.runs() {
				list := r.To.Backends.run(i).endpoints
				if !slices.ContainsFunc(lists, func(have Endpoints) bool { return have.list.Shares(list.list) }) {
					lists = append(lists, list)
				}
			}
		}
	}
	return len(lists)
}
