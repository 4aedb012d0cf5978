package lb

import (
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// Refused is a frontend that a [Table] rejects because it violates a rule of this package.
type Refused struct {
	Key Key
	Err error
}

// Check returns the rule of this package that a frontend violates, nil if none. No plane could hold
// such a frontend, and the kernel would refuse a whole batch with it. family is that of the table;
// 0 means either.
func Check(family Family, f *Frontend) error {
	var c check
	return c.row(family, f)
}

// check remembers the last valid values: the frontends of a service port share their backend sets,
// and all frontends of a Service may share their sources.
type check struct {
	sets    [3]*BackendSet // one for each scope
	lists   [3]Endpoints
	sources []netip.Prefix
}

func (c *check) row(family Family, f *Frontend) error {
	err := checkKey(family, f.Key)
	if err == nil {
		err = c.rest(family, f)
	}
	if err != nil {
		return fmt.Errorf("frontend %s of %q: %w", f.Key, f.Service, err)
	}
	return nil
}

func checkKey(family Family, k Key) error {
	switch {
	case !k.IsNodePort() && !family.has(k.Addr):
		return fmt.Errorf("the address is not %s", family)
	case k.Addr.Zone() != "":
		return errors.New("the address has a zone")
	case k.Port == 0:
		return errors.New("port 0")
	case k.Proto != TCP && k.Proto != UDP && k.Proto != SCTP:
		return fmt.Errorf("protocol %s: want tcp, udp or sctp", k.Proto)
	}
	return nil
}

// has reports whether the address is of the family; 0 has all.
func (f Family) has(a netip.Addr) bool { return f == 0 || FamilyOf(a) == f }

func (c *check) rest(family Family, f *Frontend) error {
	switch {
	case f.Service == "":
		return errors.New("it names no service")
	case f.Kind < ClusterIP || f.Kind > HealthCheck:
		return fmt.Errorf("kind %s", f.Kind)
	case (f.Kind == NodePort || f.Kind == HealthCheck) != f.Key.IsNodePort():
		return fmt.Errorf("kind %s does not fit the key", f.Kind)
	case (f.Kind == HealthCheck) != f.Accepts():
		return fmt.Errorf("kind %s does not fit the routes", f.Kind)
	case f.PreserveDestination && f.Kind != ExternalIP && f.Kind != LoadBalancer:
		return fmt.Errorf("kind %s preserves no destination", f.Kind)
	case f.Accepts():
		return checkHealthCheck(f)
	case f.Key.IsNodePort() && len(f.Sources) > 0:
		return errors.New("a NodePort has no source ranges") // SV-61
	case f.LocalEndpoints != 0:
		return fmt.Errorf("kind %s counts no endpoints", f.Kind)
	case f.Affinity < 0 || f.Affinity > 24*time.Hour || f.Affinity%time.Second != 0:
		return fmt.Errorf("affinity of %s: want whole seconds up to 24h", f.Affinity)
	}
	if err := c.ranges(family, f.Sources); err != nil {
		return err
	}
	if f.Serving != nil {
		if err := c.set(family, f, f.Serving); err != nil {
			return err
		}
	}
	return c.routes(family, f)
}

func checkHealthCheck(f *Frontend) error {
	r := f.Routes[0]
	switch {
	case f.Key.Proto != TCP:
		return fmt.Errorf("health check over %s", f.Key.Proto)
	case r.From != Anywhere || r.To != nil || r.Masq:
		return fmt.Errorf("health check with a route from %s", r.From)
	case f.Affinity != 0 || len(f.Sources) > 0 || f.Serving != nil:
		return errors.New("health check that knows its clients")
	case f.LocalEndpoints < 0:
		return fmt.Errorf("health check of %d endpoints", f.LocalEndpoints)
	}
	return nil
}

func (c *check) ranges(family Family, sources []netip.Prefix) error {
	if len(sources) == 0 || len(sources) == len(c.sources) && &sources[0] == &c.sources[0] {
		return nil
	}
	for i, p := range sources {
		if !family.has(p.Addr()) || p != p.Masked() {
			return fmt.Errorf("source range %s: want one of %s, masked", p, family)
		}
		if i > 0 && (sources[i-1].Overlaps(p) || p.Addr().Less(sources[i-1].Addr())) {
			return fmt.Errorf("source ranges %s and %s: want them sorted, without overlaps", sources[i-1], p)
		}
	}
	c.sources = sources
	return nil
}

func (c *check) routes(family Family, f *Frontend) error {
	last := From(0)
	for _, r := range f.Routes {
		if r.From <= last || r.From > Anywhere {
			return fmt.Errorf("the route from %s is out of order", r.From)
		}
		last = r.From
		if err := c.route(family, f, r); err != nil {
			return fmt.Errorf("route from %s: %w", r.From, err)
		}
	}
	if last != Anywhere {
		return errors.New("the last route is not from anywhere")
	}
	return nil
}

func (c *check) route(family Family, f *Frontend, r Route) error {
	switch {
	case r.Do == Balance && (r.To == nil || r.To.Backends.Len() == 0):
		return errors.New("it balances over nothing")
	case r.Do == Balance && r.To.ID.Scope != Cluster && r.To.ID.Scope != Local:
		return fmt.Errorf("backend set %s is not one to balance over", r.To.ID)
	case r.Do == Balance:
		return c.set(family, f, r.To)
	case r.Do != Reject && r.Do != Drop:
		return fmt.Errorf("action %s", r.Do)
	case r.To != nil:
		return fmt.Errorf("%s has a backend set", r.Do)
	case r.Masq:
		return fmt.Errorf("%s masquerades", r.Do)
	}
	return nil
}

func (c *check) set(family Family, f *Frontend, s *BackendSet) error {
	id := s.ID
	if id.Service != f.Service || id.Proto != f.Key.Proto || id.Scope < Cluster || id.Scope > Serving {
		return fmt.Errorf("backend set %s is not of this service port", id)
	}
	if c.sets[id.Scope-Cluster] == s {
		return nil
	}
	for i := range s.Backends.runs() {
		r := s.Backends.run(i)
		if i > 0 && s.Backends.run(i-1).port >= r.port {
			return fmt.Errorf("ports %d and %d of set %s: want them sorted, without duplicates",
				s.Backends.run(i-1).port, r.port, id)
		}
		if r.port == 0 || r.endpoints.Len() == 0 {
			return fmt.Errorf("%d backends of set %s with port %d: want some, and a port", r.endpoints.Len(), id,
				r.port)
		}
		if err := c.endpoints(family, r.endpoints, &c.lists[id.Scope-Cluster]); err != nil {
			return fmt.Errorf("set %s: %w", id, err)
		}
	}
	c.sets[id.Scope-Cluster] = s
	return nil
}

// endpoints checks a list unless it equals the last one that passed.
func (c *check) endpoints(family Family, list Endpoints, right *Endpoints) error {
	if list == *right {
		return nil
	}
	var last netip.Addr // less than all others
	for i := range list.Len() {
		a := list.addr(i)
		if !family.has(a) {
			return fmt.Errorf("backend %s: want an address of %s", a, family)
		}
		if !last.Less(a) {
			return fmt.Errorf("backends %s and %s: want them sorted, without duplicates", last, a)
		}
		last = a
	}
	*right = list
	return nil
}
