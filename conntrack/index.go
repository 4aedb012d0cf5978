package conntrack

import (
	"net/netip"
	"slices"

	"kube-proxy/lb"
)

// work is a kind of pass over the conntrack table.
type work int

const (
	flows    work = iota // flows over UDP and SCTP to backends that stopped serving (DP-50, DP-54)
	attempts             // unanswered attempts over TCP from before their frontend balanced (TN-82)
)

// protos returns the protocols of the pass. Each of them costs a dump.
func (w work) protos() []lb.Proto {
	if w == attempts {
		return []lb.Proto{lb.TCP}
	}
	return []lb.Proto{lb.UDP, lb.SCTP}
}

// workOf returns the kind of pass that handles the protocol.
func workOf(p lb.Proto) work {
	if p == lb.TCP {
		return attempts
	}
	return flows
}

// index has the frontends whose flows may have to be deleted, and the suspect keys: those with
// flows to backends that may no longer serve.
type index struct {
	proxied func(lb.Key, netip.AddrPort) bool // as in [Config]
	rows    map[lb.Key]*lb.Frontend
	suspect map[lb.Key]struct{}
	// begun holds TCP frontends that began to balance since the last pass. Earlier attempts to
	// connect have an untranslated entry, with which their retransmissions miss the Service.
	begun map[lb.Key]*lb.Frontend
	// left caches answers about large sets until the next settle.
	left map[leaving]bool
	// nodePorts are the addresses that answer NodePorts, at first all; nodePortsBefore are those of
	// the last pass.
	nodePorts, nodePortsBefore []netip.Prefix
}

// leaving is a query: does a backend of the set not serve a frontend with these routes? Frontends
// of one service port have the same query.
type leaving struct {
	set, serving *lb.BackendSet
	routes       [3]*lb.BackendSet
}

// everywhere are all addresses.
var everywhere = []netip.Prefix{lb.IPv4.Everywhere(), lb.IPv6.Everywhere()}

func newIndex(proxied func(lb.Key, netip.AddrPort) bool) *index {
	return &index{proxied: proxied, rows: map[lb.Key]*lb.Frontend{}, suspect: map[lb.Key]struct{}{},
		begun: map[lb.Key]*lb.Frontend{}, nodePorts: everywhere}
}

// answerAt records the addresses that answer NodePorts, and reports whether that made keys suspect.
func (x *index) answerAt(nodePorts []netip.Prefix) (work bool) {
	if slices.Equal(x.nodePorts, nodePorts) {
		return false
	}
	for k := range x.rows {
		if k.IsNodePort() {
			x.suspect[k] = struct{}{}
			work = true
		}
	}
	for _, p := range x.nodePorts {
		if work && !slices.Contains(x.nodePortsBefore, p) {
			x.nodePortsBefore = append(x.nodePortsBefore, p)
		}
	}
	x.nodePorts = nodePorts
	return work
}

// settle is called after a batch of changes.
func (x *index) settle() { x.left = nil }

// begins records a change of a TCP frontend, and reports whether it began to balance. It trusts
// Old: a wrong hint costs a pass or a retransmission.
func (x *index) begins(c lb.Change) bool {
	if c.New == nil || !balances(c.New) {
		delete(x.begun, c.Key)
		return false
	}
	_, waits := x.begun[c.Key]
	begins := c.Old == nil || !balances(c.Old)
	if begins || waits {
		x.begun[c.Key] = c.New
	}
	return begins
}

// forgets reports whether translated flows of the protocol are forgotten (DP-53, DP-54).
func forgets(p lb.Proto) bool { return p == lb.UDP || p == lb.SCTP }

// apply records a change in force, and reports whether it made its key suspect. It compares with
// its own frontend; Old is a hint.
func (x *index) apply(c lb.Change) bool {
	if c.Key.Proto == lb.TCP {
		return x.begins(c)
	}
	if !forgets(c.Key.Proto) {
		return false
	}
	old := x.rows[c.Key]
	if c.New == nil {
		delete(x.rows, c.Key)
	} else {
		x.rows[c.Key] = c.New
	}
	if old != nil && c.New != nil && !x.lost(old, c.New) {
		return false
	}
	x.suspect[c.Key] = struct{}{}
	return true
}

// lost reports whether flows made under old may be wrong under now: a backend stopped serving, or
// there was none.
func (x *index) lost(old, now *lb.Frontend) bool {
	if old.Service != now.Service {
		return true
	}
	if !balances(old) && balances(now) {
		return true
	}
	if x.proxied != nil {
		return false
	}
	if old.Serving != nil {
		return old.Serving != now.Serving && x.leaves(old.Serving, now)
	}
	return slices.ContainsFunc(old.Routes, func(r lb.Route) bool { return r.To != nil && x.leaves(r.To, now) })
}

// leaves reports whether one of the set does not serve any more.
func (x *index) leaves(s *lb.BackendSet, now *lb.Frontend) bool {
	if now.Serving == nil && now.Set(s.ID.Scope) == s {
		return false
	}
	ask := func() bool {
		for b := range s.Backends.All() {
			if !now.Serves(b.Addr) {
				return true
			}
		}
		return false
	}
	if s.Backends.Len() <= 16 {
		return ask()
	}
	question := leaving{set: s, serving: now.Serving}
	for i, r := range now.Routes {
		question.routes[i] = r.To
	}
	answer, known := x.left[question]
	if !known {
		if x.left == nil {
			x.left = map[leaving]bool{}
		}
		answer = ask()
		x.left[question] = answer
	}
	return answer
}

