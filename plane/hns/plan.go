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
	// atVIP: pods reach the address only if a remote endpoint has it.
	atVIP bool
	lacks []lack
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
	// HNS does not tell sources apart: the last route, that for anywhere, decides for all.
	first, last := row.Routes[0], row.Routes[len(row.Routes)-1]
	if first.Do == lb.Balance && (last.Do != lb.Balance || first.To.ID != last.To.ID) {
		p.lack(lackSplit)
	}
	set := last.To
	switch {
	case set == nil:
		return p
	case row.Key.Proto == lb.SCTP:
		p.lack(lackSCTP)
		return p
	case len(row.Sources) > 0 && !f.ignoreRanges:
		p.lack(lackSources)
		return p
	case !f.sources():
		p.lack(lackSourceVIP)
		return p
	}
	if len(row.Sources) > 0 {
		p.lack(lackRanges)
	}
	preserve := row.PreserveDestination && f.features.DSR
	if row.PreserveDestination && !preserve {
		p.lack(lackPreserve)
	}
	p.shape = shape{vip: row.Key.Addr, port: row.Key.Port, proto: row.Key.Proto, mapping: f.mapping(row.Kind, preserve)}
	if f.family == lb.IPv6 {
		p.flags |= FlagIPv6
	}
	if f.direct(row.Kind, set.ID.Scope, preserve) {
		p.flags |= FlagDSR
	}
	if row.Affinity > 0 {
		if p.distribution = PerClient; !f.features.SessionAffinity {
			p.distribution = PerConnection
			p.lack(lackAffinity)
		}
	}
	p.choose(&set.Backends, f, preserve)
	p.source = f.source(p.backends)
	p.atVIP = f.atVIP(row)
	return p
}

// atVIP reports whether pods reach a row's address only if a remote endpoint has it: in an overlay network, what is sent to the service
// network is encapsulated (kubernetes/kubernetes#70896).
func (f *facts) atVIP(row *lb.Frontend) bool {
	return f.overlay && row.Key.Addr.IsValid() && (row.Kind == lb.ClusterIP || f.ofServices(row.Key.Addr))
}

// ofServices reports whether an address is in the service network.
func (f *facts) ofServices(a netip.Addr) bool {
	return within(f.node.ServiceCIDRs, a)
}

// optional are the flags of port mappings that HNS may refuse, and which are left out then.
const optional = MappingVIPExternal | MappingLocalRoutedVIP | MappingUseMux

// mapping returns the flags of a port mapping, as they have worked in production. Never MappingILB: a load balancer without it
// serves pods too, and with it perhaps nobody from outside (ADR 0043).
func (f *facts) mapping(k lb.Kind, preserve bool) (m PortMappingFlags) {
	switch k {
	case lb.NodePort:
		m = MappingLocalRoutedVIP
	case lb.ExternalIP, lb.LoadBalancer:
		m = MappingVIPExternal
	}
	if preserve {
		m |= MappingPreserveDIP | MappingUseMux
	}
	return m &^ f.refused
}

// direct reports whether backends answer clients directly. The answers of a backend on another node would not pass this one, which
// alone knows whom the client asked. Clients of a cluster IP are behind this node's virtual switch, which does; backends of policy
// Local are on this node, and would not see the client otherwise.
func (f *facts) direct(k lb.Kind, scope lb.Scope, preserve bool) bool {
	if k == lb.ClusterIP {
		return f.wantDSR && f.features.DSR
	}
	return preserve || scope == lb.Local && f.features.DSR
}

// choose takes the backends of one port, for HNS leads to one: that which most have, and of those the lowest. With here it takes only
// those of this node.
func (p *plan) choose(backends *lb.Backends, f *facts, here bool) {
	count := map[uint16]int{}
	for b := range backends.All() {
		if !here || b.Local {
			count[b.Addr.Port()]++
		}
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
		if b.Addr.Port() == p.to && (!here || b.Local) {
			a := b.Addr.Addr()
			p.backends = append(p.backends, backend{a, b.Local && f.pod(a)})
		}
	}
	slices.SortFunc(p.backends, func(a, b backend) int { return a.addr.Compare(b.addr) })
	p.backends = slices.CompactFunc(p.backends, func(a, b backend) bool { return a.addr == b.addr })
}

// forwarded is what leads health checks of a load balancer's address to this node's server (CF-32).
func (f *facts) forwarded(vip netip.Addr, port uint16) (p plan) {
	switch {
	case f.root == "":
		p.lack(lackRoot)
		return p
	case !f.sources():
		p.lack(lackSourceVIP)
		return p
	}
	p.shape = shape{vip: vip, port: port, to: port, proto: lb.TCP}
	if f.family == lb.IPv6 {
		p.flags |= FlagIPv6
	}
	p.backends = []backend{{f.rootAddr, true}}
	p.source = f.source(p.backends)
	return p
}

// pod reports whether an address of this node can be a pod's. Who serves in the node's own network has no HNS endpoint.
func (n *network) pod(a netip.Addr) bool {
	family := slices.DeleteFunc(slices.Clone(n.subnets), func(p netip.Prefix) bool { return p.Addr().Is4() != a.Is4() })
	return a != n.management && (len(family) == 0 || within(family, a))
}

// within reports whether one of the prefixes has the address.
func within(all []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(all, func(p netip.Prefix) bool { return p.Contains(a) })
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

// source is the address that backends see and answer to: that of --source-vip. An answer to it comes back from the overlay network
// alone, so where a backend is another node, or outside of the cluster, it is this node's (kubernetes/kubernetes#91886, KEP-5100).
func (f *facts) source(backends []backend) netip.Addr {
	if lb.FamilyOf(f.sourceVIP) != f.family {
		return netip.Addr{}
	}
	outside := func(b backend) bool { return !b.here && b.addr != f.management && !f.inside(b.addr) }
	if f.overlay && lb.FamilyOf(f.management) == f.family && slices.ContainsFunc(backends, outside) {
		return f.management
	}
	return f.sourceVIP
}

// sources reports whether load balancers have a source address, without which overlay networks refuse them.
func (f *facts) sources() bool { return !f.overlay || lb.FamilyOf(f.sourceVIP) == f.family }

// inside reports whether an address is in a subnet of the network, here or on another node.
func (n *network) inside(a netip.Addr) bool {
	return within(n.subnets, a) ||
		slices.ContainsFunc(n.remotes, func(r remote) bool { return r.pods.Contains(a) })
}

// provider is the node that an overlay network sends packets for the address to: this one, where the network does not know it.
func (n *network) provider(a netip.Addr) (node netip.Addr, known bool) {
	for _, r := range n.remotes { // the longest prefixes first
		if r.pods.Contains(a) {
			return r.node, true
		}
	}
	if slices.ContainsFunc(n.remotes, func(r remote) bool { return r.node == a }) || a == n.management {
		return a, true
	}
	return n.management, false
}

// own reports whether only this node's pods can have the address: the overlay network has a subnet for each node.
func (n *network) own(a netip.Addr) bool {
	if !n.overlay {
		return false
	}
	_, elsewhere := n.provider(a)
	return !elsewhere && within(n.subnets, a)
}

func byLength(a, b remote) int {
	return cmp.Or(cmp.Compare(b.pods.Bits(), a.pods.Bits()), a.pods.Addr().Compare(b.pods.Addr()))
}
