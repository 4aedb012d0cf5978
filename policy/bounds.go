package policy

import (
	"fmt"
	"net/netip"
	"slices"

	"kube-proxy/cluster"
	"kube-proxy/lb"
)

// Limits of one Service in one family, beside those of objects ([Settings.MaxObjects]). The cost of
// a Service on every node is a product: addresses times ports, and endpoints times ports. A
// thousand ports and 500 external IPs would make half a million frontends. The cluster IP and the
// NodePorts, one frontend for each port, are always served.
const (
	// maxOuterFrontends limits the frontends of load-balancer and external addresses.
	maxOuterFrontends = 1 << 14
	// maxBackends limits the endpoints, each counted once for each port.
	maxBackends = 1 << 18
	// maxSlicePorts limits the ports of slices with endpoints, whether or not the Service has the
	// ports as well. For ports of the Service, maxBackends allows no more.
	maxSlicePorts = maxBackends
)

// serviceShare is the divisor for the part of a namespace's objects that one Service may have.
const serviceShare = 4

// Objects returns the most objects that the plane writes for the Service of v, whatever the rest of
// its namespace has; 0 if it is not served, and where objects are not limited. Its cost is
// proportional to the slices and addresses of the Service, not to the endpoints.
func Objects(v cluster.View, s Settings) int {
	if !s.bounds() || v.Service == nil || v.Service.Type == cluster.TypeExternalName ||
		!s.clusterIP(v.Service).IsValid() {
		return 0
	}
	s.Older = 0
	loadBalancer, external := s.outerIPs(v.Service)
	return s.fitting(&v, len(loadBalancer), len(external)).objects
}

// bounds reports whether objects are bounded.
func (s *Settings) bounds() bool { return s.Weigh != nil && s.MaxObjects > 0 }

// room returns how many objects a Service may have.
func (s *Settings) room() int { return min(s.MaxObjects/serviceShare, s.MaxObjects-s.Older) }

// overBudget returns the reason why there is no room for a part of a Service.
func (s *Settings) overBudget() string {
	if s.MaxObjects-s.Older < s.MaxObjects/serviceShare {
		return fmt.Sprintf("exceeds the limit of %d objects per namespace (--max-namespace-objects), which older "+
			"Services use", s.MaxObjects)
	}
	return fmt.Sprintf("exceeds the limit of %d objects per Service, a quarter of --max-namespace-objects",
		s.MaxObjects/serviceShare)
}

// fit is the served part of a Service.
type fit struct {
	// clusterIP and nodePorts are 1 or 0.
	clusterIP, nodePorts int
	// loadBalancer and external are the numbers of served addresses of each kind, from the first
	// on; each with all ports.
	loadBalancer, external int
	// objects is the number of objects for all of these. full: no objects are left for the rest.
	objects int
	full    bool
}

// fitting returns the served part of a Service with these numbers of addresses. Frontends and
// objects go to the cluster IP, then to the NodePorts, then to load-balancer addresses, then to
// external IPs. After the first part without room, nothing is served.
func (s *Settings) fitting(v *cluster.View, loadBalancer, external int) fit {
	rows := max(1, maxOuterFrontends/max(1, len(v.Service.Ports)))
	f := fit{clusterIP: 1, loadBalancer: min(loadBalancer, rows)}
	f.external = min(external, rows-f.loadBalancer)
	if takesNodePorts(v.Service) {
		f.nodePorts = 1
	}
	if !s.bounds() {
		return f
	}
	size := s.size(v)
	first := s.Weigh(size)
	more := func(change func(*lb.Size)) int {
		larger := size
		change(&larger)
		return s.Weigh(larger) - first
	}
	for _, part := range []struct {
		wanted *int
		each   int
	}{
		{&f.clusterIP, first},
		{&f.nodePorts, more(func(l *lb.Size) { l.NodePorts = true })},
		{&f.loadBalancer, more(func(l *lb.Size) { l.Ranged = min(1, l.Ranges); l.Addresses += 1 - l.Ranged })},
		{&f.external, more(func(l *lb.Size) { l.Addresses++ })},
	} {
		f.take(part.wanted, part.each, s.room())
	}
	return f
}

// take reduces wanted to the number that fits into the room.
func (f *fit) take(wanted *int, each, room int) {
	fits := *wanted
	switch {
	case f.full:
		fits = 0
	case each > 0:
		fits = min(fits, max(0, room-f.objects)/each)
	}
	f.full = f.full || fits < *wanted
	f.objects += fits * each
	*wanted = fits
}

