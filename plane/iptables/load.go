package iptables

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"kube-proxy/lb"
)

// loader writes a whole state, in restores of bounded size.
//
// What is there already serves until the end: chains of services are written first, then the chains that lead to
// them, from the leaves of the dispatchers to their roots. Where there is nothing yet, the roots come first, so that
// each service answers as soon as its part is written.
//
// While one restore runs the next is rendered.
type loader struct {
	p     *Plane
	st    *state
	have  *snapshot
	batch batch
	lines int
	left  map[string]int // leaves of nat's dispatchers, by name: entries whose unit is not written yet
	out   chan<- *batch
	// martians: the rule of DP-10 stays though NodePorts do not answer on 127.0.0.1, because that is routed still.
	martians bool
}

// differs reports whether the kernel holds a chain otherwise than wanted.
func (l *loader) differs(id chainID) bool {
	is, known := l.have.chains[id]
	return !known || !l.p.reads(id, l.st.kernel[id], is)
}

// put adds a chain to the restore unless the kernel holds it so.
func (l *loader) put(c chain) {
	l.st.holds(c.id, digestOf(c.rules))
	if !l.differs(c.id) {
		return
	}
	l.batch.only(c.id.table).put(c)
	l.lines += 1 + len(c.rules)
}

// flush hands the restore over, if it is long enough or must be. It fails if nobody takes it any more.
func (l *loader) flush(ctx context.Context, must bool) error {
	if l.lines < l.p.maxLines && !must {
		return nil
	}
	b := l.batch
	l.batch, l.lines = batch{}, 0
	if b.count() == 0 {
		return nil
	}
	select {
	case l.out <- &b:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// load writes what differs and deletes what nobody needs. If the kernel does not take some units the error is
// unitsRefused.
func (l *loader) load(ctx context.Context, units []unitID) error {
	building, stop := context.WithCancel(ctx)
	defer stop()
	var declare []string
	for id := range l.st.kernel {
		if id.table == nat && l.differs(id) {
			declare = append(declare, id.name)
		}
	}
	batches, built := make(chan *batch), make(chan error, 1)
	l.out = batches
	go func() {
		err := l.build(building, units)
		close(batches)
		built <- err
	}()
	var failed *batch
	var err error
	if l.p.single {
		if err = l.p.restoreAll(ctx, declare, batches); err != nil {
			failed = &batch{units: units}
		}
	} else {
		for b := range batches {
			if err = ctx.Err(); err == nil {
				err = l.p.restore(ctx, b)
			}
			if err != nil {
				failed = b
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
	if err != nil {
		if failed != nil && ctx.Err() == nil {
			return l.refusedOf(ctx, failed.units, err)
		}
		return err
	}
	return l.sweep(ctx)
}

// build makes the restores.
func (l *loader) build(ctx context.Context, units []unitID) error {
	root := chainID{nat, services}
	is, known := l.have.chains[root]
	cold := !known || is == empty
	l.begin(cold)
	if err := l.flush(ctx, false); err != nil {
		return err
	}
	for _, id := range units {
		if err := l.unit(ctx, id); err != nil {
			return err
		}
	}
	if !cold {
		l.inner(l.st.dispatchers[inServices], "")
		l.inner(l.st.dispatchers[inNodePorts], "")
		l.refusals()
	}
	return l.flush(ctx, true)
}

// begin writes what does not depend on rows and, if nothing is there, what leads to the leaves.
func (l *loader) begin(cold bool) {
	for _, c := range l.st.skeleton() {
		if _, known := l.have.chains[c.id]; known && c.id.name == nodeFirewall {
			l.st.holds(c.id, l.have.chains[c.id])
			continue
		}
		l.put(c)
	}
	if cold {
		l.refusals()
		l.inner(l.st.dispatchers[inServices], "")
		l.inner(l.st.dispatchers[inNodePorts], "")
	} else {
		for _, d := range l.st.dispatchers { // so that jumps have where to go
			id := chainID{d.table, d.root}
			if _, known := l.have.chains[id]; !known {
				l.batch.only(d.table).put(chain{id: id})
				l.have.chains[id] = empty
			}
		}
	}
	for _, j := range jumps() {
		l.st.jumps[j] = true
		if !l.have.jumps[j] && !l.p.unread[j] {
			s := l.batch.only(j.from.table)
			s.insert = append(s.insert, j)
		}
	}
	l.martian()
	for _, i := range []dispatcherIndex{inServices, inNodePorts} {
		l.countLeaves(l.st.dispatchers[i], "", cold)
	}
}

// martian puts the rule of DP-10 where it belongs, or takes it away. The kubelet writes the very same rule, for others who
// set route_localnet, and once only: with a kubelet it stays.
func (l *loader) martian() {
	if l.st.family != lb.IPv4 {
		return
	}
	s := l.batch.only(filter)
	switch {
	case l.st.localnet() || l.martians || l.have.kubelet && l.have.jumps[martianJump]:
		l.st.jumps[martianJump] = true
		if !l.have.jumps[martianJump] {
			s.insert = append(s.insert, martianJump)
		}
	case l.have.jumps[martianJump]:
		s.remove = append(s.remove, martianJump)
	}
}

// inner writes the nodes of a dispatcher below at, but not its leaves, from below up. A root that is a leaf is written as
// leaves are.
func (l *loader) inner(d *dispatcher, at string) {
	n := d.nodes[at]
	for _, child := range n.children {
		l.inner(d, child)
	}
	if n.children != nil {
		l.put(d.chain(at))
	}
}

// refusals writes the dispatchers of the filter table, which lead to no service.
func (l *loader) refusals() {
	for id := range l.st.lists {
		if id.table == filter {
			l.list(id)
		}
	}
	for _, d := range l.st.dispatchers {
		if d.table == filter {
			l.all(d, "")
		}
	}
}

func (l *loader) all(d *dispatcher, at string) {
	for _, child := range d.nodes[at].children {
		l.all(d, child)
	}
	l.put(d.chain(at))
}

// countLeaves counts the entries of each leaf. If nothing is there yet, leaves are made empty, so that roots can
// lead to them.
func (l *loader) countLeaves(d *dispatcher, at string, cold bool) {
	n := d.nodes[at]
	for _, child := range n.children {
		l.countLeaves(d, child, cold)
	}
	if n.children != nil {
		return
	}
	name := d.name(at)
	l.left[name] = len(d.rangeOf(at))
	id := chainID{nat, name}
	_, known := l.have.chains[id]
	switch {
	case l.left[name] == 0:
		l.put(d.chain(at))
	case cold || !known && at == "":
		if !known {
			l.batch.only(nat).put(chain{id: id})
			l.have.chains[id] = empty
		}
	}
}

// unit writes the chains of a service port, and the leaves that are complete with it.
func (l *loader) unit(ctx context.Context, id unitID) error {
	u := l.st.units[id]
	for _, list := range u.lists {
		if list.table == nat {
			l.list(list)
		}
	}
	if slices.ContainsFunc(u.chains, func(name string) bool { return l.differs(chainID{nat, name}) }) {
		for _, c := range l.st.renderer.unit(id, u.rows).chains {
			l.put(c)
		}
		l.batch.units = append(l.batch.units, id)
	}
	for _, f := range u.rows {
		for _, pl := range l.st.rows[f.Key].placed {
			d := l.st.dispatchers[pl.to]
			if d.table != nat {
				continue
			}
			at := d.leafOf(path(f.Key))
			name := d.name(at)
			if l.left[name]--; l.left[name] == 0 {
				l.put(d.chain(at))
			}
		}
	}
	return l.flush(ctx, false)
}

// list writes the chain of a list, once.
func (l *loader) list(id chainID) {
	if !l.differs(id) {
		return
	}
	l.put(listChain(id, l.st.lists[id].ranges))
	l.have.chains[id] = l.st.kernel[id]
}

// leafOf returns the leaf where a path's entry is.
func (d *dispatcher) leafOf(path string) string {
	at := ""
	for {
		n := d.nodes[at]
		if n.children == nil {
			return at
		}
		at = path[:len(n.children[0])]
	}
}

// sweep deletes the chains that nothing needs any more.
func (l *loader) sweep(ctx context.Context) error {
	l.p.count(func(s *Stats) { s.Stuck = nil }) // those that are so still are noted again
	var stale []chainID
	for id := range l.have.chains {
		if _, wanted := l.st.kernel[id]; !wanted && (isDynamic(id) || id.name == markOffCluster) {
			stale = append(stale, id)
		}
	}
	most := max(1, min(l.p.maxLines/3, 2000))
	if l.p.single {
		most = max(1, len(stale))
	}
	stuck, err := sweep(ctx, nil, stale, most, func(b *batch) error { return l.p.restore(ctx, b) })
	for _, s := range stuck {
		l.p.stuck(s.id)
		l.st.holds(s.id, empty)
	}
	return err
}

// unitsRefused is an error of a load of which some units are to blame.
type unitsRefused struct {
	units map[unitID]error
	err   error
}

func (u *unitsRefused) Error() string {
	return fmt.Sprintf("%d service ports are refused: %v", len(u.units), u.err)
}
func (u *unitsRefused) Unwrap() error { return u.err }

// How many restores may be spent on finding out whose rules the kernel does not take.
const (
	nftTries    = 400
	legacyTries = 100
)

// refusedOf finds those units of a failed restore that fail alone. Their chains are written, to which nothing leads yet,
// or which are in force with other rules and get those that they are to have.
func (l *loader) refusedOf(ctx context.Context, units []unitID, cause error) error {
	if run := (*runError)(nil); !errors.As(cause, &run) || len(units) == 0 {
		return cause // the program did not even run
	}
	no := &unitsRefused{units: map[unitID]error{}, err: cause}
	tries := nftTries
	if l.p.tool.backend == Legacy {
		tries = legacyTries
	}
	var find func(units []unitID) error
	find = func(units []unitID) error {
		if tries--; tries < 0 || ctx.Err() != nil {
			return cause
		}
		// The chains to which all lead, in case they are not there.
		var b batch
		for _, c := range l.st.skeleton() {
			if c.id.table == nat {
				b.only(nat).put(c)
			}
		}
		for _, id := range units {
			r := l.st.renderer.unit(id, l.st.units[id].rows)
			for id, ranges := range r.lists {
				b.only(id.table).put(listChain(id, ranges))
			}
			for _, c := range r.chains {
				b.only(nat).put(c)
			}
		}
		err := l.p.restore(ctx, &b)
		switch {
		case err == nil:
			return nil
		case len(units) == 0:
			return err
		case len(units) == 1:
			no.units[units[0]] = err
			return nil
		}
		half := len(units) / 2
		if err := find(units[:half]); err != nil {
			return err
		}
		return find(units[half:])
	}
	if find(nil) != nil { // not even the chains that do not depend on them are taken
		return cause
	}
	if find(units) != nil || len(no.units) == 0 || len(no.units) == len(units) && len(units) > 1 {
		return cause
	}
	return no
}

// restoreAll hands all batches to one iptables-restore, which reads while they are made. declare names the chains of nat
// that they write.
func (p *Plane) restoreAll(ctx context.Context, declare []string, batches <-chan *batch) error {
	first, ok := <-batches
	if !ok {
		return nil
	}
	var wrote Written
	var bytes, chains uint64
	write := func(out io.Writer) error {
		w := bufio.NewWriterSize(out, 64<<10)
		say := func(text []byte) error {
			bytes += uint64(len(text))
			_, err := w.Write(text)
			return err
		}
		note := func(s *section) {
			wrote.add(s)
			chains += uint64(len(s.write))
		}
		var later []*section
		rules := &section{table: nat}
		for _, s := range first.sections {
			if s.table == nat {
				rules = s
			} else if !s.empty() {
				note(s)
				if err := say(s.appendText(nil)); err != nil {
					return err
				}
			}
		}
		for _, c := range rules.write {
			declare = append(declare, c.id.name)
		}
		// Backwards, see [section.appendText].
		slices.SortFunc(declare, func(a, b string) int { return cmp.Compare(b, a) })
		note(rules)
		text := rules.appendRules(appendDeclared(nat.appendBegin(nil), slices.Compact(declare)))
		for b := first; b != nil; b = <-batches {
			for _, s := range b.sections {
				switch {
				case b == first:
				case s.table == nat:
					note(s)
					text = s.appendRules(text)
				default:
					later = append(later, s)
				}
			}
			if err := say(text); err != nil {
				return err
			}
			text = text[:0]
		}
		if err := ctx.Err(); err != nil { // these may not have been all, and to commit would empty the chains of the others
			return err
		}
		if err := say([]byte(commit)); err != nil {
			return err
		}
		for _, s := range later {
			note(s)
			if err := say(s.appendText(nil)); err != nil {
				return err
			}
		}
		return w.Flush()
	}
	err := p.restoreOwn(ctx, int(tables), func(ctx context.Context) error { return p.tool.restore(ctx, write) })
	p.count(func(s *Stats) {
		s.Restores++
		s.Bytes += bytes
		s.Chains += chains
		s.Last.plus(wrote)
		if err != nil {
			s.Failures++
		}
	})
	return err
}
