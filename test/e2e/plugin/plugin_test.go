package plugin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/yaml"

	"kube-proxy/internal/netlab"
	"kube-proxy/test/e2e/controlplane"
	"kube-proxy/test/e2e/testbed"
)

const (
	hollowNodes = 80 // more than are queried at once
	kubeletPort = 10250
	// patience is the time limit for events that normally take a second.
	patience = 60 * time.Second
)

// clusterBed is shared by the tests: a bed with three real proxies and hollow nodes, and the plugin
// on the client.
type clusterBed struct {
	*testbed.Bed
	kubelet            *Kubelet
	plugin, kubeconfig string
}

// newCluster has real proxies on node1, node2 and client, hollow nodes with a failing first one,
// and three that do not answer: one hangs, one has no socket, one does not run. Its user has
// exactly the rights of docs/examples/kubectl-role.yaml.
func newCluster(t *testing.T) *clusterBed {
	bed, err := testbed.New(t.Context(), testbed.Options{Logf: t.Logf})
	must(t, err)
	t.Cleanup(func() { must(t, bed.Close()) })
	c := &clusterBed{Bed: bed, kubelet: &Kubelet{Pods: map[string]Run{}}}
	netns, err := bed.Netns(netlab.Client)
	must(t, err)
	forward, err := controlplane.StartProcess("sysctl", netns, exec.Command("sysctl", "-qw", "net.ipv4.ip_forward=1",
		"net.ipv6.conf.all.forwarding=1")) // as a node; it has problems otherwise
	must(t, err)
	if code := forward.ExitCode(); code != 0 {
		t.Fatalf("sysctl: exit code %d", code)
	}
	for _, host := range []string{netlab.Node1, netlab.Node2, netlab.Client} {
		socket := filepath.Join(bed.Dir, host, "admin.sock")
		proxy, err := bed.StartProxyOn(host, "--admin-socket="+socket)
		must(t, err)
		c.plugin = filepath.Join(bed.Dir, "kubectl-svcproxy")
		if _, err := os.Lstat(c.plugin); err != nil {
			must(t, os.Symlink(proxy.Binary, c.plugin))
		}
		c.add(t, host, "--admin-socket="+socket, true, real(proxy.Binary))
	}
	for i := range hollowNodes {
		name := fmt.Sprintf("hollow%03d", i)
		c.add(t, name, "--config=/var/lib/kube-proxy/config.conf", true, Hollow(name, i == 0))
	}
	c.add(t, "hangs", "--config=/x", true, hangs)
	c.add(t, "nosocket", "--config=/x", true, noSocket)
	c.add(t, "stopped", "--config=/x", false, nil)
	l, err := bed.Occupy(netlab.Node1, kubeletPort)
	must(t, err)
	server := httptest.NewUnstartedServer(c.kubelet)
	server.Listener.Close()
	server.Listener = l
	server.StartTLS() // API servers do not check the certificate by default
	t.Cleanup(func() { l.Close() })
	c.grant(t)
	c.kubeconfig, err = bed.API.Kubeconfig("laptop", controlplane.StrangerUser, nil)
	must(t, err)
	return c
}

// hangs is a command without any output.
func hangs(_ context.Context, _ []string, in io.Reader, _, _ io.Writer) error {
	_, err := io.Copy(io.Discard, in)
	return err
}

// noSocket is "kube-proxy connect" where there is no socket, whose name means harm to terminals.
func noSocket(_ context.Context, _ []string, _ io.Reader, _, errOut io.Writer) error {
	io.WriteString(errOut, "kube-proxy: cannot query the proxy: there is no socket /x\x1b[2J\n")
	return ExitCode(3)
}

