package hns

import (
	"encoding/json"
	"net/netip"
	"slices"
	"testing"

	"kube-proxy/lb"
	"kube-proxy/test/planetest"
)

// A Service weighs at least as much as its load balancers, references and endpoints in HNS (TN-11).
func TestWeigh(t *testing.T) {
	source := map[lb.Family]netip.Addr{lb.IPv4: netip.MustParseAddr("100.64.0.1"),
		lb.IPv6: netip.MustParseAddr("fd64::1")}
	for _, fam := range []lb.Family{lb.IPv4, lb.IPv6} {
		t.Run(fam.String(), func(t *testing.T) {
			planetest.Weighing{Family: fam, Weigh: weigh, Within: 5, Costly: 40_000,
				Count: func(_ *testing.T, want *lb.Table) (objects int) {
					// the ManagementIP
					want.Node.NodePorts = append(slices.Clone(want.Node.NodePorts),
						netip.MustParsePrefix("192.0.2.1/32"))
					// Frontends with source ranges are left out.
					text, _ := renderIn(Overlay, Config{Family: fam, SourceVIP: source[fam]}, want)
					var calls []struct {
						Call     string
						Settings struct{ HostComputeEndpoints []string }
					}
					if err := json.Unmarshal(text, &calls); err != nil {
						t.Fatal(err)
					}
					for _, c := range calls[min(1, len(calls)):] { // except the source VIP's endpoint
						if c.Call == "HcnCreateEndpoint" {
							objects += endpointObjects
						} else {
							objects += balancerObjects + len(c.Settings.HostComputeEndpoints)*referenceObjects
						}
					}
					return objects
				}}.Run(t)
		})
	}
}
