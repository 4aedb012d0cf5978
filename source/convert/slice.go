package convert

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"

	"kube-proxy/cluster"
)

// SliceSelector selects the EndpointSlices for this proxy (SV-01).
const SliceSelector = "!" + LabelHeadless

// Slice converts an EndpointSlice. The result is nil if the slice cannot have an effect: it is
// headless (SV-01), has host names instead of addresses (SV-02) or belongs to no Service (SV-30).
// Faulty ports and endpoints are left out and reported (SV-31, SV-34).
func Slice(in *discovery.EndpointSlice) (*cluster.Slice, []Problem) {
	if _, headless := in.Labels[LabelHeadless]; headless {
		return nil, nil
	}
	ps := problems{kind: "EndpointSlice", name: cluster.Name{Namespace: in.Namespace, Name: in.Name}}
	service := in.Labels[discovery.LabelServiceName]
	switch {
	case service == "":
		ps.add(Problem{Field: "metadata.labels", What: "has no " + discovery.LabelServiceName,
			Then: "the slice is ignored"})
	case in.AddressType == discovery.AddressTypeFQDN:
		ps.add(Problem{Field: "addressType", Value: "FQDN", What: "is not proxied", Then: "the slice is ignored"})
	case in.AddressType != discovery.AddressTypeIPv4 && in.AddressType != discovery.AddressTypeIPv6:
		ps.add(Problem{Field: "addressType", Value: string(in.AddressType), What: "is neither IPv4 nor IPv6",
			Then: "the slice is ignored"})
	}
	if len(ps.list) > 0 {
		return nil, ps.done()
	}
	out := &cluster.Slice{
		Name: cluster.Name{Namespace: intern(in.Namespace), Name: strings.Clone(in.Name)},
		IPv6: in.AddressType == discovery.AddressTypeIPv6,
	}
	out.Service.Namespace = out.Name.Namespace
	if strings.HasPrefix(out.Name.Name, service) {
		out.Service.Name = out.Name.Name[:len(service)] // nearly always: web-x7k2p belongs to web
	} else {
		out.Service.Name = strings.Clone(service)
	}
	if at := in.Annotations[core.EndpointsLastChangeTriggerTime]; at != "" {
		if t, err := time.Parse(time.RFC3339Nano, at); err == nil {
			out.Trigger = t.UnixNano()
		}
	}
	out.Ports = slicePorts(&ps, in.Ports)
	out.Endpoints = endpoints(&ps, in.Endpoints, out.IPv6)
	out.Unused = unused(in.Endpoints)
	return out, ps.done()
}

// slicePorts converts the ports that have a name and a number (SV-31). Of two with one name and
// protocol the first counts.
func slicePorts(ps *problems, in []discovery.EndpointPort) []cluster.SlicePort {
	if len(in) == 0 {
		return nil
	}
	out := make([]cluster.SlicePort, 0, len(in))
	seen := firsts{}
	for i := range in {
		p, path := &in[i], func(f string) string { return fmt.Sprintf("ports[%d]%s", i, f) }
		if p.Name == nil {
			ps.add(Problem{Field: path(".name"), What: "is missing", Then: "the port is ignored"})
			continue
		}
		if p.Port == nil {
			ps.add(Problem{Field: path(".port"), What: "is missing", Then: "the port is ignored"})
			continue
		}
		number := portNumber(ps, path(".port"), *p.Port, "the port is ignored")
		if number == 0 {
			continue
		}
		var declared core.Protocol
		if p.Protocol != nil {
			declared = *p.Protocol
		}
		proto, ok := protocol(ps, path(".protocol"), declared)
		if !ok {
			continue
		}
		if first, dup := seen.add(i, firstKey{"name", proto, *p.Name}); dup {
			ps.add(Problem{Field: path(".name"), Value: *p.Name,
				What: fmt.Sprintf("is already the name of ports[%d]", first), Then: "this port is ignored"})
			continue
		}
		out = append(out, cluster.SlicePort{Name: intern(*p.Name), Protocol: proto, Port: number})
	}
	return exact(out)
}

// endpoints converts the endpoints whose first address has the slice's family (SV-31, SV-34), with
// the defaults of absent conditions (SV-32).
func endpoints(ps *problems, in []discovery.Endpoint, ipv6 bool) cluster.Endpoints {
	var few [16]cluster.Endpoint // more than most slices have, without garbage
	out := few[:0]
	for i := range in {
		e := &in[i]
		if len(e.Addresses) == 0 {
			ps.add(Problem{Field: "endpoints[" + strconv.Itoa(i) + "].addresses", What: "is empty",
				Then: "the endpoint is ignored"})
			continue
		}
		path := func() string { return "endpoints[" + strconv.Itoa(i) + "].addresses[0]" }
		a, ok := ParseAddr(e.Addresses[0])
		if !ok {
			ps.add(Problem{Field: path(), Value: e.Addresses[0], What: "is not an IP address",
				Then: "the endpoint is ignored"})
			continue
		}
		if a.Is6() != ipv6 {
			ps.add(Problem{Field: path(), Value: e.Addresses[0], Reason: ReasonIncorrectIPVersion,
				What: "is not an " + family(ipv6) + " address, as the addressType says",
				Then: "the endpoint is ignored"})
			continue
		}
		ep := cluster.Endpoint{
			Addr:        a,
			Ready:       e.Conditions.Ready == nil || *e.Conditions.Ready,
			Serving:     e.Conditions.Serving == nil || *e.Conditions.Serving,
			Terminating: e.Conditions.Terminating != nil && *e.Conditions.Terminating,
			Hints:       hints(e.Hints, out),
			Where:       cluster.At(said(e.NodeName), said(e.Zone)),
		}
		out = append(out, ep)
	}
	return cluster.EndpointsOf(out...)
}

// unused returns the addresses of endpoints behind their first ones, some if there are many.
func unused(in []discovery.Endpoint) (out []netip.Addr) {
	for i := range in {
		for _, text := range in[i].Addresses[min(1, len(in[i].Addresses)):] {
			if a, ok := ParseAddr(text); ok && len(out) < cluster.MaxUnused {
				out = append(out, a)
			}
		}
	}
	return out
}

// said returns the value of an optional field; "" if it is absent.
func said(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// hints converts topology hints (SV-38). Endpoints of a slice mostly have the same hints as the
// previous one, and then share them.
func hints(in *discovery.EndpointHints, before []cluster.Endpoint) *cluster.Hints {
	if in == nil || len(in.ForZones) == 0 && len(in.ForNodes) == 0 {
		return nil
	}
	for _, e := range slices.Backward(before[max(0, len(before)-8):]) {
		if h := e.Hints; h != nil &&
			slices.EqualFunc(h.Zones, in.ForZones, func(s string, z discovery.ForZone) bool { return s == z.Name }) &&
			slices.EqualFunc(h.Nodes, in.ForNodes, func(s string, n discovery.ForNode) bool { return s == n.Name }) {
			return h
		}
	}
	h := &cluster.Hints{}
	for _, z := range in.ForZones {
		h.Zones = append(h.Zones, intern(z.Name))
	}
	for _, n := range in.ForNodes {
		h.Nodes = append(h.Nodes, intern(n.Name))
	}
	h.Zones, h.Nodes = exact(h.Zones), exact(h.Nodes)
	return h
}
