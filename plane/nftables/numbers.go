//go:build linux

package nftables

import (
	"cmp"
	"crypto/rand"
	"fmt"

	"kube-proxy/internal/netlink"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/internal/rollback"
	"kube-proxy/plane"
)

// The keys of the reserved map.
const (
	reservedIDs  = 1
	reservedSeed = 3 // 2 counted members, which each set now numbers itself
)

// reserved calls f for the elements of the map reserved.
func (st *state) reserved(f func(i setIndex, rec []byte)) {
	for key, v := range map[uint32]uint32{reservedIDs: st.ids.Reserved, reservedSeed: st.seed} {
		f(sReserved, wire.AppendNumber(wire.AppendNumber(nil, key), v))
	}
}

// numbered reports whether the table records which numbers were used. If another program removed
// that record, the affinity map may contain any number, and only a new table is safe.
func (s *snapshot) numbered() bool {
	keys := map[uint32]bool{}
	for rec := range s.records[sReserved].All() {
		keys[netlink.Order.Uint32(rec)] = true
	}
	return keys[reservedIDs] && keys[reservedSeed]
}

// adoptReserved continues with the numbers of the kernel's table.
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

// chooseSeed keeps the seed of the kernel's table, or else of the process, or else draws a new one.
// A client that does not know the seed cannot choose which clients share its place in the affinity
// map.
func (p *builder) chooseSeed(st *state) {
	st.seed = cmp.Or(st.seed, p.rules.seed)
	for st.seed == 0 {
		var b [4]byte
		rand.Read(b[:])
		st.seed = netlink.Order.Uint32(b[:])
	}
	p.rules.seed = st.seed
}

// reserve adds to the change's transaction the reservation of the set ids that it allocated. The
// error wraps plane.ErrStateLost if no ids are left: the next Reset makes a new table.
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
