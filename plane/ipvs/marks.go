package ipvs

import "math/bits"

// marks are the firewall marks of virtual servers for packets whose origin has its own route
// (docs/adr/0046-objects-of-mode-ipvs.md). A mark consists of a number, an optional bit that
// requests masquerading, and a pattern that distinguishes our marks from those of other programs:
//
//	bit 31        1, so that no small number that people choose is one of ours
//	bits 20 to 30 of the number
//	bits 16 to 19 0: Calico accepts packets by 16 and 17
//	bit 15        0: the kubelet drops packets that have it
//	bit 13        0: hostPorts of CNI masquerade packets that have it
//	bit 12        0
//	bits 8 to 11  7: Cilium has most other values
//	bit 7         0: routes of the AWS CNI
//	bits 0 to 6   of the number
type marks struct {
	masq uint32 // the masquerading bit
}

const (
	markNumber  = 0x7ff0_007f
	markPattern = 0x8000_0700
)

// pattern returns the bits that all our marks have in common, and their mask.
func (m marks) pattern() (value, mask uint32) { return markPattern &^ m.masq, ^(markNumber | m.masq) }

// most is the highest number that a mark can have: at least 2^17-2.
func (m marks) most() uint32 { return 1<<bits.OnesCount32(markNumber&^m.masq) - 2 }

// drop returns the mark of packets to drop.
func (m marks) drop() uint32 { return m.of(m.most()+1, false) }

// bits yields the bits of a mark that hold its number, the lowest first. High bits of the mark come
// first, because others use small numbers.
func (m marks) bits(yield func(i int, bit uint32) bool) {
	const high = markNumber & 0x7ff0_0000
	i := 0
	for _, rest := range [...]uint32{high &^ m.masq, markNumber &^ high &^ m.masq} {
		for ; rest != 0; rest &= rest - 1 {
			if !yield(i, rest&-rest) {
				return
			}
			i++
		}
	}
}

// of returns the mark of a number from 0 to most.
func (m marks) of(n uint32, masq bool) uint32 {
	v := markPattern &^ m.masq
	for i, bit := range m.bits {
		if n>>i&1 != 0 {
			v |= bit
		}
	}
	if masq {
		v |= m.masq
	}
	return v
}

// number returns the number and masquerade bit of a mark; ok is false for foreign marks, and for
// the mark of packets to drop.
func (m marks) number(mark uint32) (n uint32, masq, ok bool) {
	for i, bit := range m.bits {
		if mark&bit != 0 {
			n |= 1 << i
		}
	}
	masq = mark&m.masq != 0
	return n, masq, n <= m.most() && mark == m.of(n, masq)
}
