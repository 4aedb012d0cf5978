//go:build linux

package iptables

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"kube-proxy/internal/xtables"
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
	h, err := p.Tool.OpenHolding(ctx)
	if err != nil {
		return fmt.Errorf("iptables: compare: %w", err)
	}
	defer h.Close()
	d := &differ{ctx: ctx, tool: p.Tool, renderer: p.renderer(want.Node), holds: h, Teller: mode.NewTeller(ctx, each), wanted: map[xtables.ChainID]bool{}}
	if err := d.Done(d.all(want)); err != nil {
		return fmt.Errorf("iptables: compare: %w", err)
	}
	return nil
}

// renderer returns what rows are to be rendered with, without what the engine's goroutine changes.
func (p *Plane) renderer(n lb.Node) renderer {
	return renderer{family: p.Family, node: n, localhost: p.base.localhost, fullyRandom: p.base.fullyRandom, mark: p.base.mark,
		liberal: !p.dry && liberal(), counts: p.accounting.Load() != nil}
}

// differ compares what the kernel holds with what it shall.
type differ struct {
	renderer
	ctx   context.Context
	tool  *xtables.Tool
	holds xtables.Holding
	*mode.Teller
	// wanted are the chains that shall be there.
	wanted map[xtables.ChainID]bool
	// printed are the rules that iptables itself prints, without comments; nil until they are needed.
	printed map[xtables.ChainID]xtables.Digest
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
	var entries [dispatchers][]xtables.Entry
	lists := map[xtables.ChainID][]netip.Prefix{}
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
				entries[e.to] = append(entries[e.to], xtables.Entry{Path: xtables.PathOf(k), Rules: e.rules})
			}
		}
	}
	for _, tree := range d.dispatchersOf(entries) {
		for _, at := range slices.Sorted(maps.Keys(tree.Nodes)) {
			if err := d.compare(tree.Chain(at), "", func(rule string) lb.Key { return keyOf(tree, at, rule) }); err != nil {
				return err
			}
		}
	}
	for _, id := range slices.SortedFunc(maps.Keys(lists), xtables.CompareID) {
		if err := d.compare(listChain(id, lists[id]), "", nil); err != nil {
			return err
		}
	}
	return d.stale()
}

// Chain reads a chain, nil if there is none.
func (d *differ) Chain(id xtables.ChainID) (*xtables.ChainState, error) {
	if err := d.ctx.Err(); err != nil {
		return nil, err
	}
	names, err := d.holds.Names(id.Table)
	if err != nil || !names[id.Name] {
		return nil, err
	}
	return d.holds.Chain(id)
}

// jumps looks for the rules of built-in chains that lead to ours.
func (d *differ) jumps() error {
	all := jumps()
	if d.localnet() {
		all = append(all, xtables.BlockLocalnetJump)
	}
	have := map[xtables.ChainID]map[string]bool{}
	for _, j := range all {
		if have[j.From] == nil {
			have[j.From] = map[string]bool{}
			c, err := d.Chain(j.From)
			if err != nil {
				return err
			}
			if c == nil {
				c = &xtables.ChainState{}
			}
			for _, r := range c.Rules {
				have[j.From][xtables.WithoutComments(r.Text)] = true
			}
		}
		if have[j.From][xtables.WithoutComments(j.Rule)] {
			continue
		}
		if err := d.Tell(lb.Key{}, "rule of "+name(j.From), "-A "+j.From.Name+" "+j.Rule, ""); err != nil {
			return err
		}
	}
	return nil
}

// name names a chain in words.
func name(id xtables.ChainID) string { return "chain " + id.Name + " of table " + id.Table.String() }

