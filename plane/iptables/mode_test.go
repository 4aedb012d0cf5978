//go:build linux

package iptables

import (
	"fmt"
	"slices"
	"testing"

	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
)

// Each condition is reported once. The metrics have the values of the last write, and include each
// metric of the mode except the kernel's counters (MT-09 to MT-12).
func TestNotices(t *testing.T) {
	p, err := New(Config{Family: lb.IPv4, Backend: xtables.NFT, Runner: &paper{}})
	if err != nil {
		t.Fatal(err)
	}
	var reported []string
	notices := func() {
		for _, n := range p.Notices() {
			reported = append(reported, fmt.Sprint(n.Args...))
		}
	}
	measured := func() map[string]float64 {
		all := map[string]float64{}
		if err := p.Measure(func(metric string, value float64, labels ...string) {
			all[fmt.Sprint(metric, labels)] = value
		}); err != nil {
			t.Error(err)
		}
		return all
	}
	notices()
	p.Count(func(s *xtables.Stats) {
		s.Failures, s.PartialFailures, s.Owned, s.Last, s.Unlike = 3, 2, xtables.Written{Filter: 10, NAT: 20},
			xtables.Written{Filter: 1, NAT: 2}, 4
	})
	p.Stuck(xtables.NAT.Chain("KUBE-SVC-A"))
	if got := measured()[restoreFailures+"[]"]; got != 0 {
		t.Errorf("in the middle of a write there are %v failures", got)
	}
	for range 2 {
		notices()
	}
	p.Stuck(xtables.NAT.Chain("KUBE-SVC-B"))
	notices()
	if want := []string{"chains[nat KUBE-SVC-A]", "chains4", "chains[nat KUBE-SVC-A nat KUBE-SVC-B]"}; !slices.Equal(
		reported, want) {
		t.Errorf("reported %q, want %q", reported, want)
	}
	got := measured()
	for name, want := range map[string]float64{restoreFailures + "[]": 3, partialFailures + "[]": 2, rulesTotal +
		"[filter]": 10, rulesTotal + "[nat]": 20, rulesLast + "[filter]": 1, rulesLast + "[nat]": 2} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
	if len(got) != 6 {
		t.Errorf("measured %v", got)
	}
}
