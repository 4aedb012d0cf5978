package policy

import (
	"cmp"

	"kube-proxy/cluster"
	"kube-proxy/lb"
)

// portName is what a service port and the ports of slices have in common (SV-12, SV-22).
type portName struct {
	name     string
	protocol cluster.Protocol
}

// portIndex finds what the slices say of a service port, for Services of so many ports that to search all slices for
// each would cost the square.
type portIndex struct {
	// first is the number of the port's first entry, 0 if it has none. It knows the ports of the Service only.
	first   map[portName]int
	entries []portEntry // the first means nothing
}

// portEntry is one of the slices that serve a port.
type portEntry struct {
	servedPort
	next int // as portIndex.first
}

// indexPorts makes the index if the Service has many ports.
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

// servedPort says that a slice, by its index in the view, serves a port under this number.
type servedPort struct {
	port  uint16
	slice int32
}

func (s servedPort) compare(o servedPort) int {
	return cmp.Or(cmp.Compare(s.port, o.port), cmp.Compare(s.slice, o.slice))
}

// served appends to out which slices of the family serve the service port, in no order.
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

// isPort reports whether the slice's port is the service's, and has a number there (SV-22, SV-31).
func isPort(sp cluster.SlicePort, p *cluster.ServicePort) bool {
	return sp.Name == p.Name && sp.Protocol == p.Protocol && sp.Port != 0
}

func (r *resolver) ofFamily(sl *cluster.Slice) bool { return r.settings.ofFamily(sl) }

func (s *Settings) ofFamily(sl *cluster.Slice) bool { return sl.IPv6 == (s.Family == lb.IPv6) }

// isServed reports whether a slice's port is one of the service's.
func (r *resolver) isServed(sp cluster.SlicePort) bool {
	if sp.Port == 0 {
		return false
	}
	if r.ports != nil {
		_, ours := r.ports.first[portName{sp.Name, sp.Protocol}]
		return ours
	}
	for _, p := range r.svc.Ports {
		if p.Port != 0 && p.Name == sp.Name && p.Protocol == sp.Protocol {
			return true
		}
	}
	return false
}
