//go:build pods

package pods

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"kube-proxy/internal/netlab"
	"kube-proxy/test/e2e/testbed"
)

// TestChartFailover: the chart's pod avoids or rescues from a node that drops all packets, in each
// mode, with the rights that the chart gives it: it reads the Node, probes, and changes the
// connection table. Without the value connections wait.
func TestChartFailover(t *testing.T) {
	asLeft(t, testbed.IPTables)
	addr := web(t)
	plugin, err := testbed.Build(t.Context(), bed.Dir, "kubectl-svcproxy")
	must(t, err)
	nameNamespace(t, "pod3")
	var objects []*unstructured.Unstructured
	t.Cleanup(func() { remove(t, objects) })
	for _, step := range []struct {
		mode, failover string
		rights         uint64
	}{
		{"nftables", "off", netAdmin},
		{"nftables", "avoid", netAdmin},
		{"nftables", "rescue", netAdmin},
		{"iptables", "avoid", netAdmin | netRaw},
		{"ebpf", "avoid", netAdmin | sysAdmin | sysResource | perfmon | bpf},
	} {
		t.Run(step.mode+" "+step.failover, func(t *testing.T) {
			objects = installWith(t, objects, "tag: e2e}\nconfig: {clusterCIDR: '10.1.0.0/16,fd00:10:1::/48', mode: "+
				step.mode+", failover: '"+step.failover+"', ebpf: {cgroup: /run/cgroup}}", inLab)
			pod := rolledOut(t, "kube-proxy", netlab.Node1)
			if _, err := bed.Await(t.Context(), "pod3", addr, patience, "pod1", "pod4"); err != nil {
				t.Fatalf("%v\n%s", err, containerLogs())
			}
			checkConfined(t, step.rights&mayGrant())
			cut(t, netlab.Node2)
			defer plug(t, netlab.Node2)
			throughFailure(t, plugin, addr, step.failover)
			if restarts := pod.Status.ContainerStatuses[0].RestartCount; restarts > 0 || t.Failed() {
				t.Errorf("the proxy was restarted %d times\n%s", restarts, containerLogs())
			}
			if strings.Contains(containerLogs(), "Failed to read a Node") {
				t.Errorf("the Node was not read\n%s", containerLogs())
			}
			reportProblems(t, pod)
			plug(t, netlab.Node2)
			if _, err := bed.Await(t.Context(), "pod3", addr, patience, "pod4"); err != nil {
				t.Errorf("after the return: %v\n%s", err, containerLogs())
			}
		})
	}
}

// throughFailure connects while node2, which has one of the two endpoints, is cut off.
func throughFailure(t *testing.T, plugin string, addr netip.AddrPort, failover string) {
	t.Helper()
	type answer struct {
		name string
		err  error
	}
	const clients = 30 // all of them reach the other endpoint once in a billion times
	answers := make(chan answer)
	for range clients {
		go func() {
			name, err := ask(addr)
			answers <- answer{name, err}
		}()
	}
	failed := 0
	for range clients {
		switch a := <-answers; {
		case a.err == nil && a.name == "pod1":
		case errors.Is(a.err, netlab.ErrTimeout):
			failed++
		default:
			t.Errorf("%q answers, error %v, want pod1", a.name, a.err)
		}
	}
	// In rescue a client meets the silent endpoint again, half of the times.
	if most := map[string]int{"off": clients, "rescue": clients / 3}[failover]; failed > most ||
		failover == "off" && failed == 0 {
		t.Errorf("%d of %d connections failed", failed, clients)
	}
	if failover == "off" {
		return
	}
	says := map[string]string{"avoid": "avoided", "rescue": "affected"}[failover]
	out := ""
	for deadline := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		out = runPlugin(t, plugin, "status")
		if strings.Contains(out, "node2 is unreachable from here") && strings.Contains(out, says) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the status does not name node2:\n%s\n%s", out, containerLogs())
		}
	}
	list, err := bed.API.Client.EventsV1().Events(corev1.NamespaceAll).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	for _, e := range list.Items {
		if e.Reason == "KubeProxyNodeUnreachable" {
			return
		}
	}
	t.Errorf("none of %d events is about the node", len(list.Items))
}

// ask connects from pod3. In mode ebpf a rescue ends connect(), and the program tries again.
func ask(addr netip.AddrPort) (name string, err error) {
	const within = 8 * time.Second // a client repeats its first packet after 1 s and 3 s
	for end := time.Now().Add(within); time.Now().Before(end); {
		name, err = bed.Ask("pod3", addr, time.Until(end))
		if !errors.Is(err, unix.ECONNABORTED) {
			return name, err
		}
	}
	return name, err
}

// nameNamespace gives a pod's network namespace a file in node1's /run/netns, as runtimes do: mode
// ebpf ends sockets there.
func nameNamespace(t *testing.T, host string) {
	t.Helper()
	path, err := bed.Netns(host)
	must(t, err)
	file, err := os.Open(path)
	must(t, err)
	defer file.Close()
	cmd := exec.Command("nsenter", "--mount", "--pid", "--target", strconv.Itoa(node.pid()), "sh", "-ec",
		"mkdir -p /run/netns; touch /run/netns/"+host+"; mount --bind /proc/self/fd/3 /run/netns/"+host)
	cmd.ExtraFiles = []*os.File{file}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("name the namespace of %s: %v\n%s", host, err, out)
	}
}

// cut has a host drop all packets that come in.
func cut(t *testing.T, host string) {
	t.Helper()
	_, err := bed.Command(t.Context(), host, "nft", "add table inet cut; add chain inet cut c "+
		"{ type filter hook prerouting priority -400; policy drop; }")
	must(t, err)
}

// plug ends that.
func plug(t *testing.T, host string) {
	t.Helper()
	_, err := bed.Command(context.Background(), host, "nft", "add table inet cut; delete table inet cut")
	must(t, err)
}
