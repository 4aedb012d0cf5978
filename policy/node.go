package policy

import (
	"net/netip"
	"slices"

	"kube-proxy/cluster"
	"kube-proxy/lb"
)

// ResolveNode returns the facts of this machine that planes need, in the family of s.
//
// NodePorts answer on the node's own address (Primary) and on all local addresses in the given
// prefixes. If the configuration has neither, or only prefixes of the other family, they answer on
// every local address (CF-65). Primary adds nothing without an address of the family: such
// NodePorts answer nowhere until a Node object or NodeIP has one, and on a node without an address
// of this family. Upstream assumes 127.0.0.1 then; an open port without need would be worse than a
// closed one.
func ResolveNode(f cluster.Facts, s Settings) lb.Node {
	return lb.Node{
		NodePorts:    nodePorts(f, s),
		Localhost:    Localhost(s.NodePortAddrs.Prefixes, s.Family),
		Pods:         detector(f, s),
		ServiceCIDRs: canonical(f.CIDRs, s.Family),
		APIServers:   apiServers(f, s),
	}
}

// Localhost returns the family's loopback address, 127.0.0.1 or ::1, if one of the configured
// prefixes other than /0 contains it; otherwise an invalid address (TN-56).
func Localhost(asked []netip.Prefix, f lb.Family) netip.Addr {
	at := f.Loopback()
	if slices.ContainsFunc(asked, func(p netip.Prefix) bool { return p.Bits() > 0 && p.Contains(at) }) {
		return at
	}
	return netip.Addr{}
}

// apiServers returns the addresses of API servers in the family.
func apiServers(f cluster.Facts, s Settings) (all []netip.Addr) {
	for _, at := range f.APIServers { // sorted
		if a := at.Addr(); lb.FamilyOf(a) == s.Family && !slices.Contains(all, a) {
			all = append(all, a)
		}
	}
	return all
}

func nodePorts(f cluster.Facts, s Settings) []netip.Prefix {
	asked := canonical(s.NodePortAddrs.Prefixes, s.Family)
	if s.NodePortAddrs.Primary {
		if a := nodeAddr(f, s); a.IsValid() {
			asked = canonical(append(asked, netip.PrefixFrom(a, a.BitLen())), s.Family)
		}
		return asked
	}
	if len(asked) == 0 {
		return []netip.Prefix{s.Family.Everywhere()}
	}
	return asked
}

// nodeAddr returns this node's own address in the family: NodeIP if it is one, else the first of
// the Node object (PR-03). It is the zero Addr if neither has one. An unspecified NodeIP does not
// count.
func nodeAddr(f cluster.Facts, s Settings) netip.Addr {
	if ip := s.NodePortAddrs.NodeIP; isFamily(ip, s.Family) {
		return ip
	}
	if f.Node != nil {
		for _, a := range f.Node.Addrs {
			if isFamily(a, s.Family) {
				return a
			}
		}
	}
	return netip.Addr{}
}

// detector distinguishes pods' traffic from other traffic (CF-33). A mode without its input in this
// family recognises nothing (CF-66, SV-67).
func detector(f cluster.Facts, s Settings) lb.Detector {
	switch s.DetectLocal {
	case BridgeInterface:
		return lb.Detector{Interface: s.PodInterface}
	case InterfaceNamePrefix:
		return lb.Detector{InterfacePrefix: s.PodInterface}
	}
	return lb.Detector{Prefixes: canonical(podPrefixes(f, s), s.Family)}
}

// detects reports whether [detector] recognises anything, without building it.
func detects(f cluster.Facts, s Settings) bool {
	switch s.DetectLocal {
	case BridgeInterface, InterfaceNamePrefix:
		return s.PodInterface != ""
	}
	return slices.ContainsFunc(podPrefixes(f, s), func(p netip.Prefix) bool { return isPrefixOf(p, s.Family) })
}

// podPrefixes returns the prefixes, of any family, that the detectors by source address use.
func podPrefixes(f cluster.Facts, s Settings) []netip.Prefix {
	switch s.DetectLocal {
	case ClusterCIDR, "":
		return s.ClusterCIDRs
	case NodeCIDR:
		if f.Node != nil {
			return f.Node.PodCIDRs
		}
	}
	return nil
}
