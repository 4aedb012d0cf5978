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

	mu      sync.Mutex
	to      map[portsKey]*Budget
	clients map[clientPortsKey]*clientPorts
}

// portsKey identifies a set of source ports: that of one backend, or of all backends for SCTP,
// whose sockets are bound before they connect.
type portsKey struct {
	proto   lb.Proto
	backend netip.AddrPort
}

// clientPortsKey identifies one client's part of them.
type clientPortsKey struct {
	portsKey
	client netip.Addr
}

// clientPorts is one client's part of a set.
type clientPorts struct {
	Share
	key clientPortsKey
}

// take takes a port for a connection of a client; nil if the client has its share.
func (p *sourcePorts) take(proto lb.Proto, backend netip.AddrPort, client netip.Addr) *clientPorts {
	key := clientPortsKey{portsKey{proto, backend}, client}
	if proto == lb.SCTP {
		key.backend = netip.AddrPort{}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.to[key.portsKey] == nil {
		p.to[key.portsKey] = &Budget{max: p.most}
	}
	c := p.clients[key]
	if c == nil {
		c = &clientPorts{key: key}
		p.clients[key] = c
	}
	if !p.to[key.portsKey].Take(&c.Share, 1) {
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
	p.to[c.key.portsKey].Give(&c.Share, 1)
	p.forget(c)
}

// forget deletes unused entries.
func (p *sourcePorts) forget(c *clientPorts) {
	if c.Used() == 0 {
		delete(p.clients, c.key)
	}
	if p.to[c.key.portsKey].Used() == 0 {
		delete(p.to, c.key.portsKey)
	}
}
