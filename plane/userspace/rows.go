package userspace

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"

	"kube-proxy/lb"
	"kube-proxy/plane/internal/balance"
	"kube-proxy/plane/internal/relay"
	"kube-proxy/plane/userspace/redirect"
)

// row is a frontend that the plane has applied.
type row struct {
	f *lb.Frontend
	// lead is the redirector's entry. If written is set, the redirector has accepted it; otherwise
	// the kernel may have this one, an older one, or none.
	lead    redirect.Entry
	written bool
	// sets and doors are those that the frontend needs, once for each reason.
	sets  []*set
	doors []*door
}

// serviceName names a service port and protocol.
type serviceName struct {
	name  string
	proto lb.Proto
}

// service serves one service port and protocol.
type service struct {
	serviceName
	sets    map[lb.Scope]*set
	serving *lb.BackendSet // of its most recently applied frontend
	counter *counter       // nil without counts
	// kept are the sets with all backends that clients may keep, for other goroutines.
	kept atomic.Pointer[[]*lb.BackendSet]
}

// set is a backend set in use.
type set struct {
	of     *service
	scope  lb.Scope
	now    *lb.BackendSet
	turns  *balance.Set
	needed int
	door   *door // to which rules redirect; nil for none
}

// door is a listener in use: that of a set, if rules redirect, or one at a service address.
type door struct {
	serviceName // whose frontend opened it
	listener    listener

	at     netip.AddrPort // the service address; not valid if rules redirect
	claims []claim        // the frontends that use the service address
}

func (d *door) port() port { return port{d.proto, d.listener.Addr().Port()} }

// claim is a frontend's use of a listener. Several frontends may claim one address: a NodePort and
// an external address of the node, or briefly two Services while a key moves.
type claim struct {
	by      *row
	leads   leading
	precise bool // the frontend has only this address
}

// holder is the claim that serves clients: the latest for only this address, else a NodePort's
// latest.
func (d *door) holder() claim {
	best := d.claims[0]
	for _, c := range d.claims[1:] {
		if c.precise || !best.precise {
			best = c
		}
	}
	return best
}

// keep publishes which backends clients of the service port may keep.
func (s *service) keep() {
	var all []*lb.BackendSet
	for _, set := range s.sets {
		all = append(all, set.now)
	}
	if s.serving != nil {
		all = append(all, s.serving)
	}
	s.kept.Store(&all)
}

// chooser is a relay.Balancer without Serves: it chooses among the backends of one set or frontend.
type chooser interface {
	Pick(c relay.Client, tried []netip.AddrPort) netip.AddrPort
	Dialled(c relay.Client, backend netip.AddrPort, err error)
}

// leading is the relay.Balancer of a listener for a service port.
type leading struct {
	chooser
	of *service
}

// Pick is part of [relay.Balancer]. It counts a client's first endpoint, whether that answers or
// not, as the modes of the kernel do.
func (l leading) Pick(c relay.Client, tried []netip.AddrPort) netip.AddrPort {
	to := l.chooser.Pick(c, tried)
	if to.IsValid() && len(tried) == 0 && !c.Again && l.of.counter != nil {
		l.of.counter.led.Add(1)
	}
	return to
}

// Serves is part of [relay.Balancer]. A backend serves in any set of the service port, or drains.
func (l leading) Serves(backend netip.AddrPort) bool {
	return slices.ContainsFunc(*l.of.kept.Load(), func(s *lb.BackendSet) bool { return s.Backends.Has(backend) })
}

// service returns the service port of a frontend, and creates it if necessary.
func (p *Plane) service(f *lb.Frontend) *service {
	name := serviceName{f.Service, f.Key.Proto}
	s := p.services[name]
	if s == nil {
		s = &service{serviceName: name, sets: map[lb.Scope]*set{}, counter: p.counters.open(f.Service)}
		s.keep()
		p.services[name] = s
	}
	return s
}

// need adds a set, with its current backends, to a row.
func (p *Plane) need(r *row, s *service, to *lb.BackendSet) {
	of := s.sets[to.ID.Scope]
	if of == nil {
		of = &set{of: s, scope: to.ID.Scope}
		s.sets[to.ID.Scope] = of
	}
	of.now, of.turns = to, p.balance.Set(to, r.f.Affinity)
	of.needed++
	r.sets = append(r.sets, of)
}

