package iptables

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"kube-proxy/lb"
)

// state is what the plane has applied.
type state struct {
	renderer
	rows        map[lb.Key]*row
	units       map[unitID]*unit
	lists       map[chainID]*list
	dispatchers [dispatchers]*dispatcher
	kernel      map[chainID]digest
	rules       [tables]int // of kernel
	jumps       map[jump]bool
	kubelet     bool // as in a snapshot
	endpoints   int
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
func (st *state) fronts() []*lb.Frontend {
	rows := make([]*lb.Frontend, 0, len(st.rows))
	for _, r := range st.rows {
		rows = append(rows, r.front)
	}
	return rows
}

// row is a frontend and what the dispatchers have for it.
type row struct {
	front  *lb.Frontend
	placed []placed
}

// unit is a service port: the owner of chains.
type unit struct {
	rows      []*lb.Frontend
	chains    []string // all in nat
	lists     []chainID
	endpoints int
}

// manyEndpoints is how many make a cluster large: then endpoints' rules have no comments (DP-12).
const manyEndpoints = 1000

func newState(r renderer) *state {
	st := &state{renderer: r, rows: map[lb.Key]*row{}, units: map[unitID]*unit{}, lists: map[chainID]*list{}, dispatchers: newDispatchers(r.family),
		kernel: map[chainID]digest{}, jumps: map[jump]bool{}}
	st.dispatchers[inServices].tail = r.toNodePorts(nodePorts)
	st.dispatchers[inRejectedExternal].tail = r.toNodePorts(externalNodePorts)
	return st
}

// newUnit returns a service port with those rows, and the names of what was rendered of them.
func newUnit(rows []*lb.Frontend, r rendered) *unit {
	u := &unit{rows: rows, endpoints: endpointsOf(rows), lists: slices.Collect(maps.Keys(r.lists))}
	for _, c := range r.chains {
		u.chains = append(u.chains, c.id.name)
	}
	return u
}

func unitOf(f *lb.Frontend) unitID { return unitID{f.Service, f.Key.Proto} }

// check says what is wrong with a row, if anything: iptables would refuse it, and all that is written with it.
func check(family lb.Family, k lb.Key, f *lb.Frontend) error {
	if k.Addr.IsValid() && lb.FamilyOf(k.Addr) != family {
		return fmt.Errorf("%s is not an %s address", k, family)
	}
	if _, ok := protoNibble[k.Proto]; !ok {
		return fmt.Errorf("%s: protocol %s: want tcp, udp or sctp", k, k.Proto)
	}
	if f == nil {
		return nil
	}
	if f.Key != k || len(f.Routes) == 0 {
		return fmt.Errorf("%s: the row is of %s, with %d routes", k, f.Key, len(f.Routes))
	}
	for _, s := range f.Sources {
		if lb.FamilyOf(s.Addr()) != family {
			return fmt.Errorf("%s: source range %s is not %s", k, s, family)
		}
	}
	for _, r := range f.Routes {
		if r.Do != lb.Balance {
			continue
		}
		if r.To == nil || len(r.To.Backends) == 0 {
			return fmt.Errorf("%s: a route balances over nothing", k)
		}
		for _, b := range r.To.Backends {
			if lb.FamilyOf(b.Addr.Addr()) != family || b.Addr.Port() == 0 {
				return fmt.Errorf("%s: backend %s is not an %s address and port", k, b.Addr, family)
			}
		}
	}
	return nil
}

// plan is what changes make of some units and rows; state is as before until it is kept.
type plan struct {
	units          map[unitID]*unit
	chains         []chain
	gone           []chainID
	rows           map[lb.Key]*row // nil: no row any more
	users          map[chainID]int // how many more service ports use a list
	ranges         map[chainID][]netip.Prefix
	adds, removals [dispatchers][]entry
}

// plan renders the units that changes touch.
func (st *state) plan(changes []lb.Change) *plan {
	want := make(map[lb.Key]*lb.Frontend, len(changes))
	for _, c := range changes {
		want[c.Key] = c.New
	}
	touched := map[unitID]map[lb.Key]*lb.Frontend{}
	touch := func(id unitID) map[lb.Key]*lb.Frontend {
		if touched[id] == nil {
			touched[id] = map[lb.Key]*lb.Frontend{}
			if u := st.units[id]; u != nil {
				for _, f := range u.rows {
					touched[id][f.Key] = f
				}
			}
		}
		return touched[id]
	}
	p := &plan{units: map[unitID]*unit{}, rows: map[lb.Key]*row{}, users: map[chainID]int{}, ranges: map[chainID][]netip.Prefix{}}
	for k, f := range want {
		if old := st.rows[k]; old != nil {
			delete(touch(unitOf(old.front)), k)
			p.rows[k] = nil
		}
		if f != nil {
			touch(unitOf(f))[k] = f
		}
	}
	for id, rows := range touched {
		p.unit(st, id, slices.Collect(maps.Values(rows)))
	}
	p.settle(st)
	for k, now := range p.rows {
		p.place(k, st.rows[k], now)
	}
	for i := range p.adds {
		for _, list := range [][]entry{p.adds[i], p.removals[i]} {
			slices.SortFunc(list, func(a, b entry) int { return comparePath(a, b.path) })
		}
	}
	return p
}

// unit renders one unit.
func (p *plan) unit(st *state, id unitID, rows []*lb.Frontend) {
	var now unit
	if len(rows) > 0 {
		r := st.renderer.unit(id, rows)
		now = *newUnit(rows, r)
		maps.Copy(p.ranges, r.lists)
		p.listsOf(now.lists, 1)
		p.chains = append(p.chains, r.chains...)
		for _, f := range rows {
			p.rows[f.Key] = &row{f, r.placed[f.Key]}
		}
		p.units[id] = &now
	} else {
		p.units[id] = nil
	}
	if old := st.units[id]; old != nil {
		p.listsOf(old.lists, -1)
		keep := make(map[string]bool, len(now.chains))
		for _, name := range now.chains {
			keep[name] = true
		}
		for _, name := range old.chains {
			if !keep[name] {
				p.gone = append(p.gone, chainID{nat, name})
			}
		}
	}
}

func (p *plan) chainsOf(t table) (of []chain) {
	for _, c := range p.chains {
		if c.id.table == t {
			of = append(of, c)
		}
	}
	return of
}

func (p *plan) goneOf(t table) (of []chainID) {
	for _, id := range p.gone {
		if id.table == t {
			of = append(of, id)
		}
	}
	return of
}

// endpointsOf returns about how many endpoints serve the rows of a unit.
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

// place notes what changes in the dispatchers for a key.
func (p *plan) place(k lb.Key, old, now *row) {
	var before, after [dispatchers][]string
	if old != nil {
		for _, e := range old.placed {
			before[e.to] = e.rules
		}
	}
	if now != nil {
		for _, e := range now.placed {
			after[e.to] = e.rules
		}
	}
	for i := range before {
		switch {
		case slices.Equal(before[i], after[i]):
		case len(after[i]) == 0:
			p.removals[i] = append(p.removals[i], entry{path: path(k)})
		default:
			p.adds[i] = append(p.adds[i], entry{path(k), after[i]})
		}
	}
}

// keep makes the plan the state, but for the dispatchers, which are there already.
func (st *state) keep(p *plan) {
	for id, u := range p.units {
		if old := st.units[id]; old != nil {
			st.endpoints -= old.endpoints
		}
		if u == nil {
			delete(st.units, id)
			continue
		}
		st.units[id] = u
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
}
