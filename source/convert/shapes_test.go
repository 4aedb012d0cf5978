package convert

import (
	"fmt"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
)

// manyAddresses is a Service that names n external IPs, as many source ranges and as many load-balancer addresses, each twice.
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

// A Service that names many addresses costs their number; repeated ones count once.
func TestManyAddressesAreLinear(t *testing.T) {
	took := func(n int) time.Duration {
		in, best := manyAddresses(n), time.Hour
		for range 3 {
			start := time.Now()
			out, _ := Service(in)
			best = min(best, time.Since(start))
			if len(out.ExternalIPs) != n {
				t.Fatalf("%d external IPs, want %d", len(out.ExternalIPs), n)
			}
		}
		return best
	}
	small, large := took(500), took(16_000)
	if ratio := float64(large) / float64(small); ratio > 160 { // 32 is linear, 1024 the square
		t.Errorf("500 addresses take %v, 16,000 %v, %.0f times as much", small, large, ratio)
	}
}
