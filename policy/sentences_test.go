package policy_test

import (
	"strings"
	"testing"

	"kube-proxy/cluster"
)

// Each reason for the backends of a port is given where it holds, and nowhere else (SV-38, SV-51,
// SV-52).
func TestSentences(t *testing.T) {
	const (
		local    = cluster.PolicyLocal
		noneHere = "None of the endpoints that serve runs on this node, node-1."
		inside   = "The internal traffic policy is Local: connections from this node and its pods to the " +
			"cluster IP are dropped."
		outside = "The external traffic policy is Local: connections from outside the cluster to this node are " +
			"dropped, and load balancers with health checks skip the node."
		otherNodes   = "Topology hints for nodes are ignored, because none is for this node, node-1."
		otherZones   = "Topology hints for zones are ignored, because none is for this node's zone, a."
		notEachNodes = "Topology hints for nodes are ignored, because not every ready endpoint has one."
		notEachZones = "Topology hints for zones are ignored, because not every ready endpoint has one."
	)
	hinted := func(node, zone string) func(*scene) {
		return edited(func(e *cluster.Endpoint) {
			e.Hints = &cluster.Hints{Nodes: []string{node}, Zones: []string{zone}}
		})
	}
	internalLocal := func(s *scene) { s.svc.InternalPolicy = local }
	for _, c := range []struct {
		name  string
		scene *scene
		want  []string
	}{
		{"all serve", newScene().endpoints(far), nil},
		{"a node's hints", newScene().endpoints(far+" node=node-1", "10.1.2.15 node=node-2"),
			[]string{"By topology hints for nodes, 1 of 2 ready endpoints serve this node, node-1."}},
		{"other nodes' hints", newScene().endpoints(far + " node=node-2"), []string{otherNodes}},
		{"some nodes' hints", newScene().endpoints(far+" node=node-1", "10.1.2.15"), []string{notEachNodes}},
		{"a zone's hints", newScene().endpoints(far+" zone=a", "10.1.2.15 zone=b"),
			[]string{"By topology hints for zones, 1 of 2 ready endpoints serve this node, in zone a."}},
		{"other zones' hints", newScene().endpoints(far + " zone=b"), []string{otherZones}},
		{"some zones' hints", newScene().endpoints(far+" zone=a", "10.1.2.15"), []string{notEachZones}},
		{"other nodes' and zones' hints", newScene().endpoints(far).with(hinted("node-2", "b")),
			[]string{otherNodes, otherZones}},
		{"other nodes' hints and this zone's", newScene().endpoints(far).with(hinted("node-2", "a")),
			[]string{otherNodes, "By topology hints for zones, 1 of 1 ready endpoints serve this node, in zone a."}},
		{"Local inside", newScene().with(internalLocal).endpoints(far), []string{noneHere, inside}},
		{"Local outside", newScene().external(local).endpoints(far), []string{noneHere, outside}},
		{"Local inside, with a NodePort", newScene().external(cluster.PolicyCluster).with(internalLocal).endpoints(far),
			[]string{noneHere, inside}},
		{"Local outside, without an address there", newScene().with(internalLocal).with(func(s *scene) {
			s.svc.ExternalPolicy = local
		}).endpoints(far), []string{noneHere, inside}},
		{"Local both", newScene().external(local).with(internalLocal).endpoints(far),
			[]string{noneHere, inside, outside}},
		{"Local both, and an endpoint here", newScene().external(local).with(internalLocal).endpoints(mixed, far), nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := checkExplained(t, c.scene.view(), c.scene.settings)
			if got, want := strings.Join(x.Ports[0].Why, "\n"), strings.Join(c.want, "\n"); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}
