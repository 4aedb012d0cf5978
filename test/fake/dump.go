package fake

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"kube-proxy/lb"
)

// Dump prints the kernel's state: rows by key, then sets by name with the number of routes that use them,
// then the node. It shows what a packet would meet: two planes with equal dumps serve the same.
func (p *Plane) Dump() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var b strings.Builder
	for _, key := range slices.SortedFunc(maps.Keys(p.kernel.fronts), lb.Key.Compare) {
		dumpFront(&b, p.kernel.fronts[key])
	}
	ids := slices.SortedFunc(maps.Keys(p.kernel.sets), func(x, y lb.SetID) int {
		return strings.Compare(x.String(), y.String())
	})
	for _, id := range ids {
		s := p.kernel.sets[id]
		fmt.Fprintf(&b, "set %s refs %d\n", id, s.refs)
		for be := range s.backends.All() {
			fmt.Fprintf(&b, "  %s%s%s%s\n", be.Addr, flag(be.Local, " local"), flag(be.Unplaced, " unplaced"), flag(be.Draining, " draining"))
		}
	}
	fmt.Fprintf(&b, "node %+v\n", p.kernel.node)
	return b.String()
}

func dumpFront(b *strings.Builder, f *lb.Frontend) {
	fmt.Fprintf(b, "%s %s %s", f.Key, f.Service, f.Kind)
	if f.Affinity > 0 {
		fmt.Fprintf(b, " affinity %s", f.Affinity)
	}
	if len(f.Sources) > 0 {
		fmt.Fprintf(b, " sources %v", f.Sources)
	}
	if f.Accepts() {
		fmt.Fprintf(b, " endpoints %d", f.LocalEndpoints)
	}
	b.WriteByte('\n')
	for _, r := range f.Routes {
		fmt.Fprintf(b, "  %s %s", r.From, r.Do)
		if r.To != nil {
			fmt.Fprintf(b, " %s%s", r.To.ID, flag(r.Masq, " masquerade"))
		}
		b.WriteByte('\n')
	}
}

func flag(on bool, text string) string {
	if on {
		return text
	}
	return ""
}

// Len returns the number of rows in the kernel.
func (p *Plane) Len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.kernel.fronts)
}

// Has reports whether the kernel has a row for the key.
func (p *Plane) Has(key lb.Key) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.kernel.fronts[key] != nil
}

// Steal deletes the row of the key behind the plane's back, as a foreign program would, and signals drift if
// asked to. It reports whether there was such a row.
func (p *Plane) Steal(key lb.Key, signal bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	had := p.kernel.delFront(key) == nil
	if signal {
		p.signal()
	}
	return had
}

// StealAny is Steal with the first key in order; false if the kernel holds no row.
func (p *Plane) StealAny(signal bool) bool {
	p.mu.Lock()
	keys := slices.SortedFunc(maps.Keys(p.kernel.fronts), lb.Key.Compare)
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

// Successor is the plane of a process that comes after this one's: it finds what that left in the kernel, and knows nothing.
func (p *Plane) Successor() *Plane {
	p.mu.Lock()
	defer p.mu.Unlock()
	next := New(p.family)
	next.kernel = p.kernel
	return next
}

// Rows returns the rows that packets would meet, by key, with the backends that the kernel has for each.
func (p *Plane) Rows() map[lb.Key]*lb.Frontend {
	p.mu.Lock()
	defer p.mu.Unlock()
	rows := make(map[lb.Key]*lb.Frontend, len(p.kernel.fronts))
	for key, f := range p.kernel.fronts {
		met := *f
		met.Routes = slices.Clone(f.Routes)
		for i, r := range met.Routes {
			if r.To != nil {
				met.Routes[i].To = &lb.BackendSet{ID: r.To.ID, Backends: p.kernel.sets[r.To.ID].backends}
			}
		}
		rows[key] = &met
	}
	return rows
}
