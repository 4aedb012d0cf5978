package userspace

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"kube-proxy/lb"
	"kube-proxy/plane/userspace/balance"
	"kube-proxy/plane/userspace/capture"
	"kube-proxy/plane/userspace/relay"
)

// row is what the plane knows of a row that it has applied.
type row struct {
	f *lb.Frontend
	// lead is what the capture was told. told: it has taken that; otherwise the kernel may hold this one, an older one, or none.
	lead capture.Lead
	told bool
	// sets and doors are what the row needs, each once for each reason.
	sets  []*set
	doors []*door
}

// serviceName names a service port and protocol.
type serviceName struct {
	name  string
	proto lb.Proto
}

// service is what serves one service port and protocol.
type service struct {
	serviceName
	sets    map[lb.Scope]*set
	serving *lb.BackendSet // of its row that was applied last
	doors   map[doorway]*door
}

// set is a backend set that rows need.
type set struct {
	of     *service
	scope  lb.Scope
	now    *lb.BackendSet
	turns  *balance.Set
	needed int
}

// doorway names a listener of a service port: by its set, or by its address where it is at the service address itself.
type doorway struct {
	scope lb.Scope
	at    netip.AddrPort
}

// door is a listener that rows need.
type door struct {
	of *service
	doorway
	listener listener
	needed   int
}

// backends calls f with each list of backends that connections of the service port may be to.
func (s *service) backends(f func(*lb.BackendSet)) {
	for _, set := range s.sets {
		f(set.now)
	}
	if s.serving != nil {
		f(s.serving)
	}
}

// service returns that of a row, made if there is none.
func (p *Plane) service(f *lb.Frontend) *service {
	name := serviceName{f.Service, f.Key.Proto}
	s := p.services[name]
	if s == nil {
		s = &service{serviceName: name, sets: map[lb.Scope]*set{}, doors: map[doorway]*door{}}
		p.services[name] = s
	}
	return s
}

// need has a row hold a set, with the backends that it has now.
func (p *Plane) need(r *row, s *service, to *lb.BackendSet) *set {
	of := s.sets[to.ID.Scope]
	if of == nil {
		of = &set{of: s, scope: to.ID.Scope}
		s.sets[to.ID.Scope] = of
	}
	of.now, of.turns = to, p.balance.Set(to, r.f.Affinity)
	of.needed++
	r.sets = append(r.sets, of)
	return of
}

// enter has a row hold a listener, which is opened if it is not there. prefer is the port that it had in the process before; 0 for none.
func (p *Plane) enter(r *row, s *service, way doorway, b relay.Balancer, prefer uint16) (*door, error) {
	d := s.doors[way]
	if d == nil {
		d = &door{of: s, doorway: way}
		if err := p.open(d, b, prefer); err != nil {
			return nil, fmt.Errorf("listen for %s/%s: %w", s.name, s.proto, err)
		}
		s.doors[way] = d
	} else {
		d.listener.SetBalancer(b)
	}
	d.needed++
	r.doors = append(r.doors, d)
	return d, nil
}

// open opens the listener of a door.
func (p *Plane) open(d *door, b relay.Balancer, prefer uint16) error {
	if d.at.IsValid() {
		if err := p.prepare(d.at.Addr()); err != nil {
			return err
		}
		l, err := p.relay.Listen(relay.Listening{Proto: d.of.proto, Addr: d.at}, b)
		if err != nil {
			return err
		}
		d.listener = l
		p.own.add(d.at, 1)
		return nil
	}
	return p.ports.take(d.of.proto, prefer, func(n uint16) (uint16, error) {
		l, err := p.relay.Listen(relay.Listening{Proto: d.of.proto, Addr: netip.AddrPortFrom(p.anywhere(), n)}, b)
		if err != nil {
			return 0, err
		}
		d.listener = l
		return l.Addr().Port(), nil
	}, func() { d.listener.Close() })
}

