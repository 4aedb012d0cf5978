package userspace

import (
	"net/netip"
	"slices"
	"sync"

	"kube-proxy/lb"
	"kube-proxy/plane/internal/relay"
	"kube-proxy/plane/userspace/capture"
)

// entrances are the listeners that there are, for who asks while rows are written. A change of endpoints alone does not touch them.
type entrances struct {
	mu sync.RWMutex
	at map[relay.Listening]entrance
	// of are the ports of those to which rules lead.
	of map[entranceName]uint16
	// refused are the rows that nothing listens for, where listeners are at service addresses.
	refused map[lb.Key]bool
	// direct are the NodePorts that are the port of their own listener, where rules lead to listeners: nothing is translated.
	direct map[lb.Key]bool
}

// entrance is a listener and whom it leads to.
type entrance struct {
	name  entranceName
	leads relay.Balancer
}

// entranceName is the set that rules lead to at a listener; of one at a service address, the scope is 0.
type entranceName struct {
	service string
	proto   lb.Proto
	scope   lb.Scope
}

// open notes a listener, or that it leads to others now.
func (e *entrances) open(d *door, leads relay.Balancer, of *service) {
	at, name := d.listening(), entranceName{of.name, of.proto, d.scope}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.at == nil {
		e.at, e.of = map[relay.Listening]entrance{}, map[entranceName]uint16{}
	}
	e.at[at] = entrance{name, leads}
	if !d.at.IsValid() {
		e.of[name] = at.Addr.Port()
	}
}

// shut notes that a listener is gone.
func (e *entrances) shut(d *door, of *service) {
	at, name := d.listening(), entranceName{of.name, of.proto, d.scope}
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.at, at)
	if !d.at.IsValid() && e.of[name] == at.Addr.Port() {
		delete(e.of, name)
	}
}

// refuse notes whether a row is one that nothing listens for.
func (e *entrances) refuse(k lb.Key, is bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !is {
		delete(e.refused, k)
		return
	}
	if e.refused == nil {
		e.refused = map[lb.Key]bool{}
	}
	e.refused[k] = true
}

// lead notes a row that is led to listeners, or with no routes that it no longer is.
func (e *entrances) lead(k lb.Key, routes []capture.Route) {
	if !k.IsNodePort() {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.direct, k)
	if slices.ContainsFunc(routes, func(r capture.Route) bool { return r.Port == k.Port }) {
		if e.direct == nil {
			e.direct = map[lb.Key]bool{}
		}
		e.direct[k] = true
	}
}

// isDirect reports whether a NodePort is the port of its own listener.
func (e *entrances) isDirect(p lb.Proto, port uint16) bool {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.direct[lb.Key{Port: port, Proto: p}]
}

// refuses reports whether there is a row for the address that nothing listens for.
func (e *entrances) refuses(p lb.Proto, to netip.AddrPort) bool {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.refused[lb.Key{Addr: to.Addr(), Port: to.Port(), Proto: p}] || e.refused[lb.Key{Port: to.Port(), Proto: p}]
}

// find returns the listener that a packet to an address reaches: one at the address itself, or else one at all.
func (e *entrances) find(p lb.Proto, to netip.AddrPort) (at relay.Listening, found entrance, ok bool) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	for _, a := range []netip.Addr{to.Addr(), anyOf(lb.FamilyOf(to.Addr()))} {
		at = relay.Listening{Proto: p, Addr: netip.AddrPortFrom(a, to.Port())}
		if found, ok = e.at[at]; ok {
			return at, found, true
		}
	}
	return at, found, false
}

// port is where rules lead to for a set; 0 if nothing listens.
func (e *entrances) port(name entranceName) uint16 {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.of[name]
}

// listening is where the listener is, by its address.
func (d *door) listening() relay.Listening {
	if d.at.IsValid() {
		return relay.Listening{Proto: d.proto, Addr: d.at}
	}
	a := d.listener.Addr()
	return relay.Listening{Proto: d.proto, Addr: netip.AddrPortFrom(anyOf(lb.FamilyOf(a.Addr().Unmap())), a.Port())}
}

func anyOf(f lb.Family) netip.Addr {
	if f == lb.IPv6 {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}
