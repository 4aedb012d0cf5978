package hnsfake

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"kube-proxy/plane/hns"
)

// State is an immutable snapshot of an HNS.
type State struct {
	Networks      []hns.Network
	Endpoints     []hns.Endpoint
	LoadBalancers []hns.LoadBalancer

	facts     Facts
	services  []netip.Prefix
	endpoints map[string]*endpoint
	balancers map[string]*hns.LoadBalancer
	keys      map[Key]string
}

// State returns a snapshot, ordered by ID.
func (f *Fake) State() *State {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := &State{facts: f.facts, services: f.services, endpoints: map[string]*endpoint{},
		balancers: map[string]*hns.LoadBalancer{}, keys: maps.Clone(f.keys)}
	for _, id := range slices.Sorted(maps.Keys(f.networks)) {
		s.Networks = append(s.Networks, f.networks[id])
	}
	for _, id := range slices.Sorted(maps.Keys(f.endpoints)) {
		e := *f.endpoints[id]
		s.endpoints[id] = &e
		s.Endpoints = append(s.Endpoints, e.Endpoint)
	}
	for _, id := range slices.Sorted(maps.Keys(f.balancers)) {
		l := cloneBalancer(*f.balancers[id])
		s.balancers[id] = &l
		s.LoadBalancers = append(s.LoadBalancers, l)
	}
	return s
}

