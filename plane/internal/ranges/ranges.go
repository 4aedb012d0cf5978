// Package ranges cuts source ranges so that a packet filter finds them by their length (docs/adr/0018), and keeps the lists of them that
// rows share in tables of nftables.
//
// Each length has its rule, which cuts the client's address off at it and looks it up. So that there are few rules, lengths are
// multiples of four bits; a range of another length is written as up to eight of the next one, that of all addresses as sixteen.
package ranges

import (
	"net/netip"
	"slices"
)

// Stride is what the lengths are multiples of, in bits.
const Stride = 4

// Of cuts prefixes into ranges whose lengths are multiples of Stride, sorted, each once.
func Of(sources []netip.Prefix) []netip.Prefix {
	out := make([]netip.Prefix, 0, len(sources))
	for _, p := range sources {
		bits := max(Stride, (p.Bits()+Stride-1)/Stride*Stride)
		first := p.Masked().Addr().AsSlice()
		for i := range 1 << (bits - p.Bits()) { // the bits that are free lie in one byte
			a := slices.Clone(first)
			a[(bits-1)/8] |= byte(i << ((8 - bits%8) % 8))
			addr, _ := netip.AddrFromSlice(a)
			out = append(out, netip.PrefixFrom(addr, bits))
		}
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return slices.Compact(out)
}
