package hns

import (
	"encoding/json"
	"testing"

	"kube-proxy/lb"
	"kube-proxy/plane/planetest"
)

// What a Service weighs is as many load balancers, references and endpoints as HNS has for it at most (TN-11).
func TestWeigh(t *testing.T) {
	for _, fam := range []lb.Family{lb.IPv4, lb.IPv6} {
		t.Run(fam.String(), func(t *testing.T) {
			planetest.Weighing{Family: fam, Weigh: weigh, Within: 5, Costly: 40_000, Count: func(_ *testing.T, want *lb.Table) (objects int) {
				text, _ := Render(Config{Family: fam}, want) // rows with source ranges are left out
				var calls []struct {
					Call     string
					Settings struct{ HostComputeEndpoints []string }
				}
				if err := json.Unmarshal(text, &calls); err != nil {
					t.Fatal(err)
				}
				for _, c := range calls {
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
