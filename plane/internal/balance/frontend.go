package balance

import (
	"net/netip"

	"kube-proxy/lb"
	"kube-proxy/plane/internal/relay"
)

// Frontend chooses backends for the clients of one service address by their origin. It is,
// but for Serves, a [relay.Balancer] of a listener at the service address itself.
type Frontend struct {
	sources []netip.Prefix
	routes  []route
	origins *Origins
}

type route struct {
	from lb.From
	do   lb.Action
	set  *Set
}

// Frontend returns the Frontend of f, whose sets must exist.
func (b *Balance) Frontend(f *lb.Frontend, o *Origins) *Frontend {
	r := &Frontend{sources: f.Sources, origins: o}
	for _, of := range f.Routes {
		to := route{from: of.From, do: of.Do}
		if of.To != nil {
			to.set = b.sets[of.To.ID]
		}
		r.routes = append(r.routes, to)
	}
	return r
}

// Pick is part of [relay.Balancer].
func (r *Frontend) Pick(c relay.Client, tried []netip.AddrPort) netip.AddrPort {
	to := r.to(c.Addr.Addr().Unmap())
	if to.do != lb.Balance || to.set == nil { // a socket cannot drop a client that it has accepted
		return netip.AddrPort{}
	}
	if c.Addr.Addr() == c.Local.Addr() { // the node asks itself, and at each of its addresses is another client
		c.Addr = netip.AddrPort{}
	}
	return to.set.Pick(c, tried)
}

// to returns the first route for clients at an address (lb.Route), and one that drops for clients
// outside of the source ranges (SV-61).
func (r *Frontend) to(client netip.Addr) route {
	if len(r.sources) > 0 && !lb.Within(r.sources, client) {
		return route{do: lb.Drop}
	}
	for _, to := range r.routes {
		if to.from == lb.Anywhere || to.from == lb.Pods && r.origins.Pod(client) || to.from == lb.Host &&
			r.origins.Host(client) {
			return to
		}
	}
	return route{do: lb.Drop}
}

// Dialled is part of [relay.Balancer].
func (r *Frontend) Dialled(c relay.Client, backend netip.AddrPort, err error) {
	for _, to := range r.routes {
		if to.set != nil {
			to.set.Dialled(c, backend, err)
			return
		}
	}
}
