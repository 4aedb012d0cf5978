package redirect

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"

	"kube-proxy/internal/follow"
	"kube-proxy/internal/nft/walk"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane/internal/diff"
	"kube-proxy/trace"
)

// Each redirector reads on a socket of its own, and nothing of what its other verbs change.
var _, _ Looker = (*NFTables)(nil), (*IPTables)(nil)

// Follow is part of [Looker].
func (c *NFTables) Follow(ctx context.Context, p trace.Packet) (trace.Kernel, error) {
	sock, err := wire.Open()
	if err != nil {
		return trace.Kernel{}, err
	}
	defer sock.Close()
	rules := c.renderer(lb.Node{})
	t := walk.Table{Family: c.ip.Proto, Name: TableName, EndsHere: true, Chains: rules.chains(), Sets: rules.sets[:]}
	all, lines, err := walk.Go(ctx, sock, t, p)
	if err != nil {
		return trace.Kernel{}, err
	}
	k := follow.Answer(p, all, lines)
	k.Masquerade = false // it ends at a listener
	return k, nil
}

// renderer renders the rules for a node, of what never changes of the redirector.
func (c *NFTables) renderer(n lb.Node) *ruleset {
	return &ruleset{IP: c.ip, sets: schema(c.ip), mark: c.cfg.Mark, localhost: c.cfg.LocalhostNodePorts, sockets: c.rules.sockets, node: n}
}

// Differences is part of [Looker]: it compares the table with what a Reset would make of it.
func (c *NFTables) Differences(ctx context.Context, n lb.Node, leads iter.Seq[Entry], each func(trace.Difference) bool) error {
	sock, err := wire.Open()
	if err != nil {
		return err
	}
	defer sock.Close()
	d := mode.NewTeller(ctx, each)
	if err := d.Done((&NFTables{ip: c.ip, rules: c.renderer(n), sock: sock, mon: &monitor{}}).compare(ctx, leads, d)); err != nil {
		return fmt.Errorf("compare the table with the rows: %w", err)
	}
	return nil
}

func (c *NFTables) compare(ctx context.Context, leads iter.Seq[Entry], d *mode.Teller) error {
	tell := func(object, want, have string) error { return d.Tell(lb.Key{}, object, want, have) }
	snap, err := c.structure(ctx)
	if err != nil || !walk.CompareSets(c.table(), &snap.Kept, c.rules.sets[:], tell) {
		return err
	}
	none := func(string) bool { return false }
	if err := walk.CompareChains(ctx, c.table(), &snap.Kept, c.rules.chains(), none, tell); err != nil {
		return err
	}
	if err := c.readElements(ctx, snap); err != nil {
		return err
	}
	st := stateOf(slices.Collect(leads), snap, c.ip.AddrLen)
	owners := map[element]lb.Key{} // of elements that rows share, one row
	for _, l := range st.leads {
		for e := range l.sharedElements() {
			owners[e] = l.Key
		}
		if l.list != nil {
			for _, p := range l.list.Ranges {
				owners[rangeElement(l.list, p)] = l.Key
			}
		}
	}
	want := st.records(&c.rules.sets, c.ip.Proto)
	for i := range setCount {
		def := &c.rules.sets[i]
		if !snap.There[i] || i == sNodeAddresses {
			continue
		}
		n := def.KeyLen()
		diff.Elements(snap.records[i], want[i], n, func(is, want []byte) {
			rec, has, wants := is, []byte(nil), []byte(nil)
			if is != nil {
				has = is[n:]
			}
			if want != nil {
				rec, wants = want, want[n:]
			}
			k := owners[element{i, string(rec)}]
			if i <= sSourceLists {
				k = wire.ParseKey(rec, addrLenOf(i, c.ip.AddrLen))
			}
			d.Tell(k, def.ElementText(rec[:n]), def.DataText(wants), def.DataText(has))
		})
	}
	return nil
}

// addrLenOf is the length of addresses in the keys of a set of rows.
func addrLenOf(i setIndex, n int) int {
	if i < sSourceLists && (i-sPorts)%2 == 1 {
		return 0
	}
	return n
}

// Follow is part of [Looker].
func (c *IPTables) Follow(ctx context.Context, p trace.Packet) (trace.Kernel, error) {
	return c.look.Follow(ctx, p)
}

// Differences is part of [Looker]: of the rules that lead to listeners, and of the jumps to our chains.
func (c *IPTables) Differences(ctx context.Context, n lb.Node, leads iter.Seq[Entry], each func(trace.Difference) bool) error {
	d := mode.NewTeller(ctx, each)
	layout := layoutOf(c.cfg)
	layout.Writes = nil
	keep, err := xtables.NewKeeper(layout) // the other is for one goroutine
	if err != nil {
		return err
	}
	defer keep.Close()
	jumps, rules, err := keep.Held(ctx)
	if err != nil {
		return err
	}
	for _, j := range layout.Jumps {
		if !slices.Contains(jumps, j) {
			d.Tell(lb.Key{}, "rule of chain "+j.Chain+" of table "+j.Table, j.Rule, "")
		}
	}
	have := leadsIn(rules)
	refusing := map[lb.Key]bool{}
	for _, r := range rules {
		if k, ok := parseRefusal(r); ok {
			refusing[k] = true
		}
	}
	for l := range leads {
		is := have[l.Key]
		delete(have, l.Key)
		refuses := len(l.Sources) > 0 && !l.Key.IsNodePort()
		var want, got []string
		for _, r := range l.Routes {
			if r.Port == 0 {
				refuses = true
			} else if r.From != lb.Pods || !n.Pods.IsZero() { // nobody is known to be one
				want = append(want, fmt.Sprintf("%s to :%d", r.From, r.Port))
			}
		}
		for _, r := range is.Routes {
			got = append(got, fmt.Sprintf("%s to :%d", r.From, r.Port))
		}
		if !slices.Equal(want, got) {
			d.Tell(l.Key, "rules of table nat for "+l.Key.String(), strings.Join(want, ", "), strings.Join(got, ", "))
		}
		if refuses && !refusing[l.Key] {
			d.Tell(l.Key, "rules of table filter for "+l.Key.String(), "who is refused", "")
		}
	}
	for k, l := range have {
		d.Tell(k, "rules of table nat for "+k.String(), "", fmt.Sprintf("%d routes", len(l.Routes)))
	}
	return d.Done(nil)
}
