package convert

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	core "k8s.io/api/core/v1"

	"kube-proxy/cluster"
)

// The labels of SV-01. Only their presence counts, not their value.
const (
	LabelProxyName = "service.kubernetes.io/service-proxy-name"
	LabelHeadless  = core.IsHeadlessService
)

// AnnotationPreserveDestination requests that pods see the Service's address as the destination
// (kubernetes/kubernetes#74825).
const AnnotationPreserveDestination = "preserve-destination"

// ServiceSelected reports whether a Service with these labels is for this proxy; if not, it is
// treated as nonexistent (SV-01). API servers evaluate the same rule: [ServiceSelector].
func ServiceSelected(labels map[string]string) bool {
	_, other := labels[LabelProxyName]
	_, headless := labels[LabelHeadless]
	return !other && !headless
}

// ServiceSelector is [ServiceSelected] as a label selector.
const ServiceSelector = "!" + LabelProxyName + ",!" + LabelHeadless

// The bounds of an affinity timeout in seconds, and its default (SV-18).
const (
	affinityDefault = 10800
	affinityMax     = 86400
)

// noHealthCheck is the effect of an invalid healthCheckNodePort.
const noHealthCheck = "load balancers cannot learn which nodes have endpoints"

// Service converts a Service. The result is nil if the Service is not for this proxy (SV-01).
// Faulty fields are left out and reported.
func Service(in *core.Service) (*cluster.Service, []Problem) {
	if !ServiceSelected(in.Labels) {
		return nil, nil
	}
	ps := problems{kind: "Service", name: cluster.Name{Namespace: in.Namespace, Name: in.Name}}
	out := &cluster.Service{
		Name: cluster.Name{Namespace: intern(in.Namespace), Name: strings.Clone(in.Name)},
		Type: serviceType(&ps, in.Spec.Type),
	}
	if !in.CreationTimestamp.IsZero() {
		out.Created = in.CreationTimestamp.Unix()
	}
	if out.Type == cluster.TypeExternalName {
		// SV-10: other fields have no effect, so their faults are not reported.
		return out, ps.done()
	}
	out.ClusterIPs = clusterIPs(&ps, &in.Spec)
	out.ExternalIPs = list(&ps, "spec.externalIPs", in.Spec.ExternalIPs, ParseAddr, "is not an IP address") // SV-13
	out.LoadBalancerIPs = loadBalancerIPs(&ps, in.Status.LoadBalancer.Ingress)
	out.SourceRanges = prefixes(&ps, "spec.loadBalancerSourceRanges", in.Spec.LoadBalancerSourceRanges)
	internal := core.ServiceInternalTrafficPolicyCluster
	if in.Spec.InternalTrafficPolicy != nil {
		internal = *in.Spec.InternalTrafficPolicy
	}
	out.InternalPolicy = policy(&ps, "spec.internalTrafficPolicy", string(internal))
	out.ExternalPolicy = policy(&ps, "spec.externalTrafficPolicy", string(in.Spec.ExternalTrafficPolicy))
	out.AffinitySeconds = affinity(&ps, &in.Spec)
	out.PreserveDestination = preserveDestination(&ps, in.Annotations)
	switch p := in.Spec.HealthCheckNodePort; {
	case p != 0:
		out.HealthCheckNodePort = portNumber(&ps, "spec.healthCheckNodePort", p, noHealthCheck)
	case out.Type == cluster.TypeLoadBalancer && out.ExternalPolicy == cluster.PolicyLocal: // SV-21
		ps.add(Problem{Field: "spec.healthCheckNodePort", What: "is missing, though externalTrafficPolicy is Local",
			Then: noHealthCheck})
	}
	out.Ports = servicePorts(&ps, in.Spec.Ports, out.Type)
	if len(in.Spec.Ports) == 0 && len(out.ClusterIPs) > 0 {
		ps.add(Problem{Field: "spec.ports", What: "is empty", Then: "the Service answers on no port"})
	}
	return out, ps.done()
}

func serviceType(ps *problems, t core.ServiceType) cluster.ServiceType {
	switch t {
	case core.ServiceTypeClusterIP, "":
		return cluster.TypeClusterIP
	case core.ServiceTypeNodePort:
		return cluster.TypeNodePort
	case core.ServiceTypeLoadBalancer:
		return cluster.TypeLoadBalancer
	case core.ServiceTypeExternalName:
		return cluster.TypeExternalName
	}
	ps.add(Problem{Field: "spec.type", Value: string(t), Refused: true,
		What: "is not one of ClusterIP, NodePort, LoadBalancer, ExternalName", Then: "it counts as ClusterIP"})
	return cluster.TypeClusterIP
}

