package lb_test

import (
	"testing"

	"kube-proxy/lb"
)

// A NodePort is a frontend at each of the node's addresses.
func TestSize(t *testing.T) {
	s := lb.Size{Addresses: 3, Ranged: 2}
	if s.Copies(4) != 5 || s.Sets() != 1 {
		t.Errorf("%d frontends with %d sets, want 5 with 1", s.Copies(4), s.Sets())
	}
	s.NodePorts, s.Local = true, true
	if s.Copies(4) != 9 || s.Sets() != 2 {
		t.Errorf("with a NodePort and the policy Local %d frontends with %d sets, want 9 with 2", s.Copies(4), s.Sets())
	}
}
