package scale

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"kube-proxy/test/e2e/controlplane"
)

// Cost is the cost of a number of nodes of one population for the API server.
type Cost struct {
	Nodes       int
	Connections int64
	// ListBytes are read by a node at its start, ChangeBytes for each change of one slice of ten
	// endpoints.
	ListBytes, ChangeBytes float64
	// APIServer and Etcd are the processor time of each change, for all nodes together.
	APIServer, Etcd time.Duration
	// Heap is the memory of a node, in this process: its objects, without any connection's other
	// end.
	Heap int64
}

// Costs starts a population, changes slices at a steady rate, and stops it. All sizes must use the
// same rate, because the API server's idle time is in the result, which the constant part of a fit
// absorbs.
func (h *Harness) Costs(ctx context.Context, p *Population, changes int, rate time.Duration) (c Cost, err error) {
	c.Nodes = len(p.nodes)
	empty := heap()
	p.Start(ctx)
	defer func() { err = errors.Join(err, p.Stop()) }()
	if err := h.settle(ctx, p); err != nil {
		return c, err
	}
	c.Connections = p.meter.open.Load()
	read, err := p.quiet(ctx)
	if err != nil {
		return c, err
	}
	if c.Nodes > 0 {
		c.Heap = (heap() - empty) / int64(c.Nodes)
		c.ListBytes = float64(read) / float64(c.Nodes)
	}
	apiserver, etcd, err := h.cpu()
	if err != nil {
		return c, err
	}
	if err := errors.Join(h.change(ctx, changes, rate), h.settle(ctx, p)); err != nil {
		return c, err
	}
	apiserver2, etcd2, err := h.cpu()
	if err != nil {
		return c, err
	}
	c.APIServer, c.Etcd = (apiserver2-apiserver)/time.Duration(changes), (etcd2-etcd)/time.Duration(changes)
	if c.Nodes > 0 {
		c.ChangeBytes = float64(p.meter.read.Load()-read) / float64(changes+1) / float64(c.Nodes)
	}
	return c, nil
}

// quiet waits until the lists of all resources, one with the marker, have arrived, and returns the
// bytes so far.
func (p *Population) quiet(ctx context.Context) (read int64, err error) {
	for was := int64(-1); was != read && err == nil; err = sleep(ctx, 500*time.Millisecond) {
		was, read = read, p.meter.read.Load()
	}
	return read, err
}

// settle waits until all nodes have the earlier writes.
func (h *Harness) settle(ctx context.Context, p *Population) error {
	addr, err := h.Mark(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	return p.Await(ctx, addr)
}

// change replaces one endpoint of a slice at each tick.
func (h *Harness) change(ctx context.Context, changes int, rate time.Duration) error {
	ticker := time.NewTicker(rate)
	defer ticker.Stop()
	for i := range changes {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
		addrs := []netip.Addr{controlplane.LoadAddr(services+h.marks*10000+i, 0, endpoints)}
		for j := 1; j < endpoints; j++ {
			addrs = append(addrs, controlplane.LoadAddr(i%services, j, endpoints))
		}
		slice := controlplane.Slice(controlplane.LoadName(i%services), 8080, nil, addrs...)
		if err := h.Bed.API.Update(ctx, slice); err != nil {
			return err
		}
	}
	return nil
}

func (h *Harness) cpu() (apiserver, etcd time.Duration, err error) {
	apiserver, err = h.Bed.API.APIServer().CPUTime()
	if err != nil {
		return 0, 0, err
	}
	etcd, err = h.Bed.API.Etcd().CPUTime()
	return apiserver, etcd, err
}

func (c Cost) String() string {
	return fmt.Sprintf("%d nodes, %d connections: %.0f bytes at the start and %.0f a change for each node, "+
		"API server %v and etcd %v a change, %d KiB a node",
		c.Nodes, c.Connections, c.ListBytes, c.ChangeBytes, c.APIServer, c.Etcd, c.Heap>>10)
}