// compare compares a chain, of a service port if that is not "". key says to which row a rule belongs; nil if to none.
func (d *differ) compare(c xtables.Chain, service string, key func(rule string) lb.Key) error {
	d.wanted[c.ID] = true
	if key == nil {
		key = func(string) lb.Key { return lb.Key{} }
	}
	object := name(c.ID)
	if service != "" {
		object += " (" + service + ")"
	}
	have, err := d.Chain(c.ID)
	if err != nil {
		return err
	}
	lines := func(rules []string) string {
		if len(rules) == 0 {
			return "-N " + c.ID.Name
		}
		return "-A " + c.ID.Name + " " + strings.Join(rules, "\n-A "+c.ID.Name+" ")
	}
	if have == nil {
		first := ""
		if len(c.Rules) > 0 {
			first = c.Rules[0]
		}
		return d.Tell(key(first), object, lines(c.Rules), "")
	}
	if c.ID.Name == xtables.NodeFirewall { // shared: its rules are of others, but for one, which is a jump
		return nil
	}
	missing, extra, same := unlike(c.Rules, have)
	if same {
		return nil
	}
	if slices.ContainsFunc(have.Rules, func(r xtables.Rule) bool { return r.Unread }) {
		if alike, err := d.printedAlike(c); err != nil || alike {
			return err
		}
	}
	if len(missing) == 0 && len(extra) == 0 {
		return d.Tell(key(c.Rules[0]), "order of the rules of "+object, lines(c.Rules), lines(texts(have)))
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

func texts(c *xtables.ChainState) (all []string) {
	for _, r := range c.Rules {
		all = append(all, r.Text)
	}
	return all
}

// unlike returns the rules that only one side has. Not same without any is the order alone.
func unlike(want []string, have *xtables.ChainState) (missing, extra []string, same bool) {
	same = len(want) == len(have.Rules)
	for i := 0; same && i < len(want); i++ {
		same = xtables.WithoutComments(want[i]) == xtables.WithoutComments(have.Rules[i].Text)
	}
	if same {
		return nil, nil, true
	}
	count := map[string]int{}
	for _, r := range have.Rules {
		count[xtables.WithoutComments(r.Text)]++
	}
	for _, rule := range want {
		if bare := xtables.WithoutComments(rule); count[bare] > 0 {
			count[bare]--
		} else {
			missing = append(missing, rule)
		}
	}
	for _, r := range slices.Backward(have.Rules) { // what is there twice is so at the end
		if bare := xtables.WithoutComments(r.Text); count[bare] > 0 {
			count[bare]--
			extra = append(extra, r.Text)
		}
	}
	slices.Reverse(extra)
	return missing, extra, false
}

// printedAlike reports whether iptables itself prints a chain as it is wanted. Another version than those that we know may write rules in a
// form of nf_tables that we do not understand, and it does.
func (d *differ) printedAlike(c xtables.Chain) (bool, error) {
	if d.printed == nil {
		s, err := d.tool.Snapshot(d.ctx, xtables.Ours, nil)
		if err != nil {
			return false, err
		}
		d.printed = s.Chains
	}
	return d.printed[c.ID].Bare == xtables.DigestOf(c.Rules).Bare, nil
}

// stale tells of chains of ours that nothing needs, and that lead somewhere.
func (d *differ) stale() error {
	for t := range xtables.Tables {
		names, err := d.holds.Names(t)
		if err != nil {
			return err
		}
		for _, n := range slices.Sorted(maps.Keys(names)) {
			id := xtables.ChainID{Table: t, Name: n}
			if d.wanted[id] || !xtables.IsDynamic(id) && n != xtables.MarkOffCluster {
				continue
			}
			c, err := d.Chain(id)
			if err != nil {
				return err
			}
			if c == nil || len(c.Rules) == 0 {
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
func keyOf(d *xtables.Dispatcher, at, rule string) lb.Key {
	if d.Nodes[at].Children != nil {
		return lb.Key{}
	}
	for _, e := range d.RangeOf(at) {
		if slices.Contains(e.Rules, rule) {
			return d.Key(e.Path)
		}
	}
	k, _ := servedBy(d.Root, rule) // of a row that is no more
	return k
}
