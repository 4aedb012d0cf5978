package e2e

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kube-proxy/internal/netlab"
	"kube-proxy/test/e2e/controlplane"
	"kube-proxy/test/e2e/testbed"
)

// The mode changes from one process to the next, back and forth: no connection of a loop fails, an
// open one lives on, later changes arrive, and the rules of the earlier mode are gone soon after
// the new ones work (PR-08).
func TestModeChange(t *testing.T) {
	begin(t)
	deleteEvents(t)
	steady := web(t, "steady", "pod1", "pod4")
	nodePort := nodePortService(t, "port", "pod2")
	inMode(t, testbed.NFTables)
	p := startProxy(t)
	await(t, "pod3", steady, "pod1", "pod4")
	await(t, netlab.Client, nodePort, "pod2")
	stops := []func(){traffic(t, "pod3", steady), traffic(t, netlab.Node1, steady), traffic(t, netlab.Client, nodePort)}

	for i, step := range []struct {
		name  string
		mode  testbed.Mode
		asked string
		gone  string // rules of this mode must go
	}{
		{"nftables to iptables", testbed.IPTables, "iptables", "nftables"},
		{"iptables to nftables", testbed.NFTables, "nftables", "iptables"},
		{"nftables to iptables-legacy", testbed.IPTablesLegacy, "iptables", "nftables"},
		{"iptables-legacy to nftables", testbed.NFTables, "nftables", "iptables"},
		{"nftables to ipvs, which is iptables", testbed.IPTables, "ipvs", "nftables"},
	} {
		must(t, p.StopInOrder())
		inMode(t, step.mode)
		start := time.Now()
		var err error
		p, err = bed.StartProxyAsked(step.asked)
		must(t, err)
		t.Cleanup(func() { endProxy(t, p) })
		marker(t, "marker-"+string(rune('a'+i)))
		served := time.Since(start)
		awaitGone(t, step.gone)
		t.Logf("%s: a new service answers after %v, the other mode's rules are gone after %v", step.name,
			served.Round(time.Millisecond), time.Since(start).Round(time.Millisecond))
		await(t, "pod3", steady, "pod1", "pod4")
		await(t, netlab.Client, nodePort, "pod2")
		if t.Failed() {
			t.FailNow()
		}
	}
	if want := "Mode cannot run on this host"; !strings.Contains(p.Log(), want) {
		t.Errorf("the log does not say %q:\n%s", want, p.Log())
	}
	fallback := awaitEvent(t, "KubeProxyModeFallback", netlab.Node1)
	for _, word := range []string{"ipvs", "iptables"} {
		if !strings.Contains(fallback.Note, word) {
			t.Errorf("the event does not name %s: %s", word, fallback.Note)
		}
	}
	for _, stop := range stops {
		stop()
	}
}

// nodePortService creates a NodePort service and returns where node1 answers for it.
func nodePortService(t *testing.T, name string, pods ...string) netip.AddrPort {
	t.Helper()
	service := controlplane.Service(name, 80)
	service.Spec.Type = corev1.ServiceTypeNodePort
	must(t, bed.API.Create(t.Context(), service, slice(name, pods...)))
	node1, _ := netlab.HostByName(netlab.Node1)
	return netip.AddrPortFrom(node1.V4, uint16(service.Spec.Ports[0].NodePort))
}

// awaitGone waits until the proxy has left no rules of a mode in the kernel.
func awaitGone(t *testing.T, mode string) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		left, err := bed.Leftovers(t.Context(), mode)
		must(t, err)
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("%d rules of mode %s are still there, such as %q", len(left), mode, left[:min(len(left), 5)])
			return
		}
	}
}
