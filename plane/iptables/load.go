//go:build linux

package iptables

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
)

// loader writes a whole state, in restores of bounded size.
//
// Existing chains serve until the end: the loader writes chains of services first, then the chains
// that jump to them, from the leaves of the dispatchers to their roots. On an empty node it writes
// the roots first, so that each service works as soon as its part is written.
//
// It renders the next restore while one runs.
type loader struct {
	comparison
	batch xtables.Batch
	lines int
	// Leaves of nat's dispatchers, by name: entries whose service port is not written yet.
	left map[string]int
	out  chan<- *xtables.Batch
	// keepBlock: the rule of DP-10 stays although NodePorts do not answer on 127.0.0.1, because
	// route_localnet is still set.
	keepBlock bool
}

// put adds a chain to the restore, unless the kernel holds the same content.
func (l *loader) put(c xtables.Chain) {
	l.st.Note(c.ID, xtables.DigestOf(c.Rules))
	if !l.differs(c.ID) {
		return
	}
	l.batch.Only(c.ID.Table).Put(c)
	l.lines += 1 + len(c.Rules)
}

// flush passes the restore on if it is long enough, or if must is set. It fails if the reader has
// stopped.
func (l *loader) flush(ctx context.Context, must bool) error {
	if l.lines < l.p.maxLines && !must {
		return nil
	}
	b := l.batch
	l.batch, l.lines = xtables.Batch{}, 0
	if len(b.Sections) == 0 {
		return nil
	}
	select {
	case l.out <- &b:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// load writes the differences, and deletes unneeded chains. If iptables refuses to write, the error
// is a refusal.
func (l *loader) load(ctx context.Context, ports []portRows) error {
	building, stop := context.WithCancel(ctx)
	defer stop()
	var declare []string
	for id := range l.st.Digests {
		if id.Table == xtables.NAT && l.differs(id) {
			declare = append(declare, id.Name)
		}
	}
	batches, built := make(chan *xtables.Batch), make(chan error, 1)
	l.out = batches
	go func() {
		err := l.build(building, ports)
		close(batches)
		built <- err
	}()
	var err error
	if l.p.single {
		err = l.p.RestoreAll(ctx, declare, batches)
	} else {
		for b := range batches {
			err = ctx.Err()
			if err == nil {
				err = l.p.Restore(ctx, b)
			}
			if err != nil {
				break
			}
		}
	}
	stop()
	for range batches { // so that build ends
	}
	if buildErr := <-built; err == nil {
		err = buildErr
	}
	if run := (*xtables.RunError)(nil); errors.As(err, &run) && ctx.Err() == nil {
		return fmt.Errorf("%w: %w", xtables.ErrRefused, err)
	}
	if err != nil {
		return err
	}
	return l.sweep(ctx)
}

// build creates the restores.
func (l *loader) build(ctx context.Context, ports []portRows) error {
	is, known := l.have.Chains[xtables.NAT.Chain(xtables.Services)]
	cold := !known || is.Rules == 0
	l.frame(cold)
	if err := l.flush(ctx, false); err != nil {
		return err
	}
	for _, port := range ports {
		if err := l.servicePort(ctx, port.id); err != nil {
			return err
		}
	}
	if !cold {
		l.branches()
		l.refusals()
	}
	return l.flush(ctx, true)
}

// frame writes the chains that do not depend on frontends and, on an empty node, the chains that
// jump to the leaves.
func (l *loader) frame(cold bool) {
	for _, c := range l.st.skeleton() {
		l.put(c)
	}
	if cold {
		l.refusals()
		l.branches()
	}
	for _, d := range l.st.dispatchers {
		for _, at := range d.Upwards("") {
			leaf := d.Table == xtables.NAT && d.Nodes[at].Children == nil
			id := d.Table.Chain(d.Name(at))
			if leaf {
				l.left[id.Name] = len(d.RangeOf(at))
			}
			_, known := l.have.Chains[id]
			switch {
			case leaf && l.left[id.Name] == 0:
				l.put(d.Chain(at))
			case !known && (cold && leaf || !cold && at == ""): // so that rules can refer to it
				l.batch.Only(d.Table).Put(xtables.Chain{ID: id})
				l.have.Chains[id] = xtables.Empty
			}
		}
	}
	for _, j := range jumps() {
		l.st.jumps[j.Bare()] = true
		if l.lacksJump(j) {
			s := l.batch.Only(j.From.Table)
			s.Insert = append(s.Insert, j)
		}
	}
	l.blockLocalnet()
}

// blockLocalnet adds or removes the rule of DP-10. The kubelet writes the same rule, but only once,
// for other programs that set route_localnet. With a kubelet the rule stays.
func (l *loader) blockLocalnet() {
	if l.st.family != lb.IPv4 {
		return
	}
	at := xtables.BlockLocalnetJump.Bare()
	switch {
	case l.st.localnet() || l.keepBlock || l.have.Kubelet && l.have.hasBlock():
		l.st.jumps[at] = true
		if !l.have.hasBlock() {
			s := l.batch.Only(xtables.Filter)
			s.Insert = append(s.Insert, xtables.BlockLocalnetJump)
		}
	case l.have.hasBlock():
		s := l.batch.Only(xtables.Filter)
		s.Remove = append(s.Remove, xtables.BlockLocalnetJump)
	}
}

// branches writes the inner nodes of nat's dispatchers.
func (l *loader) branches() {
	for _, i := range []dispatcherIndex{inServices, inNodePorts} {
		d := l.st.dispatchers[i]
		for _, at := range d.Upwards("") {
			if d.Nodes[at].Children != nil {
				l.put(d.Chain(at))
			}
		}
	}
}

// refusals writes the dispatchers of the filter table, which jump to no service.
func (l *loader) refusals() {
	for id := range l.st.lists {
		if id.Table == xtables.Filter {
			l.list(id)
		}
	}
	for _, d := range l.st.dispatchers {
		if d.Table != xtables.Filter {
			continue
		}
		for _, at := range d.Upwards("") {
			l.put(d.Chain(at))
		}
	}
}

// servicePort writes the chains of a service port, and the leaves that it completes.
func (l *loader) servicePort(ctx context.Context, id portID) error {
	u := l.st.ports[id]
	for _, list := range u.lists {
		if list.Table == xtables.NAT {
			l.list(list)
		}
	}
	if l.portDiffers(u) {
		for _, c := range l.st.renderer.servicePort(id, u.rows).chains {
			l.put(c)
		}
	}
	for _, f := range u.rows {
		for _, rules := range l.st.rows[f.Key].dispatch {
			d := l.st.dispatchers[rules.to]
			if d.Table != xtables.NAT {
				continue
			}
			at := d.LeafOf(xtables.PathOf(f.Key))
			name := d.Name(at)
			l.left[name]--
			if l.left[name] == 0 {
				l.put(d.Chain(at))
			}
		}
	}
	return l.flush(ctx, false)
}

// list writes the chain of a list, once.
func (l *loader) list(id xtables.ChainID) {
	if !l.differs(id) {
		return
	}
	l.put(listChain(id, l.st.lists[id].ranges))
	l.have.Chains[id] = l.st.Digests[id]
}

// sweep deletes unneeded chains.
func (l *loader) sweep(ctx context.Context) error {
	// The deletion records those that are still stuck.
	l.p.Count(func(s *xtables.Stats) { s.Stuck = nil })
	stale := l.stale()
	most := max(1, min(l.p.maxLines/3, 2000))
	if l.p.single {
		most = max(1, len(stale))
	}
	stuck, err := xtables.Sweep(ctx, nil, stale, most, func(b *xtables.Batch) error { return l.p.Restore(ctx, b) })
	for _, s := range stuck {
		l.p.Stuck(s.ID)
		if l.have.Used[s.ID] {
			l.st.Note(s.ID, xtables.Empty)
		} else {
			l.st.undeleted++
		}
	}
	return err
}

// comparison compares the wanted state with the kernel, for Reset and Audit.
type comparison struct {
	p    *Plane
	st   *state
	have *snapshot
}

// differs reports whether the kernel's content of a chain is not the wanted one.
func (c comparison) differs(id xtables.ChainID) bool {
	is, known := c.have.Chains[id]
	return !known || !c.p.Holds(id, c.st.Digests[id], is)
}

// portDiffers reports the same for any chain of a service port.
func (c comparison) portDiffers(s *servicePort) bool {
	return slices.ContainsFunc(s.chains, func(name string) bool {
		return c.differs(xtables.NAT.Chain(name))
	})
}

// lacksJump reports whether a jump is missing at its place.
func (c comparison) lacksJump(j xtables.Jump) bool { return !c.p.HasJump(j, c.have.Snapshot) }

// stale returns the unneeded chains. While chains of service ports are kept, the chains that they
// jump to are unknown.
func (c comparison) stale() (stale []xtables.ChainID) {
	if len(c.st.kept) > 0 {
		return nil
	}
	for id := range c.have.Chains {
		if _, wanted := c.st.Digests[id]; !wanted && (xtables.IsDynamic(id) || id.Name == xtables.MarkOffCluster) {
			stale = append(stale, id)
		}
	}
	return stale
}

// count returns the number of differences.
func (c comparison) count() int {
	n := len(c.stale())
	for id := range c.st.Digests {
		if c.differs(id) {
			n++
		}
	}
	for j := range c.st.jumps {
		if c.lacksJump(j) {
			n++
		}
	}
	return n
}
