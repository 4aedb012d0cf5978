//go:build linux

package iptables

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/plane"
)

// Reset lists the kernel's rules once, and writes the chains that differ. Rules of an earlier
// process, ours or upstream's, serve until ours are complete. It leaves new frontends for later if
// they are more than an Apply should write. See package plane for its contract.
func (p *Plane) Reset(ctx context.Context, want *lb.Table) (plane.ResetResult, error) {
	p.st = nil
	p.newSync()
	p.account(ctx)
	have, err := p.list(ctx)
	if err != nil {
		return plane.ResetResult{}, fmt.Errorf("iptables: reset: %w", err)
	}
	if p.found == nil {
		p.found = map[lb.Key]bool{}
	}
	maps.Copy(p.found, have.served)

	ports, endpoints := byPort(want.All()), 0
	for _, port := range ports {
		endpoints += endpointsOf(port.rows)
	}
	r := p.base
	r.node, r.liberal, r.plain = want.Node, !p.dry && liberal(), endpoints > manyEndpoints
	now, later := p.postpone(want, ports, have)
	err = p.sync(ctx, newState(r, now), now, have)
	if errors.Is(err, xtables.ErrRefused) {
		later, err = p.resetAsFarAsHeld(ctx, r, ports, err)
	}
	if err != nil {
		return plane.ResetResult{}, fmt.Errorf("iptables: reset to %d frontends: %w", want.Len(), err)
	}
	res := plane.ResetResult{Later: later, Dropped: plane.Dropped(maps.Keys(p.found), want)}
	p.found = nil
	return res, nil
}

// resetAsFarAsHeld is the second attempt of a Reset, after iptables refused the first with cause.
// It writes no chain of a service port. It leaves service ports that differ for later, and the
// engine finds the faulty frontends. Their frontends in the kernel keep working with the existing
// chains.
func (p *Plane) resetAsFarAsHeld(ctx context.Context, r renderer, ports []portRows, cause error) (later []lb.Key,
	err error) {
	have, err := p.list(ctx)
	if err != nil {
		return nil, err
	}
	all := newState(r, ports)
	c := comparison{p, all, have}
	var now []portRows
	kept := map[portID]bool{}
	for _, port := range ports {
		if !c.portDiffers(all.ports[port.id]) {
			now = append(now, port)
			continue
		}
		var rows []*lb.Frontend
		for _, f := range port.rows {
			translated, held := have.leads(f.Key, all.rows[f.Key].dispatch)
			if translated {
				later = append(later, f.Key)
			}
			if !translated || held {
				rows = append(rows, f)
			}
		}
		if len(rows) > 0 {
			kept[port.id] = true
			now = append(now, portRows{port.id, rows})
		}
	}
	if len(later) == 0 { // no frontend is the cause
		return nil, cause
	}
	st := newState(r, now)
	st.keepAsHeld(kept, have)
	return later, p.sync(ctx, st, now, have)
}

// leads reports whether a frontend should be translated, and whether the kernel does so. It checks
// the chains that its rules jump to, not their content.
func (s *snapshot) leads(k lb.Key, rules []dispatched) (translated, held bool) {
	held = s.served[k]
	for _, d := range rules {
		if d.to != inServices && d.to != inNodePorts {
			continue
		}
		translated = true
		for _, rule := range d.rules {
			_, known := s.Chains[xtables.NAT.Chain(rule[strings.LastIndexByte(rule, ' ')+1:])]
			held = held && known
		}
	}
	return translated, held
}

// keepAsHeld keeps the chains of some service ports as they are in the kernel, until an Apply names
// one of their frontends.
func (st *state) keepAsHeld(kept map[portID]bool, have *snapshot) {
	st.kept = kept
	for id := range kept {
		port := st.ports[id]
		port.chains = slices.DeleteFunc(port.chains, func(name string) bool {
			id := xtables.NAT.Chain(name)
			is, known := have.Chains[id]
			if known {
				st.Note(id, is)
			} else {
				st.Forget(id)
			}
			return !known
		})
	}
}

// postpone returns the frontends to write now, and the keys of the others in the order of the
// trees, those of a service port together. Frontends without endpoints are never postponed.
func (p *Plane) postpone(want *lb.Table, ports []portRows, have *snapshot) (now []portRows, later []lb.Key) {
	rows, rest := plane.Postpone(p, want.All(), p.pace.first, func(f *lb.Frontend) bool {
		return have.served[f.Key] || endpointsOf([]*lb.Frontend{f}) == 0
	})
	p.left = 0
	if len(rest) == 0 {
		return ports, nil
	}
	var weight lb.Weight
	for _, port := range byPort(slices.Values(rest)) {
		for _, f := range port.rows {
			later = append(later, f.Key)
			p.left += weight.Of(f)
		}
	}
	return byPort(slices.Values(rows)), later
}

// portRows are frontends of a service port.
type portRows struct {
	id   portID
	rows []*lb.Frontend
}

// byPort sorts frontends by service ports, these in the order of their first frontend in the trees.
func byPort(rows iter.Seq[*lb.Frontend]) (ports []portRows) {
	type placed struct {
		path string
		row  *lb.Frontend
	}
	var sorted []placed
	for f := range rows {
		sorted = append(sorted, placed{xtables.PathOf(f.Key), f})
	}
	slices.SortFunc(sorted, func(a, b placed) int { return cmp.Compare(a.path, b.path) })
	at := map[portID]int{}
	for _, f := range sorted {
		id := portOf(f.row)
		i, known := at[id]
		if !known {
			i = len(ports)
			at[id] = i
			ports = append(ports, portRows{id: id})
		}
		ports[i].rows = append(ports[i].rows, f.row)
	}
	return ports
}

// sync makes the kernel equal to the state, which consists of the frontends of ports. have is the
// kernel's content.
func (p *Plane) sync(ctx context.Context, st *state, ports []portRows, have *snapshot) error {
	st.kubelet, st.used = have.Kubelet, have.Used
	l := &loader{comparison: comparison{p, st, have}, left: map[string]int{}}
	if !st.localnet() && have.hasBlock() && !p.dry && (p.opened || !have.Kubelet) {
		l.keepBlock = xtables.CloseLocalnet() != nil
		p.opened = p.opened && l.keepBlock
	}
	if err := l.load(ctx, ports); err != nil {
		return err
	}
	if st.localnet() && !p.dry {
		p.openLocalnet() // if that fails all else works: the audits retry and report it
	}
	p.st = st
	p.retry()
	p.owned()
	return nil
}

// retry makes the next audit list all rules if unneeded chains were not deleted.
func (p *Plane) retry() {
	if p.st.undeleted > 0 {
		p.Doubt()
	}
}

// rewrite renders all frontends again, and writes the differences from have. After a failure only a
// Reset helps.
func (p *Plane) rewrite(ctx context.Context, r renderer, have *snapshot) error {
	old := p.st
	p.st = nil
	ports := byPort(old.fronts())
	st := newState(r, ports)
	st.keepAsHeld(old.kept, have)
	if err := p.sync(ctx, st, ports, have); err != nil {
		return fmt.Errorf("%w: %w", err, plane.ErrStateLost)
	}
	return nil
}
