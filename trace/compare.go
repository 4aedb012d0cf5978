package trace

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
)

// Compare says how the kernel's answer differs from the table's, a sentence each; none where it
// does not. That is the finding: what the table wants is not in force. What the kernel remembers of
// a client counts too, and so do shares, if the kernel reports them.
func Compare(a Answer, k Kernel) []string {
	var out []string
	find := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if a.Verdict == Pass && k.Verdict == Reject && k.Drains {
		return nil // of an earlier state
	}
	if a.Verdict != k.Verdict {
		find("By the table the packet is to %s, by the kernel's state it is to %s.", a.Verdict, k.Verdict)
		return out
	}
	if a.Verdict != Balance {
		return out
	}
	want, have := shares(a.Backends), shares(k.Backends)
	list(find, a.Backends, have, "The table has the backend %s, and the kernel has it not.",
		"The table has the backends %s, and the kernel has them not.")
	list(find, k.Backends, want, "The kernel has the backend %s, and the table has it not.",
		"The kernel has the backends %s, and the table has them not.")
	if len(out) == 0 {
		for _, b := range a.Backends {
			if got := have[b.Address]; got > 0 && math.Abs(got-b.Share) > 0.005 {
				find("The backend %s gets %.3f of new connections in the kernel, and %.3f by the table.", b.Address,
					got, b.Share)
				break
			}
		}
	}
	hairpin := func(b Backend) bool { return b.Hairpin }
	if a.Masquerade != k.Masquerade && !k.Connected && !(k.Masquerade && slices.ContainsFunc(a.Backends, hairpin)) {
		words := map[bool]string{true: "masqueraded", false: "not masqueraded"}
		find("By the table the packet is %s, by the kernel's state it is %s.", words[a.Masquerade], words[k.Masquerade])
	}
	if _, known := want[k.Affine]; k.Affine.IsValid() && !known {
		find("The kernel keeps this client with %s, which is no backend by the table.", k.Affine)
	}
	return out
}

func shares(bs []Backend) map[netip.AddrPort]float64 {
	out := make(map[netip.AddrPort]float64, len(bs))
	for _, b := range bs {
		out[b.Address] += b.Share
	}
	return out
}

// list names the backends that the other side has not.
func list(find func(string, ...any), bs []Backend, other map[netip.AddrPort]float64, one, many string) {
	var lacks []netip.AddrPort
	for _, b := range bs {
		if _, ok := other[b.Address]; !ok {
			lacks = append(lacks, b.Address)
		}
	}
	switch len(lacks) {
	case 0:
	case 1:
		find(one, lacks[0])
	default:
		find(many, named(lacks))
	}
}
