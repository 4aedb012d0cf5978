package userspace

import (
	"context"
	"sync"
	"sync/atomic"

	"kube-proxy/mode"
)

// counters count the connections and sessions of each service port ([mode.TrafficCounter],
// docs/adr/0069). The zero value counts nothing.
type counters struct {
	mu   sync.Mutex
	last uint64                // the number of the newest counter, without restNumber
	of   map[*counter]struct{} // nil if nothing is counted
	// gone are the counters of deleted service ports, until they have been read.
	gone []*counter
	// rest is the sum of unread counters of deleted service ports, beyond maxGone.
	rest uint64
}

// maxGone is the number of such counters that wait to be read.
const maxGone = 1 << 16

// restNumber is the number of counters.rest.
const restNumber = 1

// counter counts for one service port.
type counter struct {
	number   uint64
	port     string
	led      atomic.Uint64
	reported uint64 // of led; guarded by counters.mu
}

// open returns a counter of a service port; nil if nothing is counted.
func (c *counters) open(port string) *counter {
	if c.of == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last++
	n := &counter{number: restNumber + c.last, port: port}
	c.of[n] = struct{}{}
	return n
}

// close removes a counter; it ignores nil. Its count is reported once more.
func (c *counters) close(n *counter) {
	if n == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.of, n)
	switch led := n.led.Load(); {
	case led == n.reported:
	case len(c.gone) < maxGone:
		c.gone = append(c.gone, n)
	default:
		c.rest += led - n.reported
	}
}

// read returns the values of the counters.
func (c *counters) read() []mode.Count {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]mode.Count, 0, len(c.of)+len(c.gone)+1)
	add := func(number uint64, port string, led uint64) {
		if led > 0 {
			all = append(all, mode.Count{CounterID: mode.CounterID{N: number}, ServicePort: port,
				Traffic: mode.Traffic{Connections: led}})
		}
	}
	for n := range c.of {
		n.reported = n.led.Load()
		add(n.number, n.port, n.reported)
	}
	for _, n := range c.gone {
		add(n.number, n.port, n.led.Load())
	}
	c.gone = nil
	add(restNumber, "", c.rest)
	return all
}

var _ mode.TrafficCounter = (*Plane)(nil)

// Counts is part of [mode.TrafficCounter].
func (p *Plane) Counts() bool { return p.counters.of != nil }

// Traffic is part of [mode.TrafficCounter]. It only reads memory of this process.
func (p *Plane) Traffic(_ context.Context, f func(mode.Count)) error {
	for _, n := range p.counters.read() {
		f(n)
	}
	return nil
}
