package inspect

import (
	"strings"

	"kube-proxy/policy"
)

// portNamed reports whether the port has that name or number; "" means all.
func portNamed(p policy.ExplainedPort, said string) bool {
	return said == "" || Port{p.Name, p.Port, p.Protocol, p.NodePort}.is(said)
}

// detailPort is one port, and its endpoints.
func detailPort(p policy.ExplainedPort) (DetailPort, []Endpoint) {
	out := DetailPort{Port: Port{p.Name, p.Port, p.Protocol, p.NodePort}, Service: p.Service, Cluster: p.Cluster,
		Local: p.Local, Why: p.Why, MoreEndpoints: p.More}
	endpoints := make([]Endpoint, 0, len(p.Endpoints))
	for _, e := range p.Endpoints {
		x := Endpoint{Service: p.Service, Protocol: p.Protocol, Address: e.Address, Node: e.Node, Local: e.Here,
			Zone: e.Zone, SameZone: e.SameZone, Ready: e.Ready, Serving: e.Serving,
			Terminating: e.Terminating, ForZones: e.Zones, ForNodes: e.Nodes, Unreachable: e.Unreachable,
			In: []string{}}
		if e.InCluster {
			x.In = append(x.In, "cluster")
			out.InCluster++
		}
		if e.InLocal {
			x.In = append(x.In, "local")
			out.InLocal++
		}
		x.Why = e.WhyNotCluster
		if e.WhyNotLocal != x.Why && e.WhyNotLocal != "" {
			x.Why = strings.TrimPrefix(x.Why+"; "+e.WhyNotLocal, "; ")
		}
		endpoints = append(endpoints, x)
	}
	return out, endpoints
}
