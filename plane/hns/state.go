package hns

import (
	"maps"
	"net/netip"

	"kube-proxy/lb"
)

// state is the applied state, and the known content of HNS.
type state struct {
	facts
	rows      map[lb.Key]*lb.Frontend
	balancers map[lb.Key]*balancer
	endpoints map[netip.Addr]*endpoint
	// unused are endpoints of ours that no load balancer needs; the verb deletes them at its end.
	unused map[netip.Addr]bool
	// failed are frontends whose last Apply failed: the engine retries them, and audits do not
	// report them.
	failed map[lb.Key]bool
	// checks are the forwarded health checks by Service; empty unless configured.
	checks map[string]*check
	// made is the number of our endpoints.
	made int
	// others are the ids of other programs' load balancers, by the keys that ours could have.
	others map[lb.Key]string
}

// balancer is a load balancer in HNS.
type balancer struct {
	shape
	// shown is the shape as HNS shows it, which may differ from the request.
	shown     shape
	id        string
	endpoints []netip.Addr // sorted
	// doubt: a call with an unknown outcome may have changed or deleted it.
	doubt bool
	// atVIP: it uses the endpoint at its own address.
	atVIP bool
	// unknown is the number of its endpoints that the network does not have.
	unknown int
}

// endpoint is an HNS endpoint that load balancers use.
type endpoint struct {
	id   string
	ours bool
	refs int // load balancers of ours
	// doubt: HNS did not find an object that a load balancer with this endpoint named.
	doubt bool
}

// check forwards the health checks of a Service's load-balancer addresses to this node.
type check struct {
	rows map[lb.Key]lb.Kind // of kind LoadBalancer and HealthCheck
	keys map[lb.Key]bool    // written
}

func newState(f facts) *state {
	return &state{
		facts: f, rows: map[lb.Key]*lb.Frontend{}, balancers: map[lb.Key]*balancer{},
		endpoints: map[netip.Addr]*endpoint{},
		unused:    map[netip.Addr]bool{}, failed: map[lb.Key]bool{}, checks: map[string]*check{},
		others: map[lb.Key]string{},
	}
}

func (s *state) acquire(addrs []netip.Addr) {
	for _, a := range addrs {
		s.endpoints[a].refs++
		delete(s.unused, a)
	}
}

// release gives up endpoints. Unused ones of ours are deleted at the end of the verb; the CNI
// plugin's are forgotten, because another pod may get the address.
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

// learn records an endpoint, and reports whether load balancers use another id for the address.
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
	s.idle(a, is)
	if is.refs == 0 && !ours {
		s.endpoints[a] = is // a load balancer is about to use it
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

// wanted returns the keys to forward: each address with the Service's healthCheckNodePort or,
// without one, the port of /healthz; 0 for none.
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

// checked returns the keys to forward for all Services.
func (s *state) checked(healthz uint16) map[lb.Key]bool {
	all := map[lb.Key]bool{}
	for _, c := range s.checks {
		maps.Copy(all, c.wanted(healthz))
	}
	return all
}
