package inspect

import (
	"context"
	"net/netip"
	"testing"

	"kube-proxy/cluster"
	"kube-proxy/nodetrace"
	"kube-proxy/trace"
)

// A client is on this node if it is an endpoint there, or an address of the node's pod CIDRs that
// is no endpoint elsewhere (NT-12).
func TestClientHere(t *testing.T) {
	w := newWorld()
	w.add("shop", "web", "10.96.0.1", 3, 3)
	var asked nodetrace.Question
	w.cfg.Follow = func(_ context.Context, q nodetrace.Question) (trace.Node, error) {
		asked = q
		return trace.Node{Verdict: trace.Delivered}, nil
	}
	here := func(client string) bool {
		t.Helper()
		if _, err := w.Trace(t.Context(), TraceQuery{From: client, To: "shop/web"}); err != nil {
			t.Fatal(err)
		}
		return asked.ClientHere
	}
	if here("10.1.7.9") {
		t.Error("an address of no pod is on this node")
	}
	w.store.Fold(cluster.NodeSet{Node: &cluster.Node{Name: w.store.Facts().NodeName,
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.1.7.0/24")}}})
	if !here("10.1.7.9") || here("10.1.8.9") {
		t.Error("a pod CIDR of the node does not decide")
	}
}
