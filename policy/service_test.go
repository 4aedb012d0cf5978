package policy_test

import (
	"strings"
	"testing"

	"kube-proxy/cluster"
	"kube-proxy/lb"
	"kube-proxy/policy"
)

// heads returns the first lines of the frontends that contain one of words, or of all.
func heads(s *scene, words ...string) string {
	var out []string
	for line := range strings.Lines(rows(s.resolve(), words...)) {
		if strings.HasPrefix(line, "set ") {
			break
		}
		if line[0] != ' ' {
			out = append(out, strings.TrimSuffix(line, "\n"))
		}
	}
	return strings.Join(out, "\n")
}

// TestServices checks "From a Service to addresses" in docs/behaviour.md: the frontends of a
// Service.
func TestServices(t *testing.T) {
	nodePort := func(typ cluster.ServiceType, port uint16) func(*scene) {
		return func(s *scene) { s.svc.Type, s.svc.Ports[0].NodePort = typ, port }
	}
	ipv6 := func(s *scene) { s.settings.Family = lb.IPv6 }
	const clusterIP = "10.96.0.7:80/tcp shop/web:http clusterip"
	for _, test := range []struct {
		name   string
		change func(*scene)
		want   string
	}{
		{"SV-01 no Service", func(s *scene) { s.svc = nil }, ""},
		{"SV-10 no cluster IP", func(s *scene) { s.svc.ClusterIPs = nil }, ""},
		{"SV-10 ExternalName with a stale cluster IP", func(s *scene) { s.svc.Type = cluster.TypeExternalName }, ""},
		{"SV-10 no ports", func(s *scene) { s.svc.Ports = nil }, ""},
		{"SV-11 not in this family", ipv6, ""},
		{"SV-11 external addresses need a cluster IP of the family",
			func(s *scene) { ipv6(s); s.svc.ExternalIPs = addrs("2001:db8::1") }, ""},
		{"SV-11 dual stack, IPv4", func(s *scene) { s.svc.ClusterIPs = addrs("fd00:96::7", "10.96.0.7") }, clusterIP},
		{"SV-11 dual stack, IPv6", func(s *scene) {
			ipv6(s)
			s.svc.ClusterIPs = addrs("10.96.0.7", "fd00:96::7")
		}, "[fd00:96::7]:80/tcp shop/web:http clusterip"},
		{"SV-12 a port without a name", func(s *scene) { s.svc.Ports[0].Name = "" },
			"10.96.0.7:80/tcp shop/web clusterip"},
		{"SV-12 ports that share a number", func(s *scene) {
			s.svc.Ports = append(s.svc.Ports, cluster.ServicePort{Name: "dns", Protocol: cluster.UDP, Port: 80},
				cluster.ServicePort{Name: "sig", Protocol: cluster.SCTP, Port: 80})
		}, clusterIP + "\n10.96.0.7:80/udp shop/web:dns clusterip\n10.96.0.7:80/sctp shop/web:sig clusterip"},
		{"port 0 has no row, 65535 has", func(s *scene) {
			s.svc.Ports = []cluster.ServicePort{{Name: "zero", Protocol: cluster.TCP},
				{Name: "top", Protocol: cluster.TCP, Port: 65535}}
		}, "10.96.0.7:65535/tcp shop/web:top clusterip"},
		{"SV-13 external IPs of the family", func(s *scene) {
			s.svc.ExternalIPs = addrs("192.0.2.1", "2001:db8::1", "0.0.0.0")
		}, clusterIP + "\n192.0.2.1:80/tcp shop/web:http externalip"},
		{"SV-13 the gate AllowServiceExternalIPs is off", func(s *scene) {
			nodePort(cluster.TypeNodePort, 30080)(s)
			s.svc.ExternalIPs, s.settings.NoExternalIPs = addrs("192.0.2.1", "192.0.2.2"), true
		}, "nodeport:30080/tcp shop/web:http nodeport\n" + clusterIP},
		{"SV-14 load-balancer IPs of the family, whatever the type", func(s *scene) {
			s.svc.LoadBalancerIPs = addrs("2001:db8::1", "192.0.2.7")
		}, clusterIP + "\n192.0.2.7:80/tcp shop/web:http loadbalancer"},
		{"SV-17 NodePort", nodePort(cluster.TypeNodePort, 30080), "nodeport:30080/tcp shop/web:http nodeport\n" +
			clusterIP},
		{"SV-17 LoadBalancer", nodePort(cluster.TypeLoadBalancer, 65535),
			"nodeport:65535/tcp shop/web:http nodeport\n" + clusterIP},
		{"SV-17 no NodePort allocated", func(s *scene) {
			nodePort(cluster.TypeLoadBalancer, 0)(s)
			s.svc.LoadBalancerIPs = addrs("192.0.2.7")
		}, clusterIP + "\n192.0.2.7:80/tcp shop/web:http loadbalancer"},
		{"SV-17 a stale nodePort of type ClusterIP", nodePort(cluster.TypeClusterIP, 30080), clusterIP},
		{"SV-24 an external IP that is a load-balancer IP keeps its sources", func(s *scene) {
			s.loadBalancer("192.0.2.7", "10.0.0.0/8")
			s.svc.ExternalIPs = addrs("192.0.2.7")
		}, clusterIP + "\n192.0.2.7:80/tcp shop/web:http loadbalancer sources 10.0.0.0/8"},
		{"SV-24 the cluster IP stays the cluster IP", func(s *scene) {
			s.loadBalancer("10.96.0.7 10.96.0.7", "10.0.0.0/8")
			s.svc.ExternalIPs = addrs("10.96.0.7")
		}, clusterIP},
		{"SV-24 two ports with one number: the first", func(s *scene) {
			s.svc.Ports = append(s.svc.Ports, cluster.ServicePort{Name: "again", Protocol: cluster.TCP, Port: 80})
		}, clusterIP},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newScene()
			test.change(s)
			if s.svc == nil {
				s.slices = []*cluster.Slice{{Service: cluster.Name{Namespace: "shop", Name: "web"}}}
			}
			if got := heads(s); got != test.want {
				t.Errorf("got\n%s\nwant\n%s", got, test.want)
			}
			if rows := policy.Resolve(s.view(), s.settings); test.want == "" && rows != nil {
				t.Errorf("got %v, want nil", rows)
			}
		})
	}
}
