package testbed

import (
	"net/netip"
	"testing"
	"time"

	"kube-proxy/internal/netlab"
	"kube-proxy/test/e2e/controlplane"
)

// Without a proxy the pods answer at their own addresses, the API server is reachable from node1,
// and no service answers.
func TestBedWithoutProxy(t *testing.T) {
	bed, err := New(t.Context(), Options{Logf: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := bed.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, host := range netlab.Hosts() {
		if !host.Pod() {
			continue
		}
		for _, addr := range []netip.Addr{host.V4, host.V6} {
			name, err := bed.Ask(netlab.Node1, netip.AddrPortFrom(addr, PodPort), 3*time.Second)
			if err != nil || name != host.Name {
				t.Errorf("%s: %q answers, %v; want %s", addr, name, err, host.Name)
			}
		}
	}
	service := controlplane.Service("web", 80)
	if err := bed.API.Create(t.Context(), service); err != nil {
		t.Fatal(err)
	}
	if name, err := bed.Ask("pod3", netip.MustParseAddrPort(service.Spec.ClusterIP+":80"),
		200*time.Millisecond); err == nil {
		t.Errorf("%s answers at a service address without a proxy", name)
	}
	if rules, err := bed.Meaning(t.Context()); err != nil || rules != "" {
		t.Errorf("the proxy's tables hold %q, %v; want nothing", rules, err)
	}
	if err := bed.CleanNode(t.Context()); err != nil {
		t.Error(err)
	}
}
