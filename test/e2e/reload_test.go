package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"kube-proxy/internal/netlab"
	"kube-proxy/test/e2e/testbed"
)

// clusterCIDR is the configuration of the pods' networks.
var clusterCIDR = "clusterCIDR: " + netlab.Cluster4.String() + "," + netlab.Cluster6.String() + "\n"

// writeConfig writes a configuration file for a proxy in the mode of the bed.
func writeConfig(t *testing.T, file, more string) {
	t.Helper()
	must(t, os.WriteFile(file, fmt.Appendf(nil, "apiVersion: kubeproxy.config.k8s.io/v1alpha1\n"+
		"kind: KubeProxyConfiguration\nmode: %s\nhostnameOverride: %s\nclientConnection: {kubeconfig: %s}\n%s",
		bed.Mode.Name, netlab.Node1, bed.Kubeconfig(), more), 0o600))
}

// startConfigured starts a proxy with a configuration file, and returns the file.
func startConfigured(t *testing.T, more string) (p *testbed.Proxy, file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "config.yaml")
	writeConfig(t, file, more)
	must(t, bed.Prepare(t.Context()))
	p, err := bed.StartProxyExactly("--config", file)
	return started(t, p, err), file
}

// awaitLog waits for text of the log.
func awaitLog(t *testing.T, p *testbed.Proxy, pattern string) {
	t.Helper()
	wanted := regexp.MustCompile(pattern)
	until(t, func() string {
		if wanted.MatchString(p.Log()) {
			return ""
		}
		return fmt.Sprintf("no line matches %q:\n%s", pattern, p.LogTail(20))
	})
}

// awaitMasquerade waits until a pod sees another one by its own address, or not.
func awaitMasquerade(t *testing.T, to netip.AddrPort, want bool) {
	t.Helper()
	pod3, _ := netlab.HostByName("pod3")
	until(t, func() string {
		c, err := bed.Lab.Open(pod3.Name, netlab.TCP, to, netlab.DialOptions{})
		must(t, err)
		must(t, c.Close())
		if seen := c.First().Seen.Addr(); (seen != pod3.V4) != want {
			return fmt.Sprintf("%s sees pod3 as %s", c.First().Server, seen)
		}
		return ""
	})
}

// The configuration file changes: fields take effect in packets, no connection is lost, and events
// report changes and an invalid file (PR-04).
func TestReload(t *testing.T) {
	begin(t)
	deleteEvents(t)
	inMode(t, testbed.NFTables)
	steady, local := web(t, "steady", "pod1", "pod4"), web(t, "local", "pod1")
	nodePort := nodePortService(t, "port", "pod2")
	p, file := startConfigured(t, clusterCIDR)
	await(t, "pod3", steady, "pod1", "pod4")
	await(t, "pod3", local, "pod1")
	await(t, netlab.Client, nodePort, "pod2")
	stop := traffic(t, "pod3", steady)
	open, err := bed.Lab.Open(netlab.Client, netlab.TCP, nodePort, netlab.DialOptions{})
	must(t, err)
	defer open.Close()

	awaitMasquerade(t, local, false)
	writeConfig(t, file, clusterCIDR+"nftables: {masqueradeAll: true}\n")
	awaitMasquerade(t, local, true)
	writeConfig(t, file, clusterCIDR+"nodePortAddresses: [10.0.0.0/8]\n")
	awaitMasquerade(t, local, false)
	awaitSilence(t, netlab.Client, nodePort)
	works(t, open, "through a closed NodePort")
	writeConfig(t, file, "clusterCIDR: 10.3.0.0/99\n")
	awaitEvent(t, "KubeProxyConfigInvalid", netlab.Node1)

	const period = 700 * time.Millisecond
	writeConfig(t, file, clusterCIDR+fmt.Sprintf("nftables: {minSyncPeriod: %v}\n", period))
	awaitLog(t, p, "minSyncPeriod")
	await(t, netlab.Client, nodePort, "pod2")
	start := time.Now()
	for _, pod := range []string{"pod4", "pod5", "pod1"} {
		move(t, "local", pod)
		await(t, "pod3", local, pod)
	}
	if took := time.Since(start); took < 2*period {
		t.Errorf("3 changes took %v with a minSyncPeriod of %v", took, period)
	}
	awaitEvent(t, "KubeProxyConfigReloaded", netlab.Node1)
	stop()
}
