package cluster

import (
	"net/netip"
	"slices"
)

// apiService is the Service whose endpoints the API servers keep: themselves.
var apiService = Name{Namespace: "default", Name: "kubernetes"}

// maxAPIServers bounds the API servers that slices of apiService add to [Facts].APIServers: tenants
// of the namespace default may write some.
const maxAPIServers = 64

func (ev APIServerAt) foldInto(s *Store, d *Dirty) {
	s.reached = ev.Addrs
	s.setAPIServers(d)
}

// setAPIServers marks the Services dirty that name an address which an API server has or had.
func (s *Store) setAPIServers(d *Dirty) {
	now := s.apiServers()
	if slices.Equal(now, s.facts.APIServers) {
		return
	}
	concerned := map[netip.Addr]bool{}
	for _, at := range slices.Concat(now, s.facts.APIServers) {
		concerned[at.Addr()] = true
	}
	s.facts.APIServers, d.Facts = now, true
	names := func(a netip.Addr) bool { return concerned[a] }
	for name, e := range s.services {
		if v := e.service; v != nil && (slices.ContainsFunc(v.LoadBalancerIPs, names) ||
			slices.ContainsFunc(v.ExternalIPs, names)) {
			d.Services = append(d.Services, Ref{Name: name, V4: true, V6: true})
		}
	}
}

// apiServers returns the addresses at which the source reaches the API server, and the API servers'
// own endpoints.
func (s *Store) apiServers() []netip.AddrPort {
	all := slices.Clone(s.reached)
	if e := s.services[apiService]; e != nil {
		for _, sl := range e.slices {
			all = append(all, endpointsOf(sl, maxAPIServers-len(all))...)
		}
	}
	slices.SortFunc(all, netip.AddrPort.Compare)
	return slices.Compact(all)
}

// endpointsOf are the first endpoints of TCP of a slice, most at most.
func endpointsOf(sl *Slice, most int) (all []netip.AddrPort) {
	for _, p := range sl.Ports {
		for e := range sl.Endpoints.All() {
			if len(all) >= most {
				return all
			}
			if p.Protocol == TCP && p.Port != 0 {
				all = append(all, netip.AddrPortFrom(e.Addr, p.Port))
			}
		}
	}
	return all
}
