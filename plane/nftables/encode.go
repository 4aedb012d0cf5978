//go:build linux

package nftables

import (
	"net/netip"

	"kube-proxy/internal/nft/rule"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/internal/rollback"
	"kube-proxy/plane/internal/diff"
)

func (r *ruleset) transaction(table string) *wire.Transaction {
	return wire.NewTransaction(r.Proto, table, r.sets[:])
}

// encode writes the messages for the staged changes: the elements that differ between the old and
// new state, and new chains.
func (c *change) encode() {
	for _, cl := range c.classes {
		chains, filter, nat := c.classChains(cl)
		c.addChains(chains...)
		key := wire.AppendNumber(nil, uint32(cl))
		c.out.AddVerdict(sFilterClasses, key, filter)
		c.out.AddVerdict(sNATClasses, key, nat)
	}
	for _, s := range c.shapes {
		c.addChains(c.balancer(s))
		c.out.AddVerdict(shapesOf(s.scope), wire.AppendNumber(nil, s.number()), s.verdict())
	}
	rec := make([]byte, 0, 80)
	for i := range c.rows {
		c.encodeRow(rec, &c.rows[i])
	}
	for i, s := range c.touched {
		c.encodeSet(rec, &c.before[i], s)
	}
	for _, l := range c.lists.Edits {
		diff.Sorted(l.Was, l.Now, netip.Prefix.Compare,
			func(p netip.Prefix) { c.out.Remove(sSourceRanges, l.AppendKey(rec[:0], p)) },
			func(p netip.Prefix) { c.out.Add(sSourceRanges, l.AppendKey(rec[:0], p)) })
	}
	for a, was := range c.clusterIPs {
		switch is := c.st.clusterIPs[a]; {
		case was == 0 && is > 0:
			c.out.Add(sClusterIPs, wire.AppendAddr(rec[:0], a))
		case was > 0 && is == 0:
			c.out.Remove(sClusterIPs, wire.AppendAddr(rec[:0], a))
		}
	}
}

// addChains creates chains that do not exist yet.
func (c *change) addChains(chains ...rule.Chain) {
	for _, ch := range chains {
		c.out.AddChain(ch.Name, ch.Hook)
		ch.AddTo(c.out)
		rollback.Put(c.log, c.st.chains, ch.Name, ch.Digest())
	}
}

// encodeRow encodes the elements keyed by a frontend.
func (c *change) encodeRow(rec []byte, r *rowChange) {
	classes, cluster, local := mapsOf(r.key)
	key := wire.AppendKey(rec[:0], r.key)
	c.number(classes, key, r.was.front != nil, uint32(r.was.class), r.front != nil, uint32(r.class))
	c.number(cluster, key, r.was.cluster != nil, r.was.cluster.number(), r.now.cluster != nil, r.now.cluster.number())
	c.number(local, key, r.was.local != nil, r.was.local.number(), r.now.local != nil, r.now.local.number())
	c.number(sSourceLists, key, r.was.list != nil, r.was.list.Key(), r.now.list != nil, r.now.list.Key())
}

func (s *set) number() uint32 {
	if s == nil {
		return 0
	}
	return s.id
}

// number encodes the change of a number in a map.
func (c *change) number(i setIndex, key []byte, had bool, old uint32, has bool, now uint32) {
	if had == has && old == now {
		return
	}
	if had {
		c.out.Remove(i, wire.AppendNumber(key, old))
	}
	if has {
		c.out.Add(i, wire.AppendNumber(key, now))
	}
}

// encodeSet encodes the slots that differ between two states of a set, and the number of slots that
// packets draw from. With affinity, slots and members change separately.
func (c *change) encodeSet(rec []byte, was *setBefore, now *set) {
	if was.source == nil && now.source != nil {
		now.records(c.out.Add)
		return
	}
	had, has := was.held.Len() > 0, now.held.Len() > 0
	if had != has || had && was.shape() != now.shape() {
		id := wire.AppendNumber(rec[:0], now.id)
		if had {
			c.out.Remove(sSetShapes, wire.AppendNumber(id, was.shape().number()))
		}
		if has {
			c.out.Add(sSetShapes, wire.AppendNumber(id, now.shape().number()))
		}
	}
	if was.known {
		for _, i := range was.differ {
			c.encodeSlot(rec, now.id, i, was.drawn(i), now.drawn(i))
		}
		return
	}
	old, is := was.plain(), now.plain()
	for i := range max(len(old), len(is)) {
		c.encodeSlot(rec, now.id, i, slotOf(old, i), slotOf(is, i))
	}
	if was.members == nil && now.members == nil {
		return
	}
	for _, i := range []setIndex{sMembers, sMemberBackends} {
		c.repairSet(i, c.elements(was.set, i), c.elements(now, i))
	}
}

// drawn returns the backend in a slot; it is invalid for a slot that the set does not have.
func (s *set) drawn(slot int) netip.AddrPort {
	if slot >= s.held.Len() {
		return netip.AddrPort{}
	}
	return s.at(slot)
}

func slotOf(slots []netip.AddrPort, i int) netip.AddrPort {
	if i >= len(slots) {
		return netip.AddrPort{}
	}
	return slots[i]
}

// encodeSlot encodes the change of one slot; an invalid address means an empty slot.
func (c *change) encodeSlot(rec []byte, id uint32, slot int, old, is netip.AddrPort) {
	if old == is {
		return
	}
	key := wire.AppendNumber(wire.AppendNumber(rec[:0], id), uint32(slot))
	if old.IsValid() {
		c.out.Remove(sBackends, wire.AppendAddrPort(key, old))
	}
	if is.IsValid() {
		c.out.Add(sBackends, wire.AppendAddrPort(key, is))
	}
}

// elements returns the elements of the set's slots in one map.
func (c *change) elements(s *set, i setIndex) diff.Records {
	recs := diff.Records{Size: c.set(i).RecordLen()}
	for slot := range s.held.Len() {
		s.slot(slot, make([]byte, 0, 64), func(j setIndex, rec []byte) {
			if j == i {
				recs.Bytes = append(recs.Bytes, rec...)
			}
		})
	}
	return recs
}
