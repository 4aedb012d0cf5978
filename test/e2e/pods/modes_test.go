//go:build pods

package pods

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"kube-proxy/internal/netlab"
	"kube-proxy/test/e2e/controlplane"
	"kube-proxy/test/e2e/testbed"
)

// Further capabilities of mode ebpf, as bits.
const (
	sysAdmin = 1 << 21
	perfmon  = 1 << 38
	bpf      = 1 << 39
)

// inLab has the pods of the chart attach their programs to the lab's cgroup.
func inLab(objects []*unstructured.Unstructured) error {
	return AttachAt(objects, bed.Lab.Cgroup(netlab.Node1))
}

// programs returns how many programs are attached to connect() of the lab's IPv4 sockets.
func programs(t *testing.T) int {
	t.Helper()
	dir, err := os.Open(bed.Lab.Cgroup(netlab.Node1))
	must(t, err)
	defer dir.Close()
	all, err := link.QueryPrograms(link.QueryOptions{Target: int(dir.Fd()), Attach: ebpf.AttachCGroupInet4Connect})
	must(t, err)
	return len(all.Programs)
}

// TestChartModes: the chart changes a node between mode ebpf and each other mode of this kernel,
// both ways, with the mounts and rights that it gives. Clients see no failure. Outside mode ebpf no
// program is left, and all connections follow the endpoints (EB-31).
func TestChartModes(t *testing.T) {
	asLeft(t, testbed.IPTables)
	addr := web(t)
	const values = "tag: e2e}\nconfig: {clusterCIDR: '10.1.0.0/16,fd00:10:1::/48', ebpf: {cgroup: /run/cgroup}, mode: "
	rights := map[string]uint64{"nftables": netAdmin, "iptables": netAdmin | netRaw, "userspace": netAdmin,
		"ebpf": netAdmin | sysAdmin | sysResource | perfmon | bpf}
	var objects []*unstructured.Unstructured
	t.Cleanup(func() { remove(t, objects) })
	at := 0 // the endpoint
	pods := []string{"pod1", "pod4"}
	follows := func(mode string) {
		t.Helper()
		at = 1 - at
		setEndpoint(t, pods[at])
		same := 0 // answers in a row without one of the other endpoint
		for deadline := time.Now().Add(patience); same < 10; {
			name, err := bed.Ask("pod3", addr, time.Second)
			if same++; err != nil || name != pods[at] {
				same = 0
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: %q answers, error %v, want %s\n%s", mode, name, err, pods[at], containerLogs())
			}
		}
	}
	before := ""
	for _, mode := range []string{"nftables", "ebpf", "iptables", "ebpf", "nftables", "ebpf", "userspace", "ebpf"} {
		ok := t.Run(before+" to "+mode, func(t *testing.T) {
			var traffic *netlab.Traffic
			if before != "" && before != "userspace" && mode != "userspace" { // there connections end with the process
				var err error
				traffic, err = bed.StartTraffic("pod3", addr)
				must(t, err)
			}
			objects = installWith(t, objects, values+mode+"}", inLab)
			pod := rolledOut(t, "kube-proxy", netlab.Node1)
			if traffic != nil {
				if err := errors.Join(traffic.More(), traffic.Stop()); err != nil {
					t.Error(err)
				}
			}
			follows(mode)
			if got, want := programs(t), map[string]int{"ebpf": 1}[mode]; got != want {
				t.Errorf("%d programs are attached to connect(), want %d\n%s", got, want, containerLogs())
			}
			checkConfined(t, rights[mode]&mayGrant())
			reportProblems(t, pod)
		})
		if !ok {
			t.FailNow()
		}
		before = mode
	}
	// The programs of a proxy that was deleted stay, and the next one of another mode removes them.
	remove(t, objects)
	objects = nil
	if programs(t) != 1 {
		t.Fatal("the programs ended with the pod")
	}
	objects = installWith(t, nil, values+"nftables}", inLab)
	rolledOut(t, "kube-proxy", netlab.Node1)
	follows("nftables after the pod was deleted")
	if n := programs(t); n != 0 {
		t.Errorf("%d programs are left\n%s", n, containerLogs())
	}
}

// setEndpoint makes a pod the only endpoint of the Service web.
func setEndpoint(t *testing.T, name string) {
	t.Helper()
	pod, ok := netlab.HostByName(name)
	if !ok {
		t.Fatalf("no pod %s", name)
	}
	slice := controlplane.Slice("web", testbed.PodPort, testbed.NodeOf, pod.V4)
	client := bed.API.Client.DiscoveryV1().EndpointSlices(corev1.NamespaceDefault)
	is, err := client.Get(t.Context(), slice.Name, metav1.GetOptions{})
	must(t, err)
	is.Endpoints = slice.Endpoints
	if _, err := client.Update(t.Context(), is, metav1.UpdateOptions{}); err != nil {
		t.Fatal(fmt.Errorf("update the endpoints: %w", err))
	}
}
