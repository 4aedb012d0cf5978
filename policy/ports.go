package policy

import (
	"cmp"
	"slices"

	"kube-proxy/cluster"
	"kube-proxy/lb"
)

// portName is the key that a service port shares with the ports of slices (SV-12, SV-22).
type portName struct {
	name     string
	protocol cluster.Protocol
}

// portIndex finds the slices' entries of a service port, for Services with so many ports that a
// search of all slices for each would have quadratic cost.
type portIndex struct {
	// first is the index of the port's first entry, 0 if it has none. It has the ports of the
	// Service only.
	first   map[portName]int
	entries []portEntry // the first is unused
}

// portEntry is one slice that serves a port.
type portEntry struct {
	servedPort
	next int // as portIndex.first
}

// indexPorts builds the index if the Service has many ports.
func (r *resolver) indexPorts() {
	if len(r.svc.Ports) <= few {
		return
	}
	x := portIndex{first: make(map[portName]int, len(r.svc.Ports)), entries: make([]portEntry, 1, len(r.svc.Ports)+1)}
	for _, p := range r.svc.Ports {
		if p.Port != 0 {
			x.first[portName{p.Name, p.Protocol}] = 0
		}
	}
	for i, sl := range r.view.Slices {
		if !r.settings.searched(sl) {
			continue
		}
		for _, sp := range sl.Ports {
			name := portName{sp.Name, sp.Protocol}
			if next, ours := x.first[name]; ours && sp.Port != 0 {
				x.first[name] = len(x.entries)
				x.entries = append(x.entries, portEntry{servedPort{sp.Port, int32(i)}, next})
			}
		}
	}
	r.ports = &x
}

// servedPort is a slice, by its index in the view, and the number under which it serves a port.
type servedPort struct {
	port  uint16
	slice int32
}

func (s servedPort) compare(o servedPort) int {
	return cmp.Or(cmp.Compare(s.port, o.port), cmp.Compare(s.slice, o.slice))
}

// served appends the slices of the family that serve the service port to out, in any order.
func (r *resolver) served(out []servedPort, p *cluster.ServicePort) []servedPort {
	if x := r.ports; x != nil {
		for i := x.first[portName{p.Name, p.Protocol}]; i != 0; i = x.entries[i].next {
			out = append(out, x.entries[i].servedPort)
		}
		return out
	}
	for i, sl := range r.view.Slices {
		if !r.settings.searched(sl) {
			continue
		}
		for _, sp := range sl.Ports {
			if isPort(sp, p) {
				out = append(out, servedPort{sp.Port, int32(i)})
			}
		}
	}
	return out
}

// isPort reports whether the slice's port is the Service's, and has a number there (SV-22, SV-31).
func isPort(sp cluster.SlicePort, p *cluster.ServicePort) bool {
	return sp.Name == p.Name && sp.Protocol == p.Protocol && sp.Port != 0
}

func (s *Settings) ofFamily(sl *cluster.Slice) bool { return sl.IPv6 == (s.Family == lb.IPv6) }

// isServed reports whether a slice's port is one of the Service's.
func (r *resolver) isServed(sp cluster.SlicePort) bool {
	if r.ports != nil {
		_, ours := r.ports.first[portName{sp.Name, sp.Protocol}]
		return ours && sp.Port != 0
	}
	return slices.ContainsFunc(r.svc.Ports, func(p cluster.ServicePort) bool { return p.Port != 0 && isPort(sp, &p) })
}
