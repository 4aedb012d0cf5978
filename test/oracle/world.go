package oracle

import (
	"cmp"
	"net/netip"
	"slices"

	"kube-proxy/cluster"
	"kube-proxy/lb"
	"kube-proxy/policy"
)

// Packet opens a connection that meets this node.
type Packet struct {
	From  netip.Addr
	To    netip.AddrPort
	Proto lb.Proto
}

// Answer is the expected outcome of a packet.
type Answer struct {
	// Do is 0 if the packet is for no Service: it must pass unchanged.
	Do lb.Action
	// Service is the service port that the packet is for.
	Service string
	// Backends are those that may answer, sorted; nil unless Do is lb.Balance.
	Backends []netip.AddrPort
	// Masq: the backend sees this node as the source.
	Masq bool
}

// Equal reports whether two answers are the same.
func (a Answer) Equal(b Answer) bool {
	return a.Do == b.Do && a.Service == b.Service && a.Masq == b.Masq && slices.Equal(a.Backends, b.Backends)
}

// World is the knowledge of one node.
type World struct {
	facts    cluster.Facts
	settings policy.Settings
	claims   map[lb.Key]claim
}

// claim is the frontend of a key's owner.
type claim struct {
	row     *lb.Frontend
	created int64
	name    string
}

// New returns the world of these Services. Views of the same node have the same facts.
func New(facts cluster.Facts, s policy.Settings, views []cluster.View) *World {
	w := &World{facts, s, map[lb.Key]claim{}}
	for _, v := range views {
		for _, row := range Frontends(v, s) {
			c := claim{row, v.Service.Created, v.Name.String()}
			if was, taken := w.claims[row.Key]; !taken || c.before(was) {
				w.claims[row.Key] = c
			}
		}
	}
	return w
}

// before is SV-24: a cluster IP beats a load balancer's address, that beats an external IP; then
// the older Service has the key, then the first by name.
func (c claim) before(o claim) bool {
	rank := map[lb.Kind]int{lb.ClusterIP: 0, lb.LoadBalancer: 1, lb.ExternalIP: 2, lb.NodePort: 3, lb.HealthCheck: 3}
	return cmp.Or(cmp.Compare(rank[c.row.Kind], rank[o.row.Kind]), cmp.Compare(c.created, o.created),
		cmp.Compare(c.name, o.name)) < 0
}

// Keys calls yield with the key of each frontend in force.
func (w *World) Keys(yield func(lb.Key) bool) {
	for k := range w.claims {
		if !yield(k) {
			return
		}
	}
}

// Frontend returns the frontend in force for a key, or nil.
func (w *World) Frontend(k lb.Key) *lb.Frontend { return w.claims[k].row }

// Ask returns the expected outcome of a packet.
func (w *World) Ask(p Packet) Answer { return w.Follow(w.Frontend, p) }

// Follow returns the outcome of a packet with these frontends in force.
func (w *World) Follow(rows func(lb.Key) *lb.Frontend, p Packet) Answer {
	row := rows(lb.Key{Addr: p.To.Addr(), Port: p.To.Port(), Proto: p.Proto})
	if row == nil && w.takesNodePorts(p.To.Addr()) {
		row = rows(lb.Key{Port: p.To.Port(), Proto: p.Proto})
	}
	switch {
	case row == nil:
		return Answer{}
	case len(row.Sources) > 0 && !within(p.From, row.Sources): // SV-16
		return Answer{Do: lb.Drop, Service: row.Service}
	}
	from := w.class(p.From)
	for _, r := range row.Routes {
		if r.From == from || r.From == lb.Anywhere {
			a := Answer{Do: r.Do, Service: row.Service, Masq: r.Masq}
			if r.To != nil {
				for b := range r.To.Backends.All() {
					a.Backends = append(a.Backends, b.Addr)
				}
			}
			return a
		}
	}
	return Answer{}
}

// takesNodePorts reports whether a is an address of this node at which it answers NodePorts.
func (w *World) takesNodePorts(a netip.Addr) bool {
	return w.here(a) && within(a, policy.ResolveNode(w.facts, w.settings).NodePorts)
}

func (w *World) here(a netip.Addr) bool {
	return w.facts.Node != nil && slices.Contains(w.facts.Node.Addrs, a)
}

// class returns the kind of a source, one of three.
func (w *World) class(a netip.Addr) lb.From {
	switch {
	case within(a, policy.ResolveNode(w.facts, w.settings).Pods.Prefixes):
		return lb.Pods
	case w.here(a):
		return lb.Host
	}
	return lb.Anywhere
}

func within(a netip.Addr, all []netip.Prefix) bool {
	return slices.ContainsFunc(all, func(p netip.Prefix) bool { return p.Contains(a) })
}
