package policy_test

import (
	"testing"

	"kube-proxy/cluster"
	"kube-proxy/lb"
	"kube-proxy/policy"
)

// balanced gives the Service of the scene a health check for load balancers on port 32100.
func balanced(s *scene) {
	s.external(cluster.PolicyLocal)
	s.svc.Type, s.svc.HealthCheckNodePort = cluster.TypeLoadBalancer, 32100
}

// TestHealthCheckSV21: which Services have a health check.
func TestHealthCheckSV21(t *testing.T) {
	const row = "nodeport:32100/tcp shop/web healthcheck endpoints 1"
	ipv6 := func(s *scene) { s.settings.Family = lb.IPv6 }
	for _, test := range []struct {
		name   string
		change func(*scene)
		want   string
	}{
		{"LoadBalancer, policy Local", func(*scene) {}, row},
		{"policy Cluster", func(s *scene) { s.svc.ExternalPolicy = cluster.PolicyCluster }, ""},
		{"the internal policy does not matter", func(s *scene) { s.svc.InternalPolicy = cluster.PolicyLocal }, row},
		{"NodePort", func(s *scene) { s.svc.Type = cluster.TypeNodePort }, ""},
		{"ClusterIP", func(s *scene) { s.svc.Type = cluster.TypeClusterIP }, ""},
		{"ExternalName", func(s *scene) { s.svc.Type = cluster.TypeExternalName }, ""},
		{"no port for it", func(s *scene) { s.svc.HealthCheckNodePort = 0 }, ""},
		{"the highest port", func(s *scene) { s.svc.HealthCheckNodePort = 65535 },
			"nodeport:65535/tcp shop/web healthcheck endpoints 1"},
		{"no NodePorts allocated", func(s *scene) { s.svc.Ports[0].NodePort = 0 }, row},
		{"a port that its own NodePort has", func(s *scene) { s.svc.HealthCheckNodePort = 30080 }, ""},
		{"no ports", func(s *scene) { s.svc.Ports = nil }, ""},
		{"no cluster IP", func(s *scene) { s.svc.ClusterIPs = nil }, ""},
		{"not in this family (SV-11)", ipv6, ""},
		{"of both families", func(s *scene) {
			s.svc.ClusterIPs = addrs("10.96.0.7", "fd00:96::7")
			s.endpoints("fd00:1::a local", "fd00:1::b local")
			ipv6(s)
		}, "nodeport:32100/tcp shop/web healthcheck endpoints 2"},
		{"of both families, none in this one", func(s *scene) {
			s.svc.ClusterIPs = addrs("10.96.0.7", "fd00:96::7")
			ipv6(s)
		}, "nodeport:32100/tcp shop/web healthcheck endpoints 0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newScene().with(balanced).endpoints(mixed, far)
			test.change(s)
			if got := heads(s, "healthcheck"); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
			for _, f := range policy.Resolve(s.view(), s.settings) {
				if f.Accepts() != (f.Kind == lb.HealthCheck) {
					t.Errorf("a row of kind %s:\n%s", f.Kind, f)
				}
			}
		})
	}
}
