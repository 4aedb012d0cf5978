package cluster

import (
	"net/netip"
	"slices"
)

func (ev NodeHolds) foldInto(s *Store, d *Dirty) {
	s.held = ev.Addrs
	s.setOwn(d)
}

// setOwn marks the Services dirty that name an address which this machine has or had: its own ports
// there are served to no Service (TN-98).
func (s *Store) setOwn(d *Dirty) {
	now := slices.Clone(s.held)
	if s.facts.Node != nil {
		now = append(now, s.facts.Node.Addrs...)
	}
	slices.SortFunc(now, netip.Addr.Compare)
	now = slices.Compact(now)
	if slices.Equal(now, s.facts.Own) {
		return
	}
	was := s.facts.Own
	s.facts.Own, d.Facts = now, true
	clear(s.exposed)
	for name, e := range s.services {
		if e.service == nil {
			continue
		}
		s.expose(e.service)
		if e.service.names(was) || e.service.names(now) {
			d.Services = append(d.Services, Ref{Name: name, V4: true, V6: true})
		}
	}
}

// names reports whether an external or load-balancer address of the Service is among addrs, which
// are sorted.
func (s *Service) names(addrs []netip.Addr) bool {
	in := func(a netip.Addr) bool {
		_, found := slices.BinarySearchFunc(addrs, a, netip.Addr.Compare)
		return found
	}
	return slices.ContainsFunc(s.ExternalIPs, in) || slices.ContainsFunc(s.LoadBalancerIPs, in)
}

// expose records the TCP ports of a Service that names an address of this machine.
func (s *Store) expose(svc *Service) {
	if !svc.names(s.facts.Own) {
		return
	}
	for _, p := range svc.Ports {
		if p.Protocol != TCP {
			continue
		}
		if s.exposed[p.Port] == nil {
			s.exposed[p.Port] = map[Name]struct{}{}
		}
		s.exposed[p.Port][svc.Name] = struct{}{}
	}
}

// portsChanged follows a Service that changed; was and now may be nil. It marks the Services dirty
// that name an address of this machine with the port of a health check NodePort that came or went.
func (s *Store) portsChanged(was, now *Service, d *Dirty) {
	if was != nil {
		for _, p := range was.Ports {
			delete(s.exposed[p.Port], was.Name)
			if len(s.exposed[p.Port]) == 0 {
				delete(s.exposed, p.Port)
			}
		}
	}
	if now != nil {
		s.expose(now)
	}
	before, after := was.healthPort(), now.healthPort()
	if before == after {
		return
	}
	s.countHealth(before, -1, d)
	s.countHealth(after, +1, d)
}

// countHealth counts a Service with a health check NodePort; 0 is none.
func (s *Store) countHealth(port uint16, by int, d *Dirty) {
	if port == 0 {
		return
	}
	was := s.health[port]
	s.health[port] += by
	if was != 0 && s.health[port] != 0 {
		return
	}
	for name := range s.exposed[port] {
		d.Services = append(d.Services, Ref{Name: name, V4: true, V6: true})
	}
}

// healthPort returns the port at which the Service's health check answers on every node, 0 without
// one (SV-21).
func (s *Service) healthPort() uint16 {
	if s == nil || !s.HasHealthCheck() {
		return 0
	}
	return s.HealthCheckNodePort
}

// healthPorts returns [View].HealthPorts for a Service, which may be nil.
func (s *Store) healthPorts(svc *Service) (ports []uint16) {
	if svc == nil || !svc.names(s.facts.Own) {
		return nil
	}
	for _, p := range svc.Ports {
		if p.Protocol == TCP && s.health[p.Port] > 0 {
			ports = append(ports, p.Port)
		}
	}
	return ports
}
