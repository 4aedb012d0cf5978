//go:build linux

package iptables

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/trace"
)

// Differences is part of mode.Looker. It renders the table's chains one service port after the other, and compares each with what the kernel
// holds; of chains of others it looks for the rules that lead to ours. A comment makes no difference, for among many endpoints rules have none
// (DP-12); and neither does a chain of ours that is empty and that nothing needs. One comparison is made at a time.
func (p *Plane) Differences(ctx context.Context, want *lb.Table, each func(trace.Difference) bool) error {
	select {
	case p.compare <- struct{}{}:
		defer func() { <-p.compare }()
	case <-ctx.Done():
		return fmt.Errorf("iptables: compare: %w", ctx.Err())
	}
	h, err := p.holding(ctx)
	if err != nil {
		return fmt.Errorf("iptables: compare: %w", err)
	}
	defer h.close()
	d := &differ{ctx: ctx, tool: p.tool, renderer: p.renderer(want.Node), holds: h, Teller: mode.NewTeller(ctx, each), wanted: map[chainID]bool{}}
	if err := d.Done(d.all(want)); err != nil {
		return fmt.Errorf("iptables: compare: %w", err)
	}
	return nil
}

// renderer returns what rows are to be rendered with, without what the engine's goroutine changes.
func (p *Plane) renderer(n lb.Node) renderer {
	return renderer{family: p.family, node: n, localhost: p.base.localhost, fullyRandom: p.base.fullyRandom, mark: p.base.mark,
		liberal: !p.dry && liberal(), counts: p.accounting.Load() != nil}
}

// differ compares what the kernel holds with what it shall.
type differ struct {
	renderer
	ctx   context.Context
	tool  *tool
	holds holding
	*mode.Teller
	// wanted are the chains that shall be there.
	wanted map[chainID]bool
	// printed are the rules that iptables itself prints, without comments; nil until they are needed.
	printed map[chainID]digest
}

// all compares all. What everything depends on comes first.
func (d *differ) all(want *lb.Table) error {
	if err := d.jumps(); err != nil {
		return err
	}
	for _, c := range d.skeleton() {
		if err := d.compare(c, "", nil); err != nil {
			return err
		}
	}
	var entries [dispatchers][]entry
	lists := map[chainID][]netip.Prefix{}
	for _, port := range byPort(want.All()) {
		r := d.servicePort(port.id, port.rows)
		for _, c := range r.chains {
			if err := d.compare(c, port.id.service, func(string) lb.Key { return port.rows[0].Key }); err != nil {
				return err
			}
		}
		maps.Copy(lists, r.lists)
		for k, rules := range r.dispatch {
			for _, e := range rules {
				entries[e.to] = append(entries[e.to], entry{path(k), e.rules})
			}
		}
	}
	for _, tree := range d.dispatchersOf(entries) {
		for _, at := range slices.Sorted(maps.Keys(tree.nodes)) {
			if err := d.compare(tree.chain(at), "", func(rule string) lb.Key { return keyOf(tree, at, rule) }); err != nil {
				return err
			}
		}
	}
	for _, id := range slices.SortedFunc(maps.Keys(lists), compareID) {
		if err := d.compare(listChain(id, lists[id]), "", nil); err != nil {
			return err
		}
	}
	return d.stale()
}

// chain reads a chain, nil if there is none.
func (d *differ) chain(id chainID) (*chainState, error) {
	if err := d.ctx.Err(); err != nil {
		return nil, err
	}
	names, err := d.holds.names(id.table)
	if err != nil || !names[id.name] {
		return nil, err
	}
	return d.holds.chain(id)
}

// jumps looks for the rules of built-in chains that lead to ours.
func (d *differ) jumps() error {
	all := jumps()
	if d.localnet() {
		all = append(all, blockLocalnetJump)
	}
	have := map[chainID]map[string]bool{}
	for _, j := range all {
		if have[j.from] == nil {
			have[j.from] = map[string]bool{}
			c, err := d.chain(j.from)
			if err != nil {
				return err
			}
			if c == nil {
				c = &chainState{}
			}
			for _, r := range c.rules {
				have[j.from][WithoutComments(r.text)] = true
			}
		}
		if have[j.from][WithoutComments(j.rule)] {
			continue
		}
		if err := d.Tell(lb.Key{}, "rule of "+name(j.from), "-A "+j.from.name+" "+j.rule, ""); err != nil {
			return err
		}
	}
	return nil
}

// name names a chain in words.
func name(id chainID) string { return "chain " + id.name + " of table " + id.table.String() }

