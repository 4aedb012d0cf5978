package convert

import (
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"
	"unsafe"

	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	networking "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kube-proxy/cluster"
)

func addrList(s ...string) (out []netip.Addr) {
	for _, a := range s {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

// base is a Service without a fault; edit makes a case of it.
func base(edit func(*core.Service)) *core.Service {
	s := &core.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", CreationTimestamp: metav1.Unix(1700000000, 0)},
		Spec: core.ServiceSpec{
			Type: core.ServiceTypeLoadBalancer, ClusterIP: "10.96.0.7", ClusterIPs: []string{"10.96.0.7", "fd00::7"},
			IPFamilies: []core.IPFamily{core.IPv4Protocol, core.IPv6Protocol},
			Ports:      []core.ServicePort{{Name: "http", Protocol: core.ProtocolTCP, Port: 80, NodePort: 30080}},
		},
	}
	edit(s)
	return s
}

// Each case shows one field of the result, and the reported problems.
func TestService(t *testing.T) {
	proxy, vip := core.LoadBalancerIPModeProxy, core.LoadBalancerIPModeVIP
	for _, c := range []struct {
		name     string // row and subject
		edit     func(*core.Service)
		get      func(*cluster.Service) any
		want     any
		reported string // part of the only problem, behind refused if an API server refuses it
	}{
		{"created", func(s *core.Service) {}, func(s *cluster.Service) any { return s.Created }, int64(1700000000), ""},
		{"no created", func(s *core.Service) { s.CreationTimestamp = metav1.Time{} }, func(s *cluster.Service) any {
			return s.Created
		}, int64(0), ""},
		{"SV-10 ExternalName with a stale clusterIP", func(s *core.Service) {
			s.Spec.Type = "ExternalName"
			s.Spec.Ports = nil
		},
			func(s *cluster.Service) any { return fmt.Sprint(s.Type, s.ClusterIPs) }, "3 []", ""},
		{"SV-10 None", func(s *core.Service) {
			s.Spec.ClusterIP, s.Spec.ClusterIPs = "None", []string{"None"}
		}, clusterIPsOf, []netip.Addr(nil), ""},
		{"SV-10 empty", func(s *core.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "", nil }, clusterIPsOf,
			[]netip.Addr(nil), ""},
		{"SV-11 dual stack", func(s *core.Service) {}, clusterIPsOf, addrList("10.96.0.7", "fd00::7"), ""},
		{"SV-11 IPv6 first", func(s *core.Service) {
			s.Spec.ClusterIP, s.Spec.ClusterIPs, s.Spec.IPFamilies = "fd00::7", []string{"fd00::7", "10.96.0.7"},
				[]core.IPFamily{"IPv6", "IPv4"}
		}, clusterIPsOf, addrList("fd00::7", "10.96.0.7"), ""},
		{"SV-11 no ipFamilies: clusterIP alone", func(s *core.Service) { s.Spec.IPFamilies = nil }, clusterIPsOf,
			addrList("10.96.0.7"), ""},
		{"SV-11 no clusterIPs", func(s *core.Service) { s.Spec.ClusterIPs, s.Spec.IPFamilies = nil, nil }, clusterIPsOf,
			addrList("10.96.0.7"), ""},
		{"SV-11 wrong family", func(s *core.Service) { s.Spec.ClusterIPs = []string{"10.96.0.7", "10.96.0.8"} },
			clusterIPsOf, addrList("10.96.0.7"),
			refused + `Service shop/web: spec.clusterIPs[1]: "10.96.0.8" is not an address of the family IPv6`},
		{"SV-11 unparsable", func(s *core.Service) { s.Spec.ClusterIPs = []string{"ten", "fd00::7"} }, clusterIPsOf,
			addrList("fd00::7"),
			refused + `spec.clusterIPs[0]: "ten" is not an IP address`},
		{"SV-11 no clusterIPs, but ipFamilies", func(s *core.Service) { s.Spec.ClusterIPs = nil }, clusterIPsOf,
			addrList("10.96.0.7"), ""},
		{"SV-11 no ipFamilies and no clusterIP", func(s *core.Service) {
			s.Spec.ClusterIP, s.Spec.IPFamilies = "", nil
		}, clusterIPsOf, addrList("10.96.0.7"), ""},
		{"SV-11 more addresses than families", func(s *core.Service) { s.Spec.IPFamilies = s.Spec.IPFamilies[:1] },
			clusterIPsOf, addrList("10.96.0.7"),
			refused + `spec.clusterIPs[1]: "fd00::7" has no entry in spec.ipFamilies; it is ignored`},
		{"SV-11 one family twice", func(s *core.Service) {
			s.Spec.ClusterIPs, s.Spec.IPFamilies = []string{"10.96.0.7", "10.96.0.8"}, []core.IPFamily{"IPv4", "IPv4"}
		}, clusterIPsOf, addrList("10.96.0.7"),
			refused + `spec.clusterIPs[1]: "10.96.0.8" is a second IPv4 address; it is ignored`},
		{"leading zeros are decimal", func(s *core.Service) {
			s.Spec.ClusterIPs = []string{"010.096.000.07", "fd00::7"}
		}, clusterIPsOf, addrList("10.96.0.7", "fd00::7"), ""},
		{"SV-12 TCP by default, same number by protocol", func(s *core.Service) {
			s.Spec.Ports = []core.ServicePort{{Name: "a", Port: 53}, {Name: "b", Port: 53, Protocol: "UDP"},
				{Name: "c", Port: 53, Protocol: "SCTP"}}
		}, portsOf, "[{a 6 53 0} {b 17 53 0} {c 132 53 0}]", ""},
		{"SV-12 same port twice", func(s *core.Service) {
			s.Spec.Ports = append(s.Spec.Ports, core.ServicePort{Name: "again", Port: 80})
		}, portsOf, "[{http 6 80 30080}]",
			refused + `spec.ports[1].port: "80" and its protocol are already in spec.ports[0]`},
		{"SV-12 same name twice", func(s *core.Service) {
			s.Spec.Ports = append(s.Spec.Ports, core.ServicePort{Name: "http", Port: 81})
		}, portsOf, "[{http 6 80 30080}]", refused + `spec.ports[1].name: "http" is already the name of spec.ports[0]`},
		{"port 1", func(s *core.Service) { s.Spec.Ports[0].Port = 1 }, portsOf, "[{http 6 1 30080}]", ""},
		{"port 65535", func(s *core.Service) { s.Spec.Ports[0].Port = 65535 }, portsOf, "[{http 6 65535 30080}]", ""},
		{"port 65536", func(s *core.Service) { s.Spec.Ports[0].Port = 65536 }, portsOf, "[]",
			refused + `spec.ports[0].port: "65536" is not in 1..65535`},
		{"port -1", func(s *core.Service) { s.Spec.Ports[0].Port = -1 }, portsOf, "[]",
			refused + `spec.ports[0].port: "-1" is not in 1..65535`},
		{"unknown protocol", func(s *core.Service) { s.Spec.Ports[0].Protocol = "tcp" }, portsOf, "[]",
			refused + `spec.ports[0].protocol: "tcp" is not one of TCP, UDP, SCTP`},
		{"no ports", func(s *core.Service) { s.Spec.Ports = nil }, portsOf, "[]", "spec.ports: is empty"},
		{"no ports and no address", func(s *core.Service) {
			s.Spec.ClusterIP, s.Spec.ClusterIPs, s.Spec.Ports = "None", []string{"None"}, nil
		}, portsOf, "[]", ""},
		{"SV-13", func(s *core.Service) { s.Spec.ExternalIPs = []string{"192.0.2.1", "x", "2001:db8::1", "192.0.2.1"} },
			func(s *cluster.Service) any { return s.ExternalIPs }, addrList("192.0.2.1", "2001:db8::1"),
			`spec.externalIPs[1]: "x" is not an IP address`},
		{"SV-14", func(s *core.Service) {
			s.Status.LoadBalancer.Ingress = []core.LoadBalancerIngress{{IP: "192.0.2.1"},
				{IP: "192.0.2.2", IPMode: &vip}, {IP: "192.0.2.3", IPMode: &proxy}, {Hostname: "lb.example"}}
		}, func(s *cluster.Service) any { return s.LoadBalancerIPs }, addrList("192.0.2.1", "192.0.2.2"), ""},
		{"SV-14 unparsable", func(s *core.Service) {
			s.Status.LoadBalancer.Ingress = []core.LoadBalancerIngress{{IP: "x"}, {IP: "192.0.2.1"}}
		}, func(s *cluster.Service) any { return s.LoadBalancerIPs }, addrList("192.0.2.1"),
			`status.loadBalancer.ingress[0].ip: "x" is not an IP address`},
		{"SV-14 whatever the type", func(s *core.Service) {
			s.Spec.Type = "ClusterIP"
			s.Status.LoadBalancer.Ingress = []core.LoadBalancerIngress{{IP: "192.0.2.1"}}
		}, func(s *cluster.Service) any { return s.LoadBalancerIPs }, addrList("192.0.2.1"), ""},
		{"SV-15 blanks, host bits, rubbish", func(s *core.Service) {
			s.Spec.LoadBalancerSourceRanges = []string{" 192.0.2.7/24 ", "2001:db8::/32", "192.0.2.1",
				"::ffff:192.0.2.0/120"}
		}, func(s *cluster.Service) any {
			return fmt.Sprint(s.SourceRanges)
		}, "[192.0.2.0/24 2001:db8::/32]", `spec.loadBalancerSourceRanges[2]: "192.0.2.1" is not a CIDR`},
		{"SV-17 not for ClusterIP", func(s *core.Service) { s.Spec.Type = "" }, portsOf, "[{http 6 80 0}]", ""},
		{"SV-17 out of range", func(s *core.Service) {
			s.Spec.Ports[0].NodePort = 70000
		}, portsOf, "[{http 6 80 0}]", refused + `spec.ports[0].nodePort: "70000" is not in 1..65535`},
		{"SV-17 twice", func(s *core.Service) {
			s.Spec.Ports = append(s.Spec.Ports, core.ServicePort{Name: "b", Port: 81, NodePort: 30080})
		}, portsOf, "[{http 6 80 30080} {b 6 81 0}]",
			refused + `spec.ports[1].nodePort: "30080" is already the node port of spec.ports[0]`},
		{"SV-18 default", func(s *core.Service) { s.Spec.SessionAffinity = "ClientIP" }, affinityOf, int32(10800), ""},
		{"SV-18 set", func(s *core.Service) {
			s.Spec.SessionAffinity = "ClientIP"
			s.Spec.SessionAffinityConfig = timeout(86400)
		}, affinityOf, int32(86400), ""},
		{"SV-18 too long", func(s *core.Service) {
			s.Spec.SessionAffinity = "ClientIP"
			s.Spec.SessionAffinityConfig = timeout(86401)
		}, affinityOf, int32(86400), `timeoutSeconds: "86401" is not in 1..86400; 86400 is used`},
		{"SV-18 zero", func(s *core.Service) {
			s.Spec.SessionAffinity = "ClientIP"
			s.Spec.SessionAffinityConfig = timeout(0)
		}, affinityOf, int32(10800), `timeoutSeconds: "0" is not in 1..86400; 10800 is used`},
		{"SV-18 shortest", func(s *core.Service) {
			s.Spec.SessionAffinity = "ClientIP"
			s.Spec.SessionAffinityConfig = timeout(1)
		}, affinityOf, int32(1), ""},
		{"SV-18 unknown", func(s *core.Service) { s.Spec.SessionAffinity = "Cookie" }, affinityOf, int32(0),
			refused + `spec.sessionAffinity: "Cookie" is neither None nor ClientIP; it counts as None`},
		{"SV-18 none", func(s *core.Service) {
			s.Spec.SessionAffinity = "None"
			s.Spec.SessionAffinityConfig = timeout(5)
		}, affinityOf, int32(0), ""},
		{"SV-19", func(s *core.Service) {
			local := core.ServiceInternalTrafficPolicyLocal
			s.Spec.InternalTrafficPolicy, s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort = &local, "Local",
				32000
		}, func(s *cluster.Service) any {
			return [2]cluster.TrafficPolicy{s.InternalPolicy, s.ExternalPolicy}
		}, [2]cluster.TrafficPolicy{1, 1}, ""},
		{"SV-19 unknown", func(s *core.Service) { s.Spec.ExternalTrafficPolicy = "Near" },
			func(s *cluster.Service) any { return s.ExternalPolicy }, cluster.PolicyCluster,
			refused + `spec.externalTrafficPolicy: "Near" is neither Cluster nor Local`},
		{"SV-21", func(s *core.Service) {
			s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort = "Local", 32000
		}, healthCheckOf, uint16(32000), ""},
		{"SV-21 zero", func(s *core.Service) { s.Spec.ExternalTrafficPolicy = "Local" }, healthCheckOf, uint16(0),
			"spec.healthCheckNodePort: is missing, though externalTrafficPolicy is Local; load balancers " +
				"cannot learn which nodes have endpoints"},
		{"SV-21 zero in a NodePort Service", func(s *core.Service) {
			s.Spec.Type, s.Spec.ExternalTrafficPolicy = "NodePort", "Local"
		}, healthCheckOf, uint16(0), ""},
		{"SV-21 zero with the policy Cluster", func(s *core.Service) { s.Spec.ExternalTrafficPolicy = "Cluster" },
			healthCheckOf, uint16(0), ""},
		{"SV-21 out of range", func(s *core.Service) {
			s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort = "Local", -1
		}, healthCheckOf, uint16(0),
			refused + `spec.healthCheckNodePort: "-1" is not in 1..65535`},
		{"preserve-destination", preserve("true"), preserveOf, true, ""},
		{"preserve-destination in capitals", preserve("TRUE"), preserveOf, true, ""},
		{"preserve-destination off", preserve("False"), preserveOf, false, ""},
		{"preserve-destination of nothing", preserve(""), preserveOf, false, ""},
		{"preserve-destination unknown", preserve("yes"), preserveOf, false,
			`Service shop/web: metadata.annotations[preserve-destination]: "yes" is neither true nor false; it ` +
				`counts as false`},
		{"preserve-destination too long", preserve(strings.Repeat("y", 1<<18)), preserveOf, false,
			`preserve-destination]: "` + strings.Repeat("y", 64) + `" is neither true nor false`},
		{"unknown type", func(s *core.Service) { s.Spec.Type = "Magic"; s.Spec.Ports[0].NodePort = 0 },
			func(s *cluster.Service) any { return s.Type }, cluster.TypeClusterIP, refused + `spec.type: "Magic"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, reported := Service(base(c.edit))
			if got == nil {
				t.Fatal("not selected")
			}
			if x := c.get(got); !reflect.DeepEqual(x, c.want) {
				t.Errorf("got %v, want %v", x, c.want)
			}
			checkReported(t, reported, c.reported)
		})
	}
}

// refused marks problems for which an API server rejects an object.
const refused = "refused: "

func checkReported(t *testing.T, reported []Problem, want string) {
	t.Helper()
	want, rejected := strings.CutPrefix(want, refused)
	switch {
	case want == "" && len(reported) > 0:
		t.Errorf("told %v", reported)
	case want != "" && (len(reported) != 1 || !strings.Contains(reported[0].String(), want)):
		t.Errorf("told %v, want %q", reported, want)
	case want != "" && reported[0].Refused != rejected:
		t.Errorf("an API server refuses it: %t, want %t", reported[0].Refused, rejected)
	}
}

func clusterIPsOf(s *cluster.Service) any  { return s.ClusterIPs }
func portsOf(s *cluster.Service) any       { return fmt.Sprint(s.Ports) }
func affinityOf(s *cluster.Service) any    { return s.AffinitySeconds }
func healthCheckOf(s *cluster.Service) any { return s.HealthCheckNodePort }

func preserveOf(s *cluster.Service) any { return s.PreserveDestination }

func preserve(value string) func(*core.Service) {
	return func(s *core.Service) { s.Annotations = map[string]string{AnnotationPreserveDestination: value} }
}

func timeout(n int32) *core.SessionAffinityConfig {
	return &core.SessionAffinityConfig{ClientIP: &core.ClientIPConfig{TimeoutSeconds: &n}}
}

// SV-01: presence of a label counts, whatever its value.
func TestSelected(t *testing.T) {
	for _, c := range []struct {
		label          string
		service, slice bool
	}{
		{"app", true, true}, {LabelProxyName, false, true}, {LabelHeadless, false, false},
	} {
		labels := map[string]string{c.label: "", discovery.LabelServiceName: "web"}
		svc, _ := Service(base(func(s *core.Service) { s.Labels = labels }))
		sl, reported := Slice(&discovery.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "s", Labels: labels},
			AddressType: "IPv4"})
		if (svc != nil) != c.service || (sl != nil) != c.slice || len(reported) > 0 {
			t.Errorf("%s: service %v, slice %v, told %v", c.label, svc != nil, sl != nil, reported)
		}
	}
}

func baseSlice(edit func(*discovery.EndpointSlice)) *discovery.EndpointSlice {
	s := &discovery.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-x7k2p",
			Labels:      map[string]string{discovery.LabelServiceName: "web"},
			Annotations: map[string]string{core.EndpointsLastChangeTriggerTime: "2026-11-21T12:00:00.000000001Z"}},
		AddressType: discovery.AddressTypeIPv4,
		Ports:       []discovery.EndpointPort{{Name: new("http"), Port: new(int32(8080))}},
		Endpoints:   []discovery.Endpoint{{Addresses: []string{"10.1.0.5", "10.1.0.6"}, NodeName: new("n1")}},
	}
	edit(s)
	return s
}

func TestSlice(t *testing.T) {
	want := &cluster.Slice{
		Name: cluster.Name{Namespace: "shop", Name: "web-x7k2p"}, Service: cluster.Name{Namespace: "shop", Name: "web"},
		Ports:  []cluster.SlicePort{{Name: "http", Protocol: cluster.TCP, Port: 8080}},
		Unused: []netip.Addr{netip.MustParseAddr("10.1.0.6")},
		Endpoints: cluster.EndpointsOf(cluster.Endpoint{Addr: netip.MustParseAddr("10.1.0.5"),
			Where: cluster.At("n1", ""), Ready: true, Serving: true}),
		Trigger: time.Date(2026, 11, 21, 12, 0, 0, 1, time.UTC).UnixNano(),
	}
	for _, c := range []struct {
		name     string
		edit     func(in *discovery.EndpointSlice, want *cluster.Slice)
		reported string
	}{
		{"SV-31 first address, SV-32 absent conditions, SV-35 trigger", func(in *discovery.EndpointSlice,
			want *cluster.Slice) {
		}, ""},
		{"SV-32 conditions", func(in *discovery.EndpointSlice, want *cluster.Slice) {
			in.Endpoints[0].Conditions = discovery.EndpointConditions{Ready: new(false), Serving: new(false),
				Terminating: new(true)}
			want.Endpoints = want.Endpoints.Edited(func(_ int, e *cluster.Endpoint) {
				e.Ready, e.Serving, e.Terminating = false, false, true
			})
		}, ""},
		{"SV-30 no name", func(in *discovery.EndpointSlice, want *cluster.Slice) {
			delete(in.Labels, discovery.LabelServiceName)
			*want = cluster.Slice{}
		}, "EndpointSlice shop/web-x7k2p: metadata.labels: has no kubernetes.io/service-name; the slice is ignored"},
		{"SV-02 FQDN", func(in *discovery.EndpointSlice, want *cluster.Slice) {
			in.AddressType = discovery.AddressTypeFQDN
			*want = cluster.Slice{}
		}, `addressType: "FQDN" is not proxied`},
		{"SV-02 unknown address type", func(in *discovery.EndpointSlice, want *cluster.Slice) {
			in.AddressType = "IPX"
			*want = cluster.Slice{}
		}, `addressType: "IPX" is neither IPv4 nor IPv6; the slice is ignored`},
		{"SV-31 UDP", func(in *discovery.EndpointSlice, want *cluster.Slice) {
			in.Ports[0].Protocol = new(core.ProtocolUDP)
			want.Ports = []cluster.SlicePort{{Name: "http", Protocol: cluster.UDP, Port: 8080}}
		}, ""},
		{"SV-31 a name twice", func(in *discovery.EndpointSlice, want *cluster.Slice) {
			in.Ports = append(in.Ports, discovery.EndpointPort{Name: new("http"), Port: new(int32(81))})
		}, `ports[1].name: "http" is already the name of ports[0]; this port is ignored`},
		{"SV-31 unparsable address", func(in *discovery.EndpointSlice, want *cluster.Slice) {
			in.Endpoints = append(in.Endpoints, discovery.Endpoint{Addresses: []string{"host"}})
		}, `endpoints[1].addresses[0]: "host" is not an IP address; the endpoint is ignored`},
		{"unparsable second address", func(in *discovery.EndpointSlice, want *cluster.Slice) {
			in.Endpoints[0].Addresses[1] = "host"
			want.Unused = nil
		}, ""},
		{"many second addresses", func(in *discovery.EndpointSlice, want *cluster.Slice) {
			want.Unused = nil
			for i := range 2 * cluster.MaxUnused {
				a := fmt.Sprintf("10.1.1.%d", i)
				in.Endpoints[0].Addresses = append(in.Endpoints[0].Addresses[:1+i], a)
				if i < cluster.MaxUnused {
					want.Unused = append(want.Unused, netip.MustParseAddr(a))
				}
			}
		}, ""},
		{"SV-31 no port name", func(in *discovery.EndpointSlice, want *cluster.Slice) {
			in.Ports = append(in.Ports, discovery.EndpointPort{Port: new(int32(1))})
		}, "ports[1].name: is missing"},
		{"SV-31 no port", func(in *discovery.EndpointSlice, want *cluster.Slice) {
			in.Ports = append(in.Ports, discovery.EndpointPort{Name: new("b")})
		}, "ports[1].port: is missing"},
		{"SV-31 port 0", func(in *discovery.EndpointSlice, want *cluster.Slice) {
			in.Ports[0].Port = new(int32(0))
			want.Ports = nil
		}, refused + `ports[0].port: "0" is not in 1..65535`},
		{"SV-31 no address", func(in *discovery.EndpointSlice, want *cluster.Slice) {
			in.Endpoints = append(in.Endpoints, discovery.Endpoint{})
		}, "endpoints[1].addresses: is empty"},
		{"SV-34 wrong family", func(in *discovery.EndpointSlice, want *cluster.Slice) {
			in.Endpoints = append(in.Endpoints, discovery.Endpoint{Addresses: []string{"fd00::5"}})
		}, `endpoints[1].addresses[0]: "fd00::5" is not an IPv4 address`},
		{"SV-35 unparsable", func(in *discovery.EndpointSlice, want *cluster.Slice) {
			in.Annotations[core.EndpointsLastChangeTriggerTime] = "yesterday"
			want.Trigger = 0
		}, ""},
		{"SV-33 node and zone", func(in *discovery.EndpointSlice, want *cluster.Slice) {
			in.Endpoints[0].Zone = new("zone-a")
			want.Endpoints = want.Endpoints.Edited(func(_ int, e *cluster.Endpoint) {
				e.Where = cluster.At("n1", "zone-a")
			})
		}, ""},
		{"SV-33 neither node nor zone", func(in *discovery.EndpointSlice, want *cluster.Slice) {
			in.Endpoints[0].NodeName, in.Endpoints[0].Zone = nil, new("")
			want.Endpoints = want.Endpoints.Edited(func(_ int, e *cluster.Endpoint) { e.Where = cluster.At("", "") })
		}, ""},
		{"SV-38 hints", func(in *discovery.EndpointSlice, want *cluster.Slice) {
			in.Endpoints[0].Hints = &discovery.EndpointHints{ForZones: []discovery.ForZone{{Name: "a"}},
				ForNodes: []discovery.ForNode{{Name: "n1"}}}
			want.Endpoints = want.Endpoints.Edited(func(_ int, e *cluster.Endpoint) {
				e.Hints = &cluster.Hints{Zones: []string{"a"}, Nodes: []string{"n1"}}
			})
		}, ""},
		{"SV-38 another zone, and another node", func(in *discovery.EndpointSlice, want *cluster.Slice) {
			in.Endpoints, want.Endpoints, want.Unused = nil, cluster.Endpoints{}, nil
			for i, h := range [][2]string{{"a", "n1"}, {"b", "n1"}, {"a", "n2"}, {"a", "n1"}} {
				a := fmt.Sprint("10.1.0.", i)
				in.Endpoints = append(in.Endpoints, discovery.Endpoint{Addresses: []string{a},
					Hints: &discovery.EndpointHints{ForZones: []discovery.ForZone{{Name: h[0]}},
						ForNodes: []discovery.ForNode{{Name: h[1]}}}})
				want.Endpoints = want.Endpoints.With(cluster.Endpoint{Addr: netip.MustParseAddr(a),
					Where: cluster.At("", ""), Ready: true, Serving: true,
					Hints: &cluster.Hints{Zones: h[:1], Nodes: h[1:]}})
			}
		}, ""},
		{"SV-38 empty hints", func(in *discovery.EndpointSlice, want *cluster.Slice) {
			in.Endpoints[0].Hints = &discovery.EndpointHints{}
		}, ""},
		{"a name without the Service's", func(in *discovery.EndpointSlice, want *cluster.Slice) {
			in.Labels[discovery.LabelServiceName] = "api"
			want.Service.Name = "api"
		}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			expect := *want
			in := baseSlice(func(*discovery.EndpointSlice) {})
			c.edit(in, &expect)
			got, reported := Slice(in)
			if got == nil {
				got = &cluster.Slice{}
			}
			if !reflect.DeepEqual(*got, expect) {
				t.Errorf("got  %+v\nwant %+v", *got, expect)
			}
			checkReported(t, reported, c.reported)
			if strings.HasPrefix(c.name, "SV-34") && reported[0].Reason != ReasonIncorrectIPVersion {
				t.Errorf("EV-06: reason %q", reported[0].Reason)
			}
		})
	}
}

// Results have their exact size, share hints among themselves and nothing with the API object.
func TestCompact(t *testing.T) {
	in := baseSlice(func(s *discovery.EndpointSlice) {
		s.Endpoints = nil
		for i := range 10 {
			s.Endpoints = append(s.Endpoints, discovery.Endpoint{Addresses: []string{fmt.Sprint("10.1.0.", i)},
				Hints: &discovery.EndpointHints{ForZones: []discovery.ForZone{{Name: "zone-a"}, {Name: "zone-b"},
					{Name: "zone-c"}}}})
		}
		s.Endpoints[3].Addresses = nil
		s.Labels[discovery.LabelServiceName] = "web"
	})
	out, _ := Slice(in)
	hints := out.Endpoints.At(0).Hints
	if out.Endpoints.Len() != 9 || hints != out.Endpoints.At(8).Hints || cap(hints.Zones) != 3 {
		t.Errorf("%d endpoints, hints %p %p with room for %d zones", out.Endpoints.Len(), hints,
			out.Endpoints.At(8).Hints, cap(hints.Zones))
	}
	for what, pair := range map[string][2]string{
		"name": {in.Name, out.Name.Name}, "namespace": {in.Namespace, out.Name.Namespace},
		"port": {*in.Ports[0].Name, out.Ports[0].Name}, "service": {in.Labels[discovery.LabelServiceName],
			out.Service.Name},
		"zone": {in.Endpoints[0].Hints.ForZones[0].Name, hints.Zones[0]},
	} {
		if pair[0] != pair[1] || unsafe.StringData(pair[0]) == unsafe.StringData(pair[1]) {
			t.Errorf("%s: %q and %q, shared: %v", what, pair[0], pair[1],
				unsafe.StringData(pair[0]) == unsafe.StringData(pair[1]))
		}
	}
	if unsafe.StringData(out.Service.Name) != unsafe.StringData(out.Name.Name) {
		t.Error("the Service's name is not a part of the slice's")
	}
}

// PR-03, HT-06.
func TestNode(t *testing.T) {
	now := metav1.Now()
	in := &core.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{core.LabelTopologyZone: "a"}},
		Spec:       core.NodeSpec{PodCIDR: "10.1.0.0/24", PodCIDRs: []string{"10.1.0.0/24", "fd00:1::/64"}},
		Status: core.NodeStatus{Addresses: []core.NodeAddress{
			{Type: core.NodeHostName, Address: "n1"}, {Type: core.NodeExternalIP, Address: "198.51.100.1"},
			{Type: core.NodeInternalIP, Address: "192.0.2.1"}, {Type: core.NodeInternalIP, Address: "2001:db8::1"},
			{Type: core.NodeInternalIP, Address: "bad"}}},
	}
	want := &cluster.Node{Name: "n1", Zone: "a", Addrs: addrList("192.0.2.1", "2001:db8::1", "198.51.100.1"),
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24"), netip.MustParsePrefix("fd00:1::/64")}}
	got, reported := Node(in)
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	checkReported(t, reported, `Node n1: status.addresses[4].address: "bad" is not an IP address; it is ignored`)
	for name, edit := range map[string]func(*core.Node){
		"deleted": func(n *core.Node) { n.DeletionTimestamp = &now },
		"taint":   func(n *core.Node) { n.Spec.Taints = []core.Taint{{Key: "ToBeDeletedByClusterAutoscaler"}} },
	} {
		n := in.DeepCopy()
		edit(n)
		if got, _ := Node(n); !got.Leaving {
			t.Errorf("%s: not leaving", name)
		}
	}
	old := in.DeepCopy()
	old.Spec.PodCIDRs = nil
	if got, _ := Node(old); len(got.PodCIDRs) != 1 {
		t.Errorf("podCIDR alone: %v", got.PodCIDRs)
	}
}

func TestServiceCIDR(t *testing.T) {
	got, reported := ServiceCIDR(&networking.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"},
		Spec: networking.ServiceCIDRSpec{CIDRs: []string{"10.96.0.1/16", "fd00::/112", "x"}}})
	if s := fmt.Sprint(*got); s != "{kubernetes [10.96.0.0/16 fd00::/112]}" {
		t.Error(s)
	}
	checkReported(t, reported, `ServiceCIDR kubernetes: spec.cidrs[2]: "x" is not a CIDR`)
}

// A thousand faults of an object are few messages. The last one counts the others.
func TestManyProblems(t *testing.T) {
	slice := func(n int) func() []Problem {
		return func() []Problem {
			_, reported := Slice(baseSlice(func(s *discovery.EndpointSlice) {
				for range n {
					s.Endpoints = append(s.Endpoints, discovery.Endpoint{Addresses: []string{"fd00::1"}})
				}
			}))
			return reported
		}
	}
	service := func() []Problem {
		_, reported := Service(base(func(s *core.Service) {
			for i := range int32(30) {
				p := core.ServicePort{Name: fmt.Sprint("p", i), Port: 1000 + i}
				s.Spec.Ports = append(s.Spec.Ports, p, p)
			}
		}))
		return reported
	}
	for name, c := range map[string]struct {
		convert func() []Problem
		n       int
		last    string
	}{
		"three of one sort":           {slice(3), 3, `endpoints[3].addresses[0]: "fd00::1" is not`},
		"four of one sort":            {slice(4), 4, "web-x7k2p: has 1 more problem of these sorts"},
		"a thousand of one sort":      {slice(1000), 4, "web-x7k2p: has 997 more problems of these sorts"},
		"thirty that differ, refused": {service, 21, refused + "Service shop/web: has 10 more problems of these sorts"},
	} {
		reported := c.convert()
		if len(reported) != c.n {
			t.Fatalf("%s: told %v, want %d", name, reported, c.n)
		}
		checkReported(t, reported[c.n-1:], c.last)
	}
}

// A problem outlives its object, so it does not keep the object's memory.
func TestProblemKeepsNoObject(t *testing.T) {
	in := base(func(s *core.Service) { s.Spec.ExternalIPs = []string{"not an address"} })
	_, reported := Service(in)
	checkReported(t, reported, in.Spec.ExternalIPs[0])
	p := reported[0]
	for got, object := range map[string]string{p.Value: in.Spec.ExternalIPs[0], p.Name.Name: in.Name,
		p.Name.Namespace: in.Namespace} {
		if got != object || unsafe.StringData(got) == unsafe.StringData(object) {
			t.Errorf("%q is the object's %q", got, object)
		}
	}
}

// Problems are reported once per change, again after they had gone, and forgotten with the object.
func TestReporter(t *testing.T) {
	var got []string
	r := NewReporter(func(p Problem) { got = append(got, p.Name.Name+":"+p.What) })
	a, b := cluster.Name{Name: "a"}, cluster.Name{Name: "b"}
	problem := func(n cluster.Name, what string) []Problem { return []Problem{{Kind: "Service", Name: n, What: what}} }
	r.Report("Service", a, problem(a, "x"))
	r.Report("Service", a, problem(a, "x")) // a resync
	r.Report("Service", b, problem(b, "x"))
	r.Report("Service", a, problem(a, "y")) // a change
	r.Report("Service", a, nil)             // repaired
	r.Report("Service", a, problem(a, "y"))
	r.Keep("Service", []cluster.Name{a}) // b is deleted
	r.Report("Service", a, problem(a, "y"))
	r.Report("Service", b, problem(b, "x"))
	if want := "a:x b:x a:y a:y b:x"; strings.Join(got, " ") != want {
		t.Errorf("told %v, want %s", got, want)
	}
	r.Keep("Service", nil)
	if len(r.reported) > 0 {
		t.Errorf("%d objects remembered", len(r.reported))
	}
}

func TestAddressesAndPrefixes(t *testing.T) {
	for in, want := range map[string]string{
		"10.0.0.1": "10.0.0.1", "010.000.00.1": "10.0.0.1", strings.Repeat("0", 99) + "9.0.0.1": "9.0.0.1",
		"::ffff:192.0.2.1": "192.0.2.1", "fd00::1": "fd00::1",
		"": "", "10.0.0": "", "10.0.0.256": "", "10..0.1": "", "fe80::1%eth0": "", "00000::1": "", " 10.0.0.1": "",
		"10.0.0.7/8": "10.0.0.0/8", " 192.0.2.7/24\t": "192.0.2.0/24", "010.0.0.0/08": "10.0.0.0/8",
		"fd00::1/64": "fd00::/64", "::ffff:192.0.2.7/120": "192.0.2.0/24", "::ffff:192.0.2.7/95": "",
		"x/24": "", "10.0.0.0/": "", "10.0.0.0/x": "", "10.0.0.0/+8": "", "10.0.0.0/-8": "", "10.0.0.0/33": "",
		"fd00::/129": "", "10.0.0.0/8/8": "",
	} {
		got := ""
		if a, ok := ParseAddr(in); ok {
			got = a.String()
		}
		if p, ok := parsePrefix(in); ok {
			got += p.String()
		}
		if got != want {
			t.Errorf("%q is read as %q, want %q", in, got, want)
		}
	}
}

// FuzzAddr: a parsed address is one that net/netip accepts, without a zone, and is stable.
func FuzzAddr(f *testing.F) {
	for _, s := range []string{"10.0.0.1", "010.0.0.1", "::ffff:1.2.3.4", "fe80::1%eth0", "1.2.3.4/24", "::/0",
		"::ffff:1.2.3.0/120"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if a, ok := ParseAddr(s); ok {
			if b, ok := ParseAddr(a.String()); !ok || a != b || a.Is4In6() || a.Zone() != "" {
				t.Errorf("%q: %v, then %v", s, a, b)
			}
		}
		if p, ok := parsePrefix(s); ok {
			if q, ok := parsePrefix(p.String()); !ok || p != q || p != p.Masked() {
				t.Errorf("%q: %v, then %v", s, p, q)
			}
		}
	})
}
