//go:build linux

package iptables

import (
	"iter"
	"maps"
	"slices"

	"kube-proxy/internal/rollback"
	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
)

// state is the state that the plane has applied.
type state struct {
	renderer
	rows        map[lb.Key]*row
	ports       map[portID]*servicePort
	lists       map[xtables.ChainID]*list
	dispatchers [dispatchers]*xtables.Dispatcher
	jumps       map[xtables.Jump]bool
	kubelet     bool                     // as in a snapshot
	used        map[xtables.ChainID]bool // as in a snapshot
	endpoints   int
	// undeleted is the number of unneeded chains that iptables did not delete although no foreign
	// rule leads to them. It may have refused for another reason, so the next audit tries again.
	undeleted int
	// kept are service ports whose chains a Reset left unchanged, because iptables refused others.
	kept map[portID]bool
	// goals are in progress.
	goals goals
	// Applied are the chains in the kernel. Its Log undoes changes of the whole state.
	xtables.Applied
}

// fronts returns all frontends, in no order.
func (st *state) fronts() iter.Seq[*lb.Frontend] {
	return func(yield func(*lb.Frontend) bool) {
		for _, r := range st.rows {
			if !yield(r.front) {
				return
			}
		}
	}
}

// snapshot returns the known content of the kernel.
func (st *state) snapshot() *snapshot {
	have := xtables.NewSnapshot()
	have.Chains, have.Kubelet, have.Used = st.Digests, st.kubelet, st.used
	for j := range st.jumps {
		have.Jumps[j] = j
	}
	return &snapshot{Snapshot: have}
}

// row is a frontend and its rules in the dispatchers.
type row struct {
	front    *lb.Frontend
	dispatch []dispatched
}

// servicePort is a port of a Service, with one protocol: the owner of chains.
type servicePort struct {
	rows      []*lb.Frontend
	chains    []string // all in nat
	lists     []xtables.ChainID
	endpoints int
}

// manyEndpoints is the number above which a cluster is large: its endpoints' rules have no comments
// (DP-12).
const manyEndpoints = 1000

// newState returns the state of all frontends. It does not keep the content of chains, which is
// rendered again when they are written: all at once would take much memory.
func newState(r renderer, ports []portRows) *state {
	st := &state{renderer: r, rows: map[lb.Key]*row{}, ports: make(map[portID]*servicePort, len(ports)),
		lists:   map[xtables.ChainID]*list{},
		Applied: xtables.NewApplied(), jumps: map[xtables.Jump]bool{}, goals: newGoals()}
	var all [dispatchers][]xtables.Entry
	for _, port := range ports {
		var c change
		st.replace(port.id, port.rows, &c)
		for _, chain := range c.chains {
			st.Note(chain.ID, xtables.DigestOf(chain.Rules))
		}
		for _, f := range port.rows {
			for _, d := range st.rows[f.Key].dispatch {
				all[d.to] = append(all[d.to], xtables.Entry{Path: xtables.PathOf(f.Key), Rules: d.rules})
			}
		}
	}
	st.dispatchers = r.dispatchersOf(all)
	for _, d := range st.dispatchers {
		for at := range d.Nodes {
			c := d.Chain(at)
			st.Note(c.ID, xtables.DigestOf(c.Rules))
		}
	}
	return st
}

// dispatchersOf returns the dispatchers with those entries.
func (r *renderer) dispatchersOf(all [dispatchers][]xtables.Entry) [dispatchers]*xtables.Dispatcher {
	ds := newDispatchers()
	ds[inServices].Tail = r.toNodePorts(xtables.NodePorts)
	ds[inRejectedExternal].Tail = r.toNodePorts(xtables.ExternalNodePorts)
	for i, d := range ds {
		d.Family = r.family
		d.Fill(all[i])
	}
	return ds
}

// newServicePort returns a service port with those frontends, and the names of their rendered
// chains.
func newServicePort(rows []*lb.Frontend, r rendered) *servicePort {
	u := &servicePort{rows: rows, endpoints: endpointsOf(rows), lists: slices.Collect(maps.Keys(r.lists))}
	for _, c := range r.chains {
		u.chains = append(u.chains, c.ID.Name)
	}
	return u
}

func portOf(f *lb.Frontend) portID { return portID{f.Service, f.Key.Proto} }

// change is the kernel's part of an Apply.
type change struct {
	chains        []xtables.Chain
	drops         []xtables.ChainID
	adds, deletes [dispatchers][]xtables.Entry
	// lines is the number of lines, by service port, in chains that are written or deleted.
	lines map[portID]int
}

