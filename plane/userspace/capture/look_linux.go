package capture

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

	"kube-proxy/internal/nftwalk"
	"kube-proxy/internal/nftwire"
	"kube-proxy/internal/nlconn"
	"kube-proxy/internal/rtnl"
	"kube-proxy/lb"
	"kube-proxy/plane/iptables"
	"kube-proxy/plane/ranges"
	"kube-proxy/trace"
)

// Each capture reads on a socket of its own, and nothing of what its other verbs change.
var _, _, _ Looker = (*NFTables)(nil), (*IPTables)(nil), (*Addresses)(nil)

// isThere is the state of what has no other.
const isThere = "there"

// errEnough ends a comparison of which nobody wants to know more.
var errEnough = errors.New("enough")

// teller tells differences until nobody wants to know more.
type teller struct {
	ctx  context.Context
	each func(trace.Difference) bool
	err  error
}

func (t *teller) tell(k lb.Key, object, want, have string) {
	if t.err != nil {
		return
	}
	if t.err = t.ctx.Err(); t.err == nil && !t.each(trace.Difference{Key: k, Object: object, Want: want, Have: have}) {
		t.err = errEnough
	}
}

// done is the error of a comparison.
func (t *teller) done(err error) error {
	if t.err != nil {
		err = t.err
	}
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// ended makes of the ways of a packet what becomes of it: it is led to one listener, or to none.
func ended(a nftwalk.Answer) trace.Kernel {
	k := trace.Kernel{Verdict: trace.Pass, Way: a.Text}
	for _, w := range a.Ways {
		k.Verdict = w.Verdict
		if w.Translated && w.Verdict == trace.Pass {
			k.Verdict, k.Backends = trace.Balance, append(k.Backends, trace.Backend{Address: w.To, Share: w.Share})
		}
	}
	return k
}

// text of a value, as nft has it, but of numbers.
func valueText(fields []field, b []byte) string {
	var all []string
	for _, f := range fields {
		v := b[:f.size]
		b = b[f.size:]
		switch {
		case f == portField || f == portData:
			all = append(all, fmt.Sprint(parsePort(v)))
		case f == protoField:
			all = append(all, lb.Proto(v[0]).String())
		case f == numberField:
			all = append(all, fmt.Sprintf("0x%08x", nlconn.Order.Uint32(v)))
		case f == familyField:
			all = append(all, map[byte]string{unix.NFPROTO_IPV4: "ipv4", unix.NFPROTO_IPV6: "ipv6"}[v[0]])
		default:
			all = append(all, addrOf(v).String())
		}
	}
	return strings.Join(all, " . ")
}

// Follow is part of [Looker].
func (c *NFTables) Follow(ctx context.Context, p trace.Packet) (trace.Kernel, error) {
	sock, err := nftwire.Open()
	if err != nil {
		return trace.Kernel{}, err
	}
	defer sock.Close()
	t := nftwalk.Table{Family: c.proto, Name: TableName, EndsHere: true, Sets: map[string]nftwalk.Set{}}
	rules := c.renderer(lb.Node{})
	for _, ch := range rules.chains() {
		if ch.hook != (nftwire.Hook{}) {
			t.Bases = append(t.Bases, ch.name)
		}
	}
	for i := range rules.sets {
		d := &rules.sets[i]
		t.Sets[d.name] = nftwalk.Set{KeyLen: d.keyLen(), Map: d.data != nil,
			Key:  func(b []byte) string { return valueText(d.key, b) },
			Data: func(b []byte) string { return valueText(d.data, b) }}
	}
	a, err := nftwalk.Go(ctx, sock, t, p)
	if err != nil {
		return trace.Kernel{}, fmt.Errorf("capture by nftables, %s: %w", c.fam, err)
	}
	return ended(a), nil
}

// renderer renders the rules for a node, of what never changes of the capture.
func (c *NFTables) renderer(n lb.Node) *ruleset {
	return &ruleset{family: c.family, sets: schema(c.family), mark: c.cfg.Mark, localhost: c.cfg.LocalhostNodePorts, node: n}
}

// nftDiffer compares the table with leads.
type nftDiffer struct {
	teller
	family
	sock  *nftwire.Socket
	sets  [setCount]setDef
	lists map[uint32]Lead // by number, one that has it
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
func (c *NFTables) Differences(ctx context.Context, n lb.Node, leads iter.Seq[Lead], each func(trace.Difference) bool) error {
	sock, err := nftwire.Open()
	if err != nil {
		return err
	}
	defer sock.Close()
	rules := c.renderer(n)
	d := &nftDiffer{teller: teller{ctx: ctx, each: each}, family: c.family, sock: sock, sets: rules.sets,
		lists: map[uint32]Lead{}, shared: map[element]bool{}, keys: map[lb.Key]keyHas{}}
	if err := d.done(d.all(rules, leads)); err != nil {
		return fmt.Errorf("capture by nftables, %s: compare the table with the rows: %w", c.fam, err)
	}
	return nil
}

func (d *nftDiffer) all(rules *ruleset, leads iter.Seq[Lead]) error {
	present, dormant := false, false
	err := d.sock.Ask(d.ctx, nftwire.Request(unix.NFT_MSG_GETTABLE, 0, d.proto, unix.NFTA_TABLE_NAME, TableName), func(body []byte) {
		present, dormant = true, nlconn.BE32(nlconn.Attribute(body, unix.NFTA_TABLE_FLAGS))&unix.NFT_TABLE_F_DORMANT != 0
	})
	table := "table " + map[byte]string{unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6"}[d.proto] + " " + TableName
	switch {
	case err != nil && !errors.Is(err, unix.ENOENT):
		return err
	case !present:
		d.tell(lb.Key{}, table, isThere, "")
		return nil
	case dormant:
		d.tell(lb.Key{}, table, "in force", "dormant: none of its chains is in force")
	}
	if err := d.structure(rules); err != nil {
		return err
	}
	var some []Lead
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
	hooks, have := map[string]nftwire.Hook{}, map[string][]nftwalk.Rule{}
	read := func() error {
		clear(hooks)
		clear(have)
		err := d.list(unix.NFT_MSG_GETCHAIN, unix.NFTA_CHAIN_TABLE, func(body []byte) {
			hooks[nlconn.CStr(nlconn.Attribute(body, unix.NFTA_CHAIN_NAME))] = nftwire.HookOf(body)
		})
		if err == nil {
			err = d.list(unix.NFT_MSG_GETRULE, unix.NFTA_RULE_TABLE, func(body []byte) {
				name := nlconn.CStr(nlconn.Attribute(body, unix.NFTA_RULE_CHAIN))
				have[name] = append(have[name], nftwalk.RuleOf(body))
			})
		}
		return err
	}
	err := read()
	for try := 0; errors.Is(err, nlconn.ErrInterrupted) && try < 100; try++ {
		err = read()
	}
	if err != nil {
		return err
	}
	for _, c := range rules.chains() {
		h, there := hooks[c.name]
		delete(hooks, c.name)
		if !there || h != c.hook {
			d.tell(lb.Key{}, "chain "+c.name, hookText(c.hook, true), hookText(h, there))
		}
		for i := range max(len(c.rules), len(have[c.name])) {
			want, is, same := "", "", false
			if i < len(c.rules) {
				want = "the rule " + c.rules[i].comment
			}
			if i < len(have[c.name]) {
				r := have[c.name][i]
				is = fmt.Sprintf("comment %q", r.Comment)
				if i < len(c.rules) {
					does := r.Does(nftwalk.Rule{Steps: nftwalk.Steps(c.rules[i].exprs)})
					same = does && r.Comment == c.rules[i].comment
					if !does {
						is = "other expressions, " + is
					}
				}
			}
			if !same && there {
				d.tell(lb.Key{}, fmt.Sprintf("rule %d of chain %s", i+1, c.name), want, is)
			}
		}
	}
	for name, h := range hooks {
		d.tell(lb.Key{}, "chain "+name, "", hookText(h, true))
	}
	return nil
}

func hookText(h nftwire.Hook, there bool) string {
	switch {
	case !there:
		return ""
	case h == (nftwire.Hook{}):
		return isThere
	}
	return h.String()
}

func (d *nftDiffer) list(typ int, table uint16, f func(body []byte)) error {
	return d.sock.Ask(d.ctx, nftwire.Request(uint16(typ), unix.NLM_F_DUMP, d.proto, int(table), TableName), func(body []byte) {
		if nlconn.CStr(nlconn.Attribute(body, table)) == TableName { // old kernels answer with other tables' objects too
			f(body)
		}
	})
}

func (d *nftDiffer) object(i setIndex, key []byte) string {
	kind := "set "
	if d.sets[i].data != nil {
		kind = "map "
	}
	return fmt.Sprintf("element { %s } of %s%s", valueText(d.sets[i].key, key), kind, d.sets[i].name)
}

// state says the data of an element; nil: it is not there.
func (d *nftDiffer) state(i setIndex, data []byte) string {
	switch {
	case data == nil:
		return ""
	case d.sets[i].data == nil:
		return isThere
	}
	return valueText(d.sets[i].data, data)
}

// get returns the data of the elements of those keys that are there.
func (d *nftDiffer) get(i setIndex, keys [][]byte) (map[string][]byte, error) {
	have, rec, n := make(map[string][]byte, len(keys)), []byte(nil), d.sets[i].keyLen()
	err := d.sock.Elements(d.ctx, d.proto, TableName, d.sets[i].name, keys, func(el []byte) {
		rec = d.sets[i].record(rec[:0], el)
		have[string(rec[:n])] = append([]byte{}, rec[n:]...)
	})
	return have, err
}

// some compares the elements of some leads.
func (d *nftDiffer) some(leads []Lead) error {
	type wanted struct {
		key  lb.Key
		data []byte
	}
	var want [setCount]map[string]wanted
	put := func(l Lead, e element) {
		if want[e.set] == nil {
			want[e.set] = map[string]wanted{}
		}
		n := d.sets[e.set].keyLen()
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
			sources = append(sources, appendKey(nil, l.Key))
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
				d.tell(w.key, d.object(i, []byte(k)), d.state(i, w.data), d.state(i, is))
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
		k := appendKey(nil, l.Key)
		list, ok := have[string(k)]
		if !ok {
			d.tell(l.Key, d.object(sSourceLists, k), "the number of its list", "")
			continue
		}
		if err := d.list1(l, k, nlconn.Order.Uint32(list)); err != nil {
			return err
		}
	}
	return d.err
}

// list1 compares the ranges of one lead.
func (d *nftDiffer) list1(l Lead, k []byte, n uint32) error {
	if o, ok := d.lists[n>>lengthBits]; ok {
		if !slices.Equal(o.Sources, l.Sources) {
			d.tell(l.Key, d.object(sSourceLists, k), "the number of its list", fmt.Sprintf("0x%08x, the list of %s", n, o.Key))
		}
		return nil
	}
	d.lists[n>>lengthBits] = l
	var keys [][]byte
	(&sourceList{number: n >> lengthBits, ranges: ranges.Of(l.Sources)}).each(func(e element) { keys = append(keys, []byte(e.rec)) })
	have, err := d.get(sSourceRanges, keys)
	for _, k := range keys {
		if _, ok := have[string(k)]; !ok && err == nil {
			d.tell(l.Key, d.object(sSourceRanges, k), isThere, "")
		}
	}
	return err
}

// others looks for elements that no lead wants.
func (d *nftDiffer) others() error {
	addresses := 0
	for i := range setCount {
		err := d.sock.Ask(d.ctx, nftwire.Request(unix.NFT_MSG_GETSETELEM, unix.NLM_F_DUMP, d.proto, unix.NFTA_SET_ELEM_LIST_TABLE, TableName,
			unix.NFTA_SET_ELEM_LIST_SET, d.sets[i].name), func(body []byte) {
			nlconn.Attributes(nlconn.Attribute(body, unix.NFTA_SET_ELEM_LIST_ELEMENTS), func(_ uint16, el []byte) bool {
				rec := d.sets[i].record(nil, el)
				n := d.sets[i].keyLen()
				if i == sNodeAddresses {
					addresses++
				} else if k, wanted := d.wants(i, rec); !wanted {
					d.tell(k, d.object(i, rec[:n]), "", d.state(i, rec[n:]))
				}
				return d.err == nil
			})
		})
		switch {
		case d.err != nil:
			return d.err
		case errors.Is(err, unix.ENOENT):
			d.tell(lb.Key{}, "set "+d.sets[i].name, isThere, "")
		case err != nil && !errors.Is(err, nlconn.ErrInterrupted):
			return fmt.Errorf("elements of %s: %w", d.sets[i].name, err)
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
		return l.Key, slices.Contains(ranges.Of(l.Sources), netip.PrefixFrom(addrOf(rec[4:]), int(n&(1<<lengthBits-1))))
	case sSourceLists:
		k := parseKey(rec, d.addrLen)
		return k, d.keys[k].sources
	}
	n := d.addrLen
	if (i-sPorts)%2 == 1 {
		n = 0
	}
	k := parseKey(rec, n)
	return k, d.keys[k].sets&(1<<i) != 0
}

// Follow is part of [Looker].
func (c *IPTables) Follow(ctx context.Context, p trace.Packet) (trace.Kernel, error) {
	k, err := c.keep.Follow(ctx, p)
	return k, c.wrap(err)
}

// Differences is part of [Looker]: of the rules that lead to listeners, and of the jumps to our chains.
func (c *IPTables) Differences(ctx context.Context, n lb.Node, leads iter.Seq[Lead], each func(trace.Difference) bool) error {
	d := &teller{ctx: ctx, each: each}
	layout := layoutOf(c.cfg)
	layout.Writes = nil
	keep, err := iptables.NewKeeper(layout) // the other is for one goroutine
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
			d.tell(lb.Key{}, "rule of chain "+j.Chain+" of table "+j.Table, j.Rule, "")
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
			d.tell(l.Key, "rules of table nat for "+l.Key.String(), strings.Join(want, ", "), strings.Join(got, ", "))
		}
		if refuses && !refusing[l.Key] {
			d.tell(l.Key, "rules of table filter for "+l.Key.String(), "who is refused", "")
		}
	}
	for k, l := range have {
		d.tell(k, "rules of table nat for "+k.String(), "", fmt.Sprintf("%d routes", len(l.Routes)))
	}
	return c.wrap(d.done(nil))
}

// Follow is part of [Looker].
func (c *Addresses) Follow(ctx context.Context, p trace.Packet) (trace.Kernel, error) {
	conn, err := nlconn.Open(nlconn.Config{Protocol: unix.NETLINK_ROUTE})
	if err != nil {
		return trace.Kernel{}, err
	}
	defer conn.Close()
	to := p.To.Addr()
	here, err := rtnl.LeadsHere(ctx, conn, to)
	if err != nil {
		return trace.Kernel{}, fmt.Errorf("capture by addresses, %s: ask whether %s is here: %w", c.family, to, err)
	}
	if !here {
		return trace.Kernel{Verdict: trace.Pass, Way: []string{fmt.Sprintf("no local address %s: the packet goes on", to)}}, nil
	}
	return trace.Kernel{Verdict: trace.Balance, Way: []string{fmt.Sprintf("local %s", to)}, Backends: []trace.Backend{{Address: p.To, Share: 1}}}, nil
}

// Differences is part of [Looker].
func (c *Addresses) Differences(ctx context.Context, _ lb.Node, leads iter.Seq[Lead], each func(trace.Difference) bool) error {
	f := familyOf(c.family)
	conn, err := nlconn.Open(nlconn.Config{Protocol: unix.NETLINK_ROUTE})
	if err != nil {
		return err
	}
	defer conn.Close()
	all, err := rtnl.Addresses(ctx, conn, f.proto)
	if err != nil {
		return fmt.Errorf("capture by addresses, %s: %w", c.family, err)
	}
	d := &teller{ctx: ctx, each: each}
	has, ours, wanted := map[netip.Addr]bool{}, map[netip.Addr]bool{}, map[netip.Addr]bool{}
	for _, a := range all {
		has[a.Addr] = true
		if a.Metric == ourMetric {
			ours[a.Addr] = true
		}
	}
	for l := range leads {
		if a := l.Key.Addr; !l.Key.IsNodePort() && !wanted[a] {
			wanted[a] = true
			if !has[a] {
				d.tell(l.Key, "address "+a.String(), isThere, "")
			}
		}
	}
	for a := range ours {
		if !wanted[a] {
			d.tell(lb.Key{}, "address "+a.String(), "", isThere)
		}
	}
	return d.done(nil)
}
