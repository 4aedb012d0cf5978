package inspect

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"

	"kube-proxy/cluster"
	"kube-proxy/lb"
)

// mostEndpoints is how many endpoints of a family [Inspector.Service] names.
const mostEndpoints = 20_000

// portsNamed are the ports of the Service with that name or number; all for "".
func portsNamed(v cluster.View, said string) ([]cluster.ServicePort, error) {
	if said == "" {
		return v.Service.Ports, nil
	}
	var out []cluster.ServicePort
	var names []string
	for _, p := range v.Service.Ports {
		number := strconv.Itoa(int(p.Port))
		full := number + "/" + lb.Proto(p.Protocol).String()
		if p.Name == said || number == said || full == said {
			out = append(out, p)
		}
		names = append(names, cmp.Or(p.Name, full))
	}
	if out == nil {
		p := problem(Unknown, "Service %s has no port %s", v.Name, said)
		p.Candidates = names[:min(len(names), mostCandidates)]
		return nil, p
	}
	return out, nil
}

// memberOf names a backend of a service port.
type memberOf struct {
	service string
	proto   lb.Proto
	at      netip.AddrPort
}

// members says which backend sets of a Service have a backend.
func members(rows []*lb.Frontend) map[memberOf][]string {
	out := map[memberOf][]string{}
	seen := map[lb.SetID]bool{}
	add := func(s *lb.BackendSet) {
		if s == nil || seen[s.ID] {
			return
		}
		seen[s.ID] = true
		for _, b := range s.Backends {
			m := memberOf{s.ID.Service, s.ID.Proto, b.Addr}
			out[m] = append(out[m], s.ID.Scope.String())
		}
	}
	for _, row := range rows {
		for _, r := range row.Routes {
			add(r.To)
		}
		add(row.Serving)
	}
	return out
}

// endpoints are those of the ports in a family, by port and address, and how many more there are.
func (f Family) endpoints(v cluster.View, ports []cluster.ServicePort) (out []Endpoint, more int) {
	in := members(f.owned(v.Name).rows)
	sorted := slices.SortedFunc(slices.Values(v.Slices), func(a, b *cluster.Slice) int { return compareNames(a.Name, b.Name) })
	out = []Endpoint{}
	for _, p := range ports {
		begin := len(out)
		for _, sl := range sorted {
			if sl.IPv6 != (f.Family == lb.IPv6) {
				continue
			}
			for k := range sl.Endpoints {
				if len(out) == mostEndpoints {
					more++
					continue
				}
				out = append(out, endpoint(v, p, sl, &sl.Endpoints[k], in))
			}
		}
		slices.SortStableFunc(out[begin:], func(a, b Endpoint) int { return a.Address.Compare(b.Address) })
	}
	return out, more
}

// endpoint is one endpoint of a slice, for one port of the Service.
func endpoint(v cluster.View, p cluster.ServicePort, sl *cluster.Slice, e *cluster.Endpoint, in map[memberOf][]string) Endpoint {
	full := v.Name.String()
	if p.Name != "" {
		full += ":" + p.Name
	}
	out := Endpoint{Service: full, Protocol: lb.Proto(p.Protocol).String(), Slice: sl.Name.String(), Node: e.NodeName.Value(),
		Local: e.OnNode(v.Node.NodeName), Ready: e.Ready, Serving: e.Serving, Terminating: e.Terminating, In: []string{}}
	if e.Hints != nil {
		out.ForZones, out.ForNodes = e.Hints.Zones, e.Hints.Nodes
	}
	port := uint16(0)
	for _, sp := range sl.Ports {
		if sp.Name == p.Name && sp.Protocol == p.Protocol {
			port = sp.Port
		}
	}
	out.Address = netip.AddrPortFrom(e.Addr, port)
	if sets := in[memberOf{full, lb.Proto(p.Protocol), out.Address}]; sets != nil {
		out.In = sets
	}
	return out
}
