package adversary_test

import (
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kube-proxy/cluster"
	"kube-proxy/source/convert"
	"kube-proxy/test/adversary"
)

// serviceObject is the API object of a Service.
func serviceObject(s *cluster.Service) *core.Service {
	o := &core.Service{ObjectMeta: metav1.ObjectMeta{Namespace: s.Name.Namespace, Name: s.Name.Name}}
	if s.Created != 0 {
		o.CreationTimestamp = metav1.NewTime(time.Unix(s.Created, 0))
	}
	spec := &o.Spec
	spec.Type = map[cluster.ServiceType]core.ServiceType{cluster.TypeClusterIP: core.ServiceTypeClusterIP,
		cluster.TypeNodePort:     core.ServiceTypeNodePort,
		cluster.TypeLoadBalancer: core.ServiceTypeLoadBalancer,
		cluster.TypeExternalName: core.ServiceTypeExternalName}[s.Type]
	for _, a := range s.ClusterIPs {
		family := core.IPv4Protocol
		if a.Is6() {
			family = core.IPv6Protocol
		}
		spec.ClusterIPs, spec.IPFamilies = append(spec.ClusterIPs, a.String()), append(spec.IPFamilies, family)
	}
	if len(spec.ClusterIPs) > 0 {
		spec.ClusterIP = spec.ClusterIPs[0]
	}
	for _, a := range s.ExternalIPs {
		spec.ExternalIPs = append(spec.ExternalIPs, a.String())
	}
	for _, a := range s.LoadBalancerIPs {
		o.Status.LoadBalancer.Ingress = append(o.Status.LoadBalancer.Ingress, core.LoadBalancerIngress{IP: a.String()})
	}
	for _, p := range s.SourceRanges {
		spec.LoadBalancerSourceRanges = append(spec.LoadBalancerSourceRanges, p.String())
	}
	policies := []string{"Cluster", "Local"}
	spec.ExternalTrafficPolicy = core.ServiceExternalTrafficPolicy(policies[s.ExternalPolicy])
	spec.InternalTrafficPolicy = new(core.ServiceInternalTrafficPolicy(policies[s.InternalPolicy]))
	if s.AffinitySeconds != 0 {
		spec.SessionAffinity = core.ServiceAffinityClientIP
		spec.SessionAffinityConfig = &core.SessionAffinityConfig{
			ClientIP: &core.ClientIPConfig{TimeoutSeconds: new(s.AffinitySeconds)}}
	}
	spec.HealthCheckNodePort = int32(s.HealthCheckNodePort)
	for _, p := range s.Ports {
		spec.Ports = append(spec.Ports, core.ServicePort{Name: p.Name, Protocol: protocolName(p.Protocol),
			Port: int32(p.Port), NodePort: int32(p.NodePort)})
	}
	return o
}

func protocolName(p cluster.Protocol) core.Protocol {
	return map[cluster.Protocol]core.Protocol{cluster.TCP: core.ProtocolTCP, cluster.UDP: core.ProtocolUDP,
		cluster.SCTP: core.ProtocolSCTP}[p]
}

// sliceObject is the API object of a slice. A port 0 has no number.
func sliceObject(s *cluster.Slice) *discovery.EndpointSlice {
	o := &discovery.EndpointSlice{AddressType: discovery.AddressTypeIPv4, ObjectMeta: metav1.ObjectMeta{
		Namespace: s.Name.Namespace, Name: s.Name.Name,
		Labels: map[string]string{discovery.LabelServiceName: s.Service.Name}}}
	if s.IPv6 {
		o.AddressType = discovery.AddressTypeIPv6
	}
	for _, p := range s.Ports {
		port := discovery.EndpointPort{Name: new(p.Name), Protocol: new(protocolName(p.Protocol))}
		if p.Port != 0 {
			port.Port = new(int32(p.Port))
		}
		o.Ports = append(o.Ports, port)
	}
	for e := range s.Endpoints.All() {
		out := discovery.Endpoint{Addresses: []string{e.Addr.String()}}
		if node := e.Place().Node; node != "" {
			out.NodeName = new(node)
		}
		out.Conditions = discovery.EndpointConditions{Ready: new(e.Ready), Serving: new(e.Serving),
			Terminating: new(e.Terminating)}
		o.Endpoints = append(o.Endpoints, out)
	}
	return o
}

// converted returns the event as a source sends it: converted from an API object. report receives
// its faults.
func converted(ev cluster.Event, report *convert.Reporter) cluster.Event {
	switch ev := ev.(type) {
	case cluster.ServiceSet:
		s, problems := convert.Service(serviceObject(ev.Service))
		report.Report("Service", ev.Service.Name, problems)
		return cluster.ServiceSet{Service: s}
	case cluster.SliceSet:
		sl, problems := convert.Slice(sliceObject(ev.Slice))
		report.Report("EndpointSlice", ev.Slice.Name, problems)
		return cluster.SliceSet{Slice: sl}
	}
	return ev
}

// The API objects of hostile workloads equal these, except for values that no API object can have.
func TestObjects(t *testing.T) {
	none := convert.NewReporter(nil)
	for _, shape := range append(adversary.Odd(100), adversary.Hostile(3, 100, victims())...) {
		for _, s := range shape.Services {
			if got := converted(cluster.ServiceSet{Service: s}, none).(cluster.ServiceSet).Service; !got.Equal(s) {
				t.Errorf("%s: %+v, want %+v", shape.Name, got, s)
			}
		}
		for _, sl := range shape.Slices {
			if got := converted(cluster.SliceSet{Slice: sl}, none).(cluster.SliceSet).Slice; !got.Equal(sl) {
				t.Errorf("%s: %+v, want %+v", shape.Name, got, sl)
			}
		}
	}
}