// clusterIPs picks at most one address of each family (SV-11): ipFamilies has the family of the
// address with the same index; without ipFamilies only clusterIP counts.
func clusterIPs(ps *problems, spec *core.ServiceSpec) []netip.Addr {
	ips, field := spec.ClusterIPs, "spec.clusterIPs[%d]"
	if len(ips) == 0 || len(spec.IPFamilies) == 0 && spec.ClusterIP != "" {
		ips, field = []string{spec.ClusterIP}, "spec.clusterIP"
	}
	if len(ips) == 0 || ips[0] == "" || ips[0] == core.ClusterIPNone {
		return nil
	}
	if len(spec.IPFamilies) == 0 {
		ips = ips[:1]
	}
	out := make([]netip.Addr, 0, min(len(ips), 2))
	for i, ip := range ips {
		path := field
		if strings.Contains(field, "%") {
			path = fmt.Sprintf(field, i)
		}
		a, ok := ParseAddr(ip)
		if !ok {
			ps.add(Problem{Field: path, Value: ip, Refused: true,
				What: "is not an IP address", Then: "the Service has no address of that family"})
			continue
		}
		if len(spec.IPFamilies) > 0 {
			if i >= len(spec.IPFamilies) {
				ps.add(Problem{Field: path, Value: ip, Refused: true,
					What: "has no entry in spec.ipFamilies", Then: "it is ignored"})
				continue
			}
			if want := spec.IPFamilies[i]; string(want) != family(a.Is6()) {
				ps.add(Problem{Field: path, Value: ip, Refused: true, Reason: ReasonIncorrectIPVersion,
					What: fmt.Sprintf("is not an address of the family %s that spec.ipFamilies[%d] asks for", want, i),
					Then: "it is ignored"})
				continue
			}
		}
		if slices.ContainsFunc(out, func(o netip.Addr) bool { return o.Is6() == a.Is6() }) {
			ps.add(Problem{Field: path, Value: ip, Refused: true,
				What: "is a second " + family(a.Is6()) + " address", Then: "it is ignored"})
			continue
		}
		out = append(out, a)
	}
	return exact(out)
}

// list parses the texts of a field; repeated values count once.
func list[T comparable](ps *problems, field string, in []string, parse func(string) (T, bool), invalid string) []T {
	if len(in) == 0 {
		return nil
	}
	out := distinct[T]{list: make([]T, 0, len(in))}
	for i, s := range in {
		v, ok := parse(s)
		if !ok {
			ps.add(Problem{Field: fmt.Sprintf("%s[%d]", field, i), Value: s, What: invalid, Then: "it is ignored"})
			continue
		}
		out.add(v)
	}
	return exact(out.list)
}

// loadBalancerIPs returns the addresses that the load balancer leaves in the packet (SV-14): those
// of ipMode VIP, the default. Entries with only a host name do not concern the proxy.
func loadBalancerIPs(ps *problems, in []core.LoadBalancerIngress) []netip.Addr {
	if len(in) == 0 {
		return nil
	}
	out := distinct[netip.Addr]{list: make([]netip.Addr, 0, len(in))}
	for i := range in {
		ing := &in[i]
		if ing.IP == "" || ing.IPMode != nil && *ing.IPMode != core.LoadBalancerIPModeVIP {
			continue
		}
		a, ok := ParseAddr(ing.IP)
		if !ok {
			ps.add(Problem{Field: fmt.Sprintf("status.loadBalancer.ingress[%d].ip", i), Value: ing.IP,
				What: "is not an IP address", Then: "it is ignored"})
			continue
		}
		out.add(a)
	}
	return exact(out.list)
}

// prefixes parses CIDRs, blanks around them trimmed and host bits cleared (SV-15).
func prefixes(ps *problems, field string, in []string) []netip.Prefix {
	return list(ps, field, in, parsePrefix, "is not a CIDR such as 192.0.2.0/24")
}

func policy(ps *problems, field, value string) cluster.TrafficPolicy {
	switch value {
	case "Cluster", "":
		return cluster.PolicyCluster
	case "Local":
		return cluster.PolicyLocal
	}
	ps.add(Problem{Field: field, Value: value, Refused: true,
		What: "is neither Cluster nor Local", Then: "it counts as Cluster"})
	return cluster.PolicyCluster
}

// affinity returns the affinity timeout in seconds, 0 without affinity (SV-18).
func affinity(ps *problems, spec *core.ServiceSpec) int32 {
	switch spec.SessionAffinity {
	case core.ServiceAffinityNone, "":
		return 0
	case core.ServiceAffinityClientIP:
	default:
		ps.add(Problem{Field: "spec.sessionAffinity", Value: string(spec.SessionAffinity), Refused: true,
			What: "is neither None nor ClientIP", Then: "it counts as None"})
		return 0
	}
	if c := spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		t, use := *c.ClientIP.TimeoutSeconds, int32(affinityDefault)
		switch {
		case t < 1:
		case t > affinityMax:
			use = affinityMax
		default:
			return t
		}
		ps.add(Problem{Field: "spec.sessionAffinityConfig.clientIP.timeoutSeconds", Value: strconv.Itoa(int(t)),
			What: "is not in 1..86400", Then: fmt.Sprintf("%d is used", use)})
		return use
	}
	return affinityDefault
}

