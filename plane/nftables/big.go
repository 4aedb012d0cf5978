//go:build linux

package nftables

import (
	"context"
	"maps"
	"slices"

	"kube-proxy/internal/netlink"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/lb"
	"kube-proxy/plane/internal/diff"
)

// The kernel walks a hash table from its start for each 32 KiB of a dump. So the time to dump a map
// grows with the square of its size: a second for 200,000 elements, half a minute for a million.
// Maps of more than bigMap elements are read key by key instead.
const bigMap = 150_000

// readBig reads the backends of all sets in set-shapes, if there are many, and reports whether it
// did. It does not find backends that belong to no set, which no packet can reach.
func (r reader) readBig(ctx context.Context, s *snapshot) (bool, error) {
	s.records[sSetShapes] = s.records[sSetShapes].Sorted() // then the backends mostly are too
	shapes := s.records[sSetShapes]
	total := 0
	each := func(f func(id uint32, sh shape)) {
		for rec := range shapes.All() {
			if sh := parseShape(lb.Cluster, netlink.Order.Uint32(rec[4:])); sh.seconds == 0 {
				f(netlink.Order.Uint32(rec), sh)
			}
		}
	}
	each(func(_ uint32, sh shape) { total += int(sh.size) })
	if total <= r.bigMap {
		return false, nil
	}
	s.records[sBackends].Bytes = make([]byte, 0, total*s.records[sBackends].Size)
	keys, bytes := make([][]byte, 0, wire.ElementsAtOnce), make([]byte, 0, 8*wire.ElementsAtOnce)
	var err error
	ask := func() {
		if err == nil {
			err = r.Elements(ctx, r.sets[sBackends].Name, keys, func(el []byte) {
				s.element(sBackends, &r.sets[sBackends], el)
			})
		}
		keys, bytes = keys[:0], bytes[:0]
	}
	each(func(id uint32, sh shape) {
		for slot := range sh.size {
			bytes = wire.AppendNumber(wire.AppendNumber(bytes, id), slot)
			keys = append(keys, bytes[len(bytes)-8:])
			if len(keys) == wire.ElementsAtOnce {
				ask()
			}
		}
	})
	ask()
	return true, err
}

// auditWindow is the number of elements of the large maps that one full audit compares. It delays
// the writing of changes by 20 ms or less.
const auditWindow = 6_000

// cycle is the remainder of one pass over all elements of the large maps.
type cycle struct {
	rows  []lb.Key
	sets  []lb.SetID
	place int // of the first of sets, where the next pass begins
	lists []string
}

func (y *cycle) begin(st *state) {
	y.rows, y.sets = slices.Collect(maps.Keys(st.rows)), slices.Collect(maps.Keys(st.sets))
	y.lists = slices.Collect(maps.Keys(st.lists.ByContent))
}

// auditSome reads some of the required elements, others each time, and stages those that are
// missing or differ. In a large map, only the monitor and a Reset find elements that must not
// exist.
func (p *Plane) auditSome(ctx context.Context, c *change) (int, error) {
	if len(p.cycle.rows) == 0 && len(p.cycle.sets) == 0 && len(p.cycle.lists) == 0 {
		p.cycle.begin(p.st)
	}
	var want [setCount]diff.Records
	asked := 0
	ask := func(i setIndex, rec []byte) {
		if !smallSets(p.rules.set(i)) {
			asked++
			want[i].Bytes = append(want[i].Bytes, rec...)
		}
	}
	for y := &p.cycle; asked < p.window && len(y.rows) > 0; y.rows = y.rows[1:] {
		if r, ok := p.st.rows[y.rows[0]]; ok {
			rowRecords(r, ask)
			if r.front.Kind == lb.ClusterIP {
				ask(sClusterIPs, wire.AppendAddr(nil, r.front.Key.Addr))
			}
		}
	}
	for y := &p.cycle; asked < p.window && len(y.sets) > 0; {
		if s, ok := p.st.sets[y.sets[0]]; ok && y.place < s.places() {
			to := min(s.places(), y.place+p.window-asked)
			s.some(y.place, to, ask)
			y.place = to
		} else {
			y.sets, y.place = y.sets[1:], 0
		}
	}
	for y := &p.cycle; asked < p.window && len(y.lists) > 0; y.lists = y.lists[1:] {
		if l := p.st.lists.ByContent[y.lists[0]]; l != nil {
			listRecords(l, ask)
		}
	}
	n := 0
	for i := range setCount {
		d := p.rules.set(i)
		is := diff.Records{Size: d.RecordLen()}
		want[i].Size = is.Size
		var keys [][]byte
		for rec := range want[i].All() {
			keys = append(keys, rec[:d.KeyLen()])
		}
		if err := p.reader().Elements(ctx, d.Name, keys,
			func(el []byte) { is.Bytes = d.Record(is.Bytes, el) }); err != nil {
			return n, err
		}
		n += c.repairSet(i, is, want[i])
	}
	return n, nil
}