// enter adds a listener for clients of a service port to a row: that of a set, or the one at a
// service address, which it opens if d is nil. prefer is the port in the previous process; 0 for
// none.
func (p *Plane) enter(r *row, d *door, at netip.AddrPort, b leading, prefer uint16) (*door, error) {
	c := claim{by: r, leads: b, precise: !r.f.Key.IsNodePort()}
	switch {
	case d == nil:
		d = &door{serviceName: b.of.serviceName, at: at, claims: []claim{c}}
		if err := p.open(d, b, prefer); err != nil {
			return nil, fmt.Errorf("listen for %s/%s: %w", d.name, d.proto, err)
		}
	case at.IsValid():
		d.claim(append(d.claims, c))
	}
	r.doors = append(r.doors, d)
	return d, nil
}

// claim replaces a listener's claims, and sets its balancer accordingly. Connections to another
// Service's backends end as if that Service were deleted.
func (d *door) claim(claims []claim) {
	d.claims = claims
	d.listener.SetBalancer(d.holder().leads)
}

// open opens the listener of a door.
func (p *Plane) open(d *door, b relay.Balancer, prefer uint16) error {
	namespace, err := p.cfg.Descriptors.Take(d.name)
	if err != nil {
		return err
	}
	err = p.listen(d, b, prefer, namespace)
	if err != nil {
		p.cfg.Descriptors.Give(d.name)
	}
	return err
}

func (p *Plane) listen(d *door, b relay.Balancer, prefer uint16, namespace *relay.Group) error {
	listen := func(at netip.AddrPort) (err error) {
		d.listener, err = p.relay.Listen(relay.Listening{Proto: d.proto, Addr: at}, b, namespace)
		return err
	}
	if !d.at.IsValid() {
		return p.ports.take(d.name, d.proto, prefer, func(n uint16) (uint16, error) {
			if err := listen(netip.AddrPortFrom(p.cfg.Family.Everywhere().Addr(), n)); err != nil {
				return 0, err
			}
			return d.listener.Addr().Port(), nil
		}, func() { d.listener.Close() })
	}
	if err := p.addresses.Prepare(d.at.Addr()); err != nil {
		return err
	}
	if err := listen(d.at); err != nil {
		return err
	}
	p.at.Store(relay.Listening{Proto: d.proto, Addr: d.at}, d)
	return nil
}

// shut closes an unused listener. Its connections continue.
func (p *Plane) shut(d *door) {
	d.listener.Close()
	p.cfg.Descriptors.Give(d.name)
	if d.at.IsValid() {
		p.at.Delete(relay.Listening{Proto: d.proto, Addr: d.at})
	} else {
		p.ports.give(d.name, d.proto, d.port().number)
	}
}

// release releases the sets and listeners of a row.
func (p *Plane) release(r *row) {
	for _, d := range r.doors {
		if d.at.IsValid() {
			p.unclaim(d, r)
		}
	}
	for _, s := range r.sets {
		s.needed--
		if s.needed > 0 {
			continue
		}
		if s.door != nil {
			p.shut(s.door)
		}
		p.balance.Remove(s.now.ID)
		delete(s.of.sets, s.scope)
		s.of.keep()
		p.drop(s.of)
	}
	r.doors, r.sets = nil, nil
	p.drop(p.services[serviceName{r.f.Service, r.f.Key.Proto}])
}

// unclaim ends a row's claims to a listener at a service address.
func (p *Plane) unclaim(d *door, r *row) {
	others := slices.DeleteFunc(slices.Clone(d.claims), func(c claim) bool { return c.by == r })
	switch {
	case len(others) == len(d.claims): // the row claimed it twice
	case len(others) == 0:
		p.shut(d)
		d.claims = nil
	default:
		d.claim(others)
	}
}

// inherit takes over everything of another row of the key: the kernel may still redirect there.
func (r *row) inherit(old *row) {
	for _, d := range old.doors {
		for i := range d.claims {
			if d.claims[i].by == old {
				d.claims[i].by = r
			}
		}
	}
	r.sets, r.doors = append(r.sets, old.sets...), append(r.doors, old.doors...)
	old.sets, old.doors = nil, nil
}

// drop deletes an unused service port.
func (p *Plane) drop(s *service) {
	if s != nil && len(s.sets) == 0 {
		delete(p.services, s.serviceName)
		s.serving = nil
		s.keep()
		p.counters.close(s.counter)
	}
}

