package hnsfake

import (
	"encoding/json"
	"net/netip"
	"regexp"
	"slices"

	"kube-proxy/plane/hns"
)

var (
	macForm = regexp.MustCompile(`^[0-9A-Fa-f]{2}(-[0-9A-Fa-f]{2}){5}$`)
	protos  = []uint32{6, 17} // no document mentions SCTP
)

// longestName bounds endpoint names. No bound is documented; ours are far shorter.
const longestName = 255

// checkEndpoint returns the endpoint's addresses, or why HNS refuses it.
func (f *Fake) checkEndpoint(e hns.Endpoint) ([]netip.Addr, *hns.Error) {
	network, ok := f.networks[e.HostComputeNetwork]
	switch {
	case !ok:
		return nil, bad(0x803b0001, "no network has the ID %q", e.HostComputeNetwork)
	case e.ID != "":
		return nil, bad(0x803b000c, "ID %s: HNS makes the IDs", e.ID)
	case e.HostComputeNamespace != "":
		return nil, bad(0x803b000c, "HostComputeNamespace is read only")
	case e.SchemaVersion != hns.Version2:
		return nil, bad(0x803b001b, "SchemaVersion %v", e.SchemaVersion)
	case len(e.Name) > longestName:
		return nil, bad(0x803b000c, "a Name of %d bytes", len(e.Name))
	case e.Flags&^hns.RemoteEndpoint != 0:
		return nil, bad(0x803b000c, "Flags %d", e.Flags)
	case len(e.IPConfigurations) == 0: // HNS would choose an address
		return nil, bad(hns.CodeInvalidAddress, "no IpConfigurations")
	}
	addrs, err := f.checkAddrs(e)
	if err != nil {
		return nil, err
	}
	if e.Flags&hns.RemoteEndpoint == 0 {
		return addrs, nil
	}
	if !macForm.MatchString(e.MacAddress) { // no document states that HNS generates one
		return nil, bad(0x803b000c, "MacAddress %q", e.MacAddress)
	}
	if network.Type == hns.Overlay && !provider(e.Policies).IsValid() {
		return nil, bad(hns.CodeInvalidPolicy, "a remote endpoint of an overlay network without a ProviderAddress")
	}
	return addrs, nil
}

func (f *Fake) checkAddrs(e hns.Endpoint) ([]netip.Addr, *hns.Error) {
	var addrs []netip.Addr
	for _, c := range e.IPConfigurations {
		a, err := netip.ParseAddr(c.IPAddress)
		switch {
		case err != nil:
			return nil, bad(0x803b001e, "%v", err)
		case !usable(a):
			return nil, bad(hns.CodeInvalidAddress, "address %s", a)
		case int(c.PrefixLength) > a.BitLen():
			return nil, bad(hns.CodeInvalidAddress, "address %s/%d", a, c.PrefixLength)
		case slices.ContainsFunc(addrs, func(o netip.Addr) bool { return o.Is4() == a.Is4() }):
			return nil, bad(hns.CodeInvalidAddress, "two addresses of one family")
		case a.Is6() && !f.facts.Features.IPv6DualStack:
			return nil, bad(hns.CodeInvalidAddress, "address %s: this version has no IPv6", a)
		}
		// the documents name no code
		if others := f.at[place{e.HostComputeNetwork, a}]; len(others) > 0 && !f.facts.DuplicateAddress {
			return nil, bad(hns.CodeAlreadyExists, "endpoint %s has %s", others[0], a)
		}
		addrs = append(addrs, a)
	}
	return addrs, nil
}

