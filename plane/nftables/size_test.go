//go:build linux

package nftables

import (
	"slices"
	"testing"

	"kube-proxy/lb"
	"kube-proxy/test/planetest"
)

// The weight of a Service is at least the number of its elements in the kernel (TN-11).
func TestWeigh(t *testing.T) {
	for _, fam := range []lb.Family{lb.IPv4, lb.IPv6} {
		t.Run(fam.String(), func(t *testing.T) {
			planetest.Weighing{Family: fam, Weigh: weigh, Within: 3, Costly: 40_000,
				Count: func(t *testing.T, want *lb.Table) (elements int) {
					p, err := offline(Config{Family: fam})
					if err != nil {
						t.Fatal(err)
					}
					p.rules.node, p.rules.seed = want.Node, 1
					st, refused := p.desired(&snapshot{}, want, slices.Values(want.Sorted()))
					if refused.err != nil {
						t.Fatal(refused.err)
					}
					st.records(func(setIndex, []byte) { elements++ })
					return elements
				}}.Run(t)
		})
	}
}
