package iptables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"kube-proxy/lb"
	"kube-proxy/plane"
)

// badRows are rows that a Reset cannot write, and why it cannot write the first.
type badRows struct {
	keys []lb.Key
	err  error
}

func (b *badRows) add(err error, f *lb.Frontend) {
	if b.err == nil {
		b.err = err
	}
	b.keys = append(b.keys, f.Key)
}

// Reset lists the kernel's rules once, and writes the chains that differ from what the table asks for. Rules of an
// earlier process, ours or upstream's, serve until ours are complete. It leaves rows for later that cannot be written, and
// those to which no rule leads yet, if they are more than an Apply should have. See package plane for its contract.
func (p *Plane) Reset(ctx context.Context, want *lb.Table) (plane.ResetResult, error) {
	res, _, err := p.reset(ctx, want)
	return res, err
}

func (p *Plane) reset(ctx context.Context, want *lb.Table) (res plane.ResetResult, bad badRows, err error) {
	p.st = nil
	p.begin()
	rows := make([]*lb.Frontend, 0, want.Len())
	for f := range want.All() {
		if err := check(p.family, f.Key, f); err != nil {
			bad.add(err, f)
			continue
		}
		rows = append(rows, f)
	}
	p.account(ctx)
	r := p.base
	r.node, r.liberal = want.Node, !p.dry && liberal()
	for {
		have, err := p.list(ctx)
		if err != nil {
			return res, bad, fmt.Errorf("iptables: reset: %w", err)
		}
		if p.found == nil {
			p.found = map[lb.Key]bool{}
		}
		maps.Copy(p.found, have.served)
		var now []*lb.Frontend
		now, res.Later = p.postpone(rows, have)
		r.plain = r.plain || len(res.Later) > 0 && endpointsIn(rows) > manyEndpoints // as it is when all are there
		err = p.hold(ctx, r, now, have)
		var no *unitsRefused
		if errors.As(err, &no) && len(bad.keys) < want.Len() {
			rows = slices.DeleteFunc(rows, func(f *lb.Frontend) bool {
				why := no.units[unitOf(f)]
				if why != nil {
					bad.add(why, f)
				}
				return why != nil
			})
			continue
		}
		if err != nil {
			return plane.ResetResult{}, bad, fmt.Errorf("iptables: reset to %d rows: %w", len(now), err)
		}
		break
	}
	for k := range p.found {
		if want.Get(k) == nil {
			res.Dropped = append(res.Dropped, k)
		}
	}
	p.found = nil
	res.Later = append(res.Later, bad.keys...)
	return res, bad, nil
}

// postpone splits rows into those to write now, and the keys of the others, those of a service port together, in the order of
// their places in the trees. Rows to which rules lead must not wait, and those without endpoints are little work.
func (p *Plane) postpone(rows []*lb.Frontend, have *snapshot) (now []*lb.Frontend, later []lb.Key) {
	var weight lb.Weight
	var wait []*lb.Frontend
	total := 0
	for _, f := range rows {
		if have.served[f.Key] || endpointsOf([]*lb.Frontend{f}) == 0 {
			now = append(now, f)
			continue
		}
		wait = append(wait, f)
		total += weight.Of(f)
	}
	if total <= p.Pace() {
		return rows, nil
	}
	slices.SortFunc(wait, byPath)
	byUnit, units := unitsOf(wait)
	for _, id := range units {
		for _, f := range byUnit[id] {
			later = append(later, f.Key)
		}
	}
	return now, later
}

// endpointsIn returns about how many endpoints serve rows.
func endpointsIn(rows []*lb.Frontend) (n int) {
	byUnit, _ := unitsOf(rows)
	for _, fronts := range byUnit {
		n += endpointsOf(fronts)
	}
	return n
}

// unitsOf sorts rows by units, and gives these in the order of their first row.
func unitsOf(rows []*lb.Frontend) (byUnit map[unitID][]*lb.Frontend, units []unitID) {
	byUnit = map[unitID][]*lb.Frontend{}
	for _, f := range rows {
		id := unitOf(f)
		if byUnit[id] == nil {
			units = append(units, id)
		}
		byUnit[id] = append(byUnit[id], f)
	}
	return byUnit, units
}

// list asks for all rules. What others do from now on is noticed.
func (p *Plane) list(ctx context.Context) (*snapshot, error) {
	p.seen, p.listed = p.look(), time.Now()
	p.count(func(s *Stats) { s.Saves++ })
	s, err := p.tool.snapshot(ctx, false)
	if err != nil || p.dry {
		return s, err
	}
	var known map[chainID]digest
	if p.st != nil {
		known = p.st.kernel
	}
	if err := s.complete(p.family, known); err != nil {
		return nil, err
	}
	return s, nil
}

// hold makes the kernel, of which have is known, hold exactly the rows.
func (p *Plane) hold(ctx context.Context, r renderer, rows []*lb.Frontend, have *snapshot) error {
	slices.SortFunc(rows, byPath)
	st, units := newStateOf(r, rows)
	st.kubelet = have.kubelet
	l := &loader{p: p, st: st, have: have, left: map[string]int{}}
	if !st.localnet() && have.jumps[martianJump] && !p.dry && (p.opened || !have.kubelet) {
		l.martians = closeLocalnet() != nil
		p.opened = p.opened && l.martians
	}
	if err := l.load(ctx, units); err != nil {
		return err
	}
	if st.localnet() && !p.dry {
		p.openLocalnet() // if that fails all else works: the audits try again, and say so
	}
	p.st = st
	p.owned()
	return nil
}

// newStateOf returns the state of which rows, sorted, are all, and the units in the order of their first row. What
// chains contain is rendered again when they are written: all at once would take much memory.
func newStateOf(r renderer, rows []*lb.Frontend) (*state, []unitID) {
	byUnit, units := unitsOf(rows)
	endpoints := 0
	for _, fronts := range byUnit {
		endpoints += endpointsOf(fronts)
	}
	r.plain = r.plain || endpoints > manyEndpoints // never back: to give them their comments would be a change of all
	st := newState(r)
	st.endpoints = endpoints
	for _, id := range units {
		fronts := byUnit[id]
		r := st.renderer.unit(id, fronts)
		for _, c := range r.chains {
			st.holds(c.id, digestOf(c.rules))
		}
		for id, ranges := range r.lists {
			if st.lists[id] == nil {
				st.lists[id] = &list{ranges: ranges}
				st.holds(id, digestOf(listChain(id, ranges).rules))
			}
			st.lists[id].users++
		}
		st.units[id] = newUnit(fronts, r)
		for _, f := range fronts {
			st.rows[f.Key] = &row{f, r.placed[f.Key]}
		}
	}
	var all [dispatchers][]entry
	for _, f := range rows {
		for _, e := range st.rows[f.Key].placed {
			all[e.to] = append(all[e.to], entry{path(f.Key), e.rules})
		}
	}
	for i, d := range st.dispatchers {
		d.set(all[i])
		d.update(pathsOf(all[i]))
		for at := range d.nodes {
			c := d.chain(at)
			st.holds(c.id, digestOf(c.rules))
		}
	}
	return st, units
}
