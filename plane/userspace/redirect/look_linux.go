package redirect

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/follow"
	nlconn "kube-proxy/internal/netlink/conn"
	"kube-proxy/internal/nft/rule"
	"kube-proxy/internal/nft/walk"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane/internal/ranges"
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
		return trace.Kernel{}, fmt.Errorf("redirect by nftables, %s: %w", c.ip.Family, err)
	}
	k := follow.Answer(p, all, lines)
	k.Masquerade = false // it ends at a listener
	return k, nil
}

// renderer renders the rules for a node, of what never changes of the redirector.
func (c *NFTables) renderer(n lb.Node) *ruleset {
	return &ruleset{IP: c.ip, sets: schema(c.ip), mark: c.cfg.Mark, localhost: c.cfg.LocalhostNodePorts, sockets: c.rules.sockets, node: n}
}

// nftDiffer compares the table with leads.
type nftDiffer struct {
	*mode.Teller
	ip rule.IP
	wire.Table
	ctx   context.Context
	sets  [setCount]wire.Set
	lists map[uint32]Entry // by number, one that has it
	// What leads share, and the keys that they have: of these but a bit for each kind of source.
	shared map[element]bool
	keys   map[lb.Key]keyHas
}

// keyHas says what maps have a key.
type keyHas struct {
	sets    uint32 // a bit for each
	sources bool
}

// Differences is part of [Looker].
func (c *NFTables) Differences(ctx context.Context, n lb.Node, leads iter.Seq[Entry], each func(trace.Difference) bool) error {
	sock, err := wire.Open()
	if err != nil {
		return err
	}
	defer sock.Close()
	rules := c.renderer(n)
	d := &nftDiffer{ctx: ctx, Teller: mode.NewTeller(ctx, each), ip: c.ip, Table: c.table(sock), sets: rules.sets,
		lists: map[uint32]Entry{}, shared: map[element]bool{}, keys: map[lb.Key]keyHas{}}
	if err := d.Done(d.all(rules, leads)); err != nil {
		return fmt.Errorf("redirect by nftables, %s: compare the table with the rows: %w", c.ip.Family, err)
	}
	return nil
}

func (d *nftDiffer) all(rules *ruleset, leads iter.Seq[Entry]) error {
	present, dormant, err := d.State(d.ctx)
	switch table := d.Title(); {
	case err != nil:
		return err
	case !present:
		d.Tell(lb.Key{}, table, wire.IsThere, "")
		return nil
	case dormant:
		d.Tell(lb.Key{}, table, "in force", "dormant: none of its chains is in force")
	}
	if err := d.structure(rules); err != nil {
		return err
	}
	var some []Entry
	for l := range leads {
		if l.Key.IsNodePort() {
			l.Sources = nil
		}
		if some = append(some, l); len(some) < 500 {
			continue
		}
		if err := d.some(some); err != nil {
			return err
		}
		some = some[:0]
	}
	if err := d.some(some); err != nil {
		return err
	}
	return d.others()
}

// structure compares chains and their rules.
func (d *nftDiffer) structure(rules *ruleset) error {
	hooks, have := map[string]wire.Hook{}, map[string][]walk.Rule{}
	err := wire.Undisturbed(d.ctx, func() error {
		clear(hooks)
		clear(have)
		err := d.EachChain(d.ctx, func(name string, h wire.Hook) { hooks[name] = h })
		if err != nil {
			return err
		}
		return d.EachRule(d.ctx, func(chain string, body []byte) { have[chain] = append(have[chain], walk.RuleOf(body)) })
	})
	if err != nil {
		return err
	}
	tell := func(object, want, have string) error { return d.Tell(lb.Key{}, object, want, have) }
	for _, c := range rules.chains() {
		h, there := hooks[c.Name]
		delete(hooks, c.Name)
		if err := walk.Compare(c, there, h, have[c.Name], tell); err != nil {
			return err
		}
	}
	for name, h := range hooks {
		d.Tell(lb.Key{}, "chain "+name, "", h.State())
	}
	return nil
}

// get returns the data of the elements of those keys that are there.
func (d *nftDiffer) get(i setIndex, keys [][]byte) (map[string][]byte, error) {
	return d.Get(d.ctx, &d.sets[i], keys)
}

