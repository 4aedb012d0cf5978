package policy

import (
	"fmt"
	"net/netip"
	"slices"

	"kube-proxy/cluster"
	"kube-proxy/lb"
)

// reserve records the keys that the Service requests and must not have, with the reasons:
//
//   - the port of an API server at its address. The nodes would lose the API server, and never
//     receive the deletion of the Service (TN-66).
//   - a port of the proxy's servers, of the kubelet or of a health check NodePort at an address of
//     this machine, and the first two as NodePorts. The Service would answer the probes of the
//     kubelet and of load balancers in their place (TN-98).
//
// All are of TCP. The Service keeps its other ports at such an address.
func (s *Settings) reserve(v *cluster.View) {
	s.reserved = nil
	if v.Service == nil {
		return
	}
	for _, addrs := range [][]netip.Addr{v.Service.LoadBalancerIPs, v.Service.ExternalIPs} {
		for _, a := range addrs {
			s.reserveAt(v, a)
		}
	}
	if takesNodePorts(v.Service) {
		for _, p := range v.Service.Ports {
			if own := s.ownPort(p.NodePort); own != "" && p.Protocol == cluster.TCP {
				s.keep(lb.Key{Port: p.NodePort, Proto: lb.TCP},
					fmt.Sprintf("%d is %s port on this node", p.NodePort, own))
			}
		}
	}
}

// reserveAt does the same for one external or load-balancer address.
func (s *Settings) reserveAt(v *cluster.View, a netip.Addr) {
	if lb.FamilyOf(a) != s.Family {
		return
	}
	_, here := slices.BinarySearchFunc(v.Node.Own, a, netip.Addr.Compare)
	for _, p := range v.Service.Ports {
		if p.Protocol != cluster.TCP {
			continue
		}
		k := lb.Key{Addr: a, Port: p.Port, Proto: lb.TCP}
		own := s.ownPort(p.Port)
		switch {
		case slices.Contains(v.Node.APIServers, netip.AddrPortFrom(a, p.Port)):
			s.keep(k, fmt.Sprintf("is an API server's, whose port is %d", p.Port))
		case here && own != "":
			s.keep(k, fmt.Sprintf("is this node's, where port %d is %s", p.Port, own))
		case here && slices.Contains(v.HealthPorts, p.Port):
			s.keep(k, fmt.Sprintf("is this node's, where port %d is a health check NodePort", p.Port))
		}
	}
}

func (s *Settings) keep(k lb.Key, why string) {
	if s.reserved == nil {
		s.reserved = map[lb.Key]string{}
	}
	s.reserved[k] = why
}

// ownPort names the server of this machine that has the port; "" if none has it.
func (s *Settings) ownPort(port uint16) string {
	for _, own := range s.OwnPorts {
		if own.Port == port && port != 0 {
			return own.Of
		}
	}
	return ""
}

// withheld returns the refusal of the reserved keys at addresses of this use.
func (s *Settings) withheld(u use, addrs []netip.Addr) (found Refusal) {
	if len(s.reserved) == 0 {
		return found
	}
	lowest := map[netip.Addr]lb.Key{}
	for k := range s.reserved {
		if was, known := lowest[k.Addr]; !known || k.Port < was.Port {
			lowest[k.Addr] = k
		}
	}
	for _, a := range addrs {
		if k, is := lowest[a]; is && s.serves(a, u) {
			found.note(u, a, s.reserved[k])
		}
	}
	return found
}

// withheldNodePorts returns the refusal of reserved NodePorts.
func (s *Settings) withheldNodePorts() (found Refusal) {
	lowest := lb.Key{}
	for k := range s.reserved {
		if k.IsNodePort() {
			found.More++
			if found.More == 1 || k.Port < lowest.Port {
				lowest = k
			}
		}
	}
	found.Field, found.Why = nodePortField, s.reserved[lowest]
	return found
}
