package inspect

import (
	"net/netip"
	"strings"
	"testing"

	"kube-proxy/cluster"
	"kube-proxy/lb"
	"kube-proxy/policy"
	"kube-proxy/trace"
)

// A trace has information that the table lacks: why no endpoint serves, and which topology hints
// selected the backends.
func TestTraceSaysWhoChose(t *testing.T) {
	w := newWorld()
	w.add("shop", "web", "10.96.0.1", 3, 0)
	a, err := w.Trace(t.Context(), TraceQuery{From: "10.1.0.7", To: "shop/web"})
	if err != nil || a.Verdict != trace.Reject || !strings.Contains(strings.Join(a.Why, " "),
		"None of its 3 endpoints serves: 3 not ready.") {
		t.Errorf("%+v, %v", a, err)
	}

	w.store.Fold(cluster.NodeSet{Node: &cluster.Node{Name: "n1", Zone: "a",
		Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}})
	name := cluster.Name{Namespace: "shop", Name: "api"}
	w.add("shop", "api", "10.96.0.2", 0, 0)
	sl := &cluster.Slice{Name: name, Service: name,
		Ports: []cluster.SlicePort{{Name: "http", Protocol: cluster.TCP, Port: 8080}}}
	for i, zone := range []string{"a", "b"} {
		sl.Endpoints = sl.Endpoints.With(cluster.Endpoint{Addr: netip.AddrFrom4([4]byte{10, 1, 0, byte(1 + i)}),
			Where: cluster.At("n"+zone, ""), Ready: true, Serving: true, Hints: &cluster.Hints{Zones: []string{zone}}})
	}
	w.store.Fold(cluster.SliceSet{Slice: sl})
	w.table.Replace(lb.Owner{Name: name.String()}, policy.Resolve(w.store.View(name), settings))
	a, err = w.Trace(t.Context(), TraceQuery{From: "10.1.0.7", To: "shop/api"})
	if err != nil || len(a.Backends) != 1 || !strings.Contains(strings.Join(a.Why, " "),
		"By topology hints for zones, 1 of 2 ready endpoints serve this node, in zone a.") {
		t.Errorf("%+v, %v", a, err)
	}
}

// A connection that no backend has answered was sent to it.
func TestUnansweredConnection(t *testing.T) {
	c := Connection{Proto: "tcp", State: "SYN_SENT", From: netip.MustParseAddrPort("10.1.1.13:40000"),
		To: netip.MustParseAddrPort("10.96.0.10:80"), Backend: netip.MustParseAddrPort("10.1.1.11:8080"), Timeout: 110}
	const want = "tcp SYN_SENT 10.1.1.13:40000, sent to 10.1.1.11:8080, no reply yet; idle timeout 110s"
	if got := connectionText(c); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
