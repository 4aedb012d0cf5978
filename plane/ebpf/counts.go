//go:build linux

package ebpf

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/cilium/ebpf"

	"kube-proxy/mode"
)

// counted numbers counters apart from those of the packet path, whose are of rows.
type counted struct {
	mu    sync.Mutex
	ports map[uint32]string // service ports of the sets, by number
}

func (c *counted) add(number uint32, port string) {
	if c != nil {
		c.mu.Lock()
		c.ports[number] = port
		c.mu.Unlock()
	}
}

// retain forgets the sets that the state does not have.
func (c *counted) retain(st *state) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ports = make(map[uint32]string, len(st.sets))
	for _, s := range st.sets {
		c.ports[s.number] = s.id.Service
	}
}

func (c *counted) remove(number uint32) {
	if c != nil {
		c.mu.Lock()
		delete(c.ports, number)
		c.mu.Unlock()
	}
}

// port returns the service port of a set.
func (c *counted) port(number uint32) (port string, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	port, ok = c.ports[number]
	return port, ok
}

// expire deletes counters of removed sets.
func (c *counted) expire(m *ebpf.Map) error {
	if c == nil {
		return nil
	}
	return c.each(context.Background(), m, func(mode.Count) {})
}

// each calls f with each counter of the programs, and holds no lock meanwhile. It deletes counters
// of removed sets, without their last connections.
func (c *counted) each(ctx context.Context, m *ebpf.Map, f func(mode.Count)) error {
	err := prune(m, func(number uint32, cpus []uint64) bool {
		port, ok := c.port(number)
		if !ok || ctx.Err() != nil {
			return !ok
		}
		total := uint64(0)
		for _, n := range cpus {
			total += n
		}
		f(mode.Count{CounterID: mode.CounterID{N: uint64(number)}, ServicePort: port,
			Traffic: mode.Traffic{Connections: total}})
		return false
	})
	err = errors.Join(ctx.Err(), err)
	if err != nil {
		return fmt.Errorf("read the counters of the eBPF programs: %w", err)
	}
	return nil
}
