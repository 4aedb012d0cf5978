package policy

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"kube-proxy/cluster"
	"kube-proxy/lb"
)

// sets holds the two backend sets of one service port. A nil set has no backend. A local backend is
// also one of the cluster: a nil cluster set means that no endpoint is usable (SV-41).
type sets struct {
	service        string // "ns/name:port"
	cluster, local *lb.BackendSet
	serving        *lb.BackendSet // all serving endpoints; nil for TCP, whose flows are never deleted (DP-53)
}

// sets builds the backend sets for the Service's traffic policies (SV-20).
func (r *resolver) sets(p *cluster.ServicePort) sets {
	out := sets{service: r.portName(p)}
	var buf [2]portGroup
	groups := r.groupsOf(buf[:0], p)
	known := knownOf(groups)
	out.cluster = r.newSet(out.service, p, lb.Cluster, groups, chooseCluster(known))
	if r.svc.InternalPolicy == cluster.PolicyLocal || r.svc.ExternalPolicy == cluster.PolicyLocal {
		out.local = r.newSet(out.service, p, lb.Local, groups, chooseLocal(known))
	}
	if p.Protocol != cluster.TCP {
		// Flows may stay with any candidate, whatever traffic policy and topology select, even if
		// others are ready (DP-50).
		out.serving = r.newSet(out.service, p, lb.Serving, groups, choice{all: true})
	}
	return out
}

// portName returns "ns/name:port", or "ns/name" for a port without a name (SV-12).
func (r *resolver) portName(p *cluster.ServicePort) string {
	if p.Name == "" {
		return r.full
	}
	return r.full + ":" + p.Name
}

// newSet returns the set of the chosen candidates, nil without any.
func (r *resolver) newSet(service string, p *cluster.ServicePort, scope lb.Scope, groups []portGroup,
	ch choice) *lb.BackendSet {
	var all lb.Backends
	for _, g := range groups {
		if chosen := r.chosen(g.group, ch); chosen.Len() > 0 {
			all.Add(g.port, chosen)
		}
	}
	if all.Len() == 0 {
		return nil
	}
	id := lb.SetID{Service: service, Proto: lb.Proto(p.Protocol), Scope: scope}
	return &lb.BackendSet{ID: id, Backends: all}
}

// candidate is the merged data of all slices of a group about one address that may serve.
type candidate struct {
	addr     netip.Addr
	local    bool // a usable entry places it on this node (SV-32)
	unplaced bool // a usable entry has no node (TN-68)
	ready    bool // one of its entries is ready
	draining bool // one is terminating and still serves
	hints    hints
}

// usable reports whether new connections may go to the candidate. Otherwise it only keeps its
// flows.
func (c *candidate) usable() bool { return c.ready || c.draining }

// group holds the endpoints of the slices that give a port the same number. An entry is usable if
// it is ready, or terminating and still serving. An entry that serves but is neither ready nor
// terminating, which the API does not foresee, only keeps flows (DP-50); others have no effect.
// Entries for the same address are merged across slices (SV-32): one that is on this node or ready
// is enough, and hints of the ready ones add up.
type group struct {
	from, to int // the candidates in resolver.candidates, sorted by address
	known
	chosen []chosen
	first  [1]chosen // room for chosen; most groups need no more
}

// chosen holds the endpoints of a group that a choice takes.
type chosen struct {
	choice
	endpoints lb.Endpoints
}

// portGroup is a group with the number that its slices give a port.
type portGroup struct {
	port uint16
	*group
}

// groupsOf appends the groups of a service port to groups, sorted by the port's number in them.
// Ports with the same slices share groups, so work and memory are proportional to endpoints, not to
// endpoints times ports.
func (r *resolver) groupsOf(groups []portGroup, p *cluster.ServicePort) []portGroup {
	var buf [8]servedPort
	served := r.served(buf[:0], p)
	slices.SortFunc(served, servedPort.compare)
	served = slices.Compact(served)
	for len(served) > 0 {
		n := 1
		for n < len(served) && served[n].port == served[0].port {
			n++
		}
		groups = append(groups, portGroup{served[0].port, r.group(served[:n])})
		served = served[n:]
	}
	return groups
}

// group returns the group of these slices.
func (r *resolver) group(of []servedPort) *group {
	if len(r.svc.Ports) == 1 {
		return r.newGroup(of)
	}
	var buf [64]byte
	key := buf[:0]
	for _, s := range of {
		key = binary.NativeEndian.AppendUint32(key, uint32(s.slice))
	}
	g := r.groups[string(key)]
	if g == nil {
		if r.groups == nil {
			r.groups = map[string]*group{}
		}
		g = r.newGroup(of)
		r.groups[string(key)] = g
	}
	return g
}

