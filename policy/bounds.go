package policy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"kube-proxy/cluster"
	"kube-proxy/lb"
)

// The bounds of one Service in one family, beside those of objects ([Settings.MaxObjects]). What a Service costs every node is not what its author writes but the
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

// serviceShare is which part of the objects of a namespace one Service may have.
const serviceShare = 4

// Objects returns how many objects the plane writes at most for the service of v, whatever the rest of its namespace has; 0 if it is not
// served, and where objects are not bounded. Its cost follows the slices and the addresses of the Service, not the endpoints.
func Objects(v cluster.View, s Settings) int {
	if !s.bounds() || v.Service == nil || v.Service.Type == cluster.TypeExternalName || !s.clusterIP(v.Service).IsValid() {
		return 0
	}
	s.Older = 0
	loadBalancer, external := s.outerIPs(v.Service)
	return s.fitting(&v, len(loadBalancer), len(external)).objects
}

// bounds reports whether objects are bounded.
func (s *Settings) bounds() bool { return s.Weigh != nil && s.MaxObjects > 0 }

// room is how many objects a Service may have.
func (s *Settings) room() int { return min(s.MaxObjects/serviceShare, s.MaxObjects-s.Older) }

// overBudget says why a part of a Service has no room.
func (s *Settings) overBudget() string {
	if s.MaxObjects-s.Older < s.MaxObjects/serviceShare {
		return fmt.Sprintf("exceeds the limit of %d objects per namespace (--max-namespace-objects), which older Services use", s.MaxObjects)
	}
	return fmt.Sprintf("exceeds the limit of %d objects per Service, a quarter of --max-namespace-objects", s.MaxObjects/serviceShare)
}

// fit is how much of a Service is served.
type fit struct {
	// clusterIP and nodePorts are 1 or 0.
	clusterIP, nodePorts int
	// loadBalancer and external are how many addresses of each kind, the first of them; each with all ports.
	loadBalancer, external int
	// objects is how many all of that takes. full: no objects are left for the rest.
	objects int
	full    bool
}

// fitting returns how much of a Service is served that has so many addresses: the cluster IP, then the NodePorts, then the
// load balancer's addresses and then the others, as far as rows and objects go. Behind the first part without room nothing is served.
func (s *Settings) fitting(v *cluster.View, loadBalancer, external int) fit {
	rows := max(1, maxOuterRows/max(1, len(v.Service.Ports)))
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

// take takes as many of a part as there is room for, and leaves their number.
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

// size is the Service's with its cluster IP alone.
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

// portFTP is that of FTP.
const portFTP = 21

// endpoints counts the endpoints of the slices of the family, each once for each port. Whether they are ready does not matter: the
// number stays while they restart.
func (s *Settings) endpoints(v *cluster.View) int {
	n := 0
	for _, sl := range v.Slices {
		if s.ofFamily(sl) {
			n += sl.Endpoints.Len() * min(len(sl.Ports), len(v.Service.Ports))
		}
	}
	return n
}

// maxBackends is how many of the endpoints are served at most, so that the cluster IP with them is within the limit for a Service.
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

// bounded returns the slices without the endpoints that are too many for the Service's ports, and what was left out.
// Those stay that are ready, then those that serve still, by the names of their slices: the same on every node. Where a
// traffic policy is Local, the node's own come before all.
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

// searched reports whether the family looks for ports of Services in a slice: one without endpoints has no effect.
func (s *Settings) searched(sl *cluster.Slice) bool { return s.ofFamily(sl) && sl.Endpoints.Len() > 0 }

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
func (s *Settings) tooMany(u use, addrs []netip.Addr, fits int, f fit, ports int) Refusal {
	if fits == len(addrs) {
		return Refusal{}
	}
	r := Refusal{Field: useFields[u], Addr: addrs[fits], More: len(addrs) - fits, Why: fmt.Sprintf("is one address too many for %d ports", ports)}
	if f.full {
		r.Why = s.overBudget()
	}
	return r
}
