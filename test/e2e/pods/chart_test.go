//go:build pods

package pods

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"kube-proxy/internal/netlab"
	"kube-proxy/test/e2e/controlplane"
	"kube-proxy/test/e2e/helmchart"
	"kube-proxy/test/e2e/testbed"
)

// install renders the chart for the lab's cluster with more values and applies it in place of the
// old objects.
func install(t *testing.T, old []*unstructured.Unstructured, more string) []*unstructured.Unstructured {
	t.Helper()
	return installWith(t, old, more, func([]*unstructured.Unstructured) error { return nil })
}

// installWith changes the objects before it applies them.
func installWith(t *testing.T, old []*unstructured.Unstructured, more string,
	change func([]*unstructured.Unstructured) error) []*unstructured.Unstructured {
	t.Helper()
	values,
		err := helmchart.Parse(fmt.Sprintf("apiServer: {host: %s, port: %d}\nimage: {repository: %s, pullPolicy: "+
		"Never, %s", testbed.APIAddr, testbed.APIPort, ProxyImage, more))
	must(t, err)
	objects, _, err := helmchart.Render(helmchart.Release{Name: "kube-proxy", Namespace: metav1.NamespaceSystem,
		Kubernetes: controlplane.Kubernetes}, values)
	must(t, err)
	must(t, change(objects))
	apply(t, old, objects)
	return objects
}

// The chart's DaemonSet runs in every mode of this kernel, with exactly the rights that the chart
// gives it: a container that prepares the node, then one with only NET_ADMIN, and NET_RAW if
// programs of iptables need it. A change of values rolls out, and back, while clients continue.
func TestChart(t *testing.T) {
	asLeft(t, testbed.IPTables)
	addr := web(t)
	plugin, err := testbed.Build(t.Context(), bed.Dir, "kubectl-svcproxy")
	must(t, err)
	const pods = "config: {clusterCIDR: '10.1.0.0/16,fd00:10:1::/48'"
	steps := []struct{ name, values string }{
		{"nftables with the binary alone", "tag: e2e-minimal}\n" + pods + ", mode: nftables}"},
		{"nftables", "tag: e2e}\n" + pods + ", mode: nftables}"},
		{"iptables", "tag: e2e}\n" + pods + ", mode: iptables}"},
		{"back to nftables", "tag: e2e}\n" + pods + ", mode: nftables}"},
		{"userspace", "tag: e2e}\n" + pods + ", mode: userspace}"}, // whose connections end with the process
	}
	var objects []*unstructured.Unstructured
	var traffic *netlab.Traffic
	stop := func() {
		if traffic != nil {
			if err := errors.Join(traffic.More(), traffic.Stop()); err != nil {
				t.Error(err)
			}
			traffic = nil
		}
	}
	t.Cleanup(func() {
		stop()
		remove(t, objects)
	})
	for _, step := range steps {
		if step.name == "userspace" {
			// A mistake that only the proxy can see: it does not start, the rules stay, and the
			// next values put it right.
			objects = install(t, objects, steps[0].values[:len(steps[0].values)-1]+", nodePortAddresses: [nonsense]}")
			refused(t, "nodePortAddresses")
			stop()
		}
		ok := t.Run(step.name, func(t *testing.T) {
			objects = install(t, objects, step.values)
			pod := rolledOut(t, "kube-proxy", netlab.Node1)
			if _, err := bed.Await(t.Context(), "pod3", addr, patience, "pod1", "pod4"); err != nil {
				t.Fatalf("%v\n%s", err, containerLogs())
			}
			may := uint64(netAdmin)
			if step.name == "iptables" {
				may |= netRaw
			}
			checkConfined(t, may)
			if restarts := pod.Status.ContainerStatuses[0].RestartCount; restarts > 0 {
				t.Errorf("the proxy was restarted %d times\n%s", restarts, containerLogs())
			}
			reportProblems(t, pod)
			askByPlugin(t, plugin, map[string][]string{
				"status": {netlab.Node1}, traceOn(netlab.Node1, addr): {"balance"}})
		})
		if !ok {
			t.FailNow()
		}
		if traffic == nil && step.name != "userspace" {
			var err error
			traffic, err = bed.StartTraffic("pod3", addr)
			must(t, err)
		}
	}
}

// askByPlugin asks the proxies in their pods, by exec through API server, kubelet and containerd
// (KC-01). wants has the texts that each answer must have, by the command's arguments.
func askByPlugin(t *testing.T, plugin string, wants map[string][]string) {
	t.Helper()
	for args, texts := range wants {
		out := runPlugin(t, plugin, args)
		for _, want := range texts {
			if !strings.Contains(out, want) || strings.Contains(out, "no answer") {
				t.Errorf("kubectl svcproxy %s: without %q:\n%s", args, want, out)
			}
		}
	}
}

// traceOn is the plugin's trace from a pod of the first node, asked on a node.
func traceOn(node string, to netip.AddrPort) (args string) {
	return "trace 10.1.1.13 " + to.String() + " --node=" + node
}

