package nftables

import (
	"testing"

	"kube-proxy/lb"
	"kube-proxy/plane/planetest"
)

// TestConformance sends the packets of every scenario through the kernel.
func TestConformance(t *testing.T) {
	planetest.Run(t, planetest.Config{Mode: "nftables", New: newConformant})
}

func newConformant(f lb.Family) (planetest.Plane, error) { return New(Config{Family: f}) }
