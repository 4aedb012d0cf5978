//go:build pods

package pods

import (
	"context"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kube-proxy/internal/netlab"
	"kube-proxy/test/e2e/controlplane"
	"kube-proxy/test/e2e/testbed"
)

// On three nodes the plugin finds each proxy by its pod and merges their answers (KC-01, KC-02).
// With the capabilities BPF and NET_RAW, trace and why see BPF programs and the tables of
// iptables-legacy that other tests leave in node1, and leave nothing open.
func TestThreeNodes(t *testing.T) {
	asLeft(t, testbed.IPTables)
	addr := web(t)
	plugin, err := testbed.Build(t.Context(), bed.Dir, "kubectl-svcproxy")
	must(t, err)
	for _, host := range []string{netlab.Node2, netlab.Client} {
		at, _ := netlab.HostByName(host)
		object := controlplane.Node(host, at.V4, testbed.PodRanges[host].String())
		must(t, bed.API.PutNode(t.Context(), object))
		t.Cleanup(func() {
			must(t, bed.API.Client.CoreV1().Nodes().Delete(context.Background(), host, metav1.DeleteOptions{}))
			if host == netlab.Node2 { // the bed's, without the labels of a kubelet
				must(t, bed.API.PutNode(context.Background(), object))
			}
		})
		other, err := StartNode(t.Context(), bed, NodeOptions{Host: host, Kubelet: kubelet, Logf: t.Logf})
		must(t, err)
		t.Cleanup(func() { must(t, other.Close()) })
		must(t, other.Import(t.Context(), archive))
	}
	objects := install(t, nil, "tag: e2e}\nextraCapabilities: [BPF, NET_RAW]\n"+
		"config: {mode: nftables, clusterCIDR: '10.1.0.0/16,fd00:10:1::/48'}")
	t.Cleanup(func() { remove(t, objects) })
	nodes := []string{netlab.Node1, netlab.Node2, netlab.Client}
	for _, host := range nodes {
		rolledOut(t, "kube-proxy", host)
		_, err := bed.Await(t.Context(), host, addr, patience, "pod1", "pod4")
		must(t, err)
	}
	for _, host := range nodes {
		out := runPlugin(t, plugin, traceOn(host, addr))
		// Replies to a pod of node1 need not pass another node.
		if !strings.Contains(out, "balance") || host == netlab.Node1 && strings.Contains(out, "NOT DECIDED") {
			t.Errorf("trace on %s:\n%s", host, out)
		}
	}
	askByPlugin(t, plugin, map[string][]string{
		"status": nodes, "diff": {"3 nodes (", "no difference"}, "events": {"Service created"},
		"why default/web": {"3 of 3 nodes answered", "passes this node, and so does the reply"}})
}
