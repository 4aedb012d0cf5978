package policy

import (
	"net/netip"
	"slices"

	"kube-proxy/cluster"
	"kube-proxy/lb"
)

// sets are the two backend sets of one service port. A nil set has no backend. If there is a local backend,
// there is one in the cluster: that cluster is nil means that no usable endpoint is anywhere (SV-41).
type sets struct {
	service        string // "ns/name:port"
	cluster, local *lb.BackendSet
	serving        *lb.BackendSet // all that serves; nil for TCP, whose flows nobody forgets (DP-53)
}

// sets builds the sets that the service's traffic policies need (SV-20).
func (r *resolver) sets(p *cluster.ServicePort) sets {
	out := sets{service: r.portName(p)}
	var buf [16]candidate
	all := r.candidates(buf[:0], p)
	out.cluster = newSet(out.service, p, lb.Cluster, backends(all, chooseCluster(all)))
	if r.svc.InternalPolicy == cluster.PolicyLocal || r.svc.ExternalPolicy == cluster.PolicyLocal {
		out.local = newSet(out.service, p, lb.Local, backends(all, chooseLocal(all)))
	}
	if p.Protocol != cluster.TCP {
		out.serving = newSet(out.service, p, lb.Serving, servingBackends(all))
	}
	return out
}

// portName is "ns/name:port", or "ns/name" where the port has no name (SV-12).
func (r *resolver) portName(p *cluster.ServicePort) string {
	if p.Name == "" {
		return r.full
	}
	return r.full + ":" + p.Name
}

func newSet(service string, p *cluster.ServicePort, scope lb.Scope, backends []lb.Backend) *lb.BackendSet {
	if len(backends) == 0 {
		return nil
	}
	id := lb.SetID{Service: service, Proto: lb.Proto(p.Protocol), Scope: scope}
	return &lb.BackendSet{ID: id, Backends: backends}
}

// candidate is what all slices together say of one address and port that may serve.
type candidate struct {
	addr     netip.AddrPort
	local    bool // one of its usable entries says that it runs on this node (SV-32)
	ready    bool // one of its entries is ready
	draining bool // one is terminating and still serves
	hints    hints
}

// usable reports whether new connections may go to the candidate. Else it only keeps the flows that it has.
func (c *candidate) usable() bool { return c.ready || c.draining }

// candidates appends to buf the endpoints of the port that serve, sorted by address and port. An entry is
// usable if it is ready, or terminating and still serving. One that serves but is neither, which the API does
// not foresee, says no more than that (DP-50); others have no effect. Entries for the same address and
// port are merged, whatever slices they stand in (SV-32): one that says "on this node" or "ready" is
// believed, and hints of the ready ones add up.
func (r *resolver) candidates(buf []candidate, p *cluster.ServicePort) []candidate {
	for sl, port := range r.served(p) {
		buf = r.appendSlice(buf, sl, port)
	}
	slices.SortFunc(buf, func(a, b candidate) int { return a.addr.Compare(b.addr) })
	return mergeCopies(buf)
}

// appendSlice appends the usable endpoints of one slice.
func (r *resolver) appendSlice(buf []candidate, sl *cluster.Slice, port uint16) []candidate {
	facts := &r.view.Node
	for i := range sl.Endpoints {
		e := &sl.Endpoints[i]
		if !r.counts(e) {
			continue
		}
		c := candidate{addr: netip.AddrPortFrom(e.Addr, port), ready: e.Ready, draining: e.Serving && e.Terminating}
		if e.Ready {
			c.hints = hintsOf(e, facts)
		}
		if c.usable() {
			c.local = e.OnNode(facts.NodeName)
		}
		buf = append(buf, c)
	}
	return buf
}

// counts reports whether an entry of a slice makes a candidate.
func (r *resolver) counts(e *cluster.Endpoint) bool {
	return (e.Ready || e.Serving) && r.settings.serves(e.Addr, asEndpoint)
}

// mergeCopies merges neighbours with the same address and port, in place.
func mergeCopies(sorted []candidate) []candidate {
	out := sorted[:0]
	for _, c := range sorted {
		if n := len(out); n > 0 && out[n-1].addr == c.addr {
			last := &out[n-1]
			last.local = last.local || c.local
			last.ready = last.ready || c.ready
			last.draining = last.draining || c.draining
			last.hints |= c.hints
			continue
		}
		out = append(out, c)
	}
	return out
}

// choice says which candidates a backend set has.
type choice struct {
	here     bool  // only those on this node
	draining bool  // the terminating ones that still serve, for none is ready
	hints    hints // only those of the ready ones that have all of these
}

// takes reports whether the set has the candidate.
func (ch choice) takes(c *candidate) bool {
	switch {
	case ch.here && !c.local:
		return false
	case ch.draining:
		return c.draining
	}
	return c.ready && c.hints&ch.hints == ch.hints
}

// chooseCluster takes the ready endpoints that the topology hints choose, or, if none is ready, the
// terminating ones that still serve, whatever their hints (SV-36).
func chooseCluster(all []candidate) choice {
	ready := false
	for i := range all {
		ready = ready || all[i].ready
	}
	return choice{hints: chooseHints(all), draining: !ready}
}

// chooseLocal takes the ready endpoints on this node, or, if there are none, the terminating ones on this
// node that still serve (SV-37).
func chooseLocal(all []candidate) choice {
	ready := false
	for i := range all {
		ready = ready || all[i].ready && all[i].local
	}
	return choice{here: true, draining: !ready}
}

// servingBackends are all candidates: flows may stay with any of them, whatever traffic policy and topology
// say and although others are ready (DP-50).
func servingBackends(all []candidate) []lb.Backend {
	if len(all) == 0 {
		return nil
	}
	out := make([]lb.Backend, len(all))
	for i := range all {
		out[i].Addr = all[i].addr
	}
	return out
}

// backends returns the candidates that the choice takes, nil if it takes none.
func backends(all []candidate, ch choice) []lb.Backend {
	n := 0
	for i := range all {
		if ch.takes(&all[i]) {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	out := make([]lb.Backend, 0, n)
	for i := range all {
		if c := &all[i]; ch.takes(c) {
			out = append(out, lb.Backend{Addr: c.addr, Local: c.local, Draining: !c.ready})
		}
	}
	return out
}
