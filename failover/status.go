package failover

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"kube-proxy/cluster"
)

// Status is what people ask about.
type Status struct {
	// OwnLink: most nodes that were asked are unreachable, so nothing is avoided.
	OwnLink bool `json:"ownLink,omitempty"`
	// Nodes are unreachable, in order of their names.
	Nodes []NodeStatus `json:"nodes,omitempty"`
	// Endpoints are unreachable, by their own probes, or silent without proof of more. In order of
	// their addresses.
	Endpoints []EndpointStatus `json:"endpoints,omitempty"`
	// Ignored counts notices beyond the limit of their namespace.
	Ignored int `json:"ignored,omitempty"`
}

// NodeStatus is an unreachable node.
type NodeStatus struct {
	Name string        `json:"name"`
	For  time.Duration `json:"for"`
	// Endpoints is how many endpoints are unreachable with it.
	Endpoints int `json:"endpoints"`
	// Whole: all endpoints there count. Else probes of ports of nodes are not known to work in this
	// cluster, so each TCP endpoint needs a silent probe of its own.
	Whole bool `json:"whole"`
}

// EndpointStatus is an endpoint that does not answer.
type EndpointStatus struct {
	Address     netip.AddrPort `json:"address"`
	Unreachable bool           `json:"unreachable"`
	// Result is that of the last probe. Why explains why a silent endpoint is not unreachable.
	Result string        `json:"result"`
	For    time.Duration `json:"for"`
	Why    string        `json:"why,omitempty"`
}

// Status returns what does not answer.
func (s *State) Status(now time.Duration) Status {
	out := Status{OwnLink: s.OwnLink(), Ignored: s.refused}
	for _, name := range slices.Sorted(maps.Keys(s.nodes)) {
		n := s.nodes[name]
		if !n.down {
			continue
		}
		out.Nodes = append(out.Nodes,
			NodeStatus{Name: name, For: now - n.since, Whole: n.whole, Endpoints: len(s.lostOn(name))})
	}
	for _, t := range s.targets {
		if !t.client || t.done < 0 || t.result.Reached() || slices.ContainsFunc(t.nodes, s.isDown) {
			continue
		}
		e := EndpointStatus{Address: t.at, Unreachable: t.alone, Result: t.result.String(), For: now - t.since}
		if !t.alone {
			e.For = now - max(t.noticed, 0)
			e.Why = "no earlier probe of this node succeeded: a NetworkPolicy may drop them"
			if t.answered >= 0 {
				e.Why = "no other node answers: the link of this node may be down"
			}
		}
		out.Endpoints = append(out.Endpoints, e)
	}
	slices.SortFunc(out.Endpoints, func(a, b EndpointStatus) int { return a.Address.Compare(b.Address) })
	return out
}

// Lost returns the endpoints that are unreachable because of their nodes, in no order.
func (s *State) Lost() (all []Endpoint) {
	for name := range s.published.Nodes {
		all = append(all, s.lostOn(name)...)
	}
	return all
}

func (s *State) lostOn(node string) []Endpoint {
	return slices.DeleteFunc(s.EndpointsOn(node), func(e Endpoint) bool {
		_, byNode := s.published.Has(e.Addr, cluster.Protocol(e.Proto), node)
		return !byNode
	})
}
