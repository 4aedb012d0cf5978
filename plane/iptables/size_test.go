//go:build linux

package iptables

import (
	"bytes"
	"testing"

	"kube-proxy/lb"
	"kube-proxy/test/planetest"
)

// The weight of a Service is at least the number of its rules, chains and client lists in the
// kernel (TN-11).
func TestWeigh(t *testing.T) {
	planetest.Weighing{Family: lb.IPv4, Weigh: weigh, Within: 3, Costly: 200_000,
		Count: func(t *testing.T, want *lb.Table) int {
			text, err := Render(Config{Family: lb.IPv4}, want)
			if err != nil {
				t.Fatal(err)
			}
			rules, chains := bytes.Count(text, []byte("\n-A ")), bytes.Count(text, []byte("\n:"))
			return (rules+chains)*ruleObjects + bytes.Count(text, []byte("-m recent --set "))*recentObjects
		}}.Run(t)
}

// The weight of an endpoint does not depend on their number; otherwise a Service with more than fit
// would have none (TN-10).
func TestWeighIsLinear(t *testing.T) {
	for _, s := range []lb.Size{{Ports: 1, Addresses: 1}, {Ports: 1, Addresses: 1, Affinity: true, Local: true}} {
		of := func(backends int) int {
			s.Backends = backends
			return weigh(s) - weigh(lb.Size{Ports: 1, Addresses: 1, Affinity: s.Affinity, Local: s.Local})
		}
		for _, n := range []int{2, 60, 262} {
			if got, want := of(1000*n), n*of(1000); got != want {
				t.Errorf("%d,000 endpoints weigh %d, want %d", n, got, want)
			}
		}
	}
}
