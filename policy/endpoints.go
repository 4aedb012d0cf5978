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
	out.cluster = r.newSet(out.service, p, lb.Cluster, groups, chooseCluster(groups))
	if r.svc.InternalPolicy == cluster.PolicyLocal || r.svc.ExternalPolicy == cluster.PolicyLocal {
		out.local = r.newSet(out.service, p, lb.Local, groups, chooseLocal(groups))
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
	running  bool // one is neither ready nor terminating: a pod that has the address now
	serving  bool // such an entry serves all the same
	hints    hints
	avoided  avoidance // of all usable entries
}

// usable reports whether new connections may go to the candidate. Otherwise it only keeps its
// flows.
func (c *candidate) usable() bool { return c.ready || c.draining }

// settle takes a terminating pod out of a candidate whose address a running pod has that is not
// ready, and reports whether the candidate still counts.
func (c *candidate) settle() bool {
	if c.running && !c.ready {
		c.draining = false
		return c.serving
	}
	return true
}

// group holds the endpoints of the slices that give a port the same number. An entry is usable if
// it is ready, or terminating and still serving. An entry that serves but is neither ready nor
// terminating, which the API does not foresee, only keeps flows (DP-50); others have no effect.
// Entries for the same address are merged across slices (SV-32): one that is on this node or ready
// is enough, and hints of the ready ones add up. Without a ready one, a running pod precedes a
// terminating one.
type group struct {
	from, to   int   // the candidates in resolver.candidates, sorted by address
	known      known // without the avoided candidates
	everything known
	chosen     []chosen
	first      [1]chosen // room for chosen; most groups need no more
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
		groups = append(groups, portGroup{served[0].port, r.group(served[:n], p.Protocol)})
		served = served[n:]
	}
	return groups
}

// group returns the group of these slices.
func (r *resolver) group(of []servedPort, proto cluster.Protocol) *group {
	if len(r.svc.Ports) == 1 {
		return r.newGroup(of, proto)
	}
	var buf [64]byte
	key := buf[:0]
	for _, s := range of {
		key = binary.NativeEndian.AppendUint32(key, uint32(s.slice))
	}
	key = r.fingerprint(key, of, proto)
	g := r.groups[string(key)]
	if g == nil {
		if r.groups == nil {
			r.groups = map[string]*group{}
		}
		g = r.newGroup(of, proto)
		r.groups[string(key)] = g
	}
	return g
}

func (r *resolver) newGroup(of []servedPort, proto cluster.Protocol) *group {
	from, n := len(r.candidates), 0
	for _, s := range of {
		n += r.view.Slices[s.slice].Endpoints.Len()
	}
	r.candidates = slices.Grow(r.candidates, n)
	for _, s := range of {
		r.appendSlice(r.view.Slices[s.slice], s.port, proto)
	}
	all := r.candidates[from:]
	slices.SortFunc(all, func(a, b candidate) int { return a.addr.Compare(b.addr) })
	r.candidates = r.candidates[:from+len(mergeCopies(all))]
	g := &group{from: from, to: len(r.candidates), known: noneKnown, everything: noneKnown}
	g.chosen = g.first[:0]
	if !r.view.Node.Unreachable.IsZero() {
		keepHalf(r.in(g))
	}
	for i := range r.in(g) {
		c := &r.in(g)[i]
		g.everything.see(c)
		if c.avoided == reached {
			g.known.see(c)
		}
	}
	return g
}

// appendSlice appends the candidates of one slice.
func (r *resolver) appendSlice(sl *cluster.Slice, port uint16, proto cluster.Protocol) {
	facts := &r.view.Node
	avoids := !facts.Unreachable.IsZero()
	for i := range sl.Endpoints.Len() {
		e := sl.Endpoints.At(i)
		running := !e.Ready && !e.Terminating
		if !r.counts(&e) && !(running && r.settings.serves(e.Addr, asEndpoint)) {
			continue
		}
		c := candidate{addr: e.Addr, ready: e.Ready, draining: e.Serving && e.Terminating, running: running,
			serving: running && e.Serving}
		if e.Ready {
			c.hints = hintsOf(&e, facts)
		}
		if c.usable() {
			c.local, c.unplaced = e.OnNode(facts.NodeName), e.Place().Node == ""
			if avoids {
				c.avoided = r.avoidanceOf(&e, port, proto)
			}
		}
		r.candidates = append(r.candidates, c)
	}
}