// release gives up what a row holds. Listeners that no row needs are closed; whoever is connected goes on.
func (p *Plane) release(r *row) {
	for _, d := range r.doors {
		if d.needed--; d.needed > 0 {
			continue
		}
		d.listener.Close()
		if p.cfg.Grace > 0 {
			var all []netip.AddrPort
			d.of.backends(func(b *lb.BackendSet) { all = addrs(all, b) })
			d.listener.Leave(all, p.cfg.Grace)
		}
		if d.at.IsValid() {
			p.own.add(d.at, -1)
		} else {
			p.ports.give(d.of.proto, d.listener.Addr().Port())
		}
		delete(d.of.doors, d.doorway)
	}
	for _, s := range r.sets {
		if s.needed--; s.needed > 0 {
			continue
		}
		p.balance.Remove(s.now.ID)
		delete(s.of.sets, s.scope)
	}
	r.doors, r.sets = nil, nil
	if s := p.services[serviceName{r.f.Service, r.f.Key.Proto}]; s != nil && len(s.doors)+len(s.sets) == 0 {
		delete(p.services, s.serviceName)
	}
}

func addrs(all []netip.AddrPort, s *lb.BackendSet) []netip.AddrPort {
	for _, b := range s.Backends {
		all = append(all, b.Addr)
	}
	return all
}

// make makes a row of f that holds what it needs, and knows how it is led to. ports are those of the process before, by From.
func (p *Plane) make(f *lb.Frontend, ports func(lb.From) uint16) (*row, error) {
	r := &row{f: f, lead: capture.Lead{Key: f.Key, Kind: f.Kind, Sources: f.Sources}}
	s := p.service(f)
	for _, route := range f.Routes {
		if route.Do == lb.Balance {
			p.need(r, s, route.To)
		}
	}
	s.serving = f.Serving
	var err error
	if p.capture.Own() {
		err = p.atAddresses(r, s)
	} else {
		err = p.behindRules(r, s, ports)
	}
	if err != nil {
		p.release(r)
		return nil, err
	}
	return r, nil
}

// behindRules opens the listeners of a row's sets, to which rules lead.
func (p *Plane) behindRules(r *row, s *service, ports func(lb.From) uint16) error {
	for _, route := range r.f.Routes {
		to := capture.Route{From: route.From, Do: route.Do}
		if route.Do == lb.Balance {
			scope := route.To.ID.Scope
			d, err := p.enter(r, s, doorway{scope: scope}, s.sets[scope].turns, ports(route.From))
			switch {
			case errors.Is(err, errors.ErrUnsupported): // it never will be served: clients are better off with an answer
				p.tell.lacks(s.proto, err)
				to.Do = lb.Reject
			case err != nil:
				return err
			default:
				to.Do, to.Port = 0, d.listener.Addr().Port()
			}
		}
		r.lead.Routes = append(r.lead.Routes, to)
	}
	for n := len(r.lead.Routes); n > 1; n-- { // who is treated as everybody needs no route
		last, before := r.lead.Routes[n-1], r.lead.Routes[n-2]
		if last.Port != before.Port || last.Do != before.Do {
			break
		}
		r.lead.Routes = append(r.lead.Routes[:n-2], last)
	}
	return nil
}

// atAddresses opens listeners at the row's addresses, which tell sources apart.
func (p *Plane) atAddresses(r *row, s *service) error {
	last := r.f.Routes[len(r.f.Routes)-1]
	served := slices.ContainsFunc(r.f.Routes, func(to lb.Route) bool { return to.Do == lb.Balance })
	if !served {
		r.lead.Routes = []capture.Route{{From: lb.Anywhere, Do: last.Do}}
		return nil
	}
	for k := range lb.Expand(r.f.Key, p.at) {
		_, err := p.enter(r, s, doorway{at: netip.AddrPortFrom(k.Addr, k.Port)}, p.balance.Row(r.f, p.origins), 0)
		if errors.Is(err, errors.ErrUnsupported) {
			p.tell.lacks(s.proto, err)
			r.lead.Routes = []capture.Route{{From: lb.Anywhere, Do: lb.Reject}}
			return nil
		}
		if err != nil {
			return err
		}
	}
	r.lead.Routes = []capture.Route{{From: lb.Anywhere, Port: r.f.Key.Port}}
	return nil
}

func equalLeads(a, b capture.Lead) bool {
	return a.Key == b.Key && a.Kind == b.Kind && slices.Equal(a.Sources, b.Sources) && slices.Equal(a.Routes, b.Routes)
}
