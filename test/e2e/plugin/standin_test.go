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
	"time"

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
		case r.URL.Path == "/api/v1/namespaces/shop/pods/web-1":
			w.Header().Set("Content-Type", "application/json")
			json.NewEncoder(w).Encode(corev1.Pod{
				TypeMeta: metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}, Spec: corev1.PodSpec{NodeName: "hollow001"},
				Status: corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: "fd00::1"}, {IP: "10.1.1.11"}}}})
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

// podOf is the pod of a proxy, which runs unless it is to wait for something.
func podOf(name, waits string) corev1.Pod {
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "kube-proxy-" + name, Namespace: metav1.NamespaceSystem}}
	pod.Spec = corev1.PodSpec{NodeName: name, Containers: []corev1.Container{{
		Name: "kube-proxy", Command: []string{"/usr/local/bin/kube-proxy"},
		Args: []string{"--config", "/var/lib/kube-proxy/config.conf", "--v=2"}}}}
	state := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	if waits != "" {
		state = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: waits}}
	}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "kube-proxy", State: state}}
	return pod
}

// hollow has n hollow nodes; number 7 fails.
func hollow(n int) (k *Kubelet, pods []corev1.Pod) {
	k = &Kubelet{Pods: map[string]Run{}}
	for i := range n {
		name := fmt.Sprintf("hollow%03d", i)
		pods = append(pods, podOf(name, ""))
		k.Pods["kube-proxy-"+name] = Hollow(name, i == 7)
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

// runs returns a function that runs the plugin.
func runs(t *testing.T, kubeconfig string) func(args ...string) (int, string) {
	plugin, err := program()
	must(t, err)
	return func(args ...string) (int, string) {
		begun := time.Now()
		cmd := exec.Command(plugin, append([]string{"--kubeconfig=" + kubeconfig, "--timeout=60s"}, args...)...)
		out, _ := cmd.CombinedOutput()
		t.Logf("%v: %v", args, time.Since(begun))
		return cmd.ProcessState.ExitCode(), string(out)
	}
}

// KC-03, KC-06: the answer has lines for nodes that do not answer; a trace goes to the node of its
// Pod, with the Pod's address.
func TestFewNodes(t *testing.T) {
	k, pods := hollow(3)
	k.Pods["kube-proxy-hangs"], k.Pods["kube-proxy-nosocket"] = hangs, noSocket
	run := runs(t, standIn(t, k,
		append(pods, podOf("hangs", ""), podOf("nosocket", ""), podOf("stopped", "CrashLoopBackOff"))))
	code, out := run("status", "--timeout=15s")
	has(t, out, "3 of 6 nodes answered\n", "no answer from node hangs: no answer in 15s\n",
		"no answer from node nosocket: there is no socket /x\\x1b[2J\n",
		"no answer from node stopped: its pod kube-proxy-stopped does not run: CrashLoopBackOff\n", "\nhollow002  ok ")
	if code != 2 {
		t.Errorf("exit code %d", code)
	}
	code, out = run("trace", "shop/web-1", "10.96.0.10:80")
	has(t, out, "Pod shop/web-1 is at fd00::1 and 10.1.1.11, on hollow001\n",
		"node hollow001\n10.1.1.11 → 10.96.0.10:80/tcp\n")
	if code != 0 {
		t.Errorf("exit code %d", code)
	}
	if code, out = run("trace", "web-1", "web", "-n", "shop", "--node=hollow002"); code != 0 ||
		!strings.Contains(out, "node hollow002\n10.1.1.11 ") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
	if code, out = run("trace", "10.1.1.11", "web"); code != 1 || !strings.Contains(out, "--node NODE is missing") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
}

// KC-07: the page of a node works through exec, as its commands do.
func TestPage(t *testing.T) {
	k, pods := hollow(2)
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

// KC-05: without WebSockets, commands run over SPDY; 200 nodes give one answer, the failing node
// first.
func TestOverSPDY(t *testing.T) {
	k, pods := hollow(hollowNodes)
	run := runs(t, standIn(t, k, pods))
	code, out := run("status")
	if code != 2 || strings.Count(out, "hollow007 ") != 1 ||
		strings.Index(out, "hollow007 ") > strings.Index(out, "hollow000 ") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
	has(t, out, "200 of 200 nodes answered", "and 179 nodes without a problem; -o wide lists all", "--node hollow007\n")
	code, out = run("why", "shop/web")
	has(t, out, "\nnode hollow007\n", "\n199 nodes (hollow000, ", "no space left on device")
	if code != 2 {
		t.Errorf("exit code %d:\n%s", code, out)
	}
	code, out = run("events")
	if lines := strings.Count(out, " shop/web "); code != 0 || lines != 1 {
		t.Errorf("exit code %d, %d lines for one change:\n%s", code, lines, out)
	}
	has(t, out, " 200 ")
	if code, out = run("why", "shop/wbe"); code != 1 ||
		!strings.Contains(out, "no Service shop/wbe; candidates:\nkubectl svcproxy:   shop/web") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
	if code, out = run("--node=hollow003", "status", "-o", "json"); code != 0 ||
		!strings.Contains(out, `"node": "hollow003"`) {
		t.Errorf("exit code %d:\n%s", code, out)
	}
	if code, out = run("status", "--node=nosuch"); code != 3 || !strings.Contains(out, "no proxy pod on node nosuch") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
	if most := k.Most.Load(); most > 50 {
		t.Errorf("%d commands at once, want batches of 50", most)
	}
}