// usable reports whether an endpoint or a frontend may have the address.
func usable(a netip.Addr) bool {
	return a.IsValid() && a.Zone() == "" && !a.Is4In6() && !a.IsUnspecified() && !a.IsLoopback() && !a.IsMulticast() &&
		!a.IsLinkLocalUnicast() &&
		a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// provider returns the address of the ProviderAddress policy, invalid without one.
func provider(policies []hns.Policy) netip.Addr {
	for _, p := range policies {
		if p.Type != hns.PolicyProviderAddress {
			continue
		}
		var s hns.AddressSetting
		if json.Unmarshal(p.Settings, &s) != nil {
			return netip.Addr{}
		}
		a, err := netip.ParseAddr(s.ProviderAddress)
		if err != nil || !usable(a) {
			return netip.Addr{}
		}
		return a
	}
	return netip.Addr{}
}

// checkBalancer returns the load balancer's keys, or why HNS refuses it, conflicts aside.
func (f *Fake) checkBalancer(l hns.LoadBalancer) ([]Key, *hns.Error) {
	invalid := func(format string, args ...any) ([]Key, *hns.Error) {
		return nil, bad(hns.CodeInvalidPolicy, format, args...)
	}
	six := l.Flags&hns.FlagIPv6 != 0
	switch {
	case l.SchemaVersion != hns.Version2:
		return nil, bad(0x803b001b, "SchemaVersion %v", l.SchemaVersion)
	case l.Flags&^(hns.FlagDSR|hns.FlagIPv6) != 0:
		return invalid("Flags %d", l.Flags)
	case l.Flags&hns.FlagDSR != 0 && !f.facts.Features.DSR:
		return invalid("this version has no DSR")
	case six && !f.facts.Features.IPv6DualStack:
		return invalid("this version has no IPv6")
	case len(l.PortMappings) != 1: // the schema has a list; no document describes several
		return invalid("%d PortMappings", len(l.PortMappings))
	}
	if err := f.checkMapping(l.PortMappings[0], l.Flags&hns.FlagDSR != 0); err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	for _, vip := range l.FrontendVIPs {
		a, err := netip.ParseAddr(vip)
		if err != nil || !usable(a) || a.Is6() != six || seen[vip] {
			return invalid("FrontendVIPs %q with Flags %d", l.FrontendVIPs, l.Flags)
		}
		seen[vip] = true
	}
	if err := f.checkBackends(l, six); err != nil {
		return nil, err
	}
	return keysOf(l), nil
}

func (f *Fake) checkMapping(m hns.PortMapping, dsr bool) *hns.Error {
	switch {
	case !slices.Contains(protos, m.Protocol):
		return bad(0x803b0016, "Protocol %d", m.Protocol)
	case m.InternalPort == 0:
		return bad(0x803b002d, "InternalPort 0")
	case m.ExternalPort == 0:
		return bad(hns.CodeInvalidPolicy, "ExternalPort 0")
	case m.Flags&^f.facts.MappingFlags != 0:
		return bad(hns.CodeInvalidPolicy, "Flags %d of a mapping", m.Flags)
	case m.Flags&(hns.MappingUseMux|hns.MappingPreserveDIP) != 0 && !dsr:
		return bad(hns.CodeInvalidPolicy, "Flags %d of a mapping without DSR", m.Flags)
	case m.DistributionType > hns.PerClient:
		return bad(hns.CodeInvalidPolicy, "DistributionType %d", m.DistributionType)
	case m.DistributionType != hns.PerConnection && !f.facts.Features.SessionAffinity:
		return bad(hns.CodeInvalidPolicy, "this version has no session affinity")
	}
	return nil
}

// checkBackends checks that all endpoints and the source are of one network and the right family.
func (f *Fake) checkBackends(l hns.LoadBalancer, six bool) *hns.Error {
	if len(l.HostComputeEndpoints) == 0 { // "invalid or missing parameters" (aws/containers-roadmap#240)
		return bad(hns.CodeInvalidPolicy, "no endpoints")
	}
	var network hns.Network
	seen := map[string]bool{}
	for _, id := range l.HostComputeEndpoints {
		e := f.endpoints[id]
		switch {
		case e == nil:
			return bad(hns.CodeEndpointNotFound, "no endpoint has the ID %q", id)
		case seen[id]:
			return bad(hns.CodeInvalidPolicy, "endpoint %s twice", id)
		case network.ID != "" && network.ID != e.HostComputeNetwork:
			return bad(hns.CodeInvalidPolicy, "endpoints of two networks")
		case !e.addr(six).IsValid():
			return bad(hns.CodeInvalidPolicy, "endpoint %s has no address of the family", id)
		}
		seen[id] = true
		network = f.networks[e.HostComputeNetwork]
	}
	return f.checkSource(l.SourceVIP, network, six)
}

// checkSource: overlay networks need a source that backends can answer, the node's address or that
// of a local endpoint.
func (f *Fake) checkSource(vip string, network hns.Network, six bool) *hns.Error {
	if vip == "" {
		if network.Type == hns.Overlay {
			return bad(hns.CodeInvalidPolicy, "no SourceVIP in an overlay network")
		}
		return nil
	}
	a, err := netip.ParseAddr(vip)
	if err != nil || !usable(a) || a.Is6() != six {
		return bad(hns.CodeInvalidPolicy, "SourceVIP %q", vip)
	}
	local := slices.ContainsFunc(f.at[place{network.ID, a}], func(id string) bool {
		return f.endpoints[id].Flags&hns.RemoteEndpoint == 0
	})
	if network.Type == hns.Overlay && f.facts.SourceVIPEndpoint && vip != network.ManagementIP && !local {
		return bad(hns.CodeInvalidPolicy, "SourceVIP %s is of no endpoint of this node", vip)
	}
	return nil
}

// addr is the endpoint's address of a family, invalid without one.
func (e *endpoint) addr(six bool) netip.Addr { return addrOf(e.addrs, six) }

func addrOf(addrs []netip.Addr, six bool) netip.Addr {
	for _, a := range addrs {
		if a.Is6() == six {
			return a
		}
	}
	return netip.Addr{}
}

// keysOf returns the keys of a load balancer.
func keysOf(l hns.LoadBalancer) []Key {
	var out []Key
	for _, m := range l.PortMappings {
		k := Key{Six: l.Flags&hns.FlagIPv6 != 0, Port: m.ExternalPort, Proto: m.Protocol}
		if len(l.FrontendVIPs) == 0 {
			out = append(out, k)
		}
		for _, vip := range l.FrontendVIPs {
			k.Addr, _ = netip.ParseAddr(vip) // checked
			out = append(out, k)
		}
	}
	return out
}
