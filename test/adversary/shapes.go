package adversary

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"kube-proxy/cluster"
)

// Shape is the worst that one tenant can make of the few or many objects that a quota allows.
type Shape struct {
	// Name describes it in a few words, as "10,000 ports".
	Name     string
	Services []*cluster.Service
	Slices   []*cluster.Slice

	touch func(i, round int) cluster.Event // nil: the first endpoint of a slice moves
}

// Events returns those that create the shape.
func (s Shape) Events() []cluster.Event {
	var out []cluster.Event
	for _, svc := range s.Services {
		out = append(out, cluster.ServiceSet{Service: svc})
	}
	for _, sl := range s.Slices {
		out = append(out, cluster.SliceSet{Slice: sl})
	}
	return out
}

// Odd returns the adversarial workloads of IPv4, divided by scale: at 1 they are as large as their
// names say.
func Odd(scale int) []Shape {
	return []Shape{
		ports("10,000 ports", 10_000/scale, 3, 0),
		ports("10,000 endpoints", 1, 10_000/scale, 0),
		ports("100 ports, 1,000 source ranges", 100, 3, 1000/scale),
		contested("10,000 contested keys", 5, 10_000/scale),
		contested("one key, 10,000 Services", 10_000/scale, 1),
		headless("100,000 headless Services", 100_000/scale),
		externalIPs("500 external IPs, 1,000 ports", 500/scale, 1000),
	}
}

func oddName(i int) cluster.Name { return cluster.Name{Namespace: "odd", Name: fmt.Sprint("s", i)} }

// oddAddr is address i of a /10 or less that begins with these bytes.
func oddAddr(a, b byte, i int) netip.Addr {
	n := uint32(a)<<24 | uint32(b)<<16 + uint32(i)
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, n)))
}

func oddService(i, ports int) *cluster.Service {
	s := &cluster.Service{Name: oddName(i), Created: int64(100_000 - i),
		ClusterIPs: []netip.Addr{oddAddr(10, 100, i+1)}}
	for p := range ports {
		s.Ports = append(s.Ports, cluster.ServicePort{Name: fmt.Sprint("p", p), Protocol: cluster.TCP,
			Port: uint16(1 + p)})
	}
	return s
}

// sliceLimit is how many ports, and how many endpoints, an EndpointSlice has at most.
const (
	slicePorts     = 100
	sliceEndpoints = 1000
)

// oddSlices are all slices that a Service of so many ports and endpoints needs.
func oddSlices(i, ports, endpoints int) (out []*cluster.Slice) {
	for p := 0; p < ports; p += slicePorts {
		for e := 0; e < endpoints; e += sliceEndpoints {
			s := &cluster.Slice{Name: cluster.Name{Namespace: "odd", Name: fmt.Sprintf("s%d-%d-%d", i, p, e)},
				Service: oddName(i)}
			for k := p; k < min(p+slicePorts, ports); k++ {
				s.Ports = append(s.Ports, cluster.SlicePort{Name: fmt.Sprint("p", k), Protocol: cluster.TCP,
					Port: 8080})
			}
			var all []cluster.Endpoint
			for k := e; k < min(e+sliceEndpoints, endpoints); k++ {
				all = append(all, cluster.Endpoint{Addr: oddAddr(100, 64, i<<4+k), Where: cluster.At("elsewhere", ""),
					Ready: true, Serving: true})
			}
			s.Endpoints = cluster.EndpointsOf(all...)
			out = append(out, s)
		}
	}
	return out
}

func ports(name string, ports, endpoints, ranges int) Shape {
	s := oddService(0, ports)
	if ranges > 0 {
		s.Type, s.LoadBalancerIPs = cluster.TypeLoadBalancer, []netip.Addr{netip.MustParseAddr("192.0.2.99")}
	}
	for i := range ranges {
		s.SourceRanges = append(s.SourceRanges, netip.PrefixFrom(oddAddr(11, 0, i<<9), 24))
	}
	return Shape{Name: name, Services: []*cluster.Service{s}, Slices: oddSlices(0, ports, endpoints)}
}

// contested has Services that all claim the same ports of one address; each is older than the one
// before and takes all of them.
func contested(name string, services, ports int) (out Shape) {
	out.Name = name
	for i := range services {
		s := oddService(i, ports)
		s.ExternalIPs = []netip.Addr{netip.MustParseAddr("192.0.2.98")}
		out.Services = append(out.Services, s)
		out.Slices = append(out.Slices, oddSlices(i, ports, 1)...)
	}
	return out
}

func headless(name string, services int) (out Shape) {
	out.Name = name
	for i := range services {
		s := oddService(i, 1)
		s.ClusterIPs = nil
		out.Services = append(out.Services, s)
		out.Slices = append(out.Slices, oddSlices(i, 1, 2)...)
	}
	return out
}

func externalIPs(name string, addrs, ports int) Shape {
	s := oddService(0, ports)
	for i := range addrs {
		s.ExternalIPs = append(s.ExternalIPs, oddAddr(203, 0, i))
	}
	return Shape{Name: name, Services: []*cluster.Service{s}, Slices: oddSlices(0, ports, 2)}
}

// Bytes is about the least size of the shape's API objects, as protobuf: optional fields are left
// out.
func (s Shape) Bytes() (n int) {
	const object, port, address = 60, 14, 6 // overhead around names and addresses
	for _, svc := range s.Services {
		n += object + len(svc.Name.Name) + len(svc.Name.Namespace)
		for _, p := range svc.Ports {
			n += port + len(p.Name)
		}
		for _, a := range slices.Concat(svc.ClusterIPs, svc.ExternalIPs, svc.LoadBalancerIPs) {
			n += address + len(a.String())
		}
		for _, p := range svc.SourceRanges {
			n += address + len(p.String())
		}
	}
	for _, sl := range s.Slices {
		n += object + len(sl.Name.Name) + len(sl.Name.Namespace) + len(sl.Service.Name)
		for _, p := range sl.Ports {
			n += port + len(p.Name)
		}
		for e := range sl.Endpoints.All() {
			n += address + len(e.Addr.String())
		}
	}
	return n
}
