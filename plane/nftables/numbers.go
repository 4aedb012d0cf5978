//go:build linux

package nftables

import (
	"crypto/rand"
	"fmt"

	"kube-proxy/internal/netlink"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/internal/rollback"
	"kube-proxy/plane"
)

// The keys of the map reserved.
const (
	reservedIDs  = 1
	reservedSeed = 3 // 2 counted members, which each set numbers by itself now
)

// reserved calls f for the elements of the map of that name.
func (st *state) reserved(f func(i setIndex, rec []byte)) {
	for key, v := range map[uint32]uint32{reservedIDs: st.ids.Reserved, reservedSeed: st.seed} {
		f(sReserved, wire.AppendNumber(wire.AppendNumber(nil, key), v))
	}
}

// numbered reports whether the table says which numbers were used. Somebody may have removed that; then nobody knows
// what its clients remember, and only a new table will do.
func (s *snapshot) numbered() bool {
	keys := map[uint32]bool{}
	for rec := range s.records[sReserved].All() {
		keys[netlink.Order.Uint32(rec)] = true
	}
	return keys[reservedIDs] && keys[reservedSeed]
}

// adoptReserved goes on where the kernel's table stands.
func (st *state) adoptReserved(snap *snapshot) {
	for rec := range snap.records[sReserved].All() {
		switch v := netlink.Order.Uint32(rec[4:]); netlink.Order.Uint32(rec) {
		case reservedIDs:
			st.ids.GoOn(v)
		case reservedSeed:
			st.seed = v
		}
	}
}

// chooseSeed keeps the seed of the kernel's table, or else of the process. A new one is drawn: who does not know it
// cannot choose with whom to share a place in the affinity map.
func (p *Plane) chooseSeed(st *state) {
	if st.seed == 0 {
		st.seed = p.rules.seed
	}
	for st.seed == 0 {
		var b [4]byte
		rand.Read(b[:])
		st.seed = netlink.Order.Uint32(b[:])
	}
	p.rules.seed = st.seed
}

// reserve sees to it that the set ids which the change gave out are reserved in its own transaction. The error wraps
// plane.ErrStateLost where none are left: the Reset to come makes a new table.
func (c *change) reserve() error {
	if n := &c.st.ids; n.Short() {
		rollback.Value(c.log, &n.Reserved)
		was := n.Reserved
		n.Reserve()
		rec := wire.AppendNumber(make([]byte, 0, 8), reservedIDs)
		c.out.Remove(sReserved, wire.AppendNumber(rec, was))
		c.out.Add(sReserved, wire.AppendNumber(rec, n.Reserved))
	}
	if !c.st.ids.Left() {
		return fmt.Errorf("nftables %s: the table has used up its set ids: %w", c.IP.Family, plane.ErrStateLost)
	}
	return nil
}
