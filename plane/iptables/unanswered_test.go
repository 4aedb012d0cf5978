//go:build linux

package iptables

import (
	"testing"

	"kube-proxy/internal/xtables"
	"kube-proxy/test/planetest"
)

// TestUnanswered proves the notices of unanswered connections, and their end.
func TestUnanswered(t *testing.T) {
	eachBackend(t, func(t *testing.T, b xtables.Backend) {
		planetest.Unanswered(t, planetest.Config{New: newLiberal(b)})
	})
}
