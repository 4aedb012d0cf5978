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
func awaitEvent(t *testing.T, reason, name string) *eventsv1.Event {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		list, err := bed.API.Client.EventsV1().Events("").List(t.Context(), metav1.ListOptions{})
		must(t, err)
		for i := range list.Items {
			if e := &list.Items[i]; e.Reason == reason && e.Regarding.Name == name {
				checkEvent(t, e)
				return e
			}
		}
		if time.Now().After(deadline) {
			var all []string
			for _, e := range list.Items {
				all = append(all, e.Reason+" of "+e.Regarding.Name+": "+e.Note)
			}
			t.Fatalf("no event %s of %s after %v, but %d others:\n%s", reason, name, patience, len(all),
				strings.Join(all, "\n"))
		}
	}
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

// Each start is reported (EV-01).
func TestEventStarting(t *testing.T) {
	begin(t)
	deleteEvents(t)
	startProxy(t)
	awaitEvent(t, "Starting", netlab.Node1)
}

// A blank mode is reported, because the default may change (EV-07), and is iptables here.
func TestEventBlankMode(t *testing.T) {
	begin(t)
	deleteEvents(t)
	addr := web(t, "web", "pod1")
	inMode(t, testbed.IPTables)
	p, err := bed.StartProxyAsked("")
	must(t, err)
	t.Cleanup(func() { endProxy(t, p) })
	await(t, "pod3", addr, "pod1")
	if e := awaitEvent(t, "default-mode-will-change", netlab.Node1); !strings.Contains(e.Note, "iptables") {
		t.Errorf("the event does not say that the mode is iptables: %s", e.Note)
	}
}

// The Node's annotation selects the mode if none is configured (S0, CF-19): log, metric and event
// report it.
func TestEventModeFromAnnotation(t *testing.T) {
	begin(t)
	deleteEvents(t)
	addr := web(t, "web", "pod1")
	annotate := func(value string) {
		patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, mode.Annotation, value)
		_, err := bed.API.Client.CoreV1().Nodes().Patch(context.Background(), netlab.Node1, types.MergePatchType,
			[]byte(patch), metav1.PatchOptions{})
		must(t, err)
	}
	annotate(`"userspace"`)
	t.Cleanup(func() { annotate("null") })
	inMode(t, testbed.IPTables)
	p, err := bed.StartProxyAsked("")
	must(t, err)
	t.Cleanup(func() { endProxy(t, p) })
	await(t, "pod3", addr, "pod1")
	if e := awaitEvent(t, "KubeProxyModeFromAnnotation", netlab.Node1); !strings.Contains(e.Note, "userspace") {
		t.Errorf("the event does not name the mode: %s", e.Note)
	}
	if want := "Using the mode from the Node's annotation"; !strings.Contains(p.Log(), want) {
		t.Errorf("the log does not say %q:\n%s", want, p.Log())
	}
	const reason = `reason="the Node's annotation net.experimental.kubernetes.io/proxy-mode names the mode userspace"`
	if body := awaitCode(t, netlab.Node1, metricsPort, "/metrics", 200).Body; !strings.Contains(body, reason) {
		t.Errorf("kubeproxy_mode_info does not say %s", reason)
	}
}

// A name without a Node is reported (PN-71); services are served all the same.
func TestEventNodeNotFound(t *testing.T) {
	begin(t)
	deleteEvents(t)
	addr := web(t, "web", "pod1")
	p, err := bed.StartProxy("--hostname-override", "elsewhere")
	must(t, err)
	t.Cleanup(func() { endProxy(t, p) })
	await(t, "pod3", addr, "pod1")
	awaitEvent(t, "KubeProxyNodeNotFound", "elsewhere")
}

// Of two services with the same external address the younger one gets an event about its loss
// (SV-24).
func TestEventContestedKey(t *testing.T) {
	begin(t)
	deleteEvents(t)
	external := netlab.External4.Addr().Next()
	older, younger := externalService("older", external), externalService("younger", external)
	must(t, bed.API.Create(t.Context(), older, slice("older", "pod1")))
	time.Sleep(1100 * time.Millisecond) // creation times have seconds
	must(t, bed.API.Create(t.Context(), younger, slice("younger", "pod2")))
	startProxy(t)
	await(t, netlab.Client, netip.AddrPortFrom(external, 80), "pod1")
	if e := awaitEvent(t, "KubeProxyContestedKey", "younger"); !strings.Contains(e.Note, "default/older") ||
		e.Regarding.UID != younger.UID {
		t.Errorf("uid %q, want %q; note %q, want it to name default/older", e.Regarding.UID, younger.UID, e.Note)
	}
}

func externalService(name string, external netip.Addr) *corev1.Service {
	service := controlplane.Service(name, 80)
	service.Spec.ExternalIPs = []string{external.String()}
	return service
}

// Rules that another program removed are restored, and reported.
func TestEventDrift(t *testing.T) { inModes(t, allModes, testEventDrift) }

func testEventDrift(t *testing.T) {
	begin(t)
	deleteEvents(t)
	addr := web(t, "web", "pod1")
	p, err := bed.StartProxy("--iptables-sync-period", "1s")
	must(t, err)
	t.Cleanup(func() { endProxy(t, p) })
	await(t, "pod3", addr, "pod1")
	// Rules that were written just now may still be waited for.
	time.Sleep(time.Second)
	must(t, bed.FlushRules(t.Context()))
	start := time.Now()
	await(t, "pod3", addr, "pod1")
	t.Logf("served again %v after all rules were flushed", time.Since(start).Round(time.Millisecond))
	awaitEvent(t, "KubeProxyDriftRepaired", netlab.Node1)
}