func (r *resolver) newGroup(of []servedPort) *group {
	from, n := len(r.candidates), 0
	for _, s := range of {
		n += r.view.Slices[s.slice].Endpoints.Len()
	}
	r.candidates = slices.Grow(r.candidates, n)
	for _, s := range of {
		r.appendSlice(r.view.Slices[s.slice])
	}
	all := r.candidates[from:]
	slices.SortFunc(all, func(a, b candidate) int { return a.addr.Compare(b.addr) })
	r.candidates = r.candidates[:from+len(mergeCopies(all))]
	g := &group{from: from, to: len(r.candidates), known: noneKnown}
	g.chosen = g.first[:0]
	for i := range r.in(g) {
		g.see(&r.in(g)[i])
	}
	return g
}

// appendSlice appends the candidates of one slice.
func (r *resolver) appendSlice(sl *cluster.Slice) {
	facts := &r.view.Node
	for i := range sl.Endpoints.Len() {
		e := sl.Endpoints.At(i)
		if !r.counts(&e) {
			continue
		}
		c := candidate{addr: e.Addr, ready: e.Ready, draining: e.Serving && e.Terminating}
		if e.Ready {
			c.hints = hintsOf(&e, facts)
		}
		if c.usable() {
			c.local, c.unplaced = e.OnNode(facts.NodeName), e.Place().Node == ""
		}
		r.candidates = append(r.candidates, c)
	}
}

// counts reports whether an entry of a slice becomes a candidate.
func (r *resolver) counts(e *cluster.Endpoint) bool {
	return (e.Ready || e.Serving) && r.settings.serves(e.Addr, asEndpoint)
}

// mergeCopies merges neighbours with the same address, in place.
func mergeCopies(sorted []candidate) []candidate {
	out := sorted[:0]
	for _, c := range sorted {
		if n := len(out); n > 0 && out[n-1].addr == c.addr {
			last := &out[n-1]
			last.local, last.unplaced = last.local || c.local, last.unplaced || c.unplaced
			last.ready = last.ready || c.ready
			last.draining = last.draining || c.draining
			last.hints |= c.hints
			continue
		}
		out = append(out, c)
	}
	return out
}

// in returns the candidates of a group.
func (r *resolver) in(g *group) []candidate { return r.candidates[g.from:g.to] }

// known holds properties of all candidates of a port that the choices depend on.
type known struct {
	ready, localReady bool  // one is ready; one on this node is
	every, some       hints // hints of every ready candidate, and hints of at least one
}

// knownOf returns the properties of the candidates of the groups.
func knownOf(groups []portGroup) known {
	k := noneKnown
	for _, g := range groups {
		k.ready, k.localReady = k.ready || g.ready, k.localReady || g.localReady
		k.every, k.some = k.every&g.every, k.some|g.some
	}
	return k
}

// noneKnown holds the properties of an empty set of candidates.
var noneKnown = known{every: hasNodes | hasZones}

func (k *known) see(c *candidate) {
	if c.ready {
		k.ready, k.localReady = true, k.localReady || c.local
		k.every, k.some = k.every&c.hints, k.some|c.hints
	}
}

// choice selects the candidates of a backend set.
type choice struct {
	all      bool  // every candidate, whatever is known of it
	here     bool  // only those on this node
	draining bool  // the terminating ones that still serve, because none is ready
	hints    hints // only ready ones with all these hints
}

// takes reports whether the set has the candidate.
func (ch choice) takes(c *candidate) bool {
	switch {
	case ch.all:
		return true
	case ch.here && !c.local:
		return false
	case ch.draining:
		return c.draining
	}
	return c.ready && c.hints&ch.hints == ch.hints
}

// chooseCluster selects the ready endpoints by topology hints, or, if none is ready, the
// terminating ones that still serve, whatever their hints (SV-36).
func chooseCluster(k known) choice { return choice{hints: chooseHints(k), draining: !k.ready} }

// chooseLocal selects the ready endpoints on this node, or, without any, the terminating ones on
// this node that still serve (SV-37).
func chooseLocal(k known) choice { return choice{here: true, draining: !k.localReady} }

// chosen returns the endpoints of a group that the choice takes, always the same list.
func (r *resolver) chosen(g *group, ch choice) lb.Endpoints {
	for i := range g.chosen {
		if g.chosen[i].choice == ch {
			return g.chosen[i].endpoints
		}
	}
	endpoints := choose(r.in(g), ch)
	g.chosen = append(g.chosen, chosen{ch, endpoints})
	return endpoints
}

// choose returns the selected candidates, nearly always all.
func choose(all []candidate, ch choice) lb.Endpoints {
	leaves := func(c candidate) bool { return !ch.takes(&c) }
	if slices.ContainsFunc(all, leaves) {
		all = slices.DeleteFunc(slices.Clone(all), leaves)
	}
	return lb.EndpointsBy(len(all), func(i int) lb.Endpoint {
		c := &all[i]
		if ch.all {
			return lb.Endpoint{Addr: c.addr}
		}
		return lb.Endpoint{Addr: c.addr, Local: c.local, Unplaced: c.unplaced && !c.local, Draining: !c.ready}
	})
}
