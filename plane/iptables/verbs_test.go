//go:build linux

package iptables

import (
	"os/exec"
	"testing"

	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/test/planetest"
)

func TestVerbs(t *testing.T) {
	eachBackend(t, func(t *testing.T, b xtables.Backend) {
		planetest.Verbs(t, backend(b).kernel)
	})
}

// kernel returns a new network namespace that the calling goroutine enters.
func (b backend) kernel(t testing.TB) planetest.Kernel {
	inNetns(t)
	return planetest.Kernel{
		New: newWith(xtables.Backend(b)),
		Slow: func(f lb.Family) (planetest.Plane, error) {
			return slow(Config{Family: f, Backend: xtables.Backend(b), Runner: xtables.System{Lock: ownLock()}})
		},
		HealthChecks: true,
		Damage:       b.damage,
		Wipe: func(f lb.Family) error {
			for _, table := range []string{"nat", "filter", "mangle"} {
				for _, do := range []string{"-F", "-X"} {
					if err := exec.Command(b.program(f), "-t", table, do).Run(); err != nil {
						return err
					}
				}
			}
			return nil
		},
	}
}

// fixed is a pace that depends on nothing.
func fixed(weight int) pace { return pace{first: weight, part: 1, least: weight, most: weight} }

// slow creates a plane with a small pace.
func slow(cfg Config) (planetest.Plane, error) {
	p, err := New(cfg)
	if err == nil {
		p.pace = fixed(10)
	}
	return p, err
}
