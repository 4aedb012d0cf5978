package policy

import (
	"net/netip"
	"slices"

	"kube-proxy/cluster"
	"kube-proxy/lb"
)

var acceptAll = []lb.Route{{From: lb.Anywhere, Do: lb.Accept}}

// healthCheck adds the frontend of the port at which load balancers check whether this node has
// endpoints, if the Service has one.
func (r *resolver) healthCheck() {
	if !r.svc.HasHealthCheck() {
		return
	}
	row := lb.Frontend{Service: r.full, Kind: lb.HealthCheck, Routes: acceptAll, LocalEndpoints: r.readyHere()}
	r.add(row, netip.Addr{}, r.svc.HealthCheckNodePort, cluster.TCP)
}

// readyHere counts the addresses at which a port of the Service is served on this node. It does not
// count an endpoint that terminates, even if that still serves because there is no better one
// (SV-37), or is ready because the Service publishes endpoints that are not. So load balancers
// switch to other nodes while the last connections are served (HT-13). An avoided endpoint counts
// only if no other is left (FO-06).
func (r *resolver) readyHere() int {
	var buf [16]netip.Addr
	addrs, avoided := buf[:0], []netip.Addr(nil)
	for _, sl := range r.view.Slices {
		if !r.settings.searched(sl) || !slices.ContainsFunc(sl.Ports, r.isServed) {
			continue
		}
		for e := range sl.Endpoints.All() {
			if e.Ready && !e.Terminating && e.OnNode(r.view.Node.NodeName) && r.settings.serves(e.Addr, asEndpoint) {
				if r.avoidsAll(&e, sl) {
					avoided = append(avoided, e.Addr)
				} else {
					addrs = append(addrs, e.Addr)
				}
			}
		}
	}
	if len(addrs) == 0 {
		addrs = avoided
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return len(slices.Compact(addrs))
}
