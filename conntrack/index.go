package conntrack

import (
	"net/netip"
	"slices"

	"kube-proxy/lb"
)

// index knows the rows whose flows may have to be forgotten, and which keys are suspect: entries of theirs
// may lead where nobody serves.
type index struct {
	rows    map[lb.Key]*lb.Frontend
	ports   map[port][]lb.Key // the keys of all rows of a service port
	suspect map[lb.Key]struct{}
}

// port is a service port of one protocol.
type port struct {
	service string
	proto   lb.Proto
}

func portOf(f *lb.Frontend) port { return port{f.Service, f.Key.Proto} }

func newIndex() *index {
	return &index{map[lb.Key]*lb.Frontend{}, map[port][]lb.Key{}, map[lb.Key]struct{}{}}
}

// forgets reports whether flows of the protocol are forgotten at all (DP-53, DP-54).
func forgets(p lb.Proto) bool { return p == lb.UDP || p == lb.SCTP }

// apply takes note of a change that is in force, and reports whether it made keys suspect. It compares with
// the row that it knows itself: Old is but a hint.
func (x *index) apply(c lb.Change) bool {
	if !forgets(c.Key.Proto) {
		return false
	}
	old := x.rows[c.Key]
	if old != nil && c.New != nil && !lost(old, c.New) {
		x.set(c.Key, old, c.New)
		return false
	}
	x.suspect[c.Key] = struct{}{}
	if old != nil {
		x.doubt(portOf(old))
	}
	x.set(c.Key, old, c.New)
	return true
}

// doubt makes all keys of the port suspect: a policy may once have let their flows go to what was lost.
func (x *index) doubt(p port) {
	for _, k := range x.ports[p] {
		x.suspect[k] = struct{}{}
	}
}

func (x *index) set(k lb.Key, old, now *lb.Frontend) {
	if old != nil && (now == nil || portOf(now) != portOf(old)) {
		p := portOf(old)
		x.ports[p] = slices.DeleteFunc(x.ports[p], func(o lb.Key) bool { return o == k })
		if len(x.ports[p]) == 0 {
			delete(x.ports, p)
		}
	}
	if now == nil {
		delete(x.rows, k)
		return
	}
	if old == nil || portOf(now) != portOf(old) {
		x.ports[portOf(now)] = append(x.ports[portOf(now)], k)
	}
	x.rows[k] = now
}

// lost reports whether flows made under the row old may be wrong under now: a backend went, or there were
// none, so that flows were made without one.
func lost(old, now *lb.Frontend) bool {
	if portOf(old) != portOf(now) {
		return true
	}
	none := true
	for _, r := range old.Routes {
		if r.To == nil {
			continue
		}
		none = false
		if s := now.Set(r.To.ID.Scope); s == r.To {
			continue
		}
		if slices.ContainsFunc(r.To.Backends, func(b lb.Backend) bool { return !mayReach(now, b.Addr) }) {
			return true
		}
	}
	return none && (now.Set(lb.Cluster) != nil || now.Set(lb.Local) != nil)
}

// mayReach reports whether a route of f balances over the backend.
func mayReach(f *lb.Frontend, a netip.AddrPort) bool {
	return slices.ContainsFunc(f.Routes, func(r lb.Route) bool { return r.To != nil && contains(r.To, a) })
}

func contains(s *lb.BackendSet, a netip.AddrPort) bool {
	_, ok := slices.BinarySearchFunc(s.Backends, a, func(b lb.Backend, a netip.AddrPort) int { return b.Addr.Compare(a) })
	return ok
}

// flow is what matters of a conntrack entry.
type flow struct {
	proto lb.Proto
	to    netip.AddrPort // destination as the client sees it
	from  netip.AddrPort // source of answers before translation: the backend
}

// plan is what one run looks for. It does not change, and shares nothing with the index that does.
type plan struct {
	// keys are the suspect keys with what serves there; nil where no row is left.
	keys map[lb.Key]serving
	// locals are this machine's addresses; nil if no NodePort is suspect.
	locals map[netip.Addr]struct{}
	// taken are local addresses whose port belongs to a row of its own, though a suspect NodePort has it too.
	taken map[lb.Key]struct{}
}

// serving is what serves one service port: the sets of all its rows. Empty where nobody serves.
type serving []*lb.BackendSet

// hasNodePort reports whether a NodePort is suspect, so that take must be given the local addresses.
func (x *index) hasNodePort() bool {
	for k := range x.suspect {
		if k.IsNodePort() {
			return true
		}
	}
	return false
}

// take returns the plan for what is suspect now, and begins anew. A NodePort that became suspect without
// locals being known stays for the next time.
func (x *index) take(locals map[netip.Addr]struct{}) *plan {
	p := &plan{keys: make(map[lb.Key]serving, len(x.suspect)), locals: locals, taken: map[lb.Key]struct{}{}}
	shared := map[port]serving{}
	later := map[lb.Key]struct{}{} // a fresh map: one that was large costs its largest past size
	for k := range x.suspect {
		if k.IsNodePort() && locals == nil {
			later[k] = struct{}{}
			continue
		}
		var s serving
		if f := x.rows[k]; f != nil {
			if s = shared[portOf(f)]; s == nil {
				s = x.serving(portOf(f))
				shared[portOf(f)] = s
			}
		}
		p.keys[k] = s
		if k.IsNodePort() {
			for a := range locals {
				if at := (lb.Key{Addr: a, Port: k.Port, Proto: k.Proto}); x.rows[at] != nil {
					p.taken[at] = struct{}{}
				}
			}
		}
	}
	x.suspect = later
	return p
}

// serving returns what serves the service port; not nil.
func (x *index) serving(p port) serving {
	s := serving{}
	for _, k := range x.ports[p] {
		for _, r := range x.rows[k].Routes {
			if r.To != nil && !slices.Contains(s, r.To) {
				s = append(s, r.To)
			}
		}
	}
	return s
}

// retry makes a key suspect again.
func (x *index) retry(k lb.Key) { x.suspect[k] = struct{}{} }

// match returns the suspect key that the flow was made to, and what serves there.
func (p *plan) match(f flow) (lb.Key, serving, bool) {
	k := lb.Key{Addr: f.to.Addr(), Port: f.to.Port(), Proto: f.proto}
	if s, ok := p.keys[k]; ok {
		return k, s, true
	}
	if _, local := p.locals[k.Addr]; !local {
		return k, nil, false
	}
	if _, taken := p.taken[k]; taken {
		return k, nil, false
	}
	k.Addr = netip.Addr{}
	s, ok := p.keys[k]
	return k, s, ok
}

// stale reports whether the flow must be forgotten, and the key that it was made to.
func (p *plan) stale(f flow) (lb.Key, bool) {
	k, s, ok := p.match(f)
	switch {
	case !ok:
		return k, false
	case s == nil:
		return k, true
	case s.has(f.from):
		return k, false
	case f.from == f.to: // made while nobody served (DP-51)
		return k, len(s) > 0
	}
	return k, true
}

func (s serving) has(a netip.AddrPort) bool {
	return slices.ContainsFunc(s, func(set *lb.BackendSet) bool { return contains(set, a) })
}

// asks reports whether the plan needs the flows of the protocol.
func (p *plan) asks(proto lb.Proto) bool {
	for k := range p.keys {
		if k.Proto == proto {
			return true
		}
	}
	return false
}
