package iptables

import (
	"iter"
	"maps"
	"net/netip"
	"slices"

	"kube-proxy/lb"
)

// state is what the plane has applied.
type state struct {
	renderer
	rows        map[lb.Key]*row
	ports       map[portID]*servicePort
	lists       map[chainID]*list
	dispatchers [dispatchers]*dispatcher
	kernel      map[chainID]digest
	rules       [tables]int // of kernel
	jumps       map[jump]bool
	kubelet     bool // as in a snapshot
	endpoints   int
	// kept are service ports whose chains are those that a Reset found, because iptables refused others.
	kept map[portID]bool
}

// holds notes what the kernel holds of a chain.
func (st *state) holds(id chainID, d digest) {
	st.rules[id.table] += int(d.rules) - int(st.kernel[id].rules)
	st.kernel[id] = d
}

// lacks notes that the kernel has a chain no more.
func (st *state) lacks(id chainID) {
	st.rules[id.table] -= int(st.kernel[id].rules)
	delete(st.kernel, id)
}

// fronts returns all rows, in no order.
func (st *state) fronts() iter.Seq[*lb.Frontend] {
	return func(yield func(*lb.Frontend) bool) {
		for _, r := range st.rows {
			if !yield(r.front) {
				return
			}
		}
	}
}

// snapshot returns what the kernel is known to hold.
func (st *state) snapshot() *snapshot {
	return &snapshot{chains: st.kernel, jumps: st.jumps, kubelet: st.kubelet}
}

// row is a frontend and what the dispatchers have for it.
type row struct {
	front    *lb.Frontend
	dispatch []dispatched
}

// servicePort is a port of a Service, with one protocol: the owner of chains.
type servicePort struct {
	rows      []*lb.Frontend
	chains    []string // all in nat
	lists     []chainID
	endpoints int
}

// manyEndpoints is how many make a cluster large: then endpoints' rules have no comments (DP-12).
const manyEndpoints = 1000

// newState returns the state of which the rows of the service ports are all. What chains contain is rendered again when they
// are written: all at once would take much memory.
func newState(r renderer, ports []portRows) *state {
	st := &state{renderer: r, rows: map[lb.Key]*row{}, ports: make(map[portID]*servicePort, len(ports)), lists: map[chainID]*list{},
		dispatchers: newDispatchers(r.family), kernel: map[chainID]digest{}, jumps: map[jump]bool{}}
	st.dispatchers[inServices].tail = r.toNodePorts(nodePorts)
	st.dispatchers[inRejectedExternal].tail = r.toNodePorts(externalNodePorts)
	var all [dispatchers][]entry
	for _, port := range ports {
		r := st.renderer.servicePort(port.id, port.rows)
		for _, c := range r.chains {
			st.holds(c.id, digestOf(c.rules))
		}
		for id, ranges := range r.lists {
			if st.lists[id] == nil {
				st.lists[id] = &list{ranges: ranges}
				st.holds(id, digestOf(listChain(id, ranges).rules))
			}
			st.lists[id].users++
		}
		s := newServicePort(port.rows, r)
		st.ports[port.id] = s
		st.endpoints += s.endpoints
		for _, f := range port.rows {
			st.rows[f.Key] = &row{f, r.dispatch[f.Key]}
			for _, d := range r.dispatch[f.Key] {
				all[d.to] = append(all[d.to], entry{path(f.Key), d.rules})
			}
		}
	}
	for i, d := range st.dispatchers {
		d.set(all[i])
		d.update(pathsOf(all[i]))
		for at := range d.nodes {
			c := d.chain(at)
			st.holds(c.id, digestOf(c.rules))
		}
	}
	return st
}

// newServicePort returns a service port with those rows, and the names of what was rendered of them.
func newServicePort(rows []*lb.Frontend, r rendered) *servicePort {
	u := &servicePort{rows: rows, endpoints: endpointsOf(rows), lists: slices.Collect(maps.Keys(r.lists))}
	for _, c := range r.chains {
		u.chains = append(u.chains, c.id.name)
	}
	return u
}

func portOf(f *lb.Frontend) portID { return portID{f.Service, f.Key.Proto} }

// plan is what changes make of some service ports and rows; state is as before until it is kept.
type plan struct {
	ports         map[portID]*servicePort
	chains        []chain
	drops         []chainID
	rows          map[lb.Key]*row // nil: no row any more
	users         map[chainID]int // how many more service ports use a list
	ranges        map[chainID][]netip.Prefix
	adds, deletes [dispatchers][]entry
}

