package hns

import (
	"maps"
	"net/netip"

	"kube-proxy/lb"
)

// state is what was applied, and what HNS holds of it as far as is known.
type state struct {
	facts
	rows      map[lb.Key]*lb.Frontend
	balancers map[lb.Key]*balancer
	endpoints map[netip.Addr]*endpoint
	// unused are endpoints of ours that no load balancer needs, to be deleted.
	unused map[netip.Addr]bool
	// failed are rows whose last Apply failed: the engine tries them again, and audits do not speak of them.
	failed map[lb.Key]bool
	// checks are, by Service, what its health checks are led by; empty unless that is asked for.
	checks map[string]*check
	// made is the number of endpoints of ours.
	made int
	// others are load balancers of other programs that have a key which ours could have, by their ids.
	others map[lb.Key]string
}

// balancer is a load balancer in HNS.
type balancer struct {
	shape
	// shown is how HNS shows that shape, which need not be how it was asked for.
	shown     shape
	id        string
	endpoints []netip.Addr // sorted
	// doubt: a call may have changed or deleted it, and nobody knows.
	doubt bool
	// atVIP: it needs the endpoint of its own address.
	atVIP bool
	// unknown is the number of its endpoints that the network does not have.
	unknown int
}

// endpoint is one of HNS that load balancers send to.
type endpoint struct {
	id   string
	ours bool
	refs int // load balancers of ours
	// doubt: HNS says that something was not there that a load balancer with this endpoint named.
	doubt bool
}

// check is what leads health checks of a Service's load balancers to this node.
type check struct {
	rows map[lb.Key]lb.Kind // of kind LoadBalancer and HealthCheck
	keys map[lb.Key]bool    // written
}

func newState(f facts) *state {
	return &state{
		facts: f, rows: map[lb.Key]*lb.Frontend{}, balancers: map[lb.Key]*balancer{}, endpoints: map[netip.Addr]*endpoint{},
		unused: map[netip.Addr]bool{}, failed: map[lb.Key]bool{}, checks: map[string]*check{}, others: map[lb.Key]string{},
	}
}

func (s *state) acquire(addrs []netip.Addr) {
	for _, a := range addrs {
		s.endpoints[a].refs++
		delete(s.unused, a)
	}
}

// release gives up endpoints. One of ours that nobody needs is deleted at the end of the verb; one of the CNI's is
// forgotten, because the pod may go and another have its address.
func (s *state) release(addrs []netip.Addr) {
	for _, a := range addrs {
		e := s.endpoints[a]
		e.refs--
		s.idle(a, e)
	}
}

func (s *state) idle(a netip.Addr, e *endpoint) {
	switch {
	case e.refs > 0:
	case e.ours:
		s.unused[a] = true
	default:
		s.forget(a)
	}
}

// learn takes note of an endpoint, and reports whether load balancers have the address by another id.
func (s *state) learn(a netip.Addr, id string, ours bool) (other bool) {
	is := s.endpoints[a]
	if is == nil {
		is = &endpoint{}
		s.endpoints[a] = is
	}
	other = is.refs > 0 && is.id != id
	if ours && !is.ours {
		s.made++
	} else if !ours && is.ours {
		s.made--
	}
	is.id, is.ours, is.doubt = id, ours, false
	if s.idle(a, is); is.refs == 0 && !ours {
		s.endpoints[a] = is // a load balancer is about to take it
	}
	return other
}

func (s *state) forget(a netip.Addr) {
	if e := s.endpoints[a]; e != nil && e.ours {
		s.made--
	}
	delete(s.endpoints, a)
	delete(s.unused, a)
}

// wanted are the keys that lead health checks to this node: to the Service's healthCheckNodePort, or to the
// port of /healthz if it has none; 0 for none.
func (c *check) wanted(healthz uint16) map[lb.Key]bool {
	port := healthz
	for key, kind := range c.rows {
		if kind == lb.HealthCheck {
			port = key.Port
		}
	}
	keys := map[lb.Key]bool{}
	for key, kind := range c.rows {
		if kind == lb.LoadBalancer && port != 0 {
			keys[lb.Key{Addr: key.Addr, Port: port, Proto: lb.TCP}] = true
		}
	}
	return keys
}

// checked are the keys that lead health checks of all Services to this node.
func (s *state) checked(healthz uint16) map[lb.Key]bool {
	all := map[lb.Key]bool{}
	for _, c := range s.checks {
		maps.Copy(all, c.wanted(healthz))
	}
	return all
}
