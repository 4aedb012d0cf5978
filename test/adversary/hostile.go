package adversary

import (
	"fmt"
	"net/netip"

	"kube-proxy/cluster"
)

// Hostile returns the workloads with which one tenant could keep every node busy: n Services each,
// all changed at once by [Shape.Touch]. Endpoints, ports and addresses are divided by scale; at 1
// the shapes are as large as their names say.
func Hostile(n, scale int, v Victims) []Shape {
	return []Shape{
		large("87 UDP ports, 3 slices of 1,000 endpoints", n, 87, 3, 1000/scale),
		large("256 ports, 1,024 endpoints: a Service at its limit", n, 256, 1, 1024/scale),
		emptySlices("100 slices of 20,000 ports without endpoints", n, 20_000/scale),
		spread("1,000 external IPs, 2,000 endpoints", n, 1000/scale, 2000/scale),
		toggled("session affinity on and off", n, func(s *cluster.Service) { s.AffinitySeconds = 10800 }),
		toggled("a Service that comes and goes", n, nil),
		toggled("claims of a port at the node's address", n, func(s *cluster.Service) {
			s.Ports[0].Port, s.ExternalIPs = 10250, v4(v.Node)
		}),
		toggled("external IPs that are others' addresses", n, func(s *cluster.Service) {
			s.Ports[0].Port, s.ExternalIPs = v.Ports[0], append(v4(v.Pods), v4(v.ClusterIPs)...)
		}),
		toggled("addresses that are not served", n, func(s *cluster.Service) { s.ExternalIPs = v4(Special()) }),
		toggled("addresses of the service network", n, func(s *cluster.Service) { s.ExternalIPs = v4(v.Free) }),
		toggled("one health-check port for all", n, func(s *cluster.Service) {
			s.Type, s.ExternalPolicy, s.HealthCheckNodePort = cluster.TypeLoadBalancer, cluster.PolicyLocal, 32000
			s.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr("192.0.2.97")}
		}),
		toggled("endpoints that are others' service addresses", n, nil).leadingTo(v4(v.ClusterIPs)),
		numberless("slices whose ports have no number", n),
	}
}

func v4(addrs []netip.Addr) (out []netip.Addr) {
	for _, a := range addrs {
		if a.Is4() {
			out = append(out, a)
		}
	}
	return out
}

// large has Services of so many UDP ports and so many full slices.
func large(name string, n, ports, slices, endpoints int) (out Shape) {
	out.Name = name
	for i := range n {
		s := oddService(i, ports)
		for p := range s.Ports {
			s.Ports[p].Protocol = cluster.UDP
		}
		out.Services = append(out.Services, s)
		for k := range slices {
			sl := oddSlices(i, 1, endpoints)[0]
			sl.Name.Name = fmt.Sprintf("s%d-%d", i, k)
			sl.Ports = nil
			for p := range ports {
				sl.Ports = append(sl.Ports, cluster.SlicePort{Name: s.Ports[p].Name, Protocol: cluster.UDP,
					Port: uint16(8000 + p)})
			}
			sl.Endpoints = sl.Endpoints.Edited(func(n int, e *cluster.Endpoint) {
				e.Addr = oddAddr(100, 64, (i*slices+k)*endpoints+n)
			})
			out.Slices = append(out.Slices, sl)
		}
	}
	return out
}

// emptySlices has Services of one port, with 100 slices of the given number of ports each and
// nothing else.
func emptySlices(name string, n, ports int) (out Shape) {
	out.Name = name
	var many []cluster.SlicePort // all slices share them: a test needs the work, and not the memory
	for p := range ports {
		many = append(many, cluster.SlicePort{Name: fmt.Sprint("p", p+1), Protocol: cluster.TCP, Port: 8080})
	}
	for i := range n {
		out.Services = append(out.Services, oddService(i, 1))
		for k := range 100 {
			out.Slices = append(out.Slices,
				&cluster.Slice{Name: cluster.Name{Namespace: "odd", Name: fmt.Sprintf("s%d-%d", i, k)},
					Service: oddName(i), Ports: many})
		}
	}
	return out
}

// spread has Services of one port at so many external IPs, with so many endpoints.
func spread(name string, n, addrs, endpoints int) (out Shape) {
	out.Name = name
	for i := range n {
		s := oddService(i, 1)
		for a := range addrs {
			s.ExternalIPs = append(s.ExternalIPs, oddAddr(203, 0, i*addrs+a))
		}
		out.Services = append(out.Services, s)
		out.Slices = append(out.Slices, oddSlices(i, 1, endpoints)...)
	}
	return out
}

// toggled has small Services: each touch applies change to them, and the next reverts it. Without a
// change they are deleted and added.
func toggled(name string, n int, change func(*cluster.Service)) (out Shape) {
	out.Name = name
	for i := range n {
		out.Services = append(out.Services, oddService(i, 1))
		out.Slices = append(out.Slices, oddSlices(i, 1, 3)...)
	}
	out.touch = func(i, round int) cluster.Event {
		s := *out.Services[i]
		switch {
		case round%2 == 1:
		case change == nil:
			return cluster.ServiceGone{Name: s.Name}
		default:
			s.Ports = append([]cluster.ServicePort(nil), s.Ports...)
			change(&s)
		}
		return cluster.ServiceSet{Service: &s}
	}
	return out
}

// numberless has slices that change to others with unusable ports: number 0 means none.
func numberless(name string, n int) Shape {
	out := toggled(name, n, nil)
	out.touch = func(i, round int) cluster.Event {
		sl := *out.Slices[i]
		sl.Ports = nil
		for p := range slicePorts {
			sl.Ports = append(sl.Ports, cluster.SlicePort{Name: fmt.Sprintf("p%d-%d", round, p), Protocol: cluster.TCP})
		}
		return cluster.SliceSet{Slice: &sl}
	}
	return out
}

// leadingTo gives all slices endpoints at these addresses.
func (s Shape) leadingTo(addrs []netip.Addr) Shape {
	var all []cluster.Endpoint
	for _, a := range addrs {
		all = append(all, cluster.Endpoint{Addr: a, Where: cluster.At("elsewhere", ""), Ready: true, Serving: true})
	}
	for _, sl := range s.Slices {
		sl.Endpoints = cluster.EndpointsOf(all...)
	}
	return s
}

// Touch returns an event that changes Service i of the shape, in each round to another state; the
// first two differ from the state of [Shape.Events].
func (s Shape) Touch(i, round int) cluster.Event {
	if s.touch != nil {
		return s.touch(i, round)
	}
	sl := *s.Slices[i*len(s.Slices)/len(s.Services)]
	if sl.Endpoints.Len() > 0 {
		sl.Endpoints = sl.Endpoints.Edited(func(i int, e *cluster.Endpoint) {
			if i == 0 {
				e.Addr = oddAddr(100, 127, round)
			}
		})
	} else {
		sl.Ports = append([]cluster.SlicePort(nil), sl.Ports...)
		sl.Ports[0].Port = uint16(9000 + round)
	}
	return cluster.SliceSet{Slice: &sl}
}
