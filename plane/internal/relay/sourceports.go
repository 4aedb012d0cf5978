package relay

import (
	"errors"
	"net/netip"
	"sync"

	"kube-proxy/lb"
)

// errPorts says why a client goes to another backend although the node has ports left.
var errPorts = errors.New("the client has its share of the source ports towards the backend")

// sourcePorts divides the source ports towards each backend among clients: one client with many
// idle connections leaves some for the others. It only keeps clients that have connections.
type sourcePorts struct {
	most int64 // towards one backend

	mu sync.Mutex
	to map[portsKey]*portsTo
}

// portsKey identifies a set of source ports: that of one backend, or of all backends for SCTP,
// whose sockets are bound before they connect.
type portsKey struct {
	proto   lb.Proto
	backend netip.AddrPort
}

// portsTo is the source ports towards one backend.
type portsTo struct {
	key     portsKey
	budget  Budget
	clients map[netip.Addr]*clientPorts
}

// clientPorts is one client's part of them.
type clientPorts struct {
	Share
	of     *portsTo
	client netip.Addr
}

// take takes a port for a connection of a client; nil if the client has its share.
func (p *sourcePorts) take(proto lb.Proto, backend netip.AddrPort, client netip.Addr) *clientPorts {
	key := portsKey{proto, backend}
	if proto == lb.SCTP {
		key.backend = netip.AddrPort{}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	to := p.to[key]
	if to == nil {
		to = &portsTo{key: key, budget: Budget{max: p.most}, clients: map[netip.Addr]*clientPorts{}}
		p.to[key] = to
	}
	c := to.clients[client]
	if c == nil {
		c = &clientPorts{of: to, client: client}
		to.clients[client] = c
	}
	if !to.budget.Take(&c.Share, 1) {
		p.forget(c)
		return nil
	}
	return c
}

// give returns a port. It ignores nil.
func (p *sourcePorts) give(c *clientPorts) {
	if c == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	c.of.budget.Give(&c.Share, 1)
	p.forget(c)
}

// forget deletes unused entries.
func (p *sourcePorts) forget(c *clientPorts) {
	if c.Used() == 0 {
		delete(c.of.clients, c.client)
	}
	if len(c.of.clients) == 0 {
		delete(p.to, c.of.key)
	}
}
