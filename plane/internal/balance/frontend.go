package balance

import (
	"net/netip"
	"sync/atomic"

	"kube-proxy/lb"
	"kube-proxy/plane/internal/relay"
)

// Frontend chooses backends for the clients of one service address by their origin. It is,
// but for Serves, a [relay.Balancer] of a listener at the service address itself.
type Frontend struct {
	f       *lb.Frontend
	sets    []*Set // by route; nil if that does not balance
	origins *Origins
}

// Frontend returns the Frontend of f, whose sets must exist.
func (b *Balance) Frontend(f *lb.Frontend, o *Origins) *Frontend {
	r := &Frontend{f: f, sets: make([]*Set, len(f.Routes)), origins: o}
	for i, to := range f.Routes {
		if to.Do == lb.Balance {
			r.sets[i] = b.sets[to.To.ID]
		}
	}
	return r
}

// Pick is part of [relay.Balancer].
func (r *Frontend) Pick(c relay.Client, tried []netip.AddrPort) netip.AddrPort {
	set := r.to(c.Addr.Addr().Unmap())
	if set == nil { // a socket cannot drop a client that it has accepted
		return netip.AddrPort{}
	}
	if c.Addr.Addr() == c.Local.Addr() { // the node asks itself, and at each of its addresses is another client
		c.Addr = netip.AddrPort{}
	}
	return set.Pick(c, tried)
}

// to returns the set of the first route for clients at an address (lb.Route); nil if that does not
// balance, and for clients outside of the source ranges (SV-61).
func (r *Frontend) to(client netip.Addr) *Set {
	if len(r.f.Sources) > 0 && !lb.Within(r.f.Sources, client) {
		return nil
	}
	for i, to := range r.f.Routes {
		if to.From == lb.Anywhere || to.From == lb.Pods && r.origins.Pod(client) || to.From == lb.Host &&
			r.origins.Host(client) {
			return r.sets[i]
		}
	}
	return nil
}

// Dialled is part of [relay.Balancer].
func (r *Frontend) Dialled(c relay.Client, backend netip.AddrPort, err error) {
	for _, set := range r.sets {
		if set != nil {
			set.Dialled(c, backend, err)
			return
		}
	}
}

// Origins classifies client addresses (CF-33). A socket does not know the interface of a client's
// packets, so only addresses distinguish pods.
type Origins struct {
	own  func(netip.Addr) (bool, error)
	pods atomic.Pointer[[]netip.Prefix]
}

// NewOrigins returns Origins that know no pods. own asks the kernel whether an address is this
// node's; many goroutines call it.
func NewOrigins(own func(netip.Addr) (bool, error)) *Origins {
	o := &Origins{own: own}
	o.pods.Store(&[]netip.Prefix{})
	return o
}

// Detect sets how to recognise pods.
func (o *Origins) Detect(d lb.Detector) { o.pods.Store(&d.Prefixes) }

// Pod reports whether the address is a pod's, as the node's detector says.
func (o *Origins) Pod(a netip.Addr) bool {
	return lb.Within(*o.pods.Load(), a)
}

// Host reports whether the address is this node's, according to the kernel.
func (o *Origins) Host(a netip.Addr) bool {
	own, err := o.own(a)
	return own && err == nil
}