// size returns the size of the Service with its cluster IP alone.
func (s *Settings) size(v *cluster.View) lb.Size {
	svc := v.Service
	size := lb.Size{
		Ports: len(svc.Ports), Addresses: 1, Affinity: svc.AffinitySeconds > 0,
		Local: svc.InternalPolicy == cluster.PolicyLocal || svc.ExternalPolicy == cluster.PolicyLocal,
		FTP:   slices.ContainsFunc(svc.Ports, func(p cluster.ServicePort) bool { return p.Port == portFTP }),
	}
	for _, p := range svc.SourceRanges {
		if isPrefixOf(p, s.Family) {
			size.Ranges++
		}
	}
	size.Backends = min(s.endpoints(v), s.maxBackends(size))
	return size
}

// portFTP is the control port of FTP.
const portFTP = 21

// endpoints counts the endpoints of the family's slices, each once for each port. It ignores
// whether they are ready: the number does not change while they restart.
func (s *Settings) endpoints(v *cluster.View) int {
	n := 0
	for _, sl := range v.Slices {
		if s.ofFamily(sl) {
			n += sl.Endpoints.Len() * min(len(sl.Ports), len(v.Service.Ports))
		}
	}
	return n
}

// maxBackends returns the most endpoints that are served, so that they and the cluster IP fit into
// the limit of a Service.
func (s *Settings) maxBackends(size lb.Size) int {
	if !s.bounds() {
		return maxBackends
	}
	const sample = 1000
	size.Backends = 0
	none := s.Weigh(size)
	size.Backends = sample
	each := s.Weigh(size) - none // of a sample
	return min(maxBackends, max(0, s.MaxObjects/serviceShare-none)*sample/max(1, each))
}

// bounded returns the slices without the endpoints that are too many for the Service's ports, and a
// Refusal for those. Ready endpoints stay first, then those that still serve, in the order of their
// slices' names: the same on every node. If a traffic policy is Local, this node's endpoints come
// first.
func (s *Settings) bounded(v *cluster.View) ([]*cluster.Slice, Refusal) {
	ports, room, inSlices := len(v.Service.Ports), s.maxBackends(s.size(v)), 0
	for _, sl := range v.Slices {
		if s.searched(sl) {
			inSlices += len(sl.Ports)
		}
	}
	if s.endpoints(v) <= room && inSlices <= maxSlicePorts {
		return v.Slices, Refusal{}
	}
	sorted := slices.SortedFunc(slices.Values(v.Slices), byName)
	kept := make([][]cluster.Endpoint, len(sorted)) // by slice
	left := Refusal{Field: useFields[asEndpoint]}
	searchable := fittingPorts(sorted, s.searched)
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
			for e := range sl.Endpoints.All() {
				switch {
				case class(&e) != pass:
				case i < searchable && room >= each:
					room -= each
					kept[i] = append(kept[i], e)
				default:
					left.More++
					if left.More == 1 {
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
	var out []*cluster.Slice
	for i, sl := range sorted[:searchable] {
		if min(len(sl.Ports), ports) > 0 && s.ofFamily(sl) {
			copied := *sl
			copied.Endpoints = cluster.EndpointsOf(kept[i]...)
			out = append(out, &copied)
		}
	}
	return out, left
}

// searched reports whether the family looks for Service ports in a slice: a slice without endpoints
// has no effect.
func (s *Settings) searched(sl *cluster.Slice) bool { return s.ofFamily(sl) && sl.Endpoints.Len() > 0 }

// fittingPorts returns how many of the slices may have an effect, by the ports of the searched
// ones.
func fittingPorts(sorted []*cluster.Slice, searched func(*cluster.Slice) bool) int {
	ports := 0
	for i, sl := range sorted {
		if !searched(sl) {
			continue
		}
		ports += len(sl.Ports)
		if ports > maxSlicePorts {
			return i
		}
	}
	return len(sorted)
}

func byName(a, b *cluster.Slice) int { return a.Name.Compare(b.Name) }

// tooMany returns the refusal of all addresses that do not fit; an empty one if all fit.
func (s *Settings) tooMany(u use, addrs []netip.Addr, fits int, f fit, ports int) Refusal {
	if fits == len(addrs) {
		return Refusal{}
	}
	r := Refusal{Field: useFields[u], Addr: addrs[fits], More: len(addrs) - fits,
		Why: fmt.Sprintf("is one address too many for %d ports", ports)}
	if f.full {
		r.Why = s.overBudget()
	}
	return r
}