// add creates a Node with the kubelet in node1, and the pod of its proxy there.
func (c *clusterBed) add(t *testing.T, name, flag string, runs bool, run Run) {
	t.Helper()
	host, _ := netlab.HostByName(netlab.Node1)
	ctx, nodes := t.Context(), c.API.Client.CoreV1().Nodes()
	must(t, c.API.PutNode(ctx, controlplane.Node(name, host.V4, "10.1.9.0/24")))
	node, err := nodes.Get(ctx, name, metav1.GetOptions{})
	must(t, err)
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: host.V4.String()}}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = kubeletPort
	_, err = nodes.UpdateStatus(ctx, node, metav1.UpdateOptions{})
	must(t, err)
	labels := map[string]string{"k8s-app": "kube-proxy"}
	if strings.HasPrefix(name, "hollow") { // as the chart has them
		labels = map[string]string{"app.kubernetes.io/name": "kube-proxy"}
	}
	pod := c.pod(t, metav1.NamespaceSystem, "kube-proxy-"+name, name, labels, flag)
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "kube-proxy", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
	}}
	if !runs {
		pod.Status.ContainerStatuses[0].State = corev1.ContainerState{
			Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"},
		}
	}
	_, err = c.API.Client.CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	must(t, err)
	if run != nil {
		c.kubelet.Pods[pod.Name] = run
	}
}

// pod makes a running pod on a node.
func (c *clusterBed) pod(t *testing.T, namespace, name, node string, labels map[string]string,
	args ...string) *corev1.Pod {
	t.Helper()
	pod, err := c.API.Client.CoreV1().Pods(namespace).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{
			{Name: "first", Image: "x"},
			{Name: "kube-proxy", Image: "x", Command: []string{"/usr/local/bin/kube-proxy"}, Args: args}}},
	}, metav1.CreateOptions{})
	must(t, err)
	pod.Status.Phase = corev1.PodRunning
	return pod
}

// real runs the command of a container with this program, on the machine of the test.
func real(binary string) Run {
	return func(ctx context.Context, command []string, in io.Reader, out, errOut io.Writer) error {
		cmd := exec.CommandContext(ctx, binary, command[1:]...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, errOut
		cmd.WaitDelay = time.Second // the input may stay open
		err := cmd.Run()
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() > 0 {
			return ExitCode(exit.ExitCode())
		}
		return nil
	}
}

// grant binds the roles of the documentation to the plugin's user.
func (c *clusterBed) grant(t *testing.T) {
	root, err := controlplane.Root()
	must(t, err)
	text, err := os.ReadFile(filepath.Join(root, "..", "..", "docs", "examples", "kubectl-role.yaml"))
	must(t, err)
	of := []rbacv1.Subject{{Kind: "User", Name: controlplane.StrangerUser, APIGroup: rbacv1.GroupName}}
	rbac := c.API.Client.RbacV1()
	var role rbacv1.Role
	var wide rbacv1.ClusterRole
	parts := bytes.Split(text, []byte("\n---\n"))
	must(t, yaml.UnmarshalStrict(parts[0], &role))
	must(t, yaml.UnmarshalStrict(parts[1], &wide))
	_, err = rbac.Roles(role.Namespace).Create(t.Context(), &role, metav1.CreateOptions{})
	must(t, err)
	_, err = rbac.RoleBindings(role.Namespace).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role.Name}, Subjects: of,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name}}, metav1.CreateOptions{})
	must(t, err)
	_, err = rbac.ClusterRoles().Create(t.Context(), &wide, metav1.CreateOptions{})
	must(t, err)
	_, err = rbac.ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: wide.Name}, Subjects: of,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: wide.Name},
	}, metav1.CreateOptions{})
	must(t, err)
}

