package policy

import (
	"net/netip"

	"kube-proxy/cluster"
	"kube-proxy/lb"
)

// NodeIPs are the addresses that stand for this node: in source ranges, and for NodePorts on the primary address.
type NodeIPs struct {
	// Primary is the family that comes first, in [NodeIPs.Addrs] too.
	Primary lb.Family
	// Addrs are one address of each family that the node is known to have, that of the primary family first.
	Addrs []netip.Addr
	// Guessed: nothing is known of the node, and its only address is the loopback one.
	Guessed bool
}

// ResolveNodeIPs returns this node's addresses (PR-03): the specific bind address, then the Node object's, internal
// ones before external ones, of each family the first. A node of which nothing is known has 127.0.0.1, which is for
// people to read: no rule is made from a guess.
func ResolveNodeIPs(f cluster.Facts, s Settings) NodeIPs {
	var n NodeIPs
	bind := s.NodePortAddrs.NodeIP
	switch {
	case bind.IsValid() && isFamily(bind, lb.FamilyOf(bind)):
		n.Primary = lb.FamilyOf(bind)
	case f.Node != nil && len(f.Node.Addrs) > 0:
		n.Primary = lb.FamilyOf(f.Node.Addrs[0])
	case bind.Is6(): // unspecified, but said
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
