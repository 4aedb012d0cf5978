package policy

import (
	"net/netip"
	"slices"

	"kube-proxy/lb"
)

// sourcesOf returns the allowed sources of the load-balancer IP vip; empty means all. If this node
// is allowed, so is the address itself: where the address is bound on the node, the node's own
// connections to it have it as source (SV-16). All ports of an address share the result.
func (r *resolver) sourcesOf(vip netip.Addr) []netip.Prefix {
	if !r.nodeMay {
		return r.sources
	}
	ps, known := r.vipSources[vip]
	if !known {
		ps = r.sources
		if !lb.Within(ps, vip) {
			ps = canonical(append(slices.Clip(ps), netip.PrefixFrom(vip, vip.BitLen())), r.settings.Family)
		}
		if r.vipSources == nil {
			r.vipSources = map[netip.Addr][]netip.Prefix{}
		}
		r.vipSources[vip] = ps
	}
	return ps
}

// canonical returns the prefixes of the family, masked, sorted, and without those that another
// contains; nil without any.
func canonical(ps []netip.Prefix, f lb.Family) []netip.Prefix {
	n := 0
	for _, p := range ps {
		if isPrefixOf(p, f) {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	out := make([]netip.Prefix, 0, n)
	for _, p := range ps {
		if isPrefixOf(p, f) {
			out = append(out, p.Masked())
		}
	}
	// By address, wider ones first: a prefix that contains others comes directly before them.
	slices.SortFunc(out, netip.Prefix.Compare)
	kept := out[:0]
	for _, p := range out {
		if len(kept) == 0 || !kept[len(kept)-1].Overlaps(p) {
			kept = append(kept, p)
		}
	}
	return kept
}

func isPrefixOf(p netip.Prefix, f lb.Family) bool { return p.IsValid() && lb.FamilyOf(p.Addr()) == f }

// everybody reports whether canonical prefixes contain every address.
func everybody(ps []netip.Prefix) bool { return len(ps) == 1 && ps[0].Bits() == 0 }
