// Package ranges splits source ranges so that a packet filter finds them by their length
// (docs/adr/0018), and manages the lists of ranges that frontends share in nftables tables.
//
// Each length has one rule, which masks the client's address to it and looks it up. To keep rules
// few, lengths are multiples of four bits. A range of another length becomes up to eight ranges of
// the next multiple, and the range of all addresses becomes sixteen.
package ranges

import (
	"net/netip"
	"slices"
)

// Stride is the unit of the lengths, in bits.
const Stride = 4

// Of splits prefixes into ranges whose lengths are multiples of Stride, sorted, without duplicates.
func Of(sources []netip.Prefix) []netip.Prefix {
	out := make([]netip.Prefix, 0, len(sources))
	for _, p := range sources {
		bits := max(Stride, (p.Bits()+Stride-1)/Stride*Stride)
		first := p.Masked().Addr().AsSlice()
		for i := range 1 << (bits - p.Bits()) { // the free bits are in one byte
			a := slices.Clone(first)
			a[(bits-1)/8] |= byte(i << ((8 - bits%8) % 8))
			addr, _ := netip.AddrFromSlice(a)
			out = append(out, netip.PrefixFrom(addr, bits))
		}
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return slices.Compact(out)
}