// errTakes is in the errors of rows whose address may be another host's.
var errTakes = errors.New("the address may belong to another host")

// takes refuses an address that may not be the Service's, if the node would have to add it: all
// packets to that address, at any port, would end here. Tenants choose external IPs, and only
// --external-ip-cidrs limits them.
func (p *Plane) takes(f *lb.Frontend) error {
	if p.addresses == nil || f.Kind != lb.ExternalIP && f.Kind != lb.LoadBalancer {
		return nil
	}
	pods, what := p.node.Pods.Prefixes, ""
	inPods := slices.IndexFunc(pods, func(n netip.Prefix) bool { return n.Contains(f.Key.Addr) })
	switch bounded := p.cfg.ExternalIPsBounded; {
	case inPods >= 0:
		what = fmt.Sprintf("in the network of pods (%s): give the Service another one", pods[inPods])
	case slices.Contains(p.node.APIServers, f.Key.Addr): // the proxy would cut itself off (TN-66)
		what = "that is an API server's: give the Service another one"
	case f.Kind == lb.ExternalIP && !p.nodeHas[f.Key.Addr] && (bounded == nil || !bounded()):
		what = "that may be another host's: set --external-ip-cidrs to the addresses that Services may use"
	default:
		return nil
	}
	return fmt.Errorf("%s: this node has no packet filter, and does not serve an external address %s: %w", f.Service,
		what, errTakes)
}

// make makes the row of a frontend with its sets, listeners and entry. was are the routes of the
// previous process, whose ports it prefers.
func (p *Plane) make(f *lb.Frontend, was []redirect.Route) (*row, error) {
	if err := p.takes(f); err != nil {
		return nil, err
	}
	r := &row{f: f, lead: redirect.Entry{Key: f.Key, Kind: f.Kind, Sources: f.Sources}}
	s := p.service(f)
	for _, route := range f.Routes {
		if route.Do == lb.Balance {
			p.need(r, s, route.To)
		}
	}
	s.serving = f.Serving
	s.keep()
	var err error
	if p.addresses != nil {
		err = p.atAddresses(r, s)
	} else {
		err = p.behindRules(r, s, was)
	}
	if err != nil {
		p.release(r)
		return nil, err
	}
	return r, nil
}

// behindRules opens the listeners of a row's sets, to which rules redirect.
func (p *Plane) behindRules(r *row, s *service, was []redirect.Route) error {
	for _, route := range r.f.Routes {
		to := redirect.Route{From: route.From, Do: route.Do}
		if route.Do == lb.Balance {
			set := s.sets[route.To.ID.Scope]
			d, err := p.enter(r, set.door, netip.AddrPort{}, leading{set.turns, s}, portFor(route.From, was))
			switch {
			case errors.Is(err, errors.ErrUnsupported):
				// it will never be served, so clients get an answer
				p.notices.lacks(s.proto, err)
				to.Do = lb.Reject
			case err != nil:
				return err
			default:
				set.door, to.Do, to.Port = d, 0, d.port().number
			}
		}
		r.lead.Routes = append(r.lead.Routes, to)
	}
	r.lead.Routes = redirect.Shortest(r.lead.Routes)
	return nil
}

// atAddresses opens listeners at the row's addresses. They distinguish sources.
func (p *Plane) atAddresses(r *row, s *service) error {
	if len(r.sets) == 0 {
		r.lead.Routes = []redirect.Route{{From: lb.Anywhere, Do: r.f.Routes[len(r.f.Routes)-1].Do}}
		return nil
	}
	for k := range lb.Expand(r.f.Key, p.nodePorts) {
		at := netip.AddrPortFrom(k.Addr, k.Port)
		_, err := p.enter(r, p.doorAtAddress(s.proto, at), at, leading{p.balance.Frontend(r.f, p.origins), s}, 0)
		if errors.Is(err, errors.ErrUnsupported) {
			p.notices.lacks(s.proto, err)
			r.lead.Routes = []redirect.Route{{From: lb.Anywhere, Do: lb.Reject}}
			return nil
		}
		if err != nil {
			return err
		}
	}
	r.lead.Routes = []redirect.Route{{From: lb.Anywhere, Port: r.f.Key.Port}}
	return nil
}

func equalLeads(a, b redirect.Entry) bool {
	return a.Key == b.Key && a.Kind == b.Kind && slices.Equal(a.Sources, b.Sources) && slices.Equal(a.Routes, b.Routes)
}
