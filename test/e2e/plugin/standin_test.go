package plugin

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kube-proxy/test/e2e/testbed"
)

// standIn answers like an API server without WebSockets: it lists pods, and lets a Kubelet run
// commands.
func standIn(t *testing.T, k *Kubelet, pods []corev1.Pod) (kubeconfig string) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		parts := strings.Split(r.URL.Path, "/") // /api/v1/namespaces/NAMESPACE/pods/NAME/exec
		switch q := r.URL.Query(); {
		case strings.HasSuffix(r.URL.Path, "/exec"):
			for from, to := range map[string]string{"stdin": "input", "stdout": "output", "stderr": "error"} {
				q.Set(to, map[string]string{"true": "1"}[q.Get(from)])
			}
			r.URL.Path, r.URL.RawQuery = "/exec/"+parts[4]+"/"+parts[6]+"/"+q.Get("container"), q.Encode()
			k.ServeHTTP(w, r)
		case len(parts) == 6 && strings.HasPrefix(q.Get("labelSelector"), "k8s-app in "):
			w.Header().Set("Content-Type", "application/json")
			json.NewEncoder(w).Encode(corev1.PodList{
				TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, Items: pods,
			})
		default:
			w.Header().Set("Content-Type", "application/json")
			json.NewEncoder(w).Encode(corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}})
		}
	}))
	t.Cleanup(s.Close)
	kubeconfig = filepath.Join(t.TempDir(), "config")
	must(t, os.WriteFile(kubeconfig, fmt.Appendf(nil, "{apiVersion: v1, kind: Config, current-context: a, "+
		"contexts: [{name: a, context: {cluster: a}}], "+
		"clusters: [{name: a, cluster: {server: '%s'}}]}", s.URL), 0o600))
	return kubeconfig
}

// hollow has three hollow nodes; the last fails.
func hollow() (k *Kubelet, pods []corev1.Pod) {
	k = &Kubelet{Pods: map[string]Run{}}
	for i := range 3 {
		name := fmt.Sprintf("hollow%03d", i)
		k.Pods["kube-proxy-"+name] = Hollow(name, i == 2)
		pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "kube-proxy-" + name, Namespace: metav1.NamespaceSystem}}
		pod.Spec = corev1.PodSpec{NodeName: name, Containers: []corev1.Container{{
			Name: "kube-proxy", Command: []string{"/usr/local/bin/kube-proxy"},
			Args: []string{"--config", "/var/lib/kube-proxy/config.conf", "--v=2"}}}}
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name: "kube-proxy", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
		pods = append(pods, pod)
	}
	return k, pods
}

// program builds the plugin.
var program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "svcproxy")
	if err != nil {
		return "", err
	}
	return testbed.Build(context.Background(), dir, "kubectl-svcproxy")
})

// KC-07: the page of a node works through exec, as its commands do.
func TestPage(t *testing.T) {
	k, pods := hollow()
	kubeconfig := standIn(t, k, pods)
	plugin, err := program()
	must(t, err)
	cmd := exec.Command(plugin, "ui", "--node=hollow001", "--kubeconfig="+kubeconfig)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	defer cmd.Wait()
	defer cmd.Process.Kill()
	url, err := bufio.NewReader(out).ReadString('\n')
	must(t, err)
	answer, err := http.Get(strings.TrimSpace(url))
	must(t, err)
	defer answer.Body.Close()
	page, err := io.ReadAll(answer.Body)
	must(t, err)
	has(t, string(page), "shop/web", "hollow001")
}

// Without WebSockets, commands run over SPDY: input, output, errors and exit codes pass.
func TestOverSPDY(t *testing.T) {
	k, pods := hollow()
	kubeconfig := standIn(t, k, pods)
	plugin, err := program()
	must(t, err)
	for _, c := range []struct {
		args, want string
		code       int
	}{
		{"status", "3 of 3 nodes answered", 2},
		{"why shop/web", "\nnode hollow002\n", 2},
		{"why shop/wbe", "no Service shop/wbe; candidates:\nkubectl svcproxy:   shop/web", 1},
		{"status --node=hollow002", "node-b is unreachable from here since 12s: 41 endpoints", 2},
		{"--node=hollow001 status -o json", `"node": "hollow001"`, 0},
		{"status --node=nosuch", "no proxy pod on node nosuch", 3},
	} {
		cmd := exec.Command(plugin, append(strings.Fields(c.args), "--kubeconfig="+kubeconfig)...)
		out, _ := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != c.code {
			t.Errorf("%s: exit code %d, want %d", c.args, code, c.code)
		}
		has(t, string(out), c.want)
	}
}

// The report of a node comes through exec, and has the names of its cluster only on request
// (TN-92).
func TestReport(t *testing.T) {
	k, pods := hollow()
	kubeconfig := standIn(t, k, pods)
	plugin, err := program()
	must(t, err)
	for _, names := range []bool{false, true} {
		file := filepath.Join(t.TempDir(), "report.tar.gz")
		out, err := exec.Command(plugin, "report", "--node=hollow001", "--kubeconfig="+kubeconfig, "--file="+file,
			fmt.Sprintf("--names=%t", names)).CombinedOutput()
		must(t, err)
		has(t, string(out), "wrote "+file)
		text, err := exec.Command("tar", "-xzOvf", file).CombinedOutput()
		must(t, err)
		has(t, string(text), "status.json", "table.json", "README.txt")
		for _, name := range []string{"hollow001", "shop"} {
			if strings.Contains(string(text), name) != names {
				t.Errorf("with names: %t, and %q in the report:\n%.1000s", names, name, text)
			}
		}
	}
}