// plan renders the service ports that changes touch.
func (st *state) plan(changes []lb.Change) *plan {
	want := make(map[lb.Key]*lb.Frontend, len(changes))
	for _, c := range changes {
		want[c.Key] = c.New
	}
	touched := map[portID]map[lb.Key]*lb.Frontend{}
	touch := func(id portID) map[lb.Key]*lb.Frontend {
		if touched[id] == nil {
			touched[id] = map[lb.Key]*lb.Frontend{}
			if u := st.ports[id]; u != nil {
				for _, f := range u.rows {
					touched[id][f.Key] = f
				}
			}
		}
		return touched[id]
	}
	p := &plan{ports: map[portID]*servicePort{}, rows: map[lb.Key]*row{}, users: map[chainID]int{}, ranges: map[chainID][]netip.Prefix{}}
	for k, f := range want {
		if old := st.rows[k]; old != nil {
			delete(touch(portOf(old.front)), k)
			p.rows[k] = nil
		}
		if f != nil {
			touch(portOf(f))[k] = f
		}
	}
	for id, rows := range touched {
		p.servicePort(st, id, slices.Collect(maps.Values(rows)))
	}
	p.settle(st)
	for k, now := range p.rows {
		p.dispatch(k, st.rows[k], now)
	}
	for i := range p.adds {
		for _, list := range [][]entry{p.adds[i], p.deletes[i]} {
			slices.SortFunc(list, func(a, b entry) int { return comparePath(a, b.path) })
		}
	}
	return p
}

// servicePort renders one service port.
func (p *plan) servicePort(st *state, id portID, rows []*lb.Frontend) {
	var now servicePort
	if len(rows) > 0 {
		r := st.renderer.servicePort(id, rows)
		now = *newServicePort(rows, r)
		maps.Copy(p.ranges, r.lists)
		p.listsOf(now.lists, 1)
		p.chains = append(p.chains, r.chains...)
		for _, f := range rows {
			p.rows[f.Key] = &row{f, r.dispatch[f.Key]}
		}
		p.ports[id] = &now
	} else {
		p.ports[id] = nil
	}
	if old := st.ports[id]; old != nil {
		p.listsOf(old.lists, -1)
		keep := make(map[string]bool, len(now.chains))
		for _, name := range now.chains {
			keep[name] = true
		}
		for _, name := range old.chains {
			if !keep[name] {
				p.drops = append(p.drops, chainID{nat, name})
			}
		}
	}
}

// endpointsOf returns about how many endpoints serve the rows of a service port.
func endpointsOf(rows []*lb.Frontend) int {
	n := 0
	for _, f := range rows {
		for _, r := range f.Routes {
			if r.To != nil {
				n = max(n, len(r.To.Backends))
			}
		}
	}
	return n
}

// dispatch notes what changes in the dispatchers for a key.
func (p *plan) dispatch(k lb.Key, old, now *row) {
	var before, after [dispatchers][]string
	if old != nil {
		for _, e := range old.dispatch {
			before[e.to] = e.rules
		}
	}
	if now != nil {
		for _, e := range now.dispatch {
			after[e.to] = e.rules
		}
	}
	for i := range before {
		switch {
		case slices.Equal(before[i], after[i]):
		case len(after[i]) == 0:
			p.deletes[i] = append(p.deletes[i], entry{path: path(k)})
		default:
			p.adds[i] = append(p.adds[i], entry{path(k), after[i]})
		}
	}
}

// keep makes the plan the state, but for the dispatchers, which are there already. It reports whether no chains of service
// ports are kept as they were any more.
func (st *state) keep(p *plan) (released bool) {
	before := len(st.kept)
	for id, u := range p.ports {
		delete(st.kept, id)
		if old := st.ports[id]; old != nil {
			st.endpoints -= old.endpoints
		}
		if u == nil {
			delete(st.ports, id)
			continue
		}
		st.ports[id] = u
		st.endpoints += u.endpoints
	}
	for k, r := range p.rows {
		if r == nil {
			delete(st.rows, k)
			continue
		}
		st.rows[k] = r
	}
	st.keepLists(p)
	// Never back: to give them their comments would be a change of all.
	st.plain = st.plain || st.endpoints > manyEndpoints
	return before > 0 && len(st.kept) == 0
}
