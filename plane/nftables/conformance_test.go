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

// TestRandomTransitions walks at random between the states of all scenarios.
func TestRandomTransitions(t *testing.T) {
	planetest.Transitions(t, planetest.Config{New: newConformant})
}

func newConformant(f lb.Family) (planetest.Plane, error) { return New(Config{Family: f}) }
