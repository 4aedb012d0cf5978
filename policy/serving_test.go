package policy_test

import (
	"testing"

	"kube-proxy/cluster"
	"kube-proxy/lb"
	"kube-proxy/policy"
)

// udp makes the port of the scene, and of its slices, one of UDP.
func udp(s *scene) { overProtocol(s, cluster.UDP) }

func overProtocol(s *scene, p cluster.Protocol) {
	s.svc.Ports[0].Protocol = p
	for _, sl := range s.slices {
		sl.Ports[0].Protocol = p
	}
}

// TestServingDP50: a frontend lists serving endpoints that its routes do not reach, whatever the
// reason.
func TestServingDP50(t *testing.T) {
	const rowOnly = `
10.96.0.7:80/udp shop/web:http clusterip
  pods     balance shop/web:http/udp/cluster
  anywhere balance shop/web:http/udp/cluster masquerade`
	const row = rowOnly + `
  serving  shop/web:http/udp/serving
set shop/web:http/udp/cluster`
	for _, test := range []struct {
		name  string
		scene *scene
		want  string
	}{
		{"routes that reach all need not say so", newScene().endpoints(mixed, far, "10.1.2.15 dead",
			"10.1.2.16 unready"), rowOnly + `
set shop/web:http/udp/cluster
  10.1.1.11:8080 local
  10.1.2.14:8080`},
		{"SV-36 one that drains beside a ready one", newScene().endpoints(far, "10.1.2.15 terminating",
			"10.1.2.16 unready", "10.1.2.17 dead"), row + `
  10.1.2.14:8080
set shop/web:http/udp/serving
  10.1.2.14:8080
  10.1.2.15:8080`},
		{"SV-36 when none is ready the draining ones are in the route", newScene().endpoints("10.1.2.15 terminating"),
			rowOnly + `
set shop/web:http/udp/cluster
  10.1.2.15:8080 draining`},
		{"SV-38 topology", newScene().endpoints("10.1.2.14 zone=a", "10.1.2.15 zone=b"), row + `
  10.1.2.14:8080
set shop/web:http/udp/serving
  10.1.2.14:8080
  10.1.2.15:8080`},
		{"SV-32 copies count once", newScene().endpoints(far, "10.1.2.15 terminating").endpoints("10.1.2.15 unready").
			endpoints("10.1.2.15 terminating"), row + `
  10.1.2.14:8080
set shop/web:http/udp/serving
  10.1.2.14:8080
  10.1.2.15:8080`},
		{"SV-51 policy Local, none local",
			newScene().endpoints(far).with(func(s *scene) { s.svc.InternalPolicy = cluster.PolicyLocal }), `
10.96.0.7:80/udp shop/web:http clusterip
  anywhere drop
  serving  shop/web:http/udp/serving
set shop/web:http/udp/serving
  10.1.2.14:8080`},
		{"SV-20 each row by its own policy", newScene().external(cluster.PolicyCluster).endpoints(mixed, far).
			with(func(s *scene) { s.svc.InternalPolicy = cluster.PolicyLocal }), `
nodeport:30080/udp shop/web:http nodeport
  anywhere balance shop/web:http/udp/cluster masquerade
10.96.0.7:80/udp shop/web:http clusterip
  pods     balance shop/web:http/udp/local
  anywhere balance shop/web:http/udp/local masquerade
  serving  shop/web:http/udp/serving
set shop/web:http/udp/cluster
  10.1.1.11:8080 local
  10.1.2.14:8080
set shop/web:http/udp/local
  10.1.1.11:8080 local
set shop/web:http/udp/serving
  10.1.1.11:8080
  10.1.2.14:8080`},
		{"the routes of both scopes together reach all", newScene().external(cluster.PolicyLocal).
			endpoints("10.1.1.11 local zone=b", "10.1.2.14 zone=a"), `
nodeport:30080/udp shop/web:http nodeport
  pods     balance shop/web:http/udp/cluster
  host     balance shop/web:http/udp/cluster masquerade
  anywhere balance shop/web:http/udp/local
10.96.0.7:80/udp shop/web:http clusterip
  pods     balance shop/web:http/udp/cluster
  anywhere balance shop/web:http/udp/cluster masquerade
  serving  shop/web:http/udp/serving
set shop/web:http/udp/cluster
  10.1.2.14:8080
set shop/web:http/udp/local
  10.1.1.11:8080 local
set shop/web:http/udp/serving
  10.1.1.11:8080
  10.1.2.14:8080`},
		{"one that serves though neither ready nor terminating gets nothing new and keeps what it has",
			newScene().endpoints("10.1.1.12 local unready").
				with(edited(func(e *cluster.Endpoint) { e.Serving = true })), `
10.96.0.7:80/udp shop/web:http clusterip
  anywhere reject
  serving  shop/web:http/udp/serving
set shop/web:http/udp/serving
  10.1.1.12:8080`},
		{"ready counts as serving: the routes go there",
			newScene().endpoints(far).with(edited(func(e *cluster.Endpoint) { e.Serving = false })), rowOnly + `
set shop/web:http/udp/cluster
  10.1.2.14:8080`},
		{"SV-34 not those of the other family", newScene().endpoints(far).endpoints("fd00:1::1 terminating"), rowOnly +
			`
set shop/web:http/udp/cluster
  10.1.2.14:8080`},
	} {
		t.Run(test.name, func(t *testing.T) { check(t, test.scene.with(udp), test.want) })
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
	if changes, _ = table.Replace(owner, resolve("10.1.2.15 terminating", far, "10.1.2.16 unready")); len(
		changes) != 0 {
		t.Errorf("the same again: %d changes", len(changes))
	}
	if changes, _ = table.Replace(owner, resolve(far)); len(changes) != 2 || changes[0].New.Serving != nil {
		t.Errorf("the last draining one stops serving: %v", changes)
	}
}
