package hns

import (
	"cmp"
	"net/netip"
	"slices"

	"kube-proxy/lb"
)

// shape is what a load balancer answers to and how, all but its endpoints. HNS can change none of it in place.
type shape struct {
	vip          netip.Addr // not valid: the node's own addresses
	port, to     uint16     // of the frontend and of the endpoints
	proto        lb.Proto
	distribution Distribution
	mapping      PortMappingFlags
	flags        LoadBalancerFlags
	source       netip.Addr // not valid: none
}

// plan is a load balancer as it shall be: its backends' addresses are those of HNS endpoints, sorted and each once.
type plan struct {
	shape
	backends []backend
	lacks    []lack
}

// backend is an address that packets are sent to.
type backend struct {
	addr netip.Addr
	// here: a pod of this node has it, whose HNS endpoint the CNI makes.
	here bool
}

// none reports whether HNS shall hold nothing: packets go on as if there were no proxy.
func (p *plan) none() bool { return len(p.backends) == 0 }

func (p *plan) lack(l lack) { p.lacks = append(p.lacks, l) }

// planned is what HNS shall hold for a row.
func (f *facts) planned(row *lb.Frontend) (p plan) {
	if row == nil || row.Accepts() || row.Key.IsNodePort() && !f.nodePorts() {
		return p
	}
	set, inside := chosen(row, f.dsr())
	switch {
	case set == nil:
		if inside {
			p.lack(lackSplit)
		}
		return p
	case row.Key.Proto == lb.SCTP:
		p.lack(lackSCTP)
		return p
	case len(row.Sources) > 0:
		p.lack(lackSources)
		return p
	case f.overlay && !f.source().IsValid():
		p.lack(lackSourceVIP)
		return p
	}
	last := row.Routes[len(row.Routes)-1]
	if inside && set == last.To {
		p.lack(lackSplit)
	}
	// Not MappingILB: a load balancer without it serves pods too, and with it perhaps nobody from outside (ADR 0044).
	p.shape = shape{vip: row.Key.Addr, port: row.Key.Port, proto: row.Key.Proto, mapping: MappingLocalRoutedVIP, source: f.source()}
	if f.family == lb.IPv6 {
		p.flags |= FlagIPv6
	}
	// The answers of a backend on another node would not pass this one, which alone knows whom the client asked. Clients of a
	// cluster IP are behind this node's virtual switch, which does.
	if f.dsr() && (row.Kind == lb.ClusterIP || inside || set.ID.Scope == lb.Local) {
		p.flags |= FlagDSR
	}
	// Direct return leads clients outside to endpoints of this node alone, which the annotation asks for too: another node's would not
	// know whom they asked (ADR 0043).
	if row.PreserveDestination {
		if f.dsr() {
			p.flags |= FlagDSR
			p.mapping |= MappingPreserveDIP
		} else {
			p.lack(lackPreserve)
		}
	}
	if row.Affinity > 0 {
		if p.distribution = PerClient; !f.features.SessionAffinity {
			p.distribution = PerConnection
			p.lack(lackAffinity)
		}
	}
	p.choose(&set.Backends, f)
	return p
}

// chosen is the set that the load balancer of a row has, nil for none, and whether clients inside of the node, pods and itself, are to
// be led otherwise than those outside, as with externalTrafficPolicy Local. HNS does not tell sources apart, so the last route decides, that for
// anywhere. But for one thing: with DSR it leads who comes from outside to endpoints of this node alone (kubernetes/kubernetes#115344),
// so the load balancer may have what clients inside are to reach, if of that just those here are for clients outside.
func chosen(row *lb.Frontend, dsr bool) (set *lb.BackendSet, inside bool) {
	first, last := row.Routes[0], row.Routes[len(row.Routes)-1]
	inside = first.Do == lb.Balance && (last.Do != lb.Balance || first.To.ID != last.To.ID)
	if inside && dsr && row.Kind != lb.ClusterIP && first.From == lb.Pods && last.Do == lb.Balance && last.To.ID.Scope == lb.Local &&
		slices.Equal(here(first.To), here(last.To)) {
		return first.To, true
	}
	return last.To, inside
}

// here are the addresses of a set on this node.
func here(s *lb.BackendSet) (all []netip.AddrPort) {
	for b := range s.Backends.All() {
		if b.Local || s.ID.Scope == lb.Local {
			all = append(all, b.Addr)
		}
	}
	return all
}

// choose takes the backends of one port, for HNS leads to one: that which most have, and of those the lowest.
func (p *plan) choose(backends *lb.Backends, f *facts) {
	count := map[uint16]int{}
	for b := range backends.All() {
		count[b.Addr.Port()]++
	}
	for port, n := range count {
		if n > count[p.to] || n == count[p.to] && port < p.to {
			p.to = port
		}
	}
	if len(count) > 1 {
		p.lack(lackPorts)
	}
	p.backends = make([]backend, 0, backends.Len())
	for b := range backends.All() {
		if b.Addr.Port() == p.to {
			a := b.Addr.Addr()
			p.backends = append(p.backends, backend{a, b.Local && f.pod(a)})
		}
	}
	slices.SortFunc(p.backends, func(a, b backend) int { return a.addr.Compare(b.addr) })
	p.backends = slices.CompactFunc(p.backends, func(a, b backend) bool { return a.addr == b.addr })
}

