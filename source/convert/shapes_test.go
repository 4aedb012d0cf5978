package convert

import (
	"fmt"
	"testing"

	core "k8s.io/api/core/v1"

	"kube-proxy/test/cputest"
)

// manyAddresses is a Service that names n external IPs, as many source ranges and as many
// load-balancer addresses, each twice.
func manyAddresses(n int) *core.Service {
	s := &core.Service{}
	s.Namespace, s.Name, s.Spec.ClusterIP = "shop", "web", "10.96.0.1"
	for i := range 2 * n {
		a := fmt.Sprintf("100.64.%d.%d", i%n>>8, i%n&255)
		s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, a)
		s.Spec.LoadBalancerSourceRanges = append(s.Spec.LoadBalancerSourceRanges, a+"/32")
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, core.LoadBalancerIngress{IP: a})
	}
	return s
}

// The cost of a Service with many addresses is proportional to their number; repeated ones count
// once.
func TestManyAddressesAreLinear(t *testing.T) {
	convert := func(n int) func() {
		in := manyAddresses(n)
		return func() {
			if out, _ := Service(in); len(out.ExternalIPs) != n {
				t.Fatalf("%d external IPs, want %d", len(out.ExternalIPs), n)
			}
		}
	}
	if ratio := cputest.Ratio(convert(500), convert(16_000)); ratio > 160 { // 32 is linear, 1024 the square
		t.Errorf("16,000 addresses cost %.0f times as much as 500", ratio)
	}
}