// counts reports whether an entry of a slice makes a candidate by itself.
func (r *resolver) counts(e *cluster.Endpoint) bool {
	return (e.Ready || e.Serving) && r.settings.serves(e.Addr, asEndpoint)
}

// mergeCopies merges neighbours with the same address, in place, and leaves out those that do not
// count.
func mergeCopies(sorted []candidate) []candidate {
	out := sorted[:0]
	for _, c := range sorted {
		if n := len(out); n > 0 && out[n-1].addr == c.addr {
			last := &out[n-1]
			switch {
			case !last.usable():
				last.avoided = c.avoided
			case c.usable():
				last.avoided = min(last.avoided, c.avoided)
			}
			last.local, last.unplaced = last.local || c.local, last.unplaced || c.unplaced
			last.ready = last.ready || c.ready
			last.draining = last.draining || c.draining
			last.running, last.serving = last.running || c.running, last.serving || c.serving
			last.hints |= c.hints
			continue
		}
		out = append(out, c)
	}
	kept := out[:0]
	for _, c := range out {
		if c.settle() {
			kept = append(kept, c)
		}
	}
	return kept
}

// in returns the candidates of a group.
func (r *resolver) in(g *group) []candidate { return r.candidates[g.from:g.to] }

// known holds properties of all candidates of a port that the choices depend on.
type known struct {
	ready, localReady       bool  // one is ready; one on this node is
	draining, localDraining bool  // one terminates and still serves; one on this node does
	every, some             hints // hints of every ready candidate, and hints of at least one
}

// knownOf returns the properties of the candidates of the groups, of all or of those that are not
// avoided.
func knownOf(groups []portGroup, avoided bool) known {
	k := noneKnown
	for _, g := range groups {
		o := &g.known
		if avoided {
			o = &g.everything
		}
		k.ready, k.localReady = k.ready || o.ready, k.localReady || o.localReady
		k.draining, k.localDraining = k.draining || o.draining, k.localDraining || o.localDraining
		k.every, k.some = k.every&o.every, k.some|o.some
	}
	return k
}

// noneKnown holds the properties of an empty set of candidates.
var noneKnown = known{every: hasNodes | hasZones}

func (k *known) see(c *candidate) {
	if c.draining {
		k.draining, k.localDraining = true, k.localDraining || c.local
	}
	if c.ready {
		k.ready, k.localReady = true, k.localReady || c.local
		k.every, k.some = k.every&c.hints, k.some|c.hints
	}
}

// choice selects the candidates of a backend set.
type choice struct {
	all      bool  // every candidate, whatever is known of it
	here     bool  // only those on this node
	avoided  bool  // also avoided ones, because no other is left
	draining bool  // the terminating ones that still serve, because none is ready
	hints    hints // only ready ones with all these hints
}

// takes reports whether the set has the candidate.
func (ch choice) takes(c *candidate) bool {
	switch {
	case ch.all:
		return true
	case ch.here && !c.local, !ch.avoided && c.avoided != reached:
		return false
	case ch.draining:
		return c.draining
	}
	return c.ready && c.hints&ch.hints == ch.hints
}

// chooseCluster selects the ready endpoints by topology hints, or, if none is ready, the
// terminating ones that still serve, whatever their hints (SV-36). Avoided endpoints count only if
// no other is left (FO-06).
func chooseCluster(groups []portGroup) choice {
	k, avoided := knownOf(groups, false), false
	if !k.ready && !k.draining {
		k, avoided = knownOf(groups, true), true
	}
	return choice{hints: chooseHints(k), draining: !k.ready, avoided: avoided}
}

// chooseLocal selects the ready endpoints on this node, or, without any, the terminating ones on
// this node that still serve (SV-37). Avoided endpoints count only if no other is left there.
func chooseLocal(groups []portGroup) choice {
	k, avoided := knownOf(groups, false), false
	if !k.localReady && !k.localDraining {
		k, avoided = knownOf(groups, true), true
	}
	return choice{here: true, draining: !k.localReady, avoided: avoided}
}

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