// preserveDestination reads the annotation of that name: true or false, in any case.
func preserveDestination(ps *problems, annotations map[string]string) bool {
	switch v := annotations[AnnotationPreserveDestination]; {
	case strings.EqualFold(v, "true"):
		return true
	case v != "" && !strings.EqualFold(v, "false"):
		// it may have 256 KiB
		ps.add(Problem{Field: "metadata.annotations[" + AnnotationPreserveDestination + "]", Value: v[:min(len(v), 64)],
			What: "is neither true nor false", Then: "it counts as false"})
	}
	return false
}

// portNumber checks that a port is in 1..65535; otherwise it records a problem, and returns 0.
func portNumber(ps *problems, field string, port int32, then string) uint16 {
	if port >= 1 && port <= 65535 {
		return uint16(port)
	}
	ps.add(Problem{Field: field, Value: strconv.Itoa(int(port)), Refused: true, What: "is not in 1..65535", Then: then})
	return 0
}

// protocol reads a protocol; "" is TCP, as in the API.
func protocol(ps *problems, field string, p core.Protocol) (cluster.Protocol, bool) {
	switch p {
	case core.ProtocolTCP, "":
		return cluster.TCP, true
	case core.ProtocolUDP:
		return cluster.UDP, true
	case core.ProtocolSCTP:
		return cluster.SCTP, true
	}
	ps.add(Problem{Field: field, Value: string(p), Refused: true,
		What: "is not one of TCP, UDP, SCTP", Then: "the port is ignored"})
	return 0, false
}

// servicePorts converts spec.ports. Of two ports with one name, or one number and protocol, the
// first counts (SV-12). Node ports count for the types that have them (SV-17).
func servicePorts(ps *problems, in []core.ServicePort, t cluster.ServiceType) []cluster.ServicePort {
	if len(in) == 0 {
		return nil
	}
	out := make([]cluster.ServicePort, 0, len(in))
	seen := firsts{}
	for i := range in {
		p, path := &in[i], func(f string) string { return fmt.Sprintf("spec.ports[%d]%s", i, f) }
		proto, ok := protocol(ps, path(".protocol"), p.Protocol)
		if !ok {
			continue
		}
		number := portNumber(ps, path(".port"), p.Port, "the port is ignored")
		if number == 0 {
			continue
		}
		if first, dup := seen.add(i, firstKey{"port", proto, strconv.Itoa(int(number))}); dup {
			ps.add(Problem{Field: path(".port"), Value: strconv.Itoa(int(number)), Refused: true,
				What: fmt.Sprintf("and its protocol are already in spec.ports[%d]", first),
				Then: "this port is ignored"})
			continue
		}
		if first, dup := seen.add(i, firstKey{"name", 0, p.Name}); dup {
			ps.add(Problem{Field: path(".name"), Value: p.Name, Refused: true,
				What: fmt.Sprintf("is already the name of spec.ports[%d]", first), Then: "this port is ignored"})
			continue
		}
		port := cluster.ServicePort{Name: intern(p.Name), Protocol: proto, Port: number}
		if p.NodePort != 0 && (t == cluster.TypeNodePort || t == cluster.TypeLoadBalancer) {
			port.NodePort = portNumber(ps, path(".nodePort"), p.NodePort, "the port has no node port")
			if first, dup := seen.add(i, firstKey{"nodePort", proto, strconv.Itoa(int(p.NodePort))}); dup {
				ps.add(Problem{Field: path(".nodePort"), Value: strconv.Itoa(int(p.NodePort)), Refused: true,
					What: fmt.Sprintf("is already the node port of spec.ports[%d]", first),
					Then: "this port has no node port"})
				port.NodePort = 0
			}
		}
		out = append(out, port)
	}
	return exact(out)
}

// firsts maps a value to the index of its first occurrence.
type firsts map[firstKey]int

type firstKey struct {
	what  string
	proto cluster.Protocol
	value string
}

func (f firsts) add(i int, k firstKey) (first int, dup bool) {
	first, dup = f[k]
	if !dup {
		f[k] = i
	}
	return first, dup
}

// distinct is a list without repetitions.
type distinct[T comparable] struct {
	list []T
	seen map[T]bool // nil while the list is short
}

func (d *distinct[T]) add(x T) {
	if d.seen == nil {
		if slices.Contains(d.list, x) {
			return
		}
	} else if d.seen[x] {
		return
	}
	d.list = append(d.list, x)
	switch {
	case d.seen != nil:
		d.seen[x] = true
	case len(d.list) > 16:
		d.seen = make(map[T]bool, cap(d.list))
		for _, x := range d.list {
			d.seen[x] = true
		}
	}
}

// exact returns s with no spare capacity, and nil for nothing.
func exact[T any](s []T) []T {
	switch {
	case len(s) == 0:
		return nil
	case len(s) < cap(s):
		return append(make([]T, 0, len(s)), s...)
	}
	return s
}
