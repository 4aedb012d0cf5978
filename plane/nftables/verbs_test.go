//go:build linux

package nftables

import (
	"testing"

	"kube-proxy/lb"
	"kube-proxy/test/planetest"
)

func TestVerbs(t *testing.T) { planetest.Verbs(t, realKernel) }

// realKernel is a new network namespace that the calling goroutine enters.
func realKernel(t testing.TB) planetest.Kernel {
	inNetns(t)
	return planetest.Kernel{
		New: newConformant,
		Slow: func(f lb.Family) (planetest.Plane, error) {
			p, err := New(Config{Family: f})
			if err == nil {
				p.maxBatchWeight = 10
			}
			return p, err
		},
		Damage:   damage,
		Wipe:     func(f lb.Family) error { return runScript("flush ruleset " + nftFamily(f)) },
		Reported: true,
	}
}
