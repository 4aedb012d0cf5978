//go:build linux

package ipvs

// Stats are the sizes of a plane's state, for its family.
type Stats struct {
	// Draining counts the virtual servers with real servers that take no new connections.
	VirtualServers, Draining int
	// Members counts those of all ipsets, and Addresses those of Services, wherever they are bound.
	Members, Addresses int
}

// publish updates Stats.
func (p *Plane) publish() {
	if p.l == nil {
		return
	}
	p.stats.Store(&Stats{VirtualServers: len(p.l.servers), Draining: len(p.drains), Members: len(p.l.members),
		Addresses: len(p.l.addrs)})
}

// Stats returns the sizes after the last finished write. Any goroutine may call it.
func (p *Plane) Stats() Stats { return *p.stats.Load() }
