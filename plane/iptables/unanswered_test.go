//go:build linux

package iptables

import (
	"testing"

	"kube-proxy/internal/xtables"
	"kube-proxy/test/planetest"
)

// TestUnanswered proves notices of unanswered connections (FO-12), and their end (FO-11, FO-13).
func TestUnanswered(t *testing.T) {
	eachBackend(t, func(t *testing.T, b xtables.Backend) {
		planetest.Unanswered(t, planetest.Config{New: newLiberal(b)})
	})
}
