//go:build linux

package xtables

import (
	"context"
	"iter"
	"slices"
	"strings"

	"kube-proxy/lb"
	"kube-proxy/mode"
)

// Wanted is the desired state of a chain.
type Wanted struct {
	Chain
	// Of is the display name of the chain's owner; "" for none.
	Of string
	// Key returns the frontend key of a rule; nil if no rule has one.
	Key func(rule string) lb.Key
}

// Differences compares the kernel with the wanted chains and jumps, and reports each difference. It
// ignores comments, and unwanted empty chains. ours reports whether a chain belongs to the mode.
func (t *Tool) Differences(ctx context.Context, jumps []Jump, want iter.Seq[Wanted], ours func(ChainID) bool,
	reporter *mode.Reporter) error {
	h, err := t.OpenHolding(ctx)
	if err != nil {
		return err
	}
	defer h.Close()
	d := &differ{ctx: ctx, tool: t, holds: h, Reporter: reporter, ours: ours, wanted: map[ChainID]bool{}}
	return reporter.Done(d.all(jumps, want))
}

// differ compares the kernel with the wanted chains.
type differ struct {
	ctx   context.Context
	tool  *Tool
	holds Holding
	*mode.Reporter
	ours   func(ChainID) bool
	names  [Raw + 1][]string // by table, sorted
	wanted map[ChainID]bool
	// printed are the chains as iptables prints them; nil until needed.
	printed map[ChainID]Digest
}

func (d *differ) all(jumps []Jump, want iter.Seq[Wanted]) (err error) {
	for t := range d.names {
		d.names[t], err = d.holds.Names(Table(t))
		if err != nil {
			return err
		}
	}
	if err := d.jumps(jumps); err != nil {
		return err
	}
	for w := range want {
		if err := d.compare(w); err != nil {
			return err
		}
	}
	return d.stale()
}

// chain reads a chain; nil if it does not exist.
func (d *differ) chain(id ChainID) (*ChainState, error) {
	if err := d.ctx.Err(); err != nil {
		return nil, err
	}
	if _, there := slices.BinarySearch(d.names[id.Table], id.Name); !there {
		return nil, nil
	}
	return d.holds.Chain(id)
}

func (d *differ) jumps(all []Jump) error {
	have := map[ChainID]map[string]bool{} // rules without comments
	for _, j := range all {
		if have[j.From] == nil {
			have[j.From] = map[string]bool{}
			c, err := d.chain(j.From)
			if err != nil {
				return err
			}
			for _, rule := range c.texts() {
				have[j.From][WithoutComments(rule)] = true
			}
		}
		if have[j.From][WithoutComments(j.Rule)] {
			continue
		}
		if err := d.Report(lb.Key{}, "rule of "+j.From.words(), lines(j.From, j.Rule), ""); err != nil {
			return err
		}
	}
	return nil
}

// words names the chain for people.
func (id ChainID) words() string { return "chain " + id.Name + " of table " + id.Table.String() }

// lines returns the iptables arguments for the rules of a chain, or for an empty chain.
func lines(id ChainID, rules ...string) string {
	if len(rules) == 0 {
		return "-N " + id.Name
	}
	return "-A " + id.Name + " " + strings.Join(rules, "\n-A "+id.Name+" ")
}

func (d *differ) compare(c Wanted) error {
	d.wanted[c.ID] = true
	key := func(rule string) lb.Key {
		if c.Key == nil {
			return lb.Key{}
		}
		return c.Key(rule)
	}
	object := c.ID.words()
	if c.Of != "" {
		object += " (" + c.Of + ")"
	}
	have, err := d.chain(c.ID)
	if err != nil {
		return err
	}
	if have == nil {
		first := lb.Key{}
		if len(c.Rules) > 0 {
			first = key(c.Rules[0])
		}
		return d.Report(first, object, lines(c.ID, c.Rules...), "")
	}
	if c.ID == firewall { // shared: all its rules except one jump are the kubelet's
		return nil
	}
	missing, extra, same := unlike(c.Rules, have.texts())
	if same {
		return nil
	}
	if slices.ContainsFunc(have.Rules, func(r Rule) bool { return r.Unread }) {
		if alike, err := d.printedAlike(c.Chain); err != nil || alike {
			return err
		}
	}
	if len(missing) == 0 && len(extra) == 0 {
		return d.Report(key(c.Rules[0]), "order of the rules of "+object, lines(c.ID, c.Rules...),
			lines(c.ID, have.texts()...))
	}
	for i := range max(len(missing), len(extra)) {
		var want, is string
		var k lb.Key
		if i < len(extra) {
			is, k = lines(c.ID, extra[i]), key(extra[i])
		}
		if i < len(missing) {
			want, k = lines(c.ID, missing[i]), key(missing[i])
		}
		if err := d.Report(k, "rule of "+object, want, is); err != nil {
			return err
		}
	}
	return nil
}

func (c *ChainState) texts() (all []string) {
	if c == nil {
		return nil
	}
	for _, r := range c.Rules {
		all = append(all, r.Text)
	}
	return all
}

// unlike returns the rules that only one side has. If none and same is false, the order differs.
func unlike(want, have []string) (missing, extra []string, same bool) {
	if slices.EqualFunc(want, have, func(a, b string) bool { return WithoutComments(a) == WithoutComments(b) }) {
		return nil, nil, true
	}
	count := map[string]int{}
	for _, rule := range have {
		count[WithoutComments(rule)]++
	}
	for _, rule := range want {
		if bare := WithoutComments(rule); count[bare] > 0 {
			count[bare]--
		} else {
			missing = append(missing, rule)
		}
	}
	for _, rule := range slices.Backward(have) { // a duplicate is the last one
		if bare := WithoutComments(rule); count[bare] > 0 {
			count[bare]--
			extra = append(extra, rule)
		}
	}
	slices.Reverse(extra)
	return missing, extra, false
}

// printedAlike reports whether iptables itself prints a chain as wanted. An unknown version may
// write rules as expressions of nf_tables that only it understands.
func (d *differ) printedAlike(c Chain) (bool, error) {
	if d.printed == nil {
		s, err := d.tool.Snapshot(d.ctx, d.ours, nil)
		if err != nil {
			return false, err
		}
		d.printed = s.Chains
	}
	return d.printed[c.ID].Bare == DigestOf(c.Rules).Bare, nil
}

// stale reports unwanted chains of ours that have rules.
func (d *differ) stale() error {
	for t := range Tables {
		for _, n := range d.names[t] {
			id := ChainID{t, n}
			if d.wanted[id] || !d.ours(id) {
				continue
			}
			c, err := d.chain(id)
			if err != nil {
				return err
			}
			if c == nil || len(c.Rules) == 0 {
				continue
			}
			if err := d.Report(lb.Key{}, id.words(), "", lines(id, c.texts()...)); err != nil {
				return err
			}
		}
	}
	return nil
}