// Own returns the state without other programs' objects and ids, as sorted text. Equal texts serve
// equal packets and leak no objects.
func (f *Fake) Own() string {
	f.mu.Lock()
	foreign := maps.Clone(f.foreign)
	f.mu.Unlock()
	s := f.State()
	var lines []string
	for _, e := range s.Endpoints {
		if !foreign[e.ID] {
			var settings []string
			for _, p := range e.Policies {
				settings = append(settings, p.Type+" "+string(p.Settings))
			}
			lines = append(lines, fmt.Sprintf("endpoint %s flags %d mac %s policies %s", describe(e), e.Flags,
				e.MacAddress, strings.Join(settings, ",")))
		}
	}
	for _, l := range s.LoadBalancers {
		if !foreign[l.ID] {
			lines = append(lines, s.line(l))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n") + "\n"
}

func (s *State) line(l hns.LoadBalancer) string {
	var backends []string
	for _, id := range l.HostComputeEndpoints {
		backends = append(backends, describe(s.endpoints[id].Endpoint))
	}
	slices.Sort(backends)
	vips := slices.Sorted(slices.Values(l.FrontendVIPs))
	m := l.PortMappings[0]
	return fmt.Sprintf("balancer %v:%d/%d to :%d flags %d mapping %d distribution %d source %q endpoints %v",
		vips, m.ExternalPort, m.Protocol, m.InternalPort, l.Flags, m.Flags, m.DistributionType, l.SourceVIP, backends)
}

// Source is the origin of a connection.
type Source uint8

// The sources.
const (
	// Pod is a container of this node.
	Pod Source = iota + 1
	// Host is the node itself.
	Host
	// Outside is all that arrives at the node's adapter: other nodes, their pods, clients.
	Outside
)

// Packet is the first packet of a connection.
type Packet struct {
	From  Source
	To    netip.AddrPort
	Proto uint32
	// ToNode: To is one of the node's own addresses.
	ToNode bool
}

// Verdict is the result of a packet.
type Verdict struct {
	// LoadBalancer is the ID of the load balancer that takes the packet; "" if it follows the
	// routes.
	LoadBalancer string
	// Backends are the possible destinations, in order; none if the packet is lost.
	Backends []netip.AddrPort
	// Sticky: a client's connections reach one backend.
	Sticky bool
	// Kept: the backend sees the client's own address.
	Kept bool
}

// Resolve traces a packet by the documents of HNS and hnslib (docs/adr/0043):
//
//   - A load balancer with the address has priority over one for the node's own addresses.
//   - The node and its pods reach the node's addresses only with MappingLocalRoutedVIP; the
//     node reaches other addresses if the transcript says so.
//   - In an overlay network, pods reach an address of the service network only if a remote
//     endpoint has it (kubernetes/kubernetes#70896).
//   - With MappingILB, packets from outside are not taken.
//   - Without DSR the backend sees SourceVIP or the node's address. With DSR it sees the
//     client, and packets from outside reach only backends of this node
//     (kubernetes/kubernetes#115344): answers of others would bypass the translation.
//   - In an overlay network a remote backend is reached if its endpoint names the node of its
//     address: the node itself, or this node for addresses that the network does not know.
func (s *State) Resolve(p Packet) Verdict {
	key := Key{Addr: p.To.Addr(), Six: p.To.Addr().Is6(), Port: p.To.Port(), Proto: p.Proto}
	id, ok := s.keys[key]
	if !ok && p.ToNode {
		key.Addr = netip.Addr{}
		id, ok = s.keys[key]
	}
	if !ok {
		return Verdict{}
	}
	l := s.balancers[id]
	m := l.PortMappings[0]
	local := m.Flags&hns.MappingLocalRoutedVIP != 0
	switch {
	case p.From == Host && !local && (!key.Addr.IsValid() || !s.facts.HostReachesVIP), p.From == Pod && !local &&
		!key.Addr.IsValid(),
		p.From == Outside && m.Flags&hns.MappingILB != 0:
		return Verdict{}
	case p.From == Pod && key.Addr.IsValid() && !s.known(l, key.Addr):
		return Verdict{LoadBalancer: id}
	}
	dsr := l.Flags&hns.FlagDSR != 0
	v := Verdict{LoadBalancer: id, Sticky: m.DistributionType != hns.PerConnection, Kept: dsr}
	for _, eid := range l.HostComputeEndpoints {
		e := s.endpoints[eid]
		if e.Flags&hns.RemoteEndpoint != 0 && (dsr && p.From == Outside || !s.reaches(e, key.Six)) {
			continue
		}
		v.Backends = append(v.Backends, netip.AddrPortFrom(e.addr(key.Six), m.InternalPort))
	}
	return v
}

// network returns the network of an endpoint.
func (s *State) network(e *endpoint) hns.Network {
	return s.Networks[slices.IndexFunc(s.Networks, func(n hns.Network) bool { return n.ID == e.HostComputeNetwork })]
}

// known reports whether pods can send packets to a load balancer's address.
func (s *State) known(l *hns.LoadBalancer, vip netip.Addr) bool {
	n := s.network(s.endpoints[l.HostComputeEndpoints[0]])
	if n.Type != hns.Overlay || !s.facts.VIPEndpoint ||
		!slices.ContainsFunc(s.services, func(p netip.Prefix) bool { return p.Contains(vip) }) {
		return true
	}
	return slices.ContainsFunc(s.Endpoints, func(e hns.Endpoint) bool {
		at := s.endpoints[e.ID]
		return at.HostComputeNetwork == n.ID && at.Flags&hns.RemoteEndpoint != 0 && slices.Contains(at.addrs, vip)
	})
}

// reaches reports whether packets reach a remote endpoint.
func (s *State) reaches(e *endpoint, six bool) bool {
	addr := e.addr(six)
	n := s.network(e)
	if n.Type != hns.Overlay {
		return true
	}
	at, bits := netip.MustParseAddr(n.ManagementIP), -1
	for _, p := range n.Policies {
		var r hns.RemoteSubnet
		if p.Type != hns.PolicyRemoteSubnetRoute || json.Unmarshal(p.Settings, &r) != nil {
			continue
		}
		pods, err := netip.ParsePrefix(r.DestinationPrefix)
		node, nodeErr := netip.ParseAddr(r.ProviderAddress)
		switch {
		case err != nil || nodeErr != nil:
		case pods.Contains(addr) && pods.Bits() > bits:
			at, bits = node, pods.Bits()
		case node == addr && bits < 0:
			at = node
		}
	}
	return provider(e.Policies) == at
}

// Lives reports whether the load balancer's connections survive: as long as it exists, even if
// their backend left. Their end is an assumption; no document describes the effect of a deletion.
func (s *State) Lives(balancer string) bool { return s.balancers[balancer] != nil }
