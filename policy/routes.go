package policy

import (
	"kube-proxy/cluster"
	"kube-proxy/lb"
)

var (
	rejectAll = []lb.Route{{From: lb.Anywhere, Do: lb.Reject}}
	dropAll   = []lb.Route{{From: lb.Anywhere, Do: lb.Drop}}
)

// internal returns the routes of the cluster IP.
//
// Without endpoints: reject, so that clients fail at once (SV-50). With policy Local and endpoints
// on other nodes only: drop (SV-51). Otherwise it balances, and masquerades the source always
// (SV-58), or unless the detector recognises a pod's, so that the answer returns through this node
// (SV-59), or never (SV-67).
func (r *resolver) internal(s sets) []lb.Route {
	if s.cluster == nil {
		return rejectAll
	}
	to := s.cluster
	if r.svc.InternalPolicy == cluster.PolicyLocal {
		to = s.local
		if to == nil {
			return dropAll
		}
	}
	switch {
	case r.settings.MasqueradeAll:
		return []lb.Route{balance(lb.Anywhere, to, true)}
	case r.detects:
		return []lb.Route{balance(lb.Pods, to, false), balance(lb.Anywhere, to, true)}
	}
	return []lb.Route{balance(lb.Anywhere, to, false)}
}

// external returns the routes of NodePorts, load-balancer IPs and external IPs.
//
// Without endpoints: reject (SV-50). Policy Cluster: any backend, masqueraded (SV-54). Policy
// Local: sources in this cluster are short-circuited to any backend, because they did not come
// through a load balancer that chose this node (SV-53). Pods keep their source address (SV-56);
// this host is masqueraded, since the backend may be unable to answer its source (SV-57). Other
// clients reach local backends with their own source address (SV-55), and are dropped without local
// backends (SV-52).
func (r *resolver) external(s sets) []lb.Route {
	if s.cluster == nil {
		return rejectAll
	}
	if r.svc.ExternalPolicy == cluster.PolicyCluster {
		return []lb.Route{balance(lb.Anywhere, s.cluster, true)}
	}
	routes := make([]lb.Route, 0, 3)
	if r.detects {
		routes = append(routes, balance(lb.Pods, s.cluster, false))
	}
	routes = append(routes, balance(lb.Host, s.cluster, true))
	if s.local == nil {
		return append(routes, dropAll...)
	}
	return append(routes, balance(lb.Anywhere, s.local, false))
}

// beside returns the serving set, or nil if the routes reach all of it, so that a frontend need not
// have it (DP-50).
func beside(routes []lb.Route, serving *lb.BackendSet) *lb.BackendSet {
	if serving == nil {
		return nil
	}
	row := lb.Frontend{Routes: routes}
	for _, r := range routes {
		if r.To != nil && r.To.Backends.Len() == serving.Backends.Len() {
			return nil // all of it: no set has others
		}
	}
	for b := range serving.Backends.All() {
		if !row.Serves(b.Addr) {
			return serving
		}
	}
	return nil
}

func balance(from lb.From, to *lb.BackendSet, masq bool) lb.Route {
	return lb.Route{From: from, Do: lb.Balance, Masq: masq, To: to}
}