// compare compares a chain, of a service port if that is not "". key says to which row a rule belongs; nil if to none.
func (d *differ) compare(c chain, service string, key func(rule string) lb.Key) error {
	d.wanted[c.id] = true
	if key == nil {
		key = func(string) lb.Key { return lb.Key{} }
	}
	object := name(c.id)
	if service != "" {
		object += " (" + service + ")"
	}
	have, err := d.chain(c.id)
	if err != nil {
		return err
	}
	lines := func(rules []string) string {
		if len(rules) == 0 {
			return "-N " + c.id.name
		}
		return "-A " + c.id.name + " " + strings.Join(rules, "\n-A "+c.id.name+" ")
	}
	if have == nil {
		first := ""
		if len(c.rules) > 0 {
			first = c.rules[0]
		}
		return d.Tell(key(first), object, lines(c.rules), "")
	}
	if c.id.name == nodeFirewall { // shared: its rules are of others, but for one, which is a jump
		return nil
	}
	missing, extra, same := unlike(c.rules, have)
	if same {
		return nil
	}
	if slices.ContainsFunc(have.rules, func(r rule) bool { return len(r.strange) > 0 }) {
		if alike, err := d.printedAlike(c); err != nil || alike {
			return err
		}
	}
	if len(missing) == 0 && len(extra) == 0 {
		return d.Tell(key(c.rules[0]), "order of the rules of "+object, lines(c.rules), lines(texts(have)))
	}
	for i := range max(len(missing), len(extra)) {
		diff := trace.Difference{Object: "rule of " + object}
		if i < len(extra) {
			diff.Have, diff.Key = lines(extra[i:i+1]), key(extra[i])
		}
		if i < len(missing) {
			diff.Want, diff.Key = lines(missing[i:i+1]), key(missing[i])
		}
		if err := d.Tell(diff.Key, diff.Object, diff.Want, diff.Have); err != nil {
			return err
		}
	}
	return nil
}

func texts(c *chainState) (all []string) {
	for _, r := range c.rules {
		all = append(all, r.text)
	}
	return all
}

// unlike returns the rules that only one side has. Not same without any is the order alone.
func unlike(want []string, have *chainState) (missing, extra []string, same bool) {
	same = len(want) == len(have.rules)
	for i := 0; same && i < len(want); i++ {
		same = WithoutComments(want[i]) == WithoutComments(have.rules[i].text)
	}
	if same {
		return nil, nil, true
	}
	count := map[string]int{}
	for _, r := range have.rules {
		count[WithoutComments(r.text)]++
	}
	for _, rule := range want {
		if bare := WithoutComments(rule); count[bare] > 0 {
			count[bare]--
		} else {
			missing = append(missing, rule)
		}
	}
	for _, r := range slices.Backward(have.rules) { // what is there twice is so at the end
		if bare := WithoutComments(r.text); count[bare] > 0 {
			count[bare]--
			extra = append(extra, r.text)
		}
	}
	slices.Reverse(extra)
	return missing, extra, false
}

// printedAlike reports whether iptables itself prints a chain as it is wanted. Another version than those that we know may write rules in a
// form of nf_tables that we do not understand, and it does.
func (d *differ) printedAlike(c chain) (bool, error) {
	if d.printed == nil {
		s, err := takeSnapshot(d.ctx, d.tool)
		if err != nil {
			return false, err
		}
		d.printed = s.chains
	}
	return d.printed[c.id].bare == digestOf(c.rules).bare, nil
}

// stale tells of chains of ours that nothing needs, and that lead somewhere.
func (d *differ) stale() error {
	for t := range tables {
		names, err := d.holds.names(t)
		if err != nil {
			return err
		}
		for _, n := range slices.Sorted(maps.Keys(names)) {
			id := chainID{t, n}
			if d.wanted[id] || !isDynamic(id) && n != markOffCluster {
				continue
			}
			c, err := d.chain(id)
			if err != nil {
				return err
			}
			if c == nil || len(c.rules) == 0 {
				continue
			}
			if err := d.Tell(lb.Key{}, name(id), "", "-A "+n+" "+strings.Join(texts(c), "\n-A "+n+" ")); err != nil {
				return err
			}
		}
	}
	return nil
}

// keyOf returns the key of the row to which a rule of a node belongs; the zero Key if to none.
func keyOf(d *dispatcher, at, rule string) lb.Key {
	if d.nodes[at].children != nil {
		return lb.Key{}
	}
	for _, e := range d.rangeOf(at) {
		if slices.Contains(e.rules, rule) {
			return d.key(e.path)
		}
	}
	k, _ := servedBy([]byte(d.root), []byte(rule)) // of a row that is no more
	return k
}
