//go:build linux

package nftables

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"kube-proxy/internal/netlink"
	"kube-proxy/internal/nft/rule"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane/internal/diff"
	"kube-proxy/plane/internal/ranges"
	"kube-proxy/plane/internal/slots"
	"kube-proxy/trace"
)

// Differences implements mode.Tracer. It reads the table on its own socket, and compares it with
// the table that a Reset would write. It takes ids, slots and members as the kernel has them: only
// what they refer to counts.
func (p *Plane) Differences(ctx context.Context, want *lb.Table, each func(trace.Difference) bool) error {
	more := true
	sock, err := wire.Open()
	if err == nil {
		defer sock.Close()
		rules := p.readLayout.ruleset()
		rules.node = want.Node
		d := &differ{Reporter: mode.NewReporter(ctx, func(d trace.Difference) bool { more = each(d); return more }),
			want: want, reader: p.readerBy(sock, func() bool { return true }),
			builder: builder{p.ip, rules, p.maxSlots, p.maxBatchWeight}}
		err = d.Done(d.all(ctx))
	}
	if err != nil {
		return fmt.Errorf("nftables %s: compare the kernel with the table: %w", p.ip.Family, err)
	}
	if more {
		p.localhost.Differences(want, each)
	}
	return nil
}

// reportOf reports a difference that belongs to no frontend.
func (d *differ) reportOf(object, want, have string) error {
	return d.Report(lb.Key{}, object, want, have)
}

// differ compares a snapshot with the state that a plane would derive from it.
type differ struct {
	reader
	*mode.Reporter
	builder
	want  *lb.Table
	snap  *snapshot
	state *state

	// By number: the sets and lists that the kernel has in part, and a frontend that uses each of
	// them. By address: a frontend that needs the cluster IP.
	sets     map[uint32]*set
	lists    map[uint32]*ranges.List
	setRows  map[uint32]lb.Key
	listRows map[uint32]lb.Key
	ipRows   map[netip.Addr]lb.Key
}

func (d *differ) all(ctx context.Context) (err error) {
	d.snap, err = d.structure(ctx)
	if err != nil || !rule.CompareSets(d.Table, &d.snap.Kept, d.layout.sets[:], d.reportOf) {
		return err
	}
	err = d.elements(ctx, d.snap, allSets)
	if err != nil {
		return err
	}
	d.compute()
	err = d.compareStructure(ctx)
	if err != nil {
		return err
	}
	d.compareElements()
	return nil
}

// compute derives the state. It is empty for a set or list whose number the kernel has only in a
// frontend's element, or not at all.
func (d *differ) compute() {
	d.snap.ours = true // so that its numbers are used
	st, refused := d.desired(d.snap, d.want, d.want.All())
	for _, k := range refused.keys {
		classes, _, _ := mapsOf(k)
		d.element(classes, wire.AppendKey(nil, k), wire.AppendNumber(nil, uint32(classOf(d.want.Get(k)))), nil)
	}
	d.state, d.sets, d.lists = st, map[uint32]*set{}, map[uint32]*ranges.List{}
	d.setRows, d.listRows, d.ipRows = map[uint32]lb.Key{}, map[uint32]lb.Key{}, map[netip.Addr]lb.Key{}
	held := map[uint32]bool{}
	for _, i := range []setIndex{sSetShapes, sBackends, sMembers} {
		for rec := range d.snap.records[i].All() {
			held[netlink.Order.Uint32(rec)] = true
		}
	}
	for _, s := range st.sets {
		if !held[s.id] {
			s.id = noSet
		}
		d.sets[s.id] = s
	}
	for _, l := range st.lists.ByContent {
		if !slices.ContainsFunc(l.Ranges, func(p netip.Prefix) bool {
			return ranges.In(d.snap.records[sSourceRanges], l.Number, p)
		}) {
			l.Number = noList
		}
		d.lists[l.Number] = l
	}
	for k, r := range st.rows {
		keepLeast(d.setRows, r.cluster.number(), k, lb.Key.Compare)
		keepLeast(d.setRows, r.local.number(), k, lb.Key.Compare)
		if r.list != nil {
			keepLeast(d.listRows, r.list.Number, k, lb.Key.Compare)
		}
		if isClusterIP(r.front) {
			keepLeast(d.ipRows, k.Addr, k, lb.Key.Compare)
		}
	}
	delete(d.sets, noSet)
	delete(d.lists, noList)
}

