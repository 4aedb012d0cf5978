//go:build linux

package ipvs

import (
	"context"
	"fmt"
	"math"
	"sync"

	"kube-proxy/internal/kernel"
	"kube-proxy/internal/netlink/ipvs"
	"kube-proxy/mode"
)

// Counters is the connection from which [Plane.Traffic] reads, beside the plane's writes: a
// separate ipvs.Conn.
type Counters interface {
	Services(ctx context.Context, f func(ipvs.ServiceState) error) error
}

// counters maps virtual servers to service ports (docs/adr/0069). The kernel always counts;
// counters record where each count began. A recreated virtual server gets a new number.
type counters struct {
	on bool

	mu      sync.Mutex
	last    uint64 // the number that the last counter got
	reading int    // the number of the current or last reading
	of      map[ipvs.ServiceID]*counter
}

// counter belongs to one virtual server.
type counter struct {
	number uint64
	port   string       // the service port; "" before it had backends
	base   mode.Traffic // the kernel's count when we found it
	beyond mode.Traffic // what was counted since
	since  int          // the reading in progress, or the last one, when it was recorded
}

// unknownCount is the base of a counter that another program created: the first reading replaces
// it.
var unknownCount = mode.Traffic{Connections: math.MaxUint64, Bytes: math.MaxUint64}

// trafficOf returns what the kernel counts, with the bytes of both directions and their IP headers.
func trafficOf(s ipvs.Stats) mode.Traffic {
	return mode.Traffic{Connections: s.Conns, Bytes: s.InBytes + s.OutBytes}
}

// follow records the new state of a virtual server.
func (c *counters) follow(s *virtual) {
	if !c.on {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	is := c.of[s.id]
	switch {
	case !s.has:
		delete(c.of, s.id)
		return
	case is == nil || s.made:
		c.last++
		is = &counter{number: c.last, base: s.found, since: c.reading}
		if s.made {
			is.base = mode.Traffic{}
		}
		c.of[s.id] = is
	}
	s.made = false
	if port := s.port(); port != "" {
		is.port = port
	}
}

// port returns the service port of a virtual server, or "" if it has no backends.
func (s *virtual) port() string {
	if s.set != nil {
		return s.set.ID.Service
	}
	return ""
}

// keep forgets virtual servers that are not in the ledger: they were removed while the state was
// unknown.
func (c *counters) keep(l *ledger) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id := range c.of {
		if s := l.servers[id]; s == nil || !s.has {
			delete(c.of, id)
		}
	}
}

// begin begins a reading.
func (c *counters) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reading++
}

// saw records the kernel's count of any virtual server. The list may show the previous state of one
// that was created since the reading began.
func (c *counters) saw(s *ipvs.ServiceState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	is := c.of[s.ServiceID]
	if is == nil || is.since == c.reading {
		return
	}
	now := trafficOf(s.Stats)
	if now.Connections < is.base.Connections || now.Bytes < is.base.Bytes { // another program recreated it
		is.base = now
	}
	is.beyond = mode.Traffic{Connections: now.Connections - is.base.Connections, Bytes: now.Bytes - is.base.Bytes}
}

// counts returns the last reading of each virtual server: one list may lack some (package
// netlink/ipvs).
func (c *counters) counts() []mode.Count {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]mode.Count, 0, len(c.of))
	for _, is := range c.of {
		if is.beyond != (mode.Traffic{}) {
			id := mode.CounterID{N: is.number}
			all = append(all, mode.Count{CounterID: id, ServicePort: is.port, Traffic: is.beyond})
		}
	}
	return all
}

// Counts implements [mode.TrafficCounter].
func (p *Plane) Counts() bool { return p.counters.on }

// Traffic implements [mode.TrafficCounter] with the traffic of virtual servers, as of two seconds
// ago. The kernel also lists virtual servers of other programs and of the other family.
func (p *Plane) Traffic(ctx context.Context, f func(mode.Count)) error {
	if !p.counters.on {
		return nil
	}
	p.counters.begin()
	err := p.cfg.Counters.Services(ctx, func(s ipvs.ServiceState) error {
		p.counters.saw(&s)
		return ctx.Err()
	})
	for _, n := range p.counters.counts() {
		f(n)
	}
	if err != nil {
		return fmt.Errorf("ipvs: read the counters: %w", err)
	}
	return nil
}

// counting reports whether the kernel updates its counters.
func counting() bool {
	v, err := kernel.Sysctl("net.ipv4.vs.run_estimation")
	return err != nil || v != "0" // kernels before 6.2 have no such setting, and count
}
