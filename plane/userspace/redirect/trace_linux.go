package redirect

import (
	"context"
	"fmt"
	"iter"
	"slices"

	"kube-proxy/internal/nft/rule"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane/internal/diff"
	"kube-proxy/trace"
)

// Each redirector reads on a socket of its own, and reads no state that its other verbs change.
var _, _ Tracer = (*NFTables)(nil), (*IPTables)(nil)

// TracePacket is part of [Tracer].
func (c *NFTables) TracePacket(ctx context.Context, p trace.Packet, walk mode.Walk) (trace.Kernel, error) {
	rules := c.renderer(lb.Node{}, c.rules.sockets)
	k, err := walk(ctx, rule.Table{Family: c.ip.Proto, Name: TableName, EndsHere: true, Chains: rules.chains(),
		Sets: rules.sets[:]}, p)
	k.Masquerade = false // it ends at a listener
	return k, err
}

// renderer renders the rules for a node. It only uses constant fields of the redirector.
func (c *NFTables) renderer(n lb.Node, sockets bool) *ruleset {
	return &ruleset{IP: c.ip, sets: schema(c.ip), cfg: c.cfg, sockets: sockets, node: n}
}

// Differences is part of [Tracer]: it compares the table with the result of a Reset.
func (c *NFTables) Differences(ctx context.Context, n lb.Node, leads iter.Seq[Entry], d *mode.Reporter) error {
	sock, err := wire.Open()
	if err != nil {
		return err
	}
	defer sock.Close()
	reader := &NFTables{ip: c.ip, rules: c.renderer(n, c.rules.sockets), sock: sock}
	if err := reader.compare(ctx, leads, d); err != nil {
		return fmt.Errorf("compare the table with the rows: %w", err)
	}
	return nil
}

func (c *NFTables) compare(ctx context.Context, leads iter.Seq[Entry], d *mode.Reporter) error {
	report := func(object, want, have string) error { return d.Report(lb.Key{}, object, want, have) }
	snap, err := c.structure(ctx)
	if err != nil || !rule.CompareSets(c.table(), &snap.Kept, c.rules.sets[:], report) {
		return err
	}
	none := func(string) bool { return false }
	if err := rule.CompareChains(ctx, c.table(), &snap.Kept, c.rules.chains(), none, report); err != nil {
		return err
	}
	if err := c.readElements(ctx, snap); err != nil {
		return err
	}
	st := stateOf(slices.Collect(leads), snap, c.ip.AddrLen)
	owners := map[element]lb.Key{} // of shared elements: the key of one of their frontends
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
	want := st.records(c.rules)
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
				k = parseKey(def, rec)
			}
			d.Report(k, def.ElementText(rec[:n]), def.DataText(wants), def.DataText(has))
		})
	}
	return nil
}

// TracePacket is part of [Tracer].
func (c *IPTables) TracePacket(ctx context.Context, p trace.Packet, walk mode.Walk) (trace.Kernel, error) {
	return walk(ctx, c.keep.Tool, p)
}

// Differences is part of [Tracer]. It renders the rules with the present address of the node.
func (c *IPTables) Differences(ctx context.Context, n lb.Node, leads iter.Seq[Entry], d *mode.Reporter) error {
	want := &IPTables{byRules: c.byRules, cfg: c.cfg, node: n, address: c.current()}
	return c.keep.Differences(ctx, want.frames(), want.rowsOf(leads), d)
}