// Numbers for sets and lists that the kernel has no part of.
const noSet, noList = slots.End, ranges.MaxLists

// keepLeast records a value for a key, or keeps the previous one if that is lower: so maps are read
// in any order with the same result.
func keepLeast[K comparable, V any](values map[K]V, k K, v V, compare func(a, b V) int) {
	if was, ok := values[k]; !ok || compare(v, was) < 0 {
		values[k] = v
	}
}

// compareElements compares the elements of the existing sets.
func (d *differ) compareElements() {
	var want [setCount]diff.Records
	for i := range want {
		want[i].Size = d.layout.sets[i].RecordLen()
	}
	d.state.records(func(i setIndex, rec []byte) {
		if n := numberIn(i, rec); n != noSet && (n != noList || i != sSourceRanges) {
			want[i].Bytes = append(want[i].Bytes, rec...)
		}
	})
	for i := range setCount {
		def := &d.layout.sets[i]
		if !d.snap.There[i] || def.Verdict || def.Dynamic() {
			continue
		}
		n := def.KeyLen()
		diff.Elements(d.snap.records[i], want[i], n, func(is, want []byte) {
			switch {
			case is == nil:
				d.element(i, want[:n], want[n:], nil)
			case want == nil:
				d.element(i, is[:n], nil, is[n:])
			default:
				d.element(i, is[:n], want[n:], is[n:])
			}
		})
	}
}

// text formats the data of an element, a backend as address and port.
func (d *differ) text(i setIndex, data []byte) string {
	if data != nil && (i == sBackends || i == sMemberBackends) {
		return wire.ParseAddrPort(data, d.AddrLen).String()
	}
	return d.layout.sets[i].DataText(data)
}

// element reports that an element has other data; nil means no element.
func (d *differ) element(i setIndex, key, want, have []byte) {
	def := &d.layout.sets[i]
	wants, has := d.text(i, want), d.text(i, have)
	k, _ := rowKey(i, key, d.AddrLen)
	switch i {
	case sClusterIPs:
		k = d.ipRows[wire.ParseAddr(key)]
	case sReserved:
		if have != nil && want != nil {
			return
		}
		wants = map[bool]string{true: "a number"}[want != nil]
	case sSourceRanges:
		k = d.listRows[numberIn(i, key)]
	case sSetShapes, sBackends, sMembers, sMemberBackends:
		k = d.setRows[numberIn(i, key)]
	}
	switch r := d.state.rows[k]; {
	case want == nil:
	case i == sSourceLists:
		wants = "the number of its list"
		if have != nil {
			has += d.restricted(netlink.Order.Uint32(have))
		}
	case slices.Contains(setsOfRows, i):
		s := r.cluster
		if i == sLocalSets || i == sNodePortLocalSets {
			s = r.local
		}
		wants = "the id of set " + s.source.ID.String()
		if have != nil {
			has += d.owner(netlink.Order.Uint32(have))
		}
	}
	d.Report(k, def.ElementText(key), wants, has)
}

// restricted names the owner of a list number.
func (d *differ) restricted(n uint32) string {
	if l := d.lists[ranges.NumberOf(n)]; l != nil && l.Key() == n {
		return ", the list of " + d.listRows[l.Number].String()
	}
	return ", that of no list"
}

// owner names the owner of a set id.
func (d *differ) owner(id uint32) string {
	if s := d.sets[id]; s != nil {
		return ", that of set " + s.source.ID.String()
	}
	return ", that of no set"
}
