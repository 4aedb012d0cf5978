package policy

import (
	"fmt"
	"net/netip"

	"kube-proxy/cluster"
	"kube-proxy/lb"
)

// use is the purpose of an address.
type use uint8

const (
	asClusterIP use = iota
	asLoadBalancerIP
	asExternalIP
	asEndpoint
)

var useFields = [...]string{asClusterIP: "spec.clusterIPs", asLoadBalancerIP: "status.loadBalancer.ingress",
	asExternalIP: "spec.externalIPs", asEndpoint: "endpoints"}

const nodePortField = "spec.ports[].nodePort"

// serves reports whether a is served as an address of the family and this use.
func (s *Settings) serves(a netip.Addr, u use) bool {
	return lb.FamilyOf(a) == s.Family && s.refuses(a, u) == ""
}

// served returns the served ones of the addresses, nil without any.
func (s *Settings) served(addrs []netip.Addr, u use) []netip.Addr {
	var out []netip.Addr
	for _, a := range addrs {
		if s.serves(a, u) {
			out = append(out, a)
		}
	}
	return out
}

// outerIPs returns the Service's served addresses outside the service network, within the limits.
func (s *Settings) outerIPs(svc *cluster.Service) (loadBalancer, external []netip.Addr) {
	loadBalancer = s.served(svc.LoadBalancerIPs, asLoadBalancerIP)
	if !s.NoExternalIPs {
		external = s.served(svc.ExternalIPs, asExternalIP)
	}
	return loadBalancer, external
}

// clusterIP returns the Service's cluster IP in the family, the zero Addr if none is served.
func (s *Settings) clusterIP(svc *cluster.Service) netip.Addr {
	for _, a := range svc.ClusterIPs {
		if s.serves(a, asClusterIP) {
			return a
		}
	}
	return netip.Addr{}
}

// refuses returns the reason why a is not served, "" if it is served (SV-26).
func (s *Settings) refuses(a netip.Addr, u use) string {
	if why := special(a, u); why != "" {
		return why
	}
	if u == asExternalIP && len(s.ExternalIPCIDRs) > 0 && !lb.Within(s.ExternalIPCIDRs, a) {
		return "is in none of the external networks that are served"
	}
	return ""
}

// special returns the reason why a cannot be a unicast address of the network: a Service with such
// an address would take the traffic of a node itself, or of others on its link. Two kinds of
// addresses depend on the use. Clusters use 240.0.0.0/4 for pod and service networks, and may use
// IPv4 link-local addresses for a service network: the administrator chose those ranges. But the
// author of a Service does not own such an external address, for example 169.254.169.254 of a
// cloud.
func special(a netip.Addr, u use) string {
	if a.Is4() {
		switch b := a.As4(); {
		case b[0] == 0:
			return "is of 0.0.0.0/8, which means this host"
		case b[0] == 127:
			return "is a loopback address"
		case b[0] == 169 && b[1] == 254 && u != asClusterIP:
			return "is a link-local address"
		case b[0] >= 224 && b[0] < 240:
			return "is a multicast address"
		case b == [4]byte{255, 255, 255, 255}:
			return "is the broadcast address"
		case b[0] >= 240 && (u == asLoadBalancerIP || u == asExternalIP):
			return "is of 240.0.0.0/4, which is reserved"
		}
		return ""
	}
	switch {
	case a.Zone() != "":
		return "has a zone"
	case a.IsUnspecified():
		return "is the unspecified address"
	case a.IsLoopback():
		return "is a loopback address"
	case a.IsLinkLocalUnicast():
		return "is a link-local address"
	case a.IsMulticast():
		return "is a multicast address"
	case a.Is4In6(), compatible.Contains(a):
		return "is an IPv4 address in IPv6 form, which no packet carries"
	}
	return ""
}

// compatible holds the IPv4-compatible addresses, deprecated long ago.
var compatible = netip.MustParsePrefix("::/96")

// Refusal describes addresses in one field of a Service or of its slices that are not served.
type Refusal struct {
	// Field is the field with the addresses.
	Field string
	// Addr is the lowest refused address, or the first of too many; Why is the reason. Addr is not
	// valid for NodePorts.
	Addr netip.Addr
	Why  string
	// More is the number of other addresses.
	More int
}

// String returns the refusal as part of a sentence: "spec.externalIPs 127.0.0.1 is a loopback
// address, and 3 others".
func (r Refusal) String() string {
	s := r.Subject() + " " + r.Why
	switch r.More {
	case 0:
		return s
	case 1:
		return s + ", and 1 other"
	}
	return s + fmt.Sprintf(", and %d others", r.More)
}

// Subject returns the refused field and value: "spec.externalIPs 127.0.0.1".
func (r Refusal) Subject() string {
	if !r.Addr.IsValid() {
		return r.Field
	}
	return r.Field + " " + r.Addr.String()
}

// Refused returns the addresses of the Service that [Resolve] leaves out in the family of s: at
// most one Refusal for each field and cause: the address, its port, and the number of addresses. It
// returns nil if all are served, or if the Service has none.
func Refused(v cluster.View, s Settings) []Refusal {
	if v.Service == nil || v.Service.Type == cluster.TypeExternalName {
		return nil
	}
	s.reserve(&v)
	var out []Refusal
	note := func(found Refusal) {
		if found.Why != "" {
			found.More--
			out = append(out, found)
		}
	}
	note(s.refused(asClusterIP, v.Service.ClusterIPs))
	if !s.clusterIP(v.Service).IsValid() {
		return out
	}
	note(s.refused(asLoadBalancerIP, v.Service.LoadBalancerIPs))
	note(s.withheld(asLoadBalancerIP, v.Service.LoadBalancerIPs))
	if !s.NoExternalIPs {
		note(s.refused(asExternalIP, v.Service.ExternalIPs))
		note(s.withheld(asExternalIP, v.Service.ExternalIPs))
	}
	note(s.withheldNodePorts())
	found := Refusal{}
	for _, sl := range v.Slices {
		for e := range sl.Endpoints.All() {
			found.add(&s, asEndpoint, e.Addr)
		}
	}
	note(found)

	ports := len(v.Service.Ports)
	loadBalancer, external := s.outerIPs(v.Service)
	fits := s.fitting(&v, len(loadBalancer), len(external))
	if fits.clusterIP == 0 { // and nothing else
		note(Refusal{Field: useFields[asClusterIP], Addr: s.clusterIP(v.Service), Why: s.overBudget(), More: 1})
		return out
	}
	if takesNodePorts(v.Service) && fits.nodePorts == 0 {
		note(Refusal{Field: nodePortField, Why: s.overBudget(), More: 1})
	}
	note(s.tooMany(asLoadBalancerIP, loadBalancer, fits.loadBalancer, fits, ports))
	note(s.tooMany(asExternalIP, external, fits.external, fits, ports))
	_, left := s.bounded(&v)
	note(left)
	return out
}

func (s *Settings) refused(u use, addrs []netip.Addr) Refusal {
	var found Refusal
	for _, a := range addrs {
		found.add(s, u, a)
	}
	return found
}

// add records an address; until [Refused] ends, More counts all.
func (r *Refusal) add(s *Settings, u use, a netip.Addr) {
	if lb.FamilyOf(a) != s.Family {
		return
	}
	why := s.refuses(a, u)
	if why != "" {
		r.note(u, a, why)
	}
}

// note records a refused address.
func (r *Refusal) note(u use, a netip.Addr, why string) {
	r.More++
	if r.Why == "" || a.Less(r.Addr) {
		r.Field, r.Addr, r.Why = useFields[u], a, why
	}
}
