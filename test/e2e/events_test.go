package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"kube-proxy/event"
	"kube-proxy/internal/netlab"
	"kube-proxy/mode"
	"kube-proxy/test/e2e/controlplane"
	"kube-proxy/test/e2e/testbed"
)

// deleteEvents makes room for events of this test.
func deleteEvents(t *testing.T) {
	t.Helper()
	must(t, bed.API.Client.EventsV1().Events("default").DeleteCollection(t.Context(), metav1.DeleteOptions{},
		metav1.ListOptions{}))
}

// awaitEvent waits for an event of the reason about the object of that name, and checks the
// properties common to all events of the catalogue.
func awaitEvent(t *testing.T, reason, name string) (event eventsv1.Event) {
	t.Helper()
	until(t, func() string {
		list, err := bed.API.Client.EventsV1().Events("").List(t.Context(), metav1.ListOptions{})
		must(t, err)
		missing := fmt.Sprintf("no event %s of %s, but %d others", reason, name, len(list.Items))
		for _, e := range list.Items {
			if e.Reason == reason && e.Regarding.Name == name {
				event = e
				return ""
			}
			missing += "\n" + e.Reason + " of " + e.Regarding.Name + ": " + e.Note
		}
		return missing
	})
	checkEvent(t, &event)
	return event
}

// checkEvent compares an event with its entry in the catalogue.
func checkEvent(t *testing.T, e *eventsv1.Event) {
	t.Helper()
	i := slices.IndexFunc(event.Catalogue(), func(entry event.Entry) bool { return entry.Reason == e.Reason })
	if i < 0 {
		t.Fatalf("%s is not in the catalogue", e.Reason)
	}
	entry := event.Catalogue()[i]
	if e.Action != entry.Action || e.Type != string(entry.Type) || e.Regarding.Kind != entry.Regards {
		t.Errorf("%s: action %s, type %s, regards a %s; want %s, %s, %s", e.Reason, e.Action, e.Type, e.Regarding.Kind,
			entry.Action, entry.Type, entry.Regards)
	}
	if e.ReportingController != "kube-proxy" || !strings.HasPrefix(e.ReportingInstance, "kube-proxy") ||
		e.EventTime.IsZero() {
		t.Errorf("%s: reporting controller %q, instance %q, time %v", e.Reason, e.ReportingController,
			e.ReportingInstance, e.EventTime)
	}
	if e.Regarding.Kind == event.KindNode && string(e.Regarding.UID) != e.Regarding.Name {
		t.Errorf("%s: regards Node %s with uid %q; want its name (EV-01)", e.Reason, e.Regarding.Name, e.Regarding.UID)
	}
	t.Logf("%s %s %s, of %s %s/%s: %s", e.Type, e.Action, e.Reason, e.Regarding.Kind, e.Regarding.Namespace,
		e.Regarding.Name, e.Note)
}

// The API server accepts events of all sources of the process: its start, choices, Services that
// it cannot serve as they ask, and rules that another program removed, which are restored.
func TestEvents(t *testing.T) {
	begin(t)
	deleteEvents(t)
	inMode(t, testbed.Blank)
	external := netlab.External4.Addr().Next()
	older, younger := externalService("older", external), externalService("younger", external)
	must(t, bed.API.Create(t.Context(), older, slice("older", "pod1")))
	time.Sleep(1100 * time.Millisecond) // creation times have seconds
	must(t, bed.API.Create(t.Context(), younger, slice("younger", "pod2")))
	nodePort := nodePortService(t, "port", "pod2")
	local := controlplane.Service("local", 80)
	local.Spec.Type = corev1.ServiceTypeLoadBalancer
	local.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	must(t, bed.API.Create(t.Context(), local, slice("local", "pod1")))
	healthCheck := fmt.Sprint(local.Spec.HealthCheckNodePort)
	for _, port := range []uint16{nodePort.Port(), uint16(local.Spec.HealthCheckNodePort)} {
		program, err := bed.Occupy(netlab.Node1, port)
		must(t, err)
		defer program.Close()
	}
	p := startProxy(t, "--iptables-sync-period=1s")
	await(t, netlab.Client, netip.AddrPortFrom(external, 80), "pod1")
	await(t, netlab.Client, nodePort, "pod2")
	for _, c := range []struct {
		reason, about string
		uid           types.UID
		says          string
	}{
		{"Starting", netlab.Node1, netlab.Node1, ""},                         // EV-01
		{"KubeProxyDefaultMode", netlab.Node1, netlab.Node1, "iptables"},     // EV-07
		{"KubeProxyContestedKey", "younger", younger.UID, "default/older"},   // SV-24
		{"FailedToStartServiceHealthcheck", "local", local.UID, healthCheck}, // EV-05, HT-15
		{"KubeProxyNodePortInUse", "port", "", fmt.Sprint(nodePort.Port())},  // PN-60
	} {
		if e := awaitEvent(t, c.reason, c.about); c.uid != "" && e.Regarding.UID != c.uid ||
			!strings.Contains(e.Note, c.says) {
			t.Errorf("%s: uid %q, want %q; note %q, want %q in it", c.reason, e.Regarding.UID, c.uid, e.Note, c.says)
		}
	}
	must(t, bed.FlushRules(t.Context()))
	await(t, "pod3", address(older), "pod1")
	awaitEvent(t, "KubeProxyDriftRepaired", netlab.Node1)
	must(t, p.StopInOrder())
	startProxy(t, "--hostname-override=elsewhere")
	awaitEvent(t, "KubeProxyNodeNotFound", "elsewhere") // PN-71
}

func externalService(name string, external netip.Addr) *corev1.Service {
	service := controlplane.Service(name, 80)
	service.Spec.ExternalIPs = []string{external.String()}
	return service
}

// The Node's annotation selects the mode if none is configured (S0, CF-19); an event reports it.
func TestEventModeFromAnnotation(t *testing.T) {
	begin(t)
	deleteEvents(t)
	annotate := func(value string) {
		patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, mode.Annotation, value)
		_, err := bed.API.Client.CoreV1().Nodes().Patch(context.Background(), netlab.Node1, types.MergePatchType,
			[]byte(patch), metav1.PatchOptions{})
		must(t, err)
	}
	annotate(`"userspace"`)
	t.Cleanup(func() { annotate("null") })
	inMode(t, testbed.Blank)
	startProxy(t)
	marker(t, "marker")
	if e := awaitEvent(t, "KubeProxyModeFromAnnotation", netlab.Node1); !strings.Contains(e.Note, "userspace") {
		t.Errorf("the event does not name the mode: %s", e.Note)
	}
	const reason = `reason="the Node's annotation net.experimental.kubernetes.io/proxy-mode names the mode userspace"`
	if body := awaitOK(t, metricsPort, "/metrics").Body; !strings.Contains(body, reason) {
		t.Errorf("kubeproxy_mode_info does not say %s", reason)
	}
}
