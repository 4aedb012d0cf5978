package userspace

import (
	"context"
	"errors"
	"fmt"

	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/plane/userspace/redirect"
)

// batch is a batch of changes. New listeners are open, and released ones not closed yet.
type batch struct {
	p      *Plane
	steps  []step
	set    []redirect.Entry
	remove []lb.Key
	failed []error
}

// step is the change of a key from one row to another; nil for none.
type step struct {
	key      lb.Key
	old, new *row
	writes   bool
}

// Apply sets or deletes the key of each change. A change of only endpoints writes nothing.
func (p *Plane) Apply(ctx context.Context, changes []lb.Change) (res plane.ApplyResult, err error) {
	if err := p.usable(ctx); err != nil {
		return res, fmt.Errorf("userspace: apply %d changes: %w", len(changes), err)
	}
	b := &batch{p: p}
	for _, c := range changes {
		b.change(c.Key, c.New, nil)
	}
	written := len(b.set)+len(b.remove) > 0
	if written {
		err = p.lost(fmt.Sprintf("redirect %d frontends, and remove %d", len(b.set), len(b.remove)),
			p.redirect.Apply(ctx, b.set, b.remove))
	}
	b.end(err == nil)
	return plane.ApplyResult{Written: written && err == nil}, errors.Join(append(b.failed, err)...)
}

// change replaces the row of a key, and reports whether it can be served. If not, only this key
// fails: the old row stays, unless it would take an address of another host. was are the routes of
// the previous process.
func (b *batch) change(k lb.Key, f *lb.Frontend, was []redirect.Route) bool {
	b.p.mu.Lock()
	defer b.p.mu.Unlock()
	old := b.p.rows[k]
	remove := func() {
		if old != nil {
			b.remove = append(b.remove, k)
			b.steps = append(b.steps, step{k, old, nil, true})
		}
	}
	if f == nil || f.Accepts() {
		remove()
		return true
	}
	r, err := b.p.make(f, was)
	if err != nil {
		b.p.notices.noPort(err)
		b.failed = append(b.failed, fmt.Errorf("userspace: frontend %s: %w", k, err))
		if errors.Is(err, errTakes) { // the former listener would still accept
			remove()
		}
		return false
	}
	s := step{key: k, old: old, new: r, writes: old == nil || !old.written || !equalLeads(old.lead, r.lead)}
	if s.writes {
		b.set = append(b.set, r.lead)
	}
	// A second change of the key in the batch starts from this row.
	b.p.rows[k] = r
	b.steps = append(b.steps, s)
	return true
}

// end releases unused listeners and sets. If the redirector failed, it keeps all that the kernel
// may still redirect to.
func (b *batch) end(written bool) {
	b.p.mu.Lock()
	defer b.p.mu.Unlock()
	for _, s := range b.steps {
		switch {
		case written || !s.writes:
			if s.new != nil {
				s.new.written = true
			} else {
				delete(b.p.rows, s.key)
			}
			if s.old != nil {
				b.p.release(s.old)
			}
		case s.new == nil:
			s.old.written = false
		case s.old != nil:
			s.new.inherit(s.old)
		}
	}
}
