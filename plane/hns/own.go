package hns

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
	"strings"

	"kube-proxy/lb"
)

// namePrefix begins the names of our endpoints; the address follows.
const namePrefix = "kube-proxy "

// remoteEndpoint returns the request for an address that no container of this node has. known is
// false if an overlay network does not know the address's node: then packets are sent to this node,
// which routes them, as for cluster IPs.
func (n *network) remoteEndpoint(a netip.Addr) (e Endpoint, known bool) {
	e = Endpoint{
		Name: namePrefix + a.String(), HostComputeNetwork: n.id, Flags: RemoteEndpoint, SchemaVersion: Version2,
		IPConfigurations: []IPConfig{{IPAddress: a.String()}},
	}
	e.MacAddress = macOf(a)
	if !n.overlay {
		return e, true
	}
	provider, known := n.provider(a)
	if !known {
		e.MacAddress = n.mac
	}
	e.Policies = []Policy{providerPolicy(provider)}
	return e, known
}

// EndpointOf returns the plane's request for a remote endpoint in a network.
func EndpointOf(n Network, a netip.Addr) (Endpoint, error) {
	net, err := parse(n)
	e, _ := net.remoteEndpoint(a)
	return e, err
}

// sourceName begins the name of the source VIP's endpoint; the address follows.
const sourceName = namePrefix + "source "

// sourceEndpoint returns the request for the local endpoint with the source VIP.
func (f *facts) sourceEndpoint() Endpoint {
	return Endpoint{
		Name: sourceName + f.sourceVIP.String(), HostComputeNetwork: f.id, MacAddress: f.mac, SchemaVersion: Version2,
		IPConfigurations: []IPConfig{{IPAddress: f.sourceVIP.String()}},
		Policies:         []Policy{providerPolicy(f.management)},
	}
}

func providerPolicy(node netip.Addr) Policy {
	settings, err := json.Marshal(AddressSetting{ProviderAddress: node.String()})
	if err != nil {
		panic(err) // a string
	}
	return Policy{Type: PolicyProviderAddress, Settings: settings}
}

// macOf returns a unique, locally administered hardware address, derived from the IPv4 address, or
// from a hash of the IPv6 address.
func macOf(a netip.Addr) string {
	if a.Is4() {
		return mac(0x11, a.AsSlice())
	}
	h := fnv.New32a()
	h.Write(a.AsSlice())
	return mac(0x12, h.Sum(nil))
}

func mac(second byte, last []byte) string {
	return fmt.Sprintf("02-%02X-%02X-%02X-%02X-%02X", second, last[0], last[1], last[2], last[3])
}

// ours reports whether this package created the endpoint: it is remote, in no container, and has
// the one address of its name. Policies do not count, because HNS adds some.
func ours(e Endpoint) bool {
	if e.Flags&RemoteEndpoint == 0 || e.HostComputeNamespace != "" || len(e.IPConfigurations) != 1 {
		return false
	}
	a, err := netip.ParseAddr(e.IPConfigurations[0].IPAddress)
	return err == nil && e.Name == namePrefix+a.String()
}

// addresses returns the endpoint's addresses of a family.
func addresses(e Endpoint, f lb.Family) (all []netip.Addr) {
	for _, c := range e.IPConfigurations {
		if a, err := netip.ParseAddr(c.IPAddress); err == nil && lb.FamilyOf(a) == f {
			all = append(all, a)
		}
	}
	return all
}

// Has reports whether the endpoint has the address.
func (e *Endpoint) Has(a netip.Addr) bool { return slices.Contains(addresses(*e, lb.FamilyOf(a)), a) }

// ProviderOf returns the endpoint's provider address, invalid if it has none.
func ProviderOf(e Endpoint) netip.Addr {
	for _, p := range e.Policies {
		var s AddressSetting
		if p.Type == PolicyProviderAddress && json.Unmarshal(p.Settings, &s) == nil {
			a, _ := netip.ParseAddr(s.ProviderAddress)
			return a
		}
	}
	return netip.Addr{}
}

// written reports whether this package writes load balancers of that shape, with optional flags or
// without.
func (s *shape) written() bool {
	return s.mapping&^(optional|MappingPreserveDIP) == 0 && (s.mapping&MappingPreserveDIP == 0 ||
		s.flags&FlagDSR != 0) &&
		s.flags&^(FlagDSR|FlagIPv6) == 0 && (s.distribution == PerConnection || s.distribution == PerClient)
}

// served reports whether the load balancer belongs to a proxy of this network, by the rule in the
// package comment.
func (s *shape) served(l LoadBalancer, f *facts, endpoint map[string]Endpoint, wanted bool) bool {
	inside := 0
	for _, id := range l.HostComputeEndpoints {
		if _, ok := endpoint[strings.ToLower(id)]; ok {
			inside++
		}
	}
	switch {
	case wanted, f.ofServices(s.vip):
		return true
	default:
		return inside > 0 && inside == len(l.HostComputeEndpoints) && s.written()
	}
}
