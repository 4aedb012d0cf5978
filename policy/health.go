package policy

import (
	"net/netip"
	"slices"

	"kube-proxy/cluster"
	"kube-proxy/lb"
)

var acceptAll = []lb.Route{{From: lb.Anywhere, Do: lb.Accept}}

// healthCheck adds the row of the port on which this node tells load balancers whether to send to it. Only a
// Service of type LoadBalancer whose external policy is Local has one (SV-21): with policy Cluster every node
// is as good as any other.
func (r *resolver) healthCheck() {
	if r.svc.HealthCheckNodePort == 0 || r.svc.Type != cluster.TypeLoadBalancer || r.svc.ExternalPolicy != cluster.PolicyLocal {
		return
	}
	row := lb.Frontend{Service: r.full, Kind: lb.HealthCheck, Routes: acceptAll, LocalEndpoints: r.readyHere()}
	r.add(row, netip.Addr{}, r.svc.HealthCheckNodePort, cluster.TCP)
}

// readyHere counts the addresses at which a port of the service is served on this node. An endpoint that
// terminates does not count even where it still serves for want of a better one (SV-37), or is called ready
// because the Service publishes all that are not: so load balancers go elsewhere while the last connections
// are served (HT-13).
func (r *resolver) readyHere() int {
	var buf [16]netip.Addr
	addrs := buf[:0]
	for _, sl := range r.view.Slices {
		if !r.settings.searched(sl) || !slices.ContainsFunc(sl.Ports, r.isServed) {
			continue
		}
		for e := range sl.Endpoints.All() {
			if e.Ready && !e.Terminating && e.OnNode(r.view.Node.NodeName) && r.settings.serves(e.Addr, asEndpoint) {
				addrs = append(addrs, e.Addr)
			}
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return len(slices.Compact(addrs))
}
