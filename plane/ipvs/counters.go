//go:build linux

package ipvs

import (
	"context"
	"fmt"
	"math"
	"os"
	"strings"
	"sync"

	"kube-proxy/internal/netlink/ipvs"
	"kube-proxy/mode"
)

// Counters is what [Plane.Traffic] reads, beside the writes of the plane: an ipvs.Conn of its own.
type Counters interface {
	Services(ctx context.Context, f func(ipvs.ServiceState) error) error
}

// counters maps virtual servers to service ports (docs/adr/0069). The kernel always counts;
// counters know where a count begins. A virtual server that was made again has another number.
type counters struct {
	on bool

	mu      sync.Mutex
	last    uint64 // the number that a counter got last
	reading int    // which reading is under way, or was last
	of      map[ipvs.ServiceID]*counter
}

// counter is that of a virtual server.
type counter struct {
	number uint64
	port   string // the service port; "" while it had no backends
	base   uint64 // what the kernel had counted before it was known here
	conns  uint64 // beyond that
	since  int    // the reading that was under way, or the last, when it was noted
}

// unknownCount is the base of a counter that others began: its value at the first reading.
const unknownCount = math.MaxUint64

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
		if c.of == nil {
			c.of = map[ipvs.ServiceID]*counter{}
		}
		c.last++
		is = &counter{number: c.last, base: s.found, since: c.reading}
		if s.made {
			is.base = 0
		}
		c.of[s.id] = is
	}
	s.made = false
	if port := s.port(); port != "" {
		is.port = port
	}
}

// port is the service port that a virtual server leads to, "" if it leads nowhere.
func (s *virtual) port() string {
	if s.set != nil {
		return s.set.ID.Service
	}
	return ""
}

// keep forgets virtual servers that are not in the ledger: they went while the state was unknown.
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

// saw records the kernel's count of a virtual server of anybody. One that was made since the
// reading began may be listed as it was before.
func (c *counters) saw(s *ipvs.ServiceState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	is := c.of[s.ServiceID]
	if is == nil || is.since == c.reading {
		return
	}
	is.base = min(is.base, s.Stats.Conns) // less: others had it begin anew
	is.conns = s.Stats.Conns - is.base
}

// counts returns the last reading of each virtual server: a list may lack some (package
// netlink/ipvs).
func (c *counters) counts() []mode.Count {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]mode.Count, 0, len(c.of))
	for _, is := range c.of {
		if is.conns > 0 {
			all = append(all, mode.Count{CounterID: mode.CounterID{N: is.number}, ServicePort: is.port, Traffic: mode.Traffic{Connections: is.conns}})
		}
	}
	return all
}

// Counts is part of [mode.TrafficCounter].
func (p *Plane) Counts() bool { return p.counters.on }

// Traffic is part of [mode.TrafficCounter]: connections to real servers, as of two seconds ago. The
// kernel lists virtual servers of others and of the other family too.
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
	b, err := os.ReadFile("/proc/sys/net/ipv4/vs/run_estimation")
	return err != nil || strings.TrimSpace(string(b)) != "0" // kernels before 6.2 have no such setting, and count
}
