//go:build linux

package nftables

import (
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"

	"kube-proxy/internal/netlink"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/lb"
	"kube-proxy/plane/internal/diff"
	"kube-proxy/plane/internal/slots"
)

// desired computes the state for some frontends of a table. It keeps the numbers and slots that the
// kernel already uses, and allocates new ids in the order of the frontends. It leaves out frontends
// that this plane cannot hold, and returns them as refused.
func (p *builder) desired(snap *snapshot, want *lb.Table,
	rows iter.Seq[*lb.Frontend]) (st *state, refused refusedRows) {
	st = newState(want.Len())
	st.node = want.Node
	c := p.newChange(st)
	c.log, c.lists = nil, st.lists.Change(nil) // no rollback log: only the new state counts
	if !snap.ours {
		snap = &snapshot{} // slots and members belong to ids that have no meaning in a new table
	}
	kernel := newOldSets(snap)
	if snap.ours {
		c.adoptIDs(snap, want, kernel)
		snap.records[sSourceRanges] = snap.records[sSourceRanges].Sorted()
		c.lists.Adopt(c.restricted(snap, want), snap.records[sSourceRanges])
	}
	p.chooseSeed(st) // before the first frontend
	plan := p.planner(st)
	some := make([]rowPlan, 0, 1000) // in parts of this size, to save memory
	for f := range rows {
		r, err := plan.row(f.Key, f)
		if err != nil {
			refused.keys = append(refused.keys, f.Key)
			refused.err = errors.Join(refused.err, fmt.Errorf("nftables %s: %w", p.ip.Family, err))
			continue
		}
		some = append(some, r)
		if len(some) == cap(some) {
			c.stage(some)
			some, c.rows = some[:0], c.rows[:0]
		}
	}
	c.stage(some)
	c.lists.Finish()
	for _, s := range c.touched {
		s.touched = false
		old, members := kernel.of(s.id)
		c.assign(s, slots.Adopt(old, &s.wantSource.Backends), members)
		c.needShape(s.shape())
	}
	_ = c.reserve() // plan checks itself whether numbers are left
	return st, refused
}

// refusedRows are frontends that cannot be programmed, each with its reason.
type refusedRows struct {
	keys []lb.Key
	err  error
}

// adoptIDs finds the owner of each id in the kernel. New ids continue after the highest id in use
// there.
func (c *change) adoptIDs(snap *snapshot, want *lb.Table, kernel *oldSets) {
	c.adopted = slots.AdoptIDs(snap.records[sSetShapes].Len(), c.claims(snap, want), kernel)
	// Includes ids that no frontend of want refers to.
	for _, i := range append([]setIndex{sSetShapes, sBackends, sMembers}, setsOfRows...) {
		at := 0
		if slices.Contains(setsOfRows, i) {
			at = snap.records[i].Size - 4
		}
		for rec := range snap.records[i].All() {
			c.st.ids.Saw(netlink.Order.Uint32(rec[at:]))
		}
	}
	c.st.adoptReserved(snap)
}

// setsOfRows are the maps from frontends to set ids.
var setsOfRows = []setIndex{sClusterSets, sLocalSets, sNodePortClusterSets, sNodePortLocalSets}

// claims are the frontends of want that balance over a set and for which the kernel has an id.
func (c *change) claims(snap *snapshot, want *lb.Table) iter.Seq[slots.Claim] {
	return func(yield func(slots.Claim) bool) {
		for _, i := range setsOfRows {
			scope := lb.Cluster
			if i == sLocalSets || i == sNodePortLocalSets {
				scope = lb.Local
			}
			for rec := range snap.records[i].All() {
				k, _ := rowKey(i, rec, c.AddrLen)
				front := want.Get(k)
				if front == nil {
					continue
				}
				if s := front.Set(scope); s != nil &&
					!yield(slots.Claim{Front: front, Set: s, ID: netlink.Order.Uint32(rec[len(rec)-4:])}) {
					return
				}
			}
		}
	}
}

// restricted yields the source range lists that the kernel has for frontends, each with the ranges
// of that frontend in want.
func (c *change) restricted(snap *snapshot, want *lb.Table) iter.Seq2[uint32, []netip.Prefix] {
	return func(yield func(uint32, []netip.Prefix) bool) {
		for rec := range snap.records[sSourceLists].All() {
			var sources []netip.Prefix
			if f := want.Get(wire.ParseKey(rec, c.AddrLen)); f != nil {
				sources = f.Sources
			}
			if !yield(netlink.Order.Uint32(rec[len(rec)-4:]), sources) {
				return
			}
		}
	}
}

// oldSets finds the slots and members of backends, for sets whose ids were adopted. It keeps the
// records sorted, so that the records of one set are adjacent: a map of a million slots would take
// hundreds of megabytes.
type oldSets struct {
	backends, members, memberBackends, clusterIPs diff.Records

	slots map[uint32]netip.AddrPort // of one set; reused for the next
}

func newOldSets(snap *snapshot) *oldSets {
	for _, i := range []setIndex{sBackends, sMembers, sMemberBackends, sClusterIPs} {
		snap.records[i] = snap.records[i].Sorted()
	}
	return &oldSets{snap.records[sBackends], snap.records[sMembers], snap.records[sMemberBackends],
		snap.records[sClusterIPs], map[uint32]netip.AddrPort{}}
}

// of returns the backends that the kernel has in the slots of the set, and their members. Both maps
// are valid until the next call.
func (o *oldSets) of(id uint32) (slots map[uint32]netip.AddrPort, members map[netip.AddrPort]uint32) {
	clear(o.slots)
	key := wire.AppendNumber(make([]byte, 0, 8), id)
	o.backends.Each(key, func(rec []byte) {
		o.slots[netlink.Order.Uint32(rec[4:])] = wire.ParseAddrPort(rec[8:], len(rec)-12)
	})
	o.members.Each(key, func(rec []byte) {
		m := netlink.Order.Uint32(rec[8:])
		o.memberBackends.Each(wire.AppendNumber(wire.AppendNumber(nil, m), id), func(backend []byte) {
			ap := wire.ParseAddrPort(backend[8:], len(backend)-12)
			o.slots[netlink.Order.Uint32(rec[4:])] = ap
			if members == nil {
				members = map[netip.AddrPort]uint32{}
			}
			members[ap] = m
		})
	})
	return o.slots, members
}

// Backends implements slots.Kernel.
func (o *oldSets) Backends(id uint32) map[uint32]netip.AddrPort {
	slots, _ := o.of(id)
	return slots
}

// Allocated reports whether the frontend has a NodePort, or a cluster IP that was one in the kernel
// too. An external address proves nothing: any tenant may request one that becomes a cluster IP
// later.
func (o *oldSets) Allocated(f *lb.Frontend) bool {
	was := false
	if f.Kind == lb.ClusterIP {
		o.clusterIPs.Each(wire.AppendAddr(nil, f.Key.Addr), func([]byte) { was = true })
	}
	return was || f.Key.IsNodePort()
}
