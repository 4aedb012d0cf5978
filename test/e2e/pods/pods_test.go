//go:build pods

package pods

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"kube-proxy/internal/netlab"
	"kube-proxy/test/e2e/controlplane"
	"kube-proxy/test/e2e/testbed"
)

// patience is the time limit for events that normally take seconds.
const patience = 60 * time.Second

var (
	bed     *testbed.Bed
	node    *Node  // node1
	kubelet string // path of the program
	archive string // of the image
)

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "pods:", err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	ctx, start := context.Background(), time.Now()
	logf := func(format string, args ...any) {
		fmt.Printf("%6.1fs %s\n", time.Since(start).Seconds(), fmt.Sprintf(format, args...))
	}
	bin, err := controlplane.Build(ctx, logf, "kube-controller-manager", "kubelet")
	if err != nil {
		return 1, err
	}
	kubelet = filepath.Join(bin, "kubelet")
	if bed, err = testbed.New(ctx, testbed.Options{Pods: true, Logf: logf}); err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, bed.Close()) }()
	if archive, err = ImageProxy(ctx, bed.Dir); err != nil {
		return 1, err
	}
	logf("the image is made")
	if err := bed.API.StartControllerManager(filepath.Join(bin, "kube-controller-manager"),
		controlplane.DaemonSetControllers); err != nil {
		return 1, err
	}
	if node, err = StartNode(ctx, bed, NodeOptions{Host: netlab.Node1, Kubelet: kubelet, Logf: logf}); err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, node.Close()) }()
	if err := node.Import(ctx, archive); err != nil {
		return 1, err
	}
	logf("node1 runs pods")
	scheduling, stop := context.WithCancel(ctx)
	defer stop()
	go schedule(scheduling, logf)
	return m.Run(), nil
}

// schedule is the scheduler of a cluster whose pods have one place to run.
func schedule(ctx context.Context, logf func(string, ...any)) {
	pods := bed.API.Client.CoreV1().Pods(metav1.NamespaceSystem)
	for ; ctx.Err() == nil; time.Sleep(100 * time.Millisecond) {
		list, err := pods.List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName="})
		if err != nil {
			continue // the API server may be away
		}
		for _, pod := range list.Items {
			err := pods.Bind(ctx, &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: pod.Name},
				Target: corev1.ObjectReference{Kind: "Node", Name: nodeOf(&pod)}}, metav1.CreateOptions{})
			if err != nil {
				logf("bind %s: %v", pod.Name, err)
			}
		}
	}
}

// nodeOf returns the node for which the DaemonSet controller created the pod.
func nodeOf(pod *corev1.Pod) string {
	required := pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	for _, term := range required.NodeSelectorTerms {
		for _, field := range term.MatchFields {
			if field.Key == "metadata.name" {
				return field.Values[0]
			}
		}
	}
	return netlab.Node1
}

// apply is Apply. It deletes also when the context of a test has ended.
func apply(t *testing.T, old, objects []*unstructured.Unstructured) {
	t.Helper()
	must(t, Apply(context.Background(), bed.API, old, objects))
}

// asLeft gives node1 no rules but the hint of a kubelet that uses the back end of iptables (DP-14).
func asLeft(t *testing.T, backend testbed.Mode) {
	t.Helper()
	must(t, bed.CleanNode(t.Context()))
	bed.Mode = backend
	must(t, bed.Prepare(t.Context()))
}

// web makes a Service with endpoints pod1 and pod4 and returns its address.
func web(t *testing.T) netip.AddrPort {
	t.Helper()
	must(t, bed.API.DeleteAll(t.Context()))
	service := controlplane.Service("web", 80)
	var addrs []netip.Addr
	for _, name := range []string{"pod1", "pod4"} {
		pod, _ := netlab.HostByName(name)
		addrs = append(addrs, pod.V4)
	}
	must(t, bed.API.Create(t.Context(), service, controlplane.Slice("web", testbed.PodPort, testbed.NodeOf, addrs...)))
	return netip.AddrPortFrom(netip.MustParseAddr(service.Spec.ClusterIP), 80)
}

// rolledOut waits until the pod of the DaemonSet on the node is of its last template, and ready.
func rolledOut(t *testing.T, name, host string) *corev1.Pod {
	t.Helper()
	client, last := bed.API.Client, ""
	for deadline := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		set, err := client.AppsV1().DaemonSets(metav1.NamespaceSystem).Get(t.Context(), name, metav1.GetOptions{})
		must(t, err)
		list, err := client.CoreV1().Pods(metav1.NamespaceSystem).List(t.Context(),
			metav1.ListOptions{FieldSelector: "spec.nodeName=" + host})
		must(t, err)
		if len(list.Items) == 1 && set.Status.ObservedGeneration == set.Generation {
			pod := &list.Items[0]
			last = describe(pod)
			if pod.DeletionTimestamp == nil && pod.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] == currentHash(t,
				set) && isReady(pod) {
				return pod
			}
		} else {
			last = fmt.Sprintf("%d pods, status %+v", len(list.Items), set.Status)
		}
		if time.Now().After(deadline) {
			t.Fatalf("no rollout on %s: %s\nnode1:\n%s\n%s", host, last, containerLogs(), node.Log())
		}
	}
}

// currentHash is the label of pods of the DaemonSet's current template: that of its newest
// revision.
func currentHash(t *testing.T, set *appsv1.DaemonSet) string {
	t.Helper()
	revisions, err := bed.API.Client.AppsV1().ControllerRevisions(set.Namespace).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	var newest appsv1.ControllerRevision
	for _, r := range revisions.Items {
		if metav1.IsControlledBy(&r, set) && r.Revision > newest.Revision {
			newest = r
		}
	}
	return newest.Labels[appsv1.DefaultDaemonSetUniqueLabelKey]
}

func isReady(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func describe(pod *corev1.Pod) string {
	var b strings.Builder
	fmt.Fprintf(&b, "pod %s is %s %s %s", pod.Name, pod.Status.Phase, pod.Status.Reason, pod.Status.Message)
	for _, s := range append(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses...) {
		fmt.Fprintf(&b, "; %s ready %v, %d restarts", s.Name, s.Ready, s.RestartCount)
		if s.State.Waiting != nil {
			fmt.Fprintf(&b, ", waits: %s %s", s.State.Waiting.Reason, s.State.Waiting.Message)
		}
		if s.State.Terminated != nil {
			fmt.Fprintf(&b, ", ended with %d: %s", s.State.Terminated.ExitCode, s.State.Terminated.Message)
		}
	}
	return b.String()
}

// gone waits until node1 runs no pod.
func gone(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		list, err := bed.API.Client.CoreV1().Pods(metav1.NamespaceSystem).List(context.Background(),
			metav1.ListOptions{})
		must(t, err)
		if len(list.Items) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s stays", describe(&list.Items[0]))
		}
	}
}

// containerLogs returns the output of the containers on node1.
func containerLogs() string {
	var b strings.Builder
	roots, _ := filepath.Glob(fmt.Sprintf("/proc/%d/root/var/log/pods/*/*/*.log", node.pid()))
	for _, name := range roots {
		content, err := os.ReadFile(name)
		if err != nil {
			content = []byte(err.Error())
		}
		lines := strings.Split(strings.TrimSpace(string(content)), "\n")
		fmt.Fprintf(&b, "== %s\n%s\n", name, strings.Join(lines[max(0, len(lines)-40):], "\n"))
	}
	return b.String()
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
