package e2e

import (
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"kube-proxy/internal/netlab"
	"kube-proxy/test/e2e/testbed"
)

// The API server accepts docs/examples/daemonset.yaml, its containers' command lines work with
// exactly the rights given there, and its probes use existing servers.
func TestExampleDaemonSet(t *testing.T) {
	begin(t)
	inMode(t, testbed.NFTables)
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "examples", "daemonset.yaml"))
	must(t, err)
	var set appsv1.DaemonSet
	must(t, yaml.UnmarshalStrict(text, &set))
	_, err = bed.API.Client.CoreV1().Namespaces().Get(t.Context(), set.Namespace, metav1.GetOptions{})
	must(t, err)
	created, err := bed.API.Client.AppsV1().DaemonSets(set.Namespace).Create(t.Context(), &set,
		metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict})
	must(t, err)
	pod := created.Spec.Template.Spec

	initial := startContainer(t, &pod.InitContainers[0])
	if code := initial.ExitCode(); code != 0 {
		t.Fatalf("the first container ends with status %d:\n%s", code, initial.LogTail(10))
	}
	addr := web(t, "web", "pod1")
	serving := &pod.Containers[0]
	p := startContainer(t, serving)
	await(t, "pod3", addr, "pod1")
	for what, probe := range map[string]*corev1.Probe{"readiness": serving.ReadinessProbe,
		"liveness": serving.LivenessProbe} {
		get := probe.HTTPGet
		for _, port := range serving.Ports {
			if port.Name == get.Port.StrVal {
				awaitOK(t, netip.AddrPortFrom(node1Addr(), uint16(port.HostPort)), get.Path)
				t.Logf("%s probe: %s on port %d answers", what, get.Path, port.HostPort)
			}
		}
	}
	for line := range strings.Lines(p.Log()) {
		if regexp.MustCompile(`^[WE]\d{4} `).MatchString(line) {
			t.Logf("it says: %s", strings.TrimSpace(line))
		}
	}
}

// startContainer starts kube-proxy as a container runtime would: /proc/sys is read-only and it has
// only the added capabilities, unless the container is privileged.
func startContainer(t *testing.T, c *corev1.Container) *testbed.Proxy {
	t.Helper()
	var args []string
	for _, arg := range c.Args {
		arg = strings.ReplaceAll(arg, "$(NODE_NAME)", netlab.Node1)
		args = append(args, strings.ReplaceAll(arg, "/var/lib/kube-proxy/kubeconfig.conf", bed.Kubeconfig()))
	}
	var by []string
	if rights := c.SecurityContext; rights.Privileged == nil || !*rights.Privileged {
		capabilities := "-all"
		for _, name := range rights.Capabilities.Add {
			capabilities += ",+" + strings.ToLower(string(name))
		}
		const script = `mount --rbind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys && exec "$@"`
		by = []string{"unshare", "--mount", "sh", "-c", script, "sh",
			"setpriv", "--no-new-privs", "--inh-caps=-all", "--bounding-set=" + capabilities}
	}
	p, err := bed.StartProxyBy(by, args...)
	started(t, p, err)
	select {
	case <-p.Done():
	case <-time.After(500 * time.Millisecond):
	}
	return p
}
