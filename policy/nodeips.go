package policy

import (
	"net/netip"

	"kube-proxy/cluster"
	"kube-proxy/lb"
)

// NodeIPs holds the addresses that represent this node: in source ranges, and for NodePorts on the
// primary address.
type NodeIPs struct {
	// Primary is the first family, also in [NodeIPs.Addrs].
	Primary lb.Family
	// Addrs has one address of each of the node's families, that of the primary family first.
	Addrs []netip.Addr
	// Guessed: the node's addresses are unknown, and Addrs has only the loopback address.
	Guessed bool
}

// ResolveNodeIPs returns this node's addresses (PR-03), the first of each family: the specific bind
// address, then the Node object's addresses, internal ones before external ones. A node without
// known addresses has 127.0.0.1, for display only: no rule is made from a guess.
func ResolveNodeIPs(f cluster.Facts, s Settings) NodeIPs {
	var n NodeIPs
	bind := s.NodePortAddrs.NodeIP
	switch {
	case bind.IsValid() && isFamily(bind, lb.FamilyOf(bind)):
		n.Primary = lb.FamilyOf(bind)
	case f.Node != nil && len(f.Node.Addrs) > 0:
		n.Primary = lb.FamilyOf(f.Node.Addrs[0])
	case bind.Is6(): // unspecified, but given
		n.Primary = lb.IPv6
	default:
		n.Primary = lb.IPv4
	}
	second := lb.IPv6
	if n.Primary == lb.IPv6 {
		second = lb.IPv4
	}
	for _, s.Family = range []lb.Family{n.Primary, second} {
		if a := nodeAddr(f, s); a.IsValid() {
			n.Addrs = append(n.Addrs, a)
		}
	}
	if len(n.Addrs) == 0 {
		n.Guessed = true
		n.Addrs = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})}
		if n.Primary == lb.IPv6 {
			n.Addrs[0] = netip.IPv6Loopback()
		}
	}
	return n
}
