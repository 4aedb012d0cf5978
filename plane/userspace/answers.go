package userspace

import (
	"net/netip"
	"slices"
	"sync"

	"kube-proxy/lb"
	"kube-proxy/plane/userspace/redirect"
)

// answers are the routes that the redirector took last, of the rows whose flows conntrack may forget: those without connections.
type answers struct {
	mu     sync.Mutex
	routes map[lb.Key][]redirect.Route
}

// set notes the routes of a row; none: it is gone.
func (a *answers) set(k lb.Key, routes []redirect.Route) {
	if k.Proto == lb.TCP {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.routes == nil {
		a.routes = map[lb.Key][]redirect.Route{}
	}
	if len(routes) == 0 {
		delete(a.routes, k)
	} else {
		a.routes[k] = routes
	}
}

// Answers reports whether the proxy listens for a row at a port. The address says nothing: listeners are at every one, where they are not
// at that of the row.
func (p *Plane) Answers(k lb.Key, from netip.AddrPort) bool {
	p.answers.mu.Lock()
	defer p.answers.mu.Unlock()
	return slices.ContainsFunc(p.answers.routes[k], func(r redirect.Route) bool { return r.Port != 0 && r.Port == from.Port() })
}
