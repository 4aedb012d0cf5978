//go:build pods

package pods

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kube-proxy/internal/netlab"
	"kube-proxy/test/e2e/controlplane"
	"kube-proxy/test/e2e/helmchart"
	"kube-proxy/test/e2e/testbed"
)

// registry is the configured image registry of kubeadm.
const registry = "registry.example"

// kubeadmWrites returns the objects that kubeadm installs for kube-proxy in a cluster with
// these pods and this API server.
func kubeadmWrites(t *testing.T, pods, api string) string {
	t.Helper()
	bin, err := controlplane.Build(t.Context(), t.Logf, "kubeadm")
	must(t, err)
	made, err := bed.Command(t.Context(), netlab.Node1, filepath.Join(bin, "kubeadm"), "init", "phase", "addon",
		"kube-proxy", "--print-manifest",
		"--kubernetes-version", controlplane.Kubernetes, "--pod-network-cidr", pods, "--control-plane-endpoint", api,
		"--apiserver-advertise-address", netip.MustParseAddrPort(api).Addr().String(), "--kubeconfig", "none",
		"--image-repository", registry)
	must(t, err)
	return made
}

// test/testdata/kubeadm has kubeadm's output.
func TestKubeadmManifests(t *testing.T) {
	root, err := controlplane.Root()
	must(t, err)
	var there strings.Builder
	for _, name := range []string{"rbac.yaml", "configmap.yaml", "daemonset.yaml"} {
		text, err := os.ReadFile(filepath.Join(root, "..", "..", "test", "testdata", "kubeadm", name))
		must(t, err)
		there.Write(text)
	}
	made := kubeadmWrites(t, "10.244.0.0/16", "172.18.0.2:6443")
	if strings.TrimSpace(made) != strings.TrimSpace(there.String()) {
		t.Errorf("kubeadm writes\n%s\ntestdata/kubeadm has\n%s", made, there.String())
	}
}

// In a cluster of kubeadm, changing the image is enough: its ConfigMap, permissions, mounts and
// command line stay as they are.
func TestKubeadm(t *testing.T) {
	asLeft(t, testbed.IPTables)
	addr := web(t)
	made := kubeadmWrites(t, netlab.Cluster4.String()+","+netlab.Cluster6.String(), netip.AddrPortFrom(testbed.APIAddr,
		testbed.APIPort).String())
	const theirs = "image: " + registry + "/kube-proxy:" + controlplane.Kubernetes + "\n"
	const ours = "image: " + ProxyImage + ":e2e\n"
	if strings.Count(made, theirs) != 1 {
		t.Fatalf("kubeadm does not write one %q:\n%s", theirs, made)
	}
	objects, err := helmchart.Decode(strings.Replace(made, theirs, ours, 1))
	must(t, err)
	apply(t, nil, objects)
	t.Cleanup(func() { remove(t, objects) })
	pod := rolledOut(t, "kube-proxy", netlab.Node1)
	if _, err := bed.Await(t.Context(), "pod3", addr, patience, "pod1", "pod4"); err != nil {
		t.Fatalf("%v\n%s", err, containerLogs())
	}
	if restarts := pod.Status.ContainerStatuses[0].RestartCount; restarts > 0 {
		t.Errorf("the proxy was restarted %d times\n%s", restarts, containerLogs())
	}
	rules, err := bed.Command(t.Context(), netlab.Node1, "iptables-nft-save", "-t", "nat")
	must(t, err)
	if !strings.Contains(rules, "KUBE-SVC-") {
		t.Errorf("its blank mode is not iptables of the back end that the kubelet uses:\n%s", rules)
	}
	reportProblems(t, pod)
}