// runPlugin runs the plugin on the client and returns what it printed.
func runPlugin(t *testing.T, plugin, args string) string {
	t.Helper()
	kubeconfig, err := bed.API.Kubeconfig("plugin", controlplane.AdminUser, nil)
	must(t, err)
	netns, err := bed.Netns(netlab.Client)
	must(t, err)
	cmd := exec.Command(plugin, append(strings.Fields(args), "--kubeconfig="+kubeconfig)...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	process, err := controlplane.StartProcess("kubectl-svcproxy", netns, cmd)
	must(t, err)
	code := process.ExitCode()
	return fmt.Sprintf("%s(exit code %d)", out.String(), code)
}

// refused waits until a proxy has ended with a log that names the field.
func refused(t *testing.T, field string) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		list, err := bed.API.Client.CoreV1().Pods(metav1.NamespaceSystem).List(t.Context(), metav1.ListOptions{})
		must(t, err)
		for _, pod := range list.Items {
			for _, s := range pod.Status.InitContainerStatuses { // the first that reads it
				if ended := s.LastTerminationState.Terminated; ended != nil && ended.ExitCode != 0 &&
					strings.Contains(containerLogs(), field) {
					return
				}
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("no proxy has refused %s\n%s", field, containerLogs())
		}
	}
}

// On a node whose kubelet uses the legacy back end of iptables the proxy needs NET_RAW too, because
// that back end uses a raw socket. The chart adds it in this mode, and nothing else.
func TestChartOnLegacyIPTables(t *testing.T) {
	asLeft(t, testbed.IPTablesLegacy)
	addr := web(t)
	objects := install(t, nil, "tag: e2e}\nconfig: {mode: iptables, clusterCIDR: '10.1.0.0/16,fd00:10:1::/48'}")
	t.Cleanup(func() { remove(t, objects) })
	pod := rolledOut(t, "kube-proxy", netlab.Node1)
	if _, err := bed.Await(t.Context(), "pod3", addr, patience, "pod1", "pod4"); err != nil {
		t.Fatalf("%v\n%s", err, containerLogs())
	}
	checkConfined(t, netAdmin|netRaw)
	rules, err := bed.Command(t.Context(), netlab.Node1, "iptables-legacy-save", "-t", "nat")
	must(t, err)
	if !strings.Contains(rules, "KUBE-SVC-") {
		t.Errorf("the legacy back end has no rules of the proxy:\n%s\n%s", rules, containerLogs())
	}
	reportProblems(t, pod)
}

// Capabilities, as bits.
const (
	netAdmin = 1 << 12
	netRaw   = 1 << 13
)

// remove deletes the objects, and the proxy's rules.
func remove(t *testing.T, objects []*unstructured.Unstructured) {
	t.Helper()
	apply(t, objects, nil)
	gone(t)
}

// checkConfined fails the test unless the only kube-proxy of node1 has exactly these capabilities,
// can gain none, is filtered by seccomp and cannot write to its root.
func checkConfined(t *testing.T, capabilities uint64) {
	t.Helper()
	pid := proxyPid(t)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	must(t, err)
	field := map[string]string{}
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(line, ":")
		field[name] = strings.TrimSpace(value)
	}
	for _, name := range []string{"CapEff", "CapPrm", "CapBnd"} {
		if got, err := strconv.ParseUint(field[name], 16, 64); err != nil || got != capabilities {
			t.Errorf("%s is %s, want %x", name, field[name], capabilities)
		}
	}
	if field["NoNewPrivs"] != "1" || field["Seccomp"] != "2" {
		t.Errorf("NoNewPrivs is %s, want 1; Seccomp is %s, want 2", field["NoNewPrivs"], field["Seccomp"])
	}
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	must(t, err)
	for line := range strings.Lines(string(mounts)) {
		f := strings.Fields(line)
		if f[4] == "/" && !strings.HasPrefix(f[5], "ro,") {
			t.Errorf("its root is mounted %s", f[5])
		}
	}
}

// proxyPid returns the only process in node1's network that runs kube-proxy. A child, such as
// iptables-save, runs it too until it executes its own program.
func proxyPid(t *testing.T) int {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		pids := proxyPids(t)
		if len(pids) == 1 {
			return pids[0]
		}
		if time.Now().After(end) {
			t.Fatalf("%d processes of kube-proxy run in node1: %v", len(pids), pids)
		}
	}
}

func proxyPids(t *testing.T) (pids []int) {
	t.Helper()
	home, err := bed.Netns(netlab.Node1)
	must(t, err)
	want, err := os.Stat(home)
	must(t, err)
	all, err := filepath.Glob("/proc/[0-9]*/exe")
	must(t, err)
	for _, exe := range all {
		target, err := os.Readlink(exe)
		if err != nil || target != "/usr/local/bin/kube-proxy" {
			continue
		}
		namespace, err := os.Stat(filepath.Join(filepath.Dir(exe), "ns", "net"))
		if err != nil || !os.SameFile(want, namespace) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(exe)))
		must(t, err)
		pids = append(pids, pid)
	}
	return pids
}

// reportProblems shows the warnings and errors that the pod's containers wrote.
func reportProblems(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/root/var/log/pods/*_%s_*/*/*.log", node.pid(), pod.Name))
	if len(files) == 0 {
		t.Errorf("%s has no log", pod.Name)
	}
	for _, name := range files {
		content, err := os.ReadFile(name)
		must(t, err)
		for line := range strings.Lines(string(content)) {
			if strings.Contains(line, " F E") || strings.Contains(line, " F W") {
				t.Logf("%s: %s", filepath.Base(filepath.Dir(name)), strings.TrimSpace(line))
			}
		}
	}
}