// run runs the plugin on the client, as the user of a laptop.
func (c *clusterBed) run(t *testing.T, args ...string) (code int, out, errOut string) {
	t.Helper()
	netns, err := c.Netns(netlab.Client)
	must(t, err)
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(c.plugin, append(args, "--kubeconfig="+c.kubeconfig)...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	process, err := controlplane.StartProcess("kubectl-svcproxy", netns, cmd)
	must(t, err)
	return process.ExitCode(), stdout.String(), stderr.String()
}

// KC-01 to KC-06: by exec and with only the documented rights, the plugin queries three real
// proxies and many hollow nodes.
func TestCluster(t *testing.T) {
	c := newCluster(t)
	service := controlplane.Service("web", 80)
	pod1, _ := netlab.HostByName("pod1")
	pod4, _ := netlab.HostByName("pod4")
	must(t, c.API.Create(t.Context(), service,
		controlplane.Slice("web", testbed.PodPort, testbed.NodeOf, pod1.V4, pod4.V4)))
	pod := c.pod(t, "default", "web-4", netlab.Node2, nil)
	pod.Status.PodIP = pod4.V6.String()
	pod.Status.PodIPs = []corev1.PodIP{{IP: pod4.V6.String()}, {IP: pod4.V4.String()}}
	_, err := c.API.Client.CoreV1().Pods("default").UpdateStatus(t.Context(), pod, metav1.UpdateOptions{})
	must(t, err)
	all := hollowNodes + 6

	t.Run("status", func(t *testing.T) {
		var code int
		var out, errOut string
		for deadline := time.Now().Add(patience); ; time.Sleep(time.Second) { // until the real proxies have written
			code, out, errOut = c.run(t, "status", "--timeout=10s")
			written := strings.Count(out, "\n  next: ") == 2 && strings.HasPrefix(out, fmt.Sprint(hollowNodes+3, " "))
			if written || time.Now().After(deadline) {
				break
			}
		}
		t.Logf("%s", out)
		if code != 2 || errOut != "" {
			t.Errorf("exit code %d: %s", code, errOut)
		}
		has(t, out, fmt.Sprintf("%d of %d nodes answered", all-3, all), "no answer from node hangs: no answer in 10s",
			`no answer from node nosocket: there is no socket /x\x1b[2J`,
			"no answer from node stopped: its pod kube-proxy-stopped does not run: CrashLoopBackOff",
			"nodes without a problem; -o wide lists all", "\nerror  node hollow000: ", PluginNext)
		first := strings.Split(out[strings.Index(out, "NODE"):], "\n")[1]
		if !strings.HasPrefix(first, "hollow000 ") {
			t.Errorf("the failing node is not first: %s", first)
		}
		if most := c.kubelet.Most.Load(); most > 50 || most < 10 {
			t.Errorf("%d commands at once, want batches of 50", most)
		}
	})
	// All others would wait for it too.
	must(t, c.API.Client.CoreV1().Pods(metav1.NamespaceSystem).Delete(t.Context(), "kube-proxy-hangs",
		metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
	must(t, c.API.Client.CoreV1().Nodes().Delete(t.Context(), "hangs", metav1.DeleteOptions{}))
	all--
	t.Run("json", func(t *testing.T) {
		code, out, errOut := c.run(t, "status", "-o", "json")
		var answer struct {
			Nodes []struct {
				Node, Error string
				Answer      struct{ Mode, Node string }
			}
		}
		must(t, json.Unmarshal([]byte(out), &answer))
		if code != 2 || errOut != "" || len(answer.Nodes) != all {
			t.Errorf("exit code %d, %d nodes: %s", code, len(answer.Nodes), errOut)
		}
		for _, n := range answer.Nodes {
			if (n.Error == "") == (n.Answer.Mode == "") || n.Error == "" && n.Node != n.Answer.Node {
				t.Errorf("%+v", n)
			}
		}
	})
	t.Run("trace", func(t *testing.T) {
		code, out, errOut := c.run(t, "trace", "default/web-4", "web.default")
		if code != 0 || !strings.HasPrefix(out, "node node2\n") {
			t.Errorf("exit code %d: %s%s", code, out, errOut)
		}
		has(t, out, pod1.V4.String()+":8080", pod4.V4.String()+" → "+service.Spec.ClusterIP+":80/tcp")
		has(t, errOut, fmt.Sprintf("Pod default/web-4 is at %s and %s, on node2", pod4.V6, pod4.V4))
		code, out, errOut = c.run(t, "trace", "web-4", "web", "-n", "default", "--node=node1")
		if code != 0 || !strings.HasPrefix(out, "node node1\n") {
			t.Errorf("--node: exit code %d: %s%s", code, out, errOut)
		}
		if code, _, errOut = c.run(t, "trace", "10.1.1.11", "web"); code != 1 ||
			!strings.Contains(errOut, "--node NODE") {
			t.Errorf("without a node: exit code %d: %s", code, errOut)
		}
		if code, _, errOut = c.run(t, "trace", "default/gone", "web"); code != 3 ||
			!strings.Contains(errOut, `"gone" not found`) {
			t.Errorf("a Pod that is not there: exit code %d: %s", code, errOut)
		}
	})
	t.Run("events", func(t *testing.T) {
		code, out, errOut := c.run(t, "events")
		if code != 2 || errOut != "" {
			t.Errorf("exit code %d: %s", code, errOut)
		}
		lines := 0
		for line := range strings.Lines(out) {
			if strings.Contains(line, " shop/web ") {
				lines++
				has(t, line, fmt.Sprintf(" %d ", hollowNodes))
			}
		}
		if lines != 1 {
			t.Errorf("one change of %d nodes has %d lines:\n%s", hollowNodes, lines, out)
		}
	})
	t.Run("diff", func(t *testing.T) {
		code, out, errOut := c.run(t, "diff")
		if code != 2 {
			t.Errorf("exit code %d: %s", code, errOut)
		}
		if at, other := strings.Index(out, "\nnode hollow000\n"), strings.Index(out, "hollow001"); at < 0 ||
			at > other {
			t.Errorf("the node that differs is not first:\n%.3000s", out)
		}
		has(t, out, "map services", "3 nodes (client, node1, node2)\n  no difference; ")
	})
	t.Run("why", func(t *testing.T) {
		code, out, _ := c.run(t, "why", "shop/web")
		has(t, out, fmt.Sprintf("%d nodes (hollow001, ", hollowNodes-1),
			`no answer from 3 nodes (client, node1, node2): no Service shop/web`)
		if code != 2 {
			t.Errorf("exit code %d", code)
		}
		if code, _, errOut := c.run(t, "why", "shop/nosuch", "--node=hollow001"); code != 1 ||
			!strings.Contains(errOut, "no Service shop/nosuch") {
			t.Errorf("exit code %d: %s", code, errOut)
		}
	})
	t.Run("forbidden", func(t *testing.T) {
		bindings := c.API.Client.RbacV1().RoleBindings(metav1.NamespaceSystem)
		must(t, bindings.Delete(t.Context(), "svcproxy", metav1.DeleteOptions{}))
		defer c.bindAgain(t)
		code, _, errOut := c.run(t, "status")
		if code != 3 || !strings.Contains(errOut, "forbidden") || !strings.Contains(errOut, "kube-system") {
			t.Errorf("exit code %d: %s", code, errOut)
		}
	})
}

// PluginNext is the next command for the failing node, as the plugin has it.
const PluginNext = "next: kubectl svcproxy why shop/web --node hollow000"

func (c *clusterBed) bindAgain(t *testing.T) {
	_, err := c.API.Client.RbacV1().RoleBindings(metav1.NamespaceSystem).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "svcproxy"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "svcproxy"},
		Subjects:   []rbacv1.Subject{{Kind: "User", Name: controlplane.StrangerUser, APIGroup: rbacv1.GroupName}},
	}, metav1.CreateOptions{})
	must(t, err)
}

// The kubelet's library logs each execution whose end it does not see.
func TestMain(m *testing.M) {
	klog.SetLogger(logr.Discard())
	os.Exit(m.Run())
}

func has(t *testing.T, text string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(text, w) {
			t.Errorf("no %q in:\n%.4000s", w, text)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
