package inspect

import (
	"strings"
	"testing"

	"kube-proxy/cluster"
	"kube-proxy/lb"
	"kube-proxy/policy"
)

// Queries report that the namespace of a Service is over its limit, and which parts of the Service
// are left out (TN-13).
func TestServiceOverItsLimit(t *testing.T) {
	w := newWorld()
	w.add("shop", "old", "10.96.0.1", 3, 3)
	w.add("shop", "young", "10.96.0.2", 3, 3)
	w.table.Replace(lb.Owner{Name: "shop/young"}, nil)
	w.cfg.Families[0].Settings = func(name cluster.Name) policy.Settings {
		s := settings
		s.Weigh, s.MaxObjects = func(s lb.Size) int { return s.Backends }, 100
		if name.Name == "young" {
			s.Older = 99
		}
		return s
	}
	for name, want := range map[string]State{"shop/old": OK, "shop/young": Refused} {
		d, err := w.Service(name)
		if err != nil {
			t.Fatal(err)
		}
		if d.State != want {
			t.Errorf("%s is %s, want %s", name, d.State, want)
		}
		why := strings.Join(d.Reasons, "\n")
		if reported := strings.Contains(why,
			"spec.clusterIPs 10.96.0.2 exceeds the limit of 100 objects per namespace"); reported != (want == Refused) {
			t.Errorf("%s: %s", name, why)
		}
	}
}
