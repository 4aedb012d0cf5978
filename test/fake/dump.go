package fake

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"kube-proxy/lb"
)

// Dump prints the kernel's state: frontends by key, then the node. Two planes with equal dumps
// serve the same.
func (p *Plane) Dump() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var b strings.Builder
	for _, key := range slices.SortedFunc(maps.Keys(p.kernel.rows), lb.Key.Compare) {
		b.WriteString(p.kernel.rows[key].String())
	}
	fmt.Fprintf(&b, "node %+v\n", p.kernel.node)
	return b.String()
}

// Len returns the number of frontends in the kernel.
func (p *Plane) Len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.kernel.rows)
}

// Has reports whether the kernel has a frontend for the key.
func (p *Plane) Has(key lb.Key) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.kernel.rows[key] != nil
}

// Steal deletes the frontend of the key without the plane, as another program would, and signals
// drift on request. It reports whether the frontend existed.
func (p *Plane) Steal(key lb.Key, signal bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	had := p.kernel.rows[key] != nil
	delete(p.kernel.rows, key)
	if signal {
		p.signal()
	}
	return had
}

// StealAny is Steal with the first key in order; false if the kernel holds no frontend.
func (p *Plane) StealAny(signal bool) bool {
	p.mu.Lock()
	keys := slices.SortedFunc(maps.Keys(p.kernel.rows), lb.Key.Compare)
	p.mu.Unlock()
	return len(keys) > 0 && p.Steal(keys[0], signal)
}

func (p *Plane) signal() {
	select {
	case p.drift <- struct{}{}:
	default:
	}
}

// Lose deletes everything behind the plane's back: until the next Reset the plane answers with
// plane.ErrStateLost.
func (p *Plane) Lose(signal bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ready = false
	p.kernel = newKernel()
	p.applied = map[lb.Key]*lb.Frontend{}
	if signal {
		p.signal()
	}
}

// Successor returns the plane of the next process: it finds the kernel's state of this one, and has
// no other knowledge.
func (p *Plane) Successor() *Plane {
	p.mu.Lock()
	defer p.mu.Unlock()
	next := New(p.family)
	next.kernel = p.kernel
	return next
}

// Frontends returns the frontends in the kernel, by key.
func (p *Plane) Frontends() map[lb.Key]*lb.Frontend {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.kernel.rows)
}
