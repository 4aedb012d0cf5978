package lb_test

import (
	"testing"

	"kube-proxy/lb"
)

func TestFamilies(t *testing.T) {
	for f, want := range map[lb.Family][2]string{lb.IPv4: {"127.0.0.1", "0.0.0.0/0"}, lb.IPv6: {"::1", "::/0"}} {
		if f.Loopback().String() != want[0] || f.Everywhere().String() != want[1] || lb.FamilyOf(f.Loopback()) != f {
			t.Errorf("%s has loopback %s and %s, want %v", f, f.Loopback(), f.Everywhere(), want)
		}
	}
}

// An unknown value prints its number: it is a defect, and an error names it.
func TestUnknownNames(t *testing.T) {
	for got, want := range map[string]string{
		lb.ClusterIP.String(): "clusterip", lb.HealthCheck.String(): "healthcheck",
		lb.Kind(0).String(): "Kind(0)", (lb.HealthCheck + 1).String(): "Kind(6)",
		lb.Anywhere.String(): "anywhere", lb.From(4).String(): "From(4)",
		lb.Accept.String(): "accept", lb.Action(5).String(): "Action(5)",
		lb.Serving.String(): "serving", lb.Scope(4).String(): "Scope(4)",
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
