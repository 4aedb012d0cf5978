package policy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"kube-proxy/cluster"
)

// The bounds of one Service in one family. What a Service costs every node is not what its author writes but the
// product: addresses times ports, and endpoints times ports. One of a thousand ports and 500 external IPs would be half
// a million rows. The cluster IP and the NodePorts, one row for each port, always serve.
const (
	// maxOuterRows bounds the rows of load-balancer and external addresses.
	maxOuterRows = 1 << 14
	// maxBackends bounds the endpoints, each counted once for each port.
	maxBackends = 1 << 18
	// maxSlicePorts bounds the ports of the slices that have endpoints, whether or not the Service has them too. Where it
	// has, maxBackends allows no more.
	maxSlicePorts = maxBackends
)

// fitting returns how many of so many load-balancer IPs and external IPs a Service of so many ports may have: the
// first of them, those of the load balancer before the others, at least one in all. An address is served with all
// ports or with none.
func fitting(ports, loadBalancer, external int) (fitLoadBalancer, fitExternal int) {
	room := max(1, maxOuterRows/max(1, ports))
	fitLoadBalancer = min(loadBalancer, room)
	return fitLoadBalancer, min(external, room-fitLoadBalancer)
}

// bounded returns the slices without the endpoints that are too many for the Service's ports, and what was left out.
// Those stay that are ready, then those that serve still, by the names of their slices: the same on every node. Where a
// traffic policy is Local, the node's own come before all.
func (s *Settings) bounded(v *cluster.View) ([]*cluster.Slice, Refusal) {
	ports, product, inSlices := len(v.Service.Ports), 0, 0
	for _, sl := range v.Slices {
		product += len(sl.Endpoints) * ports
		if s.searched(sl) {
			inSlices += len(sl.Ports)
		}
	}
	if product <= maxBackends && inSlices <= maxSlicePorts {
		return v.Slices, Refusal{}
	}
	sorted := slices.SortedFunc(slices.Values(v.Slices), byName)
	kept := make([]*cluster.Slice, len(sorted))
	left := Refusal{Field: useFields[asEndpoint]}
	room, searchable := maxBackends, fittingPorts(sorted, s.searched)
	local := v.Service.InternalPolicy == cluster.PolicyLocal || v.Service.ExternalPolicy == cluster.PolicyLocal
	class := func(e *cluster.Endpoint) int {
		switch {
		case !e.Ready && !e.Serving, !s.serves(e.Addr, asEndpoint):
			return -1 // no effect
		case e.Ready && local && e.OnNode(v.Node.NodeName):
			return 0
		case e.Ready:
			return 1
		}
		return 2
	}
	for pass := range 3 {
		for i, sl := range sorted {
			each := min(len(sl.Ports), ports)
			if each == 0 || !s.ofFamily(sl) {
				continue
			}
			if kept[i] == nil && i < searchable {
				copied := *sl
				copied.Endpoints = nil
				kept[i] = &copied
			}
			for j := range sl.Endpoints {
				e := &sl.Endpoints[j]
				switch {
				case class(e) != pass:
				case i < searchable && room >= each:
					room -= each
					kept[i].Endpoints = append(kept[i].Endpoints, *e)
				default:
					if left.More++; left.More == 1 {
						left.Addr = e.Addr
					}
				}
			}
		}
	}
	switch {
	case left.More == 0:
	case searchable < len(sorted):
		left.Why = fmt.Sprintf("is in a slice too many: those before it have %d ports", maxSlicePorts)
	default:
		left.Why = fmt.Sprintf("is one endpoint too many for %d ports", ports)
	}
	return slices.DeleteFunc(kept, func(sl *cluster.Slice) bool { return sl == nil }), left
}

// searched reports whether the family looks for ports of Services in a slice: one without endpoints has no effect.
func (s *Settings) searched(sl *cluster.Slice) bool { return s.ofFamily(sl) && len(sl.Endpoints) > 0 }

// fittingPorts returns how many of the slices may have effect, by the ports of those that are searched.
func fittingPorts(sorted []*cluster.Slice, searched func(*cluster.Slice) bool) int {
	ports := 0
	for i, sl := range sorted {
		if !searched(sl) {
			continue
		}
		if ports += len(sl.Ports); ports > maxSlicePorts {
			return i
		}
	}
	return len(sorted)
}

func byName(a, b *cluster.Slice) int {
	return cmp.Or(cmp.Compare(a.Name.Namespace, b.Name.Namespace), cmp.Compare(a.Name.Name, b.Name.Name))
}

// tooMany is the refusal of the addresses from the first that does not fit on; none if all fit.
func tooMany(u use, addrs []netip.Addr, fit, ports int) Refusal {
	if fit == len(addrs) {
		return Refusal{}
	}
	return Refusal{Field: useFields[u], Addr: addrs[fit], More: len(addrs) - fit,
		Why: fmt.Sprintf("is one address too many for %d ports", ports)}
}
