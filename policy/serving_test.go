package policy_test

import (
	"testing"

	"kube-proxy/cluster"
	"kube-proxy/lb"
	"kube-proxy/policy"
)

// udp makes the port of the scene, and of its slices, one of UDP.
func udp(s *scene) {
	s.svc.Ports[0].Protocol = cluster.UDP
	for _, sl := range s.slices {
		sl.Ports[0].Protocol = cluster.UDP
	}
}

// DP-50: an endpoint that stops serving, and that no route reaches, is a change for flow tables;
// for planes it is the same routes over the same sets, by pointer.
func TestServingAloneChanges(t *testing.T) {
	resolve := func(eps ...string) []*lb.Frontend {
		s := newScene().external(cluster.PolicyCluster).endpoints(eps...).with(udp)
		return policy.Resolve(s.view(), s.settings)
	}
	var table lb.Table
	owner := lb.Owner{Name: "shop/web"}
	table.Replace(owner, resolve(far, "10.1.2.15 terminating", "10.1.2.16 terminating"))
	changes, _ := table.Replace(owner, resolve(far, "10.1.2.15 terminating", "10.1.2.16 dead"))
	if len(changes) != 2 {
		t.Fatalf("%d changes, want one for each row", len(changes))
	}
	for _, c := range changes {
		if c.Old.Set(lb.Cluster) != c.New.Set(lb.Cluster) {
			t.Errorf("%s: the set of the routes is another value", c.Key)
		}
		if c.New.Serving != changes[0].New.Serving || c.New.Serving.Backends.Len() != 2 {
			t.Errorf("%s: what serves is\n%s", c.Key, c.New)
		}
	}
	changes, _ = table.Replace(owner, resolve("10.1.2.15 terminating", far, "10.1.2.16 unready"))
	if len(
		changes) != 0 {
		t.Errorf("the same again: %d changes", len(changes))
	}
	changes, _ = table.Replace(owner, resolve(far))
	if len(changes) != 2 || changes[0].New.Serving != nil {
		t.Errorf("the last draining one stops serving: %v", changes)
	}
}