// some compares the elements of some leads.
func (d *nftDiffer) some(leads []Entry) error {
	type wanted struct {
		key  lb.Key
		data []byte
	}
	var want [setCount]map[string]wanted
	put := func(l Entry, e element) {
		if want[e.set] == nil {
			want[e.set] = map[string]wanted{}
		}
		n := d.sets[e.set].KeyLen()
		want[e.set][e.rec[:n]] = wanted{l.Key, []byte(e.rec[n:])}
	}
	var sources [][]byte
	for _, l := range leads {
		h := keyHas{sources: len(l.Sources) > 0}
		for e := range l.elements(nil) {
			put(l, e)
			h.sets |= 1 << e.set
		}
		d.keys[l.Key] = h
		for e := range l.sharedElements() {
			if !d.shared[e] {
				d.shared[e] = true
				put(l, e)
			}
		}
		if h.sources {
			sources = append(sources, wire.AppendKey(nil, l.Key))
		}
	}
	for i := range setCount {
		var keys [][]byte
		for k := range want[i] {
			keys = append(keys, []byte(k))
		}
		have, err := d.get(i, keys)
		if err != nil {
			return err
		}
		for k, w := range want[i] {
			if is, ok := have[k]; !ok || !bytes.Equal(is, w.data) {
				d.Tell(w.key, d.sets[i].ElementText([]byte(k)), d.sets[i].DataText(w.data), d.sets[i].DataText(is))
			}
		}
	}
	have, err := d.get(sSourceLists, sources)
	if err != nil {
		return err
	}
	for _, l := range leads {
		if len(l.Sources) == 0 {
			continue
		}
		k := wire.AppendKey(nil, l.Key)
		list, ok := have[string(k)]
		if !ok {
			d.Tell(l.Key, d.sets[sSourceLists].ElementText(k), "the number of its list", "")
			continue
		}
		if err := d.list1(l, k, nlconn.Order.Uint32(list)); err != nil {
			return err
		}
	}
	return d.Err()
}

// list1 compares the ranges of one lead.
func (d *nftDiffer) list1(l Entry, k []byte, n uint32) error {
	if o, ok := d.lists[n>>lengthBits]; ok {
		if !slices.Equal(o.Sources, l.Sources) {
			d.Tell(l.Key, d.sets[sSourceLists].ElementText(k), "the number of its list", fmt.Sprintf("0x%08x, the list of %s", n, o.Key))
		}
		return nil
	}
	d.lists[n>>lengthBits] = l
	var keys [][]byte
	(&sourceList{number: n >> lengthBits, ranges: ranges.Of(l.Sources)}).each(func(e element) { keys = append(keys, []byte(e.rec)) })
	have, err := d.get(sSourceRanges, keys)
	for _, k := range keys {
		if _, ok := have[string(k)]; !ok && err == nil {
			d.Tell(l.Key, d.sets[sSourceRanges].ElementText(k), wire.IsThere, "")
		}
	}
	return err
}

// others looks for elements that no lead wants.
func (d *nftDiffer) others() error {
	for i := range setCount {
		def := &d.sets[i]
		err := d.EachElement(d.ctx, def.Name, func(el []byte) {
			rec := def.Record(nil, el)
			n := def.KeyLen()
			if i == sNodeAddresses {
				return
			}
			if k, wanted := d.wants(i, rec); !wanted {
				d.Tell(k, def.ElementText(rec[:n]), "", def.DataText(rec[n:]))
			}
		})
		switch {
		case d.Err() != nil:
			return d.Err()
		case errors.Is(err, unix.ENOENT):
			d.Tell(lb.Key{}, "set "+d.sets[i].Name, wire.IsThere, "")
		case err != nil && !errors.Is(err, nlconn.ErrInterrupted):
			return fmt.Errorf("elements of %s: %w", d.sets[i].Name, err)
		}
	}
	return nil
}

// wants reports whether an element may be there.
func (d *nftDiffer) wants(i setIndex, rec []byte) (lb.Key, bool) {
	switch i {
	case sClusterIPs, sListeners:
		return lb.Key{}, d.shared[element{i, string(rec)}]
	case sSourceRanges:
		n := nlconn.Order.Uint32(rec)
		l, ok := d.lists[n>>lengthBits]
		if !ok {
			return lb.Key{}, false
		}
		return l.Key, slices.Contains(ranges.Of(l.Sources), netip.PrefixFrom(wire.ParseAddr(rec[4:]), int(n&(1<<lengthBits-1))))
	case sSourceLists:
		k := wire.ParseKey(rec, d.ip.AddrLen)
		return k, d.keys[k].sources
	}
	n := d.ip.AddrLen
	if (i-sPorts)%2 == 1 {
		n = 0
	}
	k := wire.ParseKey(rec, n)
	return k, d.keys[k].sets&(1<<i) != 0
}

// Follow is part of [Looker].
func (c *IPTables) Follow(ctx context.Context, p trace.Packet) (trace.Kernel, error) {
	k, err := c.look.Follow(ctx, p)
	return k, c.wrap(err)
}

// Differences is part of [Looker]: of the rules that lead to listeners, and of the jumps to our chains.
func (c *IPTables) Differences(ctx context.Context, n lb.Node, leads iter.Seq[Entry], each func(trace.Difference) bool) error {
	d := mode.NewTeller(ctx, each)
	layout := layoutOf(c.cfg)
	layout.Writes = nil
	keep, err := xtables.NewKeeper(layout) // the other is for one goroutine
	if err != nil {
		return c.wrap(err)
	}
	defer keep.Close()
	jumps, rules, err := keep.Held(ctx)
	if err != nil {
		return c.wrap(err)
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
	return c.wrap(d.Done(nil))
}
