package ipvs

import (
	"testing"

	"kube-proxy/test/planetest"
)

// TestUnanswered proves the notices of unanswered connections, and their end.
func TestUnanswered(t *testing.T) {
	inVM(t)
	for _, b := range backends {
		t.Run(string(b), func(t *testing.T) { planetest.Unanswered(t, conformance(b)) })
	}
}