// apply changes frontends, and returns the kernel's part of it. The dispatchers must still be
// changed.
func (st *state) apply(changes []lb.Change) *change {
	want := make(map[lb.Key]*lb.Frontend, len(changes))
	for _, c := range changes {
		want[c.Key] = c.New
	}
	before := map[lb.Key]*row{} // the frontends of service ports that the changes touch
	touched := map[portID]map[lb.Key]*lb.Frontend{}
	touch := func(id portID) map[lb.Key]*lb.Frontend {
		if touched[id] == nil {
			touched[id] = map[lb.Key]*lb.Frontend{}
			if s := st.ports[id]; s != nil {
				for _, f := range s.rows {
					touched[id][f.Key] = f
					before[f.Key] = st.rows[f.Key]
				}
			}
		}
		return touched[id]
	}
	for k, f := range want {
		if old := st.rows[k]; old != nil {
			delete(touch(portOf(old.front)), k)
		}
		if f != nil {
			touch(portOf(f))[k] = f
		}
	}
	rollback.Value(st.Log, &st.endpoints)
	rollback.Value(st.Log, &st.Rules)
	rollback.Value(st.Log, &st.plain)
	for k := range before {
		rollback.Delete(st.Log, st.rows, k)
	}
	endpoints := st.endpoints
	for id, byKey := range touched {
		if old := st.ports[id]; old != nil {
			endpoints -= old.endpoints
		}
		endpoints += endpointsOf(slices.Collect(maps.Values(byKey)))
	}
	// Never back: restoring the comments would change all chains.
	st.plain = st.plain || endpoints > manyEndpoints
	c := &change{lines: map[portID]int{}}
	var unused []xtables.ChainID
	for id, rows := range touched {
		var last []*lb.Frontend
		for k, f := range rows {
			if want[k] != nil {
				last = append(last, f)
			}
		}
		unused = append(unused, st.replace(id, slices.Collect(maps.Values(rows)), c, last...)...)
	}
	st.release(unused, c)
	for k, old := range before {
		c.dispatch(k, old, st.rows[k])
	}
	for k := range want {
		if before[k] == nil {
			c.dispatch(k, nil, st.rows[k])
		}
	}
	return c
}

// replace renders a service port with those frontends, or removes it without frontends. It returns
// the lists that have one user less. last are the frontends that have changed.
func (st *state) replace(id portID, rows []*lb.Frontend, c *change, last ...*lb.Frontend) (unused []xtables.ChainID) {
	rollback.Delete(st.Log, st.kept, id)
	var had []string
	if old := st.ports[id]; old != nil {
		had, unused = old.chains, old.lists
		st.endpoints -= old.endpoints
		rollback.Delete(st.Log, st.ports, id)
	}
	has := map[string]bool{}
	if len(rows) > 0 {
		r := st.renderer.servicePort(id, rows, last...)
		now := newServicePort(rows, r)
		rollback.Put(st.Log, st.ports, id, now)
		st.endpoints += now.endpoints
		for _, name := range now.chains {
			has[name] = true
		}
		for id, ranges := range r.lists {
			st.use(id, ranges, c)
		}
		c.chains = append(c.chains, r.chains...)
		for _, chain := range r.chains {
			if c.lines != nil && !st.Has(chain) {
				c.lines[id] += 1 + len(chain.Rules)
			}
		}
		for _, f := range rows {
			rollback.Put(st.Log, st.rows, f.Key, &row{f, r.dispatch[f.Key]})
		}
	}
	// A chain cannot be deleted before those that jump to it.
	for _, name := range slices.Backward(had) {
		if !has[name] {
			c.drops = append(c.drops, xtables.NAT.Chain(name))
			c.lines[id] += 2
		}
	}
	return unused
}

// endpointsOf returns the approximate number of endpoints of a service port's frontends.
func endpointsOf(rows []*lb.Frontend) int {
	n := 0
	for _, f := range rows {
		for _, r := range f.Routes {
			if r.To != nil {
				n = max(n, r.To.Backends.Len())
			}
		}
	}
	return n
}

// dispatch records the changes of a key in the dispatchers.
func (c *change) dispatch(k lb.Key, old, now *row) {
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
			c.deletes[i] = append(c.deletes[i], xtables.Entry{Path: xtables.PathOf(k)})
		default:
			c.adds[i] = append(c.adds[i], xtables.Entry{Path: xtables.PathOf(k), Rules: after[i]})
		}
	}
}

// dispatcherIndex says which chain finds a frontend's rule by the packet's destination.
type dispatcherIndex uint8

const (
	inServices          dispatcherIndex = iota // nat: addresses to chains that translate
	inNodePorts                                // nat: the same for NodePorts
	inRejected                                 // filter: cluster IPs without endpoints
	inRejectedExternal                         // filter: other addresses without endpoints
	inRejectedNodePorts                        // filter: NodePorts without endpoints
	inFirewall                                 // filter: addresses with source ranges
	// filter: ports on which this node reports its endpoints (DP-08).
	inHealthChecks
	dispatchers
)

func newDispatchers() [dispatchers]*xtables.Dispatcher {
	all := [dispatchers]*xtables.Dispatcher{
		inServices:         {Table: xtables.NAT, Root: xtables.Services, Prefix: xtables.AddressBranch},
		inNodePorts:        {Table: xtables.NAT, Root: xtables.NodePorts, Prefix: xtables.NodePortBranch, Ports: true},
		inRejected:         {Table: xtables.Filter, Root: xtables.Services, Prefix: xtables.Services + "-"},
		inRejectedExternal: {Table: xtables.Filter, Root: xtables.ExternalServices, Prefix: "KUBE-EXTERNAL-"},
		inRejectedNodePorts: {Table: xtables.Filter, Root: xtables.ExternalNodePorts, Prefix: "KUBE-EXTNP-",
			Ports: true},
		inFirewall:     {Table: xtables.Filter, Root: xtables.ProxyFirewall, Prefix: "KUBE-PROXY-FW-"},
		inHealthChecks: {Table: xtables.Filter, Root: xtables.NodePorts, Prefix: xtables.NodePorts + "-", Ports: true},
	}
	// These see destinations after translation. Another Service may claim a backend's address as an
	// external IP without endpoints, or with few sources. That must not affect the backend's own
	// Service.
	for _, i := range []dispatcherIndex{inRejected, inRejectedExternal, inFirewall} {
		all[i].Head = []string{xtables.Comment("translated already") + "-m conntrack --ctstate DNAT -j RETURN"}
	}
	return all
}
