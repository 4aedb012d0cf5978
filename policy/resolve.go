package policy

import (
	"net/netip"
	"slices"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/lb"
)

// maxAffinity is the longest affinity that the API allows, in seconds (SV-18).
const maxAffinity = 86400

// Resolve returns the frontends that the Service of v requests in the family of s, each key once;
// nil if it requests none (SV-10, SV-11). The frontends of one service port share one
// [lb.BackendSet] for each scope.
//
// One Service may name the same address twice, as cluster IP, load-balancer IP or external IP. The
// first of these kinds gives the frontend: the cluster IP because in-cluster clients depend on it,
// and a load-balancer IP before an external IP because only the former has source ranges (SV-15);
// naming the address again must not open it to others. Of two ports with the same number and
// protocol, which the API forbids, the first counts.
//
// A Service that requests more frontends or backends than the limits allow gets fewer; [Refused]
// reports that.
func Resolve(v cluster.View, s Settings) []*lb.Frontend {
	s.reserve(&v)
	r, serves := newResolver(&v, &s)
	if !serves {
		return nil
	}
	v.Slices, _ = s.bounded(&v)
	r.indexPorts()
	r.rows = make([]*lb.Frontend, 0, r.size())
	for i := range r.svc.Ports {
		r.port(&r.svc.Ports[i])
	}
	if len(r.rows) == 0 {
		return nil
	}
	r.healthCheck()
	return r.rows
}

// newResolver returns a resolver with the Service's addresses and sources. serves is false if the
// Service has no address in the family (SV-10, SV-11), or if its namespace has no objects left for
// its cluster IP (TN-10).
func newResolver(v *cluster.View, s *Settings) (r resolver, serves bool) {
	svc := v.Service
	if svc == nil || svc.Type == cluster.TypeExternalName {
		return r, false
	}
	vip := s.clusterIP(svc)
	if !vip.IsValid() {
		return r, false
	}
	r = resolver{view: v, svc: svc, settings: s, vip: vip, detects: detects(v.Node, *s), full: v.Name.String()}
	r.node = nodeAddr(v.Node, *s)
	r.loadBalancerIPs, r.externalIPs = s.outerIPs(svc)
	fits := s.fitting(v, len(r.loadBalancerIPs), len(r.externalIPs))
	if fits.clusterIP == 0 {
		return r, false
	}
	r.loadBalancerIPs, r.externalIPs, r.nodePorts = r.loadBalancerIPs[:fits.loadBalancer],
		r.externalIPs[:fits.external], fits.nodePorts > 0
	r.sources = canonical(svc.SourceRanges, s.Family)
	if everybody(r.sources) {
		r.sources = nil
	}
	r.nodeMay = r.node.IsValid() && lb.Within(r.sources, r.node)
	return r, true
}

// resolver is one call of [Resolve] or [Explain].
type resolver struct {
	view       *cluster.View
	svc        *cluster.Service
	settings   *Settings
	vip        netip.Addr
	node       netip.Addr     // this node's address, for source ranges; zero if unknown
	sources    []netip.Prefix // of the Service; nil if every source is allowed
	nodeMay    bool           // there are sources, and they include this node
	vipSources map[netip.Addr][]netip.Prefix
	detects    bool       // there is a local-traffic detector
	full       string     // "ns/name"
	ports      *portIndex // nil where a search is cheaper

	groups     map[string]*group // by the indices of their slices; for Services with two or more ports
	candidates []candidate       // of all groups

	loadBalancerIPs, externalIPs []netip.Addr // the served ones
	nodePorts                    bool         // NodePorts are served

	rows []*lb.Frontend
	seen map[lb.Key]bool // keys of frontends, once there are too many to search
}

// size returns the number of frontends if all keys differ.
func (r *resolver) size() int {
	perPort := 1 + len(r.loadBalancerIPs) + len(r.externalIPs)
	if r.nodePorts {
		perPort++
	}
	return perPort*len(r.svc.Ports) + 1
}

// port adds the frontends of one service port.
func (r *resolver) port(p *cluster.ServicePort) {
	if p.Port == 0 {
		return
	}
	sets := r.sets(p)
	row := lb.Frontend{Service: sets.service, Affinity: affinity(r.svc)}
	internal := r.internal(sets)
	row.Kind, row.Routes, row.Serving = lb.ClusterIP, internal, beside(internal, sets.serving)
	r.add(row, r.vip, p.Port, p.Protocol)

	nodePort := p.NodePort != 0 && r.nodePorts
	if !nodePort && len(r.loadBalancerIPs)+len(r.externalIPs) == 0 {
		return
	}
	external := r.external(sets)
	row.Kind, row.Routes, row.Serving = lb.LoadBalancer, external, beside(external, sets.serving)
	row.PreserveDestination = r.svc.PreserveDestination
	for _, a := range r.loadBalancerIPs {
		row.Sources = r.sourcesOf(a)
		r.add(row, a, p.Port, p.Protocol)
	}
	row.Kind, row.Sources = lb.ExternalIP, nil
	for _, a := range r.externalIPs {
		r.add(row, a, p.Port, p.Protocol)
	}
	if nodePort {
		row.Kind, row.PreserveDestination = lb.NodePort, false
		r.add(row, netip.Addr{}, p.NodePort, p.Protocol)
	}
}

// takesNodePorts reports whether the Service's type has NodePorts (SV-17), and it has one.
func takesNodePorts(svc *cluster.Service) bool {
	return (svc.Type == cluster.TypeNodePort || svc.Type == cluster.TypeLoadBalancer) &&
		slices.ContainsFunc(svc.Ports, func(p cluster.ServicePort) bool { return p.NodePort != 0 })
}

// few is the number of frontends below which a search is cheaper than a map.
const few = 8

// add appends row under the key, unless an earlier frontend has it or no tenant may.
func (r *resolver) add(row lb.Frontend, a netip.Addr, port uint16, proto cluster.Protocol) {
	row.Key = lb.Key{Addr: a, Port: port, Proto: lb.Proto(proto)}
	if row.Kind != lb.ClusterIP && row.Kind != lb.HealthCheck && r.settings.reserved[row.Key] != "" || r.has(row.Key) {
		return
	}
	if row.Set(lb.Cluster) == nil && row.Set(lb.Local) == nil {
		row.Affinity, row.PreserveDestination = 0, false // without backends, neither has a meaning
	}
	r.rows = append(r.rows, &row)
	if r.seen != nil {
		r.seen[row.Key] = true
	}
}

func (r *resolver) has(k lb.Key) bool {
	if r.seen == nil {
		if len(r.rows) < few {
			for _, f := range r.rows {
				if f.Key == k {
					return true
				}
			}
			return false
		}
		r.seen = make(map[lb.Key]bool, cap(r.rows))
		for _, f := range r.rows {
			r.seen[f.Key] = true
		}
	}
	return r.seen[k]
}

// affinity returns the Service's client affinity, within the limits of the API (SV-18).
func affinity(svc *cluster.Service) time.Duration {
	return time.Duration(min(max(svc.AffinitySeconds, 0), maxAffinity)) * time.Second
}

// isFamily reports whether a can be an address of a node in the family. The unspecified address,
// addresses with a zone and IPv4-mapped ones cannot: no packet carries them.
func isFamily(a netip.Addr, f lb.Family) bool {
	return lb.FamilyOf(a) == f && !a.IsUnspecified() && a.Zone() == "" && !a.Is4In6()
}
