//go:build linux

package nftables

import (
	"testing"

	"kube-proxy/test/planetest"
)

// TestUnanswered proves the notices of unanswered connections, and their end.
func TestUnanswered(t *testing.T) {
	planetest.Unanswered(t, planetest.Config{New: newConformant})
}
