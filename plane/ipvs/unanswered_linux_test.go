package ipvs

import (
	"testing"

	"kube-proxy/test/planetest"
)

// TestUnanswered proves notices of unanswered connections (FO-12), and their end (FO-11, FO-13).
func TestUnanswered(t *testing.T) {
	inVM(t)
	for _, b := range backends {
		t.Run(string(b), func(t *testing.T) { planetest.Unanswered(t, conformance(b)) })
	}
}
