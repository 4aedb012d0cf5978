package lb

// EndpointLists returns how many lists of endpoints the Service's rows keep in memory.
func (t *Table) EndpointLists(name string) int {
	lists := map[*Endpoint]bool{}
	for _, f := range t.Owned(name) {
		for _, r := range f.Routes {
			for i := range r.To.Backends.runs() {
				lists[&r.To.Backends.run(i).endpoints[0]] = true
			}
		}
	}
	return len(lists)
}
