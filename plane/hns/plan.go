package hns

import (
	"cmp"
	"net/netip"
	"slices"

	"kube-proxy/lb"
)

// shape is a load balancer without its endpoints. HNS cannot change it in place.
type shape struct {
	vip          netip.Addr // invalid: the node's own addresses
	port, to     uint16     // of the frontend and of the endpoints
	proto        lb.Proto
	distribution Distribution
	mapping      PortMappingFlags
	flags        LoadBalancerFlags
	source       netip.Addr // invalid: none
}

// plan is a desired load balancer. Its backends are sorted and unique.
type plan struct {
	shape
	backends []backend
	// atVIP: pods reach the address only through a remote endpoint with it.
	atVIP bool
	lacks []lack
}

// backend is the address of an HNS endpoint.
type backend struct {
	addr netip.Addr
	// here: a pod of this node has it, and the CNI plugin creates its endpoint.
	here bool
}

// none reports whether there is no load balancer: packets follow the routes.
func (p *plan) none() bool { return len(p.backends) == 0 }

func (p *plan) lack(l lack) { p.lacks = append(p.lacks, l) }

// planned returns the load balancer of a frontend.
func (f *facts) planned(row *lb.Frontend) (p plan) {
	if row == nil || row.Accepts() || row.Key.IsNodePort() && !f.nodePorts() {
		return p
	}
	// HNS does not distinguish sources: the last route, for anywhere, decides for all.
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
		p.distribution = PerClient
		if !f.features.SessionAffinity {
			p.distribution = PerConnection
			p.lack(lackAffinity)
		}
	}
	p.choose(&set.Backends, f, preserve)
	p.source = f.source(p.backends)
	p.atVIP = f.atVIP(row)
	return p
}

// atVIP reports whether pods need a remote endpoint to reach a frontend: overlay networks
// encapsulate packets to the service network (kubernetes/kubernetes#70896).
func (f *facts) atVIP(row *lb.Frontend) bool {
	return f.overlay && row.Key.Addr.IsValid() && (row.Kind == lb.ClusterIP || f.ofServices(row.Key.Addr))
}

// ofServices reports whether an address is in the service network.
func (f *facts) ofServices(a netip.Addr) bool {
	return lb.Within(f.node.ServiceCIDRs, a)
}

// optional are the flags that HNS may refuse; load balancers are then written without them.
const optional = MappingVIPExternal | MappingLocalRoutedVIP | MappingUseMux

// mapping returns the flags proven in production. It never sets MappingILB: without it pods are
// served too, with it perhaps no external client (ADR 0043).
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

// direct reports whether to use DSR. With DSR the answer of a backend on another node bypasses this
// node, which has the client's connection. Clients of cluster IPs are behind this node's switch,
// which handles that; backends of policy Local are on this node and must see the client.
func (f *facts) direct(k lb.Kind, scope lb.Scope, preserve bool) bool {
	if k == lb.ClusterIP {
		return f.wantDSR && f.features.DSR
	}
	return preserve || scope == lb.Local && f.features.DSR
}

// choose selects the backends of one port, the most frequent and then the lowest, because HNS has
// one target port. With here, only backends of this node count.
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

// forwarded returns the load balancer that forwards health checks of an address to this node
// (CF-32).
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

// pod reports whether a local address can be a pod's: servers in the node's own network have no HNS
// endpoint.
func (n *network) pod(a netip.Addr) bool {
	family := slices.DeleteFunc(slices.Clone(n.subnets), func(p netip.Prefix) bool { return p.Addr().Is4() != a.Is4() })
	return a != n.management && (len(family) == 0 || lb.Within(family, a))
}

// request returns the HNS request for a load balancer.
func (s *shape) request(endpoints []string) LoadBalancer {
	l := LoadBalancer{
		HostComputeEndpoints: endpoints, SchemaVersion: Version2, Flags: s.flags,
		PortMappings: []PortMapping{{
			Protocol: uint32(s.proto), InternalPort: s.to, ExternalPort: s.port, DistributionType: s.distribution,
			Flags: s.mapping,
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

// key returns the key of the load balancer's frontend.
func (s *shape) key() lb.Key { return lb.Key{Addr: s.vip, Port: s.port, Proto: s.proto} }

// shapeOf is the inverse of request; ok is false for load balancers that this package does not
// write.
func shapeOf(l LoadBalancer) (s shape, ok bool) {
	if len(l.PortMappings) != 1 || len(l.FrontendVIPs) > 1 {
		return s, false
	}
	m := l.PortMappings[0]
	s = shape{
		port: m.ExternalPort, to: m.InternalPort, proto: lb.Proto(m.Protocol), distribution: m.DistributionType,
		mapping: m.Flags,
		flags:   l.Flags,
	}
	var err error
	if len(l.FrontendVIPs) == 1 {
		s.vip, err = netip.ParseAddr(l.FrontendVIPs[0])
		if err != nil {
			return s, false
		}
	}
	if l.SourceVIP != "" {
		s.source, err = netip.ParseAddr(l.SourceVIP)
		if err != nil {
			return s, false
		}
	}
	known := s.port != 0 && s.to != 0 && (m.Protocol == uint32(lb.TCP) || m.Protocol == uint32(lb.UDP))
	return s, known
}

// family returns the family of the clients.
func (s *shape) family() lb.Family {
	if s.vip.IsValid() {
		return lb.FamilyOf(s.vip)
	}
	if s.flags&FlagIPv6 != 0 {
		return lb.IPv6
	}
	return lb.IPv4
}

// nodePorts reports whether the node's own addresses serve NodePorts. For IPv4 HNS reports that
// address.
func (f *facts) nodePorts() bool {
	return slices.ContainsFunc(f.node.NodePorts, func(p netip.Prefix) bool {
		return f.family == lb.IPv6 && p.Addr().Is6() || f.family == lb.IPv4 &&
			(p.Bits() == 0 || p.Contains(f.management))
	})
}

// source returns the client's address as backends see it. Answers to the source VIP must pass
// through the overlay, so other nodes and addresses outside of the cluster see the node's address
// (kubernetes/kubernetes#91886, KEP-5100).
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

// sources reports whether the family has a source address, which overlay networks require.
func (f *facts) sources() bool { return !f.overlay || lb.FamilyOf(f.sourceVIP) == f.family }

// inside reports whether an address is in a subnet of the network, here or on another node.
func (n *network) inside(a netip.Addr) bool {
	return lb.Within(n.subnets, a) || slices.ContainsFunc(n.remotes, func(r remote) bool { return r.pods.Contains(a) })
}

// provider returns the node to which an overlay network sends packets for the address: this one, if
// the network does not know it.
func (n *network) provider(a netip.Addr) (node netip.Addr, known bool) {
	for _, r := range n.remotes { // longest prefixes first
		if r.pods.Contains(a) {
			return r.node, true
		}
	}
	if slices.ContainsFunc(n.remotes, func(r remote) bool { return r.node == a }) || a == n.management {
		return a, true
	}
	return n.management, false
}

// own reports whether only pods of this node can have the address: in an overlay network each node
// has a subnet.
func (n *network) own(a netip.Addr) bool {
	if !n.overlay {
		return false
	}
	_, elsewhere := n.provider(a)
	return !elsewhere && lb.Within(n.subnets, a)
}

func byLength(a, b remote) int {
	return cmp.Or(cmp.Compare(b.pods.Bits(), a.pods.Bits()), a.pods.Addr().Compare(b.pods.Addr()))
}
