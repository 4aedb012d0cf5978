package userspace

import (
	"net/netip"
	"slices"
	"sync"

	"kube-proxy/lb"
	"kube-proxy/plane/internal/balance"
	"kube-proxy/plane/userspace/redirect"
)

// entrances are the listeners to which rules lead, for queries during writes. A change of endpoints
// alone does not change them.
type entrances struct {
	mu sync.RWMutex
	at map[port]entrance
	of map[entranceName]uint16
	// direct are the NodePorts that are the port of their own listener, so that nothing is
	// translated.
	direct map[port]bool
	// answers are the routes in force of rows without connections, whose flows conntrack may
	// delete.
	answers map[lb.Key][]redirect.Route
}

// entrance is a listener and whom it leads to.
type entrance struct {
	name  entranceName
	leads *balance.Set
}

// entranceName is the set that rules lead to at a listener.
type entranceName struct {
	service string
	proto   lb.Proto
	scope   lb.Scope
}

// String names the set as [lb.SetID] does.
func (n entranceName) String() string {
	return lb.SetID{Service: n.service, Proto: n.proto, Scope: n.scope}.String()
}

// open notes a listener to which rules lead.
func (e *entrances) open(d *door) {
	at, name := d.port(), d.name()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.at == nil {
		e.at, e.of = map[port]entrance{}, map[entranceName]uint16{}
	}
	e.at[at], e.of[name] = entrance{name, d.of.sets[d.scope].turns}, at.number
}

// shut notes that a listener is gone.
func (e *entrances) shut(d *door) {
	at, name := d.port(), d.name()
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.at, at)
	if e.of[name] == at.number {
		delete(e.of, name)
	}
}

// lead notes the routes of a row; none for a row that is gone.
func (e *entrances) lead(k lb.Key, routes []redirect.Route) {
	if !k.IsNodePort() {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.direct, port{k.Proto, k.Port})
	if slices.ContainsFunc(routes, func(r redirect.Route) bool { return r.Port == k.Port }) {
		if e.direct == nil {
			e.direct = map[port]bool{}
		}
		e.direct[port{k.Proto, k.Port}] = true
	}
}

// inForce notes the routes that the redirector has taken for a row; none for a row that is gone.
func (e *entrances) inForce(k lb.Key, routes []redirect.Route) {
	e.lead(k, routes)
	if k.Proto == lb.TCP {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(routes) == 0 {
		delete(e.answers, k)
		return
	}
	if e.answers == nil {
		e.answers = map[lb.Key][]redirect.Route{}
	}
	e.answers[k] = routes
}

// Answers reports whether the proxy listens for a row at a port. The address does not matter:
// either listeners are bound to every address, or to that of the row.
func (p *Plane) Answers(k lb.Key, from netip.AddrPort) bool {
	e := &p.entrances
	e.mu.RLock()
	defer e.mu.RUnlock()
	return slices.ContainsFunc(e.answers[k], func(r redirect.Route) bool { return r.Port != 0 && r.Port == from.Port() })
}

// isDirect reports whether a NodePort is the port of its own listener.
func (e *entrances) isDirect(p lb.Proto, number uint16) bool {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.direct[port{p, number}]
}

// find returns the listener at a port.
func (e *entrances) find(p lb.Proto, number uint16) (found entrance, ok bool) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	found, ok = e.at[port{p, number}]
	return found, ok
}

// port returns the port of a set's listener, 0 for none.
func (e *entrances) port(name entranceName) uint16 {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.of[name]
}

func (d *door) name() entranceName { return entranceName{d.of.name, d.proto, d.scope} }

// port returns the port of a listener to which rules lead.
func (d *door) port() port { return port{d.proto, d.listener.Addr().Port()} }