// balances reports whether new connections may go anywhere.
func balances(f *lb.Frontend) bool {
	return slices.ContainsFunc(f.Routes, func(r lb.Route) bool { return r.To != nil })
}

// flow is the relevant part of a conntrack entry.
type flow struct {
	proto lb.Proto
	to    netip.AddrPort // destination as the client sees it
	from  netip.AddrPort // source of answers before translation: the backend
	// replied: something has answered.
	replied bool
}

// untranslated reports whether no frontend redirected the flow.
func (f flow) untranslated() bool { return f.from == f.to }

// plan is the work of one pass. It is immutable, as are the frontends that it shares with the
// index.
type plan struct {
	// proxied as in [Config]: no flow goes to a backend.
	proxied func(lb.Key, netip.AddrPort) bool
	// keys are the suspect keys with their frontends; nil for a deleted one.
	keys map[lb.Key]*lb.Frontend
	// locals are this machine's addresses that answer NodePorts (true), or did until the last pass
	// (false). It is empty if no NodePort is suspect.
	locals map[netip.Addr]bool
	// taken holds local addresses where another frontend has the port of a suspect NodePort.
	taken map[lb.Key]struct{}
}

// hasNodePort reports whether the work is on a NodePort; take then needs the local addresses.
func (x *index) hasNodePort(w work) bool {
	if w == attempts {
		return anyNodePort(x.begun)
	}
	return anyNodePort(x.suspect)
}

func anyNodePort[V any](keys map[lb.Key]V) bool {
	for k := range keys {
		if k.IsNodePort() {
			return true
		}
	}
	return false
}

// take returns the plan for the keys with such work, and clears them. Without locals, NodePorts
// stay.
func (x *index) take(w work, locals map[netip.Addr]struct{}) *plan {
	p := &plan{proxied: x.proxied, keys: map[lb.Key]*lb.Frontend{}, locals: map[netip.Addr]bool{},
		taken: map[lb.Key]struct{}{}}
	for a := range locals {
		if answers := lb.Within(x.nodePorts, a); answers || lb.Within(x.nodePortsBefore, a) {
			p.locals[a] = answers
		}
	}
	if w == attempts {
		x.takeBegun(p, locals != nil)
	} else {
		x.takeSuspect(p, locals != nil)
	}
	return p
}

func (x *index) takeBegun(p *plan, nodePorts bool) {
	later := map[lb.Key]*lb.Frontend{}
	for k, row := range x.begun {
		if k.IsNodePort() && !nodePorts {
			later[k] = row
			continue
		}
		p.keys[k] = row
	}
	x.begun = later
}

func (x *index) takeSuspect(p *plan, nodePorts bool) {
	if nodePorts {
		x.nodePortsBefore = nil
	}
	later := map[lb.Key]struct{}{} // a fresh map: one that was large costs its largest past size
	for k := range x.suspect {
		if !k.IsNodePort() {
			p.keys[k] = x.rows[k]
			continue
		}
		if !nodePorts {
			later[k] = struct{}{}
			continue
		}
		p.keys[k] = x.rows[k]
		for a := range p.locals {
			if at := (lb.Key{Addr: a, Port: k.Port, Proto: k.Proto}); x.rows[at] != nil {
				p.taken[at] = struct{}{}
			}
		}
	}
	x.suspect = later
}

// retry makes a key of the plan suspect again.
func (x *index) retry(k lb.Key, p *plan) {
	if k.Proto != lb.TCP {
		x.suspect[k] = struct{}{}
	} else if _, newer := x.begun[k]; !newer {
		x.begun[k] = p.keys[k]
	}
}

// match returns the suspect key of the flow's destination, and its frontend.
func (p *plan) match(f flow) (lb.Key, *lb.Frontend, bool) {
	k := lb.Key{Addr: f.to.Addr(), Port: f.to.Port(), Proto: f.proto}
	if row, ok := p.keys[k]; ok {
		return k, row, true
	}
	if _, local := p.locals[k.Addr]; !local {
		return k, nil, false
	}
	if _, taken := p.taken[k]; taken {
		return k, nil, false
	}
	k.Addr = netip.Addr{}
	row, ok := p.keys[k]
	return k, row, ok
}

// stale reports whether the flow must be forgotten, and the key that it was made to.
func (p *plan) stale(f flow) (lb.Key, bool) {
	k, row, ok := p.match(f)
	switch {
	case !ok:
		return k, false
	case f.untranslated() && f.replied: // no frontend redirected it, and its server still answers (TN-81)
		return k, false
	case k.IsNodePort() && (row == nil || !p.locals[f.to.Addr()]):
		return k, !f.untranslated() && f.proto != lb.TCP
	case row == nil:
		return k, !f.untranslated()
	case f.proto == lb.TCP: // DP-53, TN-82
		return k, f.untranslated() && !p.answered(k, f)
	case row.Serves(f.from):
		return k, p.proxied != nil // it passes by the proxy
	case p.answered(k, f): // created since the frontend is in force: an answer may be under way
		return k, false
	case f.untranslated(): // made while no route went anywhere (DP-51)
		return k, balances(row)
	}
	return k, true
}

// answered reports whether the proxy of mode userspace answers the flow.
func (p *plan) answered(k lb.Key, f flow) bool { return p.proxied != nil && p.proxied(k, f.from) }

// asks reports whether the plan needs flows of the protocol.
func (p *plan) asks(proto lb.Proto) bool {
	for k := range p.keys {
		if k.Proto == proto {
			return true
		}
	}
	return false
}