// forwarded is what leads health checks of a load balancer's address to this node's server (CF-32).
func (f *facts) forwarded(vip netip.Addr, port uint16) (p plan) {
	if f.root == "" {
		p.lack(lackRoot)
		return p
	}
	p.shape = shape{vip: vip, port: port, to: port, proto: lb.TCP, mapping: MappingLocalRoutedVIP, source: f.source()}
	if f.family == lb.IPv6 {
		p.flags |= FlagIPv6
	}
	p.backends = []backend{{f.rootAddr, true}}
	return p
}

// pod reports whether an address of this node can be a pod's. Who serves in the node's own network has no HNS endpoint.
func (n *network) pod(a netip.Addr) bool {
	family := slices.DeleteFunc(slices.Clone(n.subnets), func(p netip.Prefix) bool { return p.Addr().Is4() != a.Is4() })
	return a != n.management && (len(family) == 0 || slices.ContainsFunc(family, func(p netip.Prefix) bool { return p.Contains(a) }))
}

// request is the load balancer as HNS is asked for it.
func (s *shape) request(endpoints []string) LoadBalancer {
	l := LoadBalancer{
		HostComputeEndpoints: endpoints, SchemaVersion: Version2, Flags: s.flags,
		PortMappings: []PortMapping{{
			Protocol: uint32(s.proto), InternalPort: s.to, ExternalPort: s.port, DistributionType: s.distribution, Flags: s.mapping,
		}},
	}
	if s.vip.IsValid() {
		l.FrontendVIPs = []string{s.vip.String()}
	}
	if s.source.IsValid() {
		l.SourceVIP = s.source.String()
	}
	return l
}

// key is that of the row which the load balancer serves.
func (s *shape) key() lb.Key { return lb.Key{Addr: s.vip, Port: s.port, Proto: s.proto} }

// shapeOf is the inverse of request; false for one that this package does not write.
func shapeOf(l LoadBalancer) (s shape, ok bool) {
	if len(l.PortMappings) != 1 || len(l.FrontendVIPs) > 1 {
		return s, false
	}
	m := l.PortMappings[0]
	s = shape{
		port: m.ExternalPort, to: m.InternalPort, proto: lb.Proto(m.Protocol), distribution: m.DistributionType, mapping: m.Flags,
		flags: l.Flags,
	}
	var err error
	if len(l.FrontendVIPs) == 1 {
		if s.vip, err = netip.ParseAddr(l.FrontendVIPs[0]); err != nil {
			return s, false
		}
	}
	if l.SourceVIP != "" {
		if s.source, err = netip.ParseAddr(l.SourceVIP); err != nil {
			return s, false
		}
	}
	known := s.port != 0 && s.to != 0 && (m.Protocol == uint32(lb.TCP) || m.Protocol == uint32(lb.UDP))
	return s, known
}

// family is that of the clients.
func (s *shape) family() lb.Family {
	if s.vip.IsValid() {
		return lb.FamilyOf(s.vip)
	}
	if s.flags&FlagIPv6 != 0 {
		return lb.IPv6
	}
	return lb.IPv4
}

// nodePorts reports whether load balancers without an address, which answer on the node's own, are asked for. HNS tells of IPv4
// which address that is.
func (f *facts) nodePorts() bool {
	return slices.ContainsFunc(f.node.NodePorts, func(p netip.Prefix) bool {
		return f.family == lb.IPv6 && p.Addr().Is6() || f.family == lb.IPv4 && (p.Bits() == 0 || p.Contains(f.management))
	})
}

// source is the address that backends in an overlay network see and answer to.
func (f *facts) source() netip.Addr {
	if f.network.overlay && lb.FamilyOf(f.sourceVIP) == f.family {
		return f.sourceVIP
	}
	return netip.Addr{}
}

func (f *facts) dsr() bool { return f.wantDSR && f.features.DSR }

// provider is the node that an overlay network sends packets for the address to, and whether that is known.
func (n *network) provider(a netip.Addr) (netip.Addr, bool) {
	for _, r := range n.remotes { // the longest prefixes first
		if r.pods.Contains(a) {
			return r.node, true
		}
	}
	if slices.ContainsFunc(n.remotes, func(r remote) bool { return r.node == a }) || a == n.management {
		return a, true
	}
	return a, false
}

// own reports whether only this node's pods can have the address: the overlay network has a subnet for each node.
func (n *network) own(a netip.Addr) bool {
	if !n.overlay {
		return false
	}
	_, elsewhere := n.provider(a)
	return !elsewhere && slices.ContainsFunc(n.subnets, func(p netip.Prefix) bool { return p.Contains(a) })
}

func byLength(a, b remote) int {
	return cmp.Or(cmp.Compare(b.pods.Bits(), a.pods.Bits()), a.pods.Addr().Compare(b.pods.Addr()))
}
