//go:build linux

package ipvs

import "sync/atomic"

// Stats are sizes of what a plane holds.
type Stats struct {
	VirtualServers, Draining, Members, Addresses int
}

type stats struct{ atomic.Pointer[Stats] }

// publish has Stats return what there is now.
func (p *Plane) publish() {
	if p.l == nil {
		return
	}
	p.stats.Store(&Stats{VirtualServers: len(p.l.servers), Draining: len(p.drains), Members: len(p.l.members), Addresses: len(p.l.addrs)})
}

// Stats returns the sizes after the last write that has ended. It may be called from any goroutine.
func (p *Plane) Stats() Stats {
	if s := p.stats.Load(); s != nil {
		return *s
	}
	return Stats{}
}
