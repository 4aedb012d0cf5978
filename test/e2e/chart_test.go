package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"kube-proxy/config"
	"kube-proxy/plane/all"
	"kube-proxy/test/e2e/controlplane"
	"kube-proxy/test/e2e/helmchart"
)

var release = helmchart.Release{Name: "kube-proxy", Namespace: metav1.NamespaceSystem,
	Kubernetes: controlplane.Kubernetes}

// render renders the chart, which must succeed.
func render(t *testing.T, values map[string]any) []*unstructured.Unstructured {
	t.Helper()
	objects, _, err := helmchart.Render(release, values)
	if err != nil {
		text, _ := json.Marshal(values)
		t.Fatalf("values %s: %v", text, err)
	}
	return objects
}

func parse(t *testing.T, yaml string) map[string]any {
	t.Helper()
	values, err := helmchart.Parse(yaml)
	must(t, err)
	if values["image"] == nil { // which every installation must name, and few tests are about
		values["image"] = map[string]any{"tag": "v1"}
	}
	return values
}

// daemonSet is the one of that name among the objects of the chart.
func daemonSet(t *testing.T, objects []*unstructured.Unstructured, name string) (set appsv1.DaemonSet) {
	t.Helper()
	for _, object := range objects {
		if object.GetKind() == "DaemonSet" && object.GetName() == name {
			must(t, runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &set))
			return set
		}
	}
	t.Fatalf("the chart makes no DaemonSet %s", name)
	return set
}

// chartSchema is values.schema.json.
func chartSchema(t *testing.T) map[string]any {
	t.Helper()
	folder, err := helmchart.Folder()
	must(t, err)
	text, err := os.ReadFile(filepath.Join(folder, "values.schema.json"))
	must(t, err)
	var schema map[string]any
	must(t, json.Unmarshal(text, &schema))
	return schema
}

// combinations returns each example of the whole values joined with each combination of the
// examples of single values.
func combinations(t *testing.T) []map[string]any {
	t.Helper()
	schema := chartSchema(t)
	var sets []map[string]any
	for _, e := range schema["examples"].([]any) {
		sets = append(sets, e.(map[string]any))
	}
	properties := schema["properties"].(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		examples, _ := properties[name].(map[string]any)["examples"].([]any)
		if examples == nil {
			continue
		}
		var joined []map[string]any
		for _, set := range sets {
			for _, example := range examples {
				joined = append(joined, chartutil.CoalesceTables(map[string]any{name: copyOf(t, example)},
					copyOf(t, set).(map[string]any)))
			}
		}
		sets = joined
	}
	return sets
}

func copyOf(t *testing.T, value any) (copied any) {
	t.Helper()
	text, err := json.Marshal(value)
	must(t, err)
	must(t, json.Unmarshal(text, &copied))
	return copied
}

// For every combination of the values in the schema's examples, a real API server accepts each
// object that the chart renders, without unknown or repeated fields; and the proxy accepts its
// configuration, with no warning except about the mode.
func TestChart(t *testing.T) {
	begin(t)
	chart, err := helmchart.Load()
	must(t, err)
	if "v"+chart.Metadata.AppVersion != config.Compatible {
		t.Errorf("the chart's appVersion is %s, the proxy's %s", chart.Metadata.AppVersion, config.Compatible)
	}
	server := newDryRun(t)
	sets := combinations(t)
	if len(sets) < 100 {
		t.Fatalf("the schema names only %d combinations", len(sets))
	}
	modes := map[string]int{}
	start := time.Now()
	for _, values := range sets {
		for _, object := range render(t, values) {
			if err := server.take(t, object); err != nil {
				text, _ := json.Marshal(values)
				t.Fatalf("values %s: %v", text, err)
			}
			if data, ok, _ := unstructured.NestedString(object.Object, "data", "config.conf"); ok &&
				server.first(data) {
				modes[loadConfig(t, data)]++
			}
		}
	}
	t.Logf("%d combinations, %d distinct objects, in %v", len(sets), len(server.taken),
		time.Since(start).Round(time.Millisecond))
	for _, mode := range []string{"", "nftables", "iptables", "ipvs", "userspace"} {
		if modes[mode] == 0 {
			t.Errorf("no example has the mode %q", mode)
		}
	}
}

// loadConfig lets the proxy read a configuration file and returns its mode. It accepts warnings
// about modes: the file of an example may select one with a fallback in this version.
func loadConfig(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.conf")
	must(t, os.WriteFile(file, []byte(text), 0o644))
	options := config.NewOptions(all.Modes())
	flags := pflag.NewFlagSet("kube-proxy", pflag.ContinueOnError)
	options.AddFlags(flags)
	must(t, flags.Parse([]string{"--config", file, "--hostname-override", "node1"}))
	c, err := options.Complete(nil)
	if err != nil {
		t.Fatalf("the proxy refuses\n%s\n%v", text, err)
	}
	for _, warning := range c.Warnings {
		t.Errorf("the proxy warns: %s, of\n%s", warning, text)
	}
	return c.Mode
}

// dryRun queries the API server whether it would accept an object, once for each.
type dryRun struct {
	client dynamic.Interface
	taken  map[string]error
	seen   map[string]bool
}

func newDryRun(t *testing.T) *dryRun {
	t.Helper()
	client, err := dynamic.NewForConfig(jsonConfig())
	must(t, err)
	monitoring(t, client)
	return &dryRun{client: client, taken: map[string]error{}, seen: map[string]bool{}}
}

func (d *dryRun) first(text string) bool {
	there := d.seen[text]
	d.seen[text] = true
	return !there
}

// resources are where objects of the kinds that the chart makes live.
var chartKinds = map[string]schema.GroupVersionResource{
	"apps/v1 DaemonSet": {Group: "apps", Version: "v1", Resource: "daemonsets"},
	"v1 ConfigMap":      {Version: "v1", Resource: "configmaps"},
	"v1 Service":        {Version: "v1", Resource: "services"},
	"v1 ServiceAccount": {Version: "v1", Resource: "serviceaccounts"},
	"rbac.authorization.k8s.io/v1 ClusterRole": {Group: rbacv1.GroupName, Version: "v1",
		Resource: "clusterroles"},
	"rbac.authorization.k8s.io/v1 ClusterRoleBinding": {Group: rbacv1.GroupName, Version: "v1",
		Resource: "clusterrolebindings"},
	"rbac.authorization.k8s.io/v1 Role": {Group: rbacv1.GroupName, Version: "v1", Resource: "roles"},
	"rbac.authorization.k8s.io/v1 RoleBinding": {Group: rbacv1.GroupName, Version: "v1",
		Resource: "rolebindings"},
	"monitoring.coreos.com/v1 ServiceMonitor": {Group: "monitoring.coreos.com", Version: "v1",
		Resource: "servicemonitors"},
	"monitoring.coreos.com/v1 PrometheusRule": {Group: "monitoring.coreos.com", Version: "v1",
		Resource: "prometheusrules"},
}

// take applies the object to the API server, as a dry run with strict validation.
func (d *dryRun) take(t *testing.T, object *unstructured.Unstructured) error {
	t.Helper()
	text, err := object.MarshalJSON()
	must(t, err)
	if err, done := d.taken[string(text)]; done {
		return err
	}
	where, ok := chartKinds[object.GetAPIVersion()+" "+object.GetKind()]
	if !ok {
		return fmt.Errorf("%s %s: a kind that the test does not know", object.GetKind(), object.GetName())
	}
	force := true
	_, err = d.client.Resource(where).Namespace(object.GetNamespace()).Patch(t.Context(), object.GetName(),
		types.ApplyPatchType, text,
		metav1.PatchOptions{FieldManager: "test", Force: &force, DryRun: []string{metav1.DryRunAll},
			FieldValidation: metav1.FieldValidationStrict})
	if err != nil {
		err = fmt.Errorf("%s %s: %w", object.GetKind(), object.GetName(), err)
	}
	d.taken[string(text)] = err
	return err
}

// monitoring registers the kinds of the Prometheus operator in the API server.
func monitoring(t *testing.T, client dynamic.Interface) {
	t.Helper()
	text, err := os.ReadFile("testdata/crds/monitoring.yaml")
	must(t, err)
	objects, err := helmchart.Decode(string(text))
	must(t, err)
	definitions := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
		Resource: "customresourcedefinitions"})
	for _, object := range objects {
		if _, err := definitions.Create(t.Context(), object, metav1.CreateOptions{}); err != nil &&
			!apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	for _, kind := range []string{"monitoring.coreos.com/v1 ServiceMonitor",
		"monitoring.coreos.com/v1 PrometheusRule"} {
		for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
			_, err := client.Resource(chartKinds[kind]).List(t.Context(), metav1.ListOptions{})
			if err == nil {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("the API server does not serve %s: %v", kind, err)
			}
		}
	}
}

// The chart's role has the requests that TestOnlyNodeProxierRights records, and nothing else.
func TestChartRights(t *testing.T) {
	var asked []string
	for _, object := range render(t, parse(t, "apiServer: {host: 172.18.0.10}")) {
		if object.GetKind() != "ClusterRole" && object.GetKind() != "Role" {
			continue
		}
		var role rbacv1.ClusterRole
		must(t, runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &role))
		for _, rule := range role.Rules {
			if len(rule.ResourceNames)+len(rule.NonResourceURLs) > 0 {
				t.Errorf("a rule that the test does not understand: %v", rule)
			}
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					for _, verb := range rule.Verbs {
						asked = append(asked, verb+" "+group+"/"+resource)
					}
				}
			}
		}
	}
	slices.Sort(asked)
	if want := slices.Sorted(maps.Keys(rights)); !slices.Equal(asked, want) {
		t.Errorf("the chart grants\n%q, the proxy asks for\n%q", asked, want)
	}
}

// Bad values are refused before anything reaches a cluster, with a message that names the path.
func TestChartBadValues(t *testing.T) {
	const good = "apiServer: {host: 172.18.0.10}\n"
	for _, c := range []struct{ values, want string }{
		{"", `apiServer\.host: missing`},
		{good + "configg: {}", `configg`},
		{good + "config: {modee: iptables}", `/config.*modee`},
		{good + "config: {mode: iptable}", `/config/mode`},
		{good + "config: {iptables: {masqueradeBit: '14'}}", `/config/iptables/masqueradeBit.*integer`},
		{good + "config: {iptables: {syncPeriod: 30}}", `/config/iptables/syncPeriod.*string`},
		{good + "config: {iptables: {syncPeriod: half an hour}}", `/config/iptables/syncPeriod`},
		{good + "config: {conntrack: 7}", `/config/conntrack.*object`},
		{good + "config: {featureGates: {NoSuchGate: 'yes'}}", `/config/featureGates/NoSuchGate.*boolean`},
		{good + "config: {featureGates: [NoSuchGate]}", `/config/featureGates.*object`},
		{good + "config: {nodePortAddresses: primary}", `/config/nodePortAddresses.*array`},
		{good + "config: {mode: kernelspace}", `config\.mode: kernelspace is for Windows`},
		{good + "image: kube-proxy:v1", `/image.*object`},
		{good + "image: {digest: abc}", `/image/digest`},
		{good + "config: {clusterCIDR: 10.0.0.1}", `config\.clusterCIDR: "10\.0\.0\.1" is no CIDR: want the pod ` +
			`network, such as`},
		{good + "config: {clusterCIDR: '10.244.0.0/16,fd00::1'}", `config\.clusterCIDR: "fd00::1" is no CIDR`},
		{good + "image: {tag: v1-minimal}\nconfig: {mode: ipvs}",
			`config\.mode: ipvs: the image v1-minimal has no programs of iptables.*without -minimal`},
		{good + "image: {tag: v1-minimal}\nconfig: {mode: iptables}",
			`config\.mode: iptables: the image v1-minimal has no programs`},
		{good + "image: {repository: images.example/kube-proxy}", `image\.tag: missing: .*make image.*image\.digest`},
		{good + "prometheusRule: {enabled: true, runbooks: docs/runbooks.md}", `/prometheusRule/runbooks`},
		{good + "tolerations: {operator: Exists}", `/tolerations.*array`},
		{good + "extraCapabilities: [CAP_NET_RAW]", `/extraCapabilities/0`},
		{good + "extraCapabilities: [ALL]", `/extraCapabilities/0`},
		{good + "resources: {requests: {memory: lots}}", `/resources/requests/memory`},
		{good + "updateStrategy: {rollingUpdate: {maxSurge: 1}}", `/updateStrategy/rollingUpdate.*maxSurge`},
		{good + "config: {mode: userspace}\nupdateStrategy: {rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}",
			`/updateStrategy/rollingUpdate.*maxSurge`},
		{good + "init: false", `/init.*object`},
		{good + "serviceMonitor: {enabled: true}", `config\.metricsBindAddress`},
		{good + "serviceMonitor: {enabled: true}\nconfig: {bindAddress: '::'}", `config\.metricsBindAddress`},
		{good + "serviceMonitor: {enabled: true}\nconfig: {metricsBindAddress: none}", `config\.metricsBindAddress`},
		{good + "config: {snapshot: /var/lib/snapshot}", `config\.snapshot: /var/lib/snapshot: want a directory ` +
			`whose parent only`},
		{good + "config: {snapshot: /var/lib/kube-proxy/snapshot}",
			`config\.snapshot: /var/lib/kube-proxy/snapshot: want`},
		{good + "config: {healthzBindAddress: none}", `config\.healthzBindAddress: none`},
		{"apiServer: {host: 'https://172.18.0.10:6443'}", `/apiServer/host`},
		{"apiServer: {host: a, port: '6443'}", `/apiServer/port.*integer`},
		{"apiServer: {host: a, kubeconfig: {secret: b}}", `apiServer\.host: has no effect`},
		{"apiServer: {kubeconfig: {hostPath: /a, secret: b}}", `apiServer\.kubeconfig: /a, b: only one`},
		{"apiServer: {kubeconfig: {hostPath: relative}}", `/apiServer/kubeconfig/hostPath`},
		{good + "config: {clientConnection: {kubeconfig: /b}}", `config\.clientConnection\.kubeconfig`},
		{good + "config: {apiVersion: kubeproxy.config.k8s.io/v1alpha2}", `/config/apiVersion`},
		{"apiServer: {kubeconfig: {secret: a}}\nconfig: {clientConnection: {kubeconfig: /b}}",
			`config\.clientConnection\.kubeconfig`},
	} {
		_, _, err := helmchart.Render(release, parse(t, c.values))
		switch {
		case err == nil:
			t.Errorf("%q is taken", c.values)
		case !regexp.MustCompile(`(?s)` + c.want).MatchString(err.Error()):
			t.Errorf("%q: no match of %q in\n%v", c.values, c.want, err)
		}
	}
	const gate = "config: {featureGates: {NoSuchGate: true}}"
	if _, _, err := helmchart.Render(release, parse(t, good+gate)); err != nil {
		t.Errorf("a feature gate of another version is refused, against CF-01: %v", err)
	}
	if _, _, err := helmchart.Render(helmchart.Release{Name: "a", Namespace: "b", Kubernetes: "v1.28.0"},
		parse(t, good)); err == nil {
		t.Error("a cluster is taken that does not know what the chart says")
	}
}

// A string that looks like a number, a comment or a mapping in YAML reaches the cluster unchanged,
// or is rejected.
func TestChartStrings(t *testing.T) {
	where := func(text string) (found int, typed []string) {
		objects, _, err := helmchart.Render(helmchart.Release{Name: "12", Namespace: "34",
			Kubernetes: release.Kubernetes}, parse(t, text))
		if err != nil {
			t.Errorf("%q: %v", text, err)
		}
		var walk func(path string, value any)
		walk = func(path string, value any) {
			switch v := value.(type) {
			case map[string]any:
				for key, sub := range v {
					walk(path+"."+key, sub)
				}
			case []any:
				for _, sub := range v {
					walk(path+"[]", sub)
				}
			case string:
				if strings.Contains(v, "123") {
					found++
				}
			default:
				if s := fmt.Sprint(v); s == "123" || s == "12" || s == "34" {
					typed = append(typed, path)
				}
			}
		}
		for _, object := range objects {
			walk(object.GetKind(), object.Object)
		}
		return found, typed
	}
	const host = "apiServer: {host: 172.18.0.10}\n"
	for _, text := range []string{
		host + "fullnameOverride: '123'", host + "imagePullSecrets: ['123']", host + "priorityClassName: '123'", host +
			"serviceAccount: {name: '123'}",
		host + "serviceAccount: {create: false, name: '123'}", host +
			"image: {repository: registry.example:5000/a/123, tag: '1'}", "apiServer: {kubeconfig: {secret: '123'}}",
		"apiServer: {kubeconfig: {configMap: '123'}}", "apiServer: {kubeconfig: {hostPath: '/a #123'}}",
		"apiServer: {kubeconfig: {hostPath: '/a: 123'}}",
		host + "podLabels: {a: '123'}\nserviceMonitor: {enabled: true, labels: {a: '123'}}\n" +
			"prometheusRule: {enabled: true}\ndashboard: {enabled: true}\n" +
			"config: {metricsBindAddress: '0.0.0.0:10249'}",
	} {
		if found, typed := where(text); found == 0 || len(typed) > 0 {
			t.Errorf("%q: %d fields have it, and no strings are %q", text, found, typed)
		}
	}
	if _, _, err := helmchart.Render(release, parse(t, host+"image: {repository: 'a #b'}")); err == nil ||
		!strings.Contains(err.Error(), "/image/repository") {
		t.Errorf("a name that is none of an image: %v", err)
	}
}

// The kubelet's probes use the address where the proxy listens for them, in every notation:
// loopback where it listens everywhere, because a Service may claim the node's addresses (TN-98).
func TestChartProbes(t *testing.T) {
	for address, want := range map[string]string{
		"":                    "127.0.0.1 10256",
		"0.0.0.0":             "127.0.0.1 10256",
		"0.0.0.0:10356":       "127.0.0.1 10356",
		"'::'":                "::1 10256",
		"'[::]:10356'":        "::1 10356",
		"127.0.0.1:10356":     "127.0.0.1 10356",
		"'[::1]'":             "::1 10256",
		"'::1'":               "::1 10256",
		"'[fd00::1]:10356'":   "fd00::1 10356",
		"fd00:1:2:3:4:5:6:78": "fd00:1:2:3:4:5:6:78 10256",
	} {
		objects := render(t, parse(t, "apiServer: {host: a}\nconfig:\n  healthzBindAddress: "+address))
		proxy := daemonSet(t, objects, "kube-proxy").Spec.Template.Spec.Containers[0]
		for _, probe := range []*corev1.Probe{proxy.ReadinessProbe, proxy.LivenessProbe} {
			port := int32(0)
			for _, p := range proxy.Ports {
				if p.Name == probe.HTTPGet.Port.StrVal {
					port = p.ContainerPort
				}
			}
			if got := fmt.Sprint(probe.HTTPGet.Host, " ", port); got != want {
				t.Errorf("healthzBindAddress %s: %s asks %q, want %q", address, probe.HTTPGet.Path, got, want)
			}
		}
	}
}

// The privileged init container has no credentials and no flags of the administrator's; the proxy
// has the token as the kubelet would mount it, or the kubeconfig.
func TestChartInitContainer(t *testing.T) {
	for values, credential := range map[string]string{
		"apiServer: {host: a}\n":                          "/var/run/secrets/kubernetes.io/serviceaccount",
		"apiServer: {kubeconfig: {secret: s}}\n":          "kubeconfig",
		"apiServer: {kubeconfig: {hostPath: /etc/k.c}}\n": "kubeconfig",
	} {
		pod := daemonSet(t, render(t, parse(t, values+"extraArgs: [--v=4]\ninit: {enabled: true}\n")),
			"kube-proxy").Spec.Template.Spec
		if pod.AutomountServiceAccountToken == nil || *pod.AutomountServiceAccountToken {
			t.Errorf("%s: the kubelet mounts the token into all containers", values)
		}
		has := func(c corev1.Container) bool {
			return slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool {
				return m.MountPath == credential || m.Name == credential
			})
		}
		if len(pod.InitContainers) != 1 || has(pod.InitContainers[0]) ||
			slices.Contains(pod.InitContainers[0].Args, "--v=4") {
			t.Errorf("%s: init containers %+v", values, pod.InitContainers)
		}
		if proxy := pod.Containers[0]; !has(proxy) || !slices.Contains(proxy.Args, "--v=4") {
			t.Errorf("%s: the proxy %+v", values, proxy)
		}
		for _, m := range pod.Containers[0].VolumeMounts {
			if !slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name }) {
				t.Errorf("%s: no volume %s", values, m.Name)
			}
		}
	}
}

// SN-01: the directory of a snapshot is in one of the node, which the proxy can write to.
func TestChartSnapshot(t *testing.T) {
	const dir = "/var/lib/kube-proxy-state"
	objects := render(t, parse(t, "apiServer: {host: a}\nconfig: {snapshot: "+dir+"/snapshot}"))
	pod := daemonSet(t, objects, "kube-proxy").Spec.Template.Spec
	ofNode := func(v corev1.Volume) bool { return v.Name == "snapshot" && v.HostPath.Path == dir }
	mounted := func(m corev1.VolumeMount) bool { return m.Name == "snapshot" && m.MountPath == dir && !m.ReadOnly }
	if !slices.ContainsFunc(pod.Volumes, ofNode) || !slices.ContainsFunc(pod.Containers[0].VolumeMounts, mounted) {
		t.Errorf("volumes %v, mounts %v", pod.Volumes, pod.Containers[0].VolumeMounts)
	}
}

// In mode ebpf the container has the node's BPF file system, cgroups and network namespaces, and
// the rights to load programs; in no other mode it has any of these. There the init container has
// what it needs to remove programs (EB-31).
func TestChartEBPF(t *testing.T) {
	own := map[string]string{"bpffs": "/sys/fs/bpf", "cgroup": "/sys/fs/cgroup", "netns": "/run/netns"}
	rights := []corev1.Capability{"NET_ADMIN", "BPF", "PERFMON", "SYS_ADMIN", "SYS_RESOURCE"}
	for mode, wanted := range map[string]bool{"ebpf": true, "nftables": false} {
		objects := render(t, parse(t, "apiServer: {host: a}\nconfig: {mode: "+mode+"}"))
		pod := daemonSet(t, objects, "kube-proxy").Spec.Template.Spec
		mounted, init := map[string]bool{}, map[string]bool{}
		for _, m := range pod.Containers[0].VolumeMounts {
			mounted[m.Name] = true
		}
		for _, m := range pod.InitContainers[0].VolumeMounts {
			init[m.Name] = true
		}
		for _, v := range pod.Volumes {
			if path, is := own[v.Name]; is && (v.HostPath.Path != path || !init[v.Name]) {
				t.Errorf("mode %s: volume %s is %s, mounted: %v", mode, v.Name, v.HostPath.Path, init[v.Name])
			}
		}
		if !init["bpffs"] || !init["cgroup"] {
			t.Errorf("mode %s: the init container has the mounts %v", mode, init)
		}
		has := pod.Containers[0].SecurityContext.Capabilities.Add
		if mounted["bpffs"] != wanted || mounted["cgroup"] != wanted || mounted["netns"] != wanted ||
			slices.Equal(has, rights) != wanted {
			t.Errorf("mode %s: mounts %v, capabilities %v", mode, mounted, has)
		}
	}
}

// Windows nodes get a DaemonSet of HostProcess containers, whose files are below the folder of the
// container, and their own configuration.
func TestChartWindows(t *testing.T) {
	const windows = "config: {clusterCIDR: 10.244.0.0/16}\nwindows:\n  enabled: true\n"
	for _, c := range []struct{ values, config, argument, volumes, refused string }{
		{values: "apiServer: {host: a}\n" + windows, config: "clusterCIDR: 10.244.0.0/16\nkind: " +
			"KubeProxyConfiguration\nmode: kernelspace\n",
			argument: "%CONTAINER_SANDBOX_MOUNT_POINT%/var/lib/kube-proxy/kube-proxy.yaml", volumes: "config"},
		{values: "apiServer: {kubeconfig: {secret: b}}\n" + windows +
			"  config: {mode: userspace, clusterCIDR: 10.1.0.0/16}\n",
			config: "clientConnection:\n  kubeconfig: /etc/kube-proxy/kubeconfig.conf\nclusterCIDR: 10.1.0.0/16\n" +
				"kind: KubeProxyConfiguration\nmode: userspace\n",
			argument: "%CONTAINER_SANDBOX_MOUNT_POINT%/var/lib/kube-proxy/kube-proxy.yaml",
			volumes:  "config kubeconfig"},
		{values: "apiServer: {kubeconfig: {hostPath: /etc/k}}\n" + windows +
			"  config: {winkernel: {networkName: cbr0}, clientConnection: {kubeconfig: 'C:\\k\\config'}}\n",
			config:   "winkernel:\n  networkName: cbr0\n",
			argument: "%CONTAINER_SANDBOX_MOUNT_POINT%/var/lib/kube-proxy/kube-proxy.yaml", volumes: "config"},
		{values: "apiServer: {host: a}\n" + windows + "  configFile: 'C:\\k\\kube-proxy.yaml'\n",
			argument: `C:\k\kube-proxy.yaml`},
		{values: "apiServer: {kubeconfig: {hostPath: /etc/k}}\n" + windows,
			refused: `windows\.config\.clientConnection\.kubeconfig: missing`},
		{values: "apiServer: {host: a}\n" + windows + "  config: {clientConnection: {kubeconfig: 'C:\\k\\config'}}\n",
			refused: `windows\.config\.clientConnection\.kubeconfig: apiServer already`},
		{values: "apiServer: {host: a}\n" + windows + "  config: {mode: nftables}\n",
			refused: `windows\.config\.mode: nftables`},
		{values: "apiServer: {host: a}\n" + windows + "  configFile: k.yaml\n", refused: `/windows/configFile`},
	} {
		objects, _, err := helmchart.Render(release, parse(t, c.values))
		if c.refused != "" {
			if err == nil || !regexp.MustCompile(c.refused).MatchString(err.Error()) {
				t.Errorf("%s: %v, want %s", c.values, err, c.refused)
			}
			continue
		}
		must(t, err)
		config := ""
		for _, object := range objects {
			if text, ok, _ := unstructured.NestedString(object.Object, "data", "kube-proxy.yaml"); ok {
				config = text
			}
		}
		if !strings.Contains(config, c.config) || (c.config == "") != (config == "") {
			t.Errorf("%s: the configuration is\n%s", c.values, config)
		}
		pod := daemonSet(t, objects, "kube-proxy-windows").Spec.Template.Spec
		if w := pod.SecurityContext.WindowsOptions; !*w.HostProcess || *w.RunAsUserName != `NT AUTHORITY\SYSTEM` ||
			!pod.HostNetwork || pod.OS.Name != corev1.Windows || pod.NodeSelector["kubernetes.io/os"] != "windows" {
			t.Errorf("%s: the pods are %+v", c.values, pod)
		}
		var volumes []string
		for i, v := range pod.Volumes {
			volumes = append(volumes, v.Name)
			if pod.Containers[0].VolumeMounts[i].Name != v.Name {
				t.Errorf("%s: %s is not mounted", c.values, v.Name)
			}
		}
		if got := strings.Join(volumes, " "); got != c.volumes || pod.Containers[0].Args[0] != "--config="+c.argument ||
			pod.Containers[0].Command[0] != "%CONTAINER_SANDBOX_MOUNT_POINT%/kube-proxy/kube-proxy.exe" {
			t.Errorf("%s: volumes %q, %q %q", c.values, got, pod.Containers[0].Command, pod.Containers[0].Args)
		}
	}
}

// helm lint reports only the missing icon.
func TestChartLint(t *testing.T) {
	folder, err := helmchart.Folder()
	must(t, err)
	for _, message := range lint.All(folder, parse(t, "apiServer: {host: 172.18.0.10}"), release.Namespace, true).
		Messages {
		if message.Severity > support.InfoSev {
			t.Error(message)
		}
	}
}

// Alerts and dashboard query existing metrics.
func TestChartMetrics(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "metrics.md"))
	must(t, err)
	asked := map[string]bool{}
	for _, object := range render(t,
		parse(t, "apiServer: {host: a}\nprometheusRule: {enabled: true}\ndashboard: {enabled: true}")) {
		text, err := object.MarshalJSON()
		must(t, err)
		for _, name := range regexp.MustCompile(`kubeproxy_[a-z_]+`).FindAllString(string(text), -1) {
			asked[strings.TrimSuffix(name, "_bucket")] = true
		}
		data, _, _ := unstructured.NestedStringMap(object.Object, "data")
		for name, text := range data {
			if strings.HasSuffix(name, ".json") && !json.Valid([]byte(text)) {
				t.Errorf("%s of %s is no JSON", name, object.GetName())
			}
		}
	}
	if len(asked) < 10 {
		t.Errorf("they ask only for %d metrics", len(asked))
	}
	for name := range asked {
		if !strings.Contains(string(page), "`"+name+"`") {
			t.Errorf("they ask for %s, which docs/metrics.md does not have", name)
		}
	}
}

// Alerts link to the runbooks if their address is given. Without one they name the file, and only
// real links are annotated as links.
func TestChartRunbooks(t *testing.T) {
	const values = "apiServer: {host: a}\nprometheusRule: {enabled: true"
	for _, c := range []struct{ values, annotation, where string }{
		{values + "}", "runbook", "docs/runbooks.md#kubeproxy"},
		{values + ", runbooks: 'https://docs.example/kube-proxy/runbooks.md'}", "runbook_url",
			"https://docs.example/kube-proxy/runbooks.md#kubeproxy"},
	} {
		alerts := 0
		for _, object := range render(t, parse(t, c.values)) {
			groups, _, _ := unstructured.NestedSlice(object.Object, "spec", "groups")
			for _, group := range groups {
				for _, rule := range group.(map[string]any)["rules"].([]any) {
					alerts++
					annotations, _, err := unstructured.NestedStringMap(rule.(map[string]any), "annotations")
					if must(t, err); len(annotations) != 2 || !strings.HasPrefix(annotations[c.annotation], c.where) {
						t.Errorf("%s: want %s: %s…, got %v", c.values, c.annotation, c.where, annotations)
					}
				}
			}
		}
		if alerts < 10 {
			t.Errorf("%s: %d alerts", c.values, alerts)
		}
	}
}

// The API server accepts kubeadm's objects, and the proxy accepts their configuration, unchanged:
// zero values, which kubeadm writes for unset fields, cause no warning. The chart accepts it as the
// value config.
func TestKubeadmObjects(t *testing.T) {
	begin(t)
	var objects []*unstructured.Unstructured
	for _, name := range []string{"rbac.yaml", "configmap.yaml", "daemonset.yaml"} {
		text, err := os.ReadFile(filepath.Join("..", "..", "test", "testdata", "kubeadm", name))
		must(t, err)
		more, err := helmchart.Decode(string(text))
		must(t, err)
		objects = append(objects, more...)
	}
	server, files := newDryRun(t), 0
	for _, object := range objects {
		must(t, server.take(t, object))
		if data, ok, _ := unstructured.NestedString(object.Object, "data", "config.conf"); ok {
			loadConfig(t, data)
			loadConfig(t, chartOf(t, data))
			files++
		}
	}
	if len(objects) < 6 || files != 1 {
		t.Errorf("%d objects with %d configurations", len(objects), files)
	}
}

// chartOf returns the configuration that the chart renders from a user's file, without its
// kubeconfig.
func chartOf(t *testing.T, file string) string {
	t.Helper()
	values := parse(t, "apiServer: {host: a}")
	theirs, err := helmchart.Parse(file)
	must(t, err)
	theirs["clientConnection"].(map[string]any)["kubeconfig"] = ""
	values["config"] = theirs
	for _, object := range render(t, values) {
		if data, ok, _ := unstructured.NestedString(object.Object, "data", "config.conf"); ok {
			return data
		}
	}
	t.Fatal("the chart makes no configuration")
	return ""
}

// Each value has a comment and a place in the schema, and nothing else has; and the schema accepts
// no unknown fields, except gates of other versions (CF-01), which are booleans.
func TestChartValues(t *testing.T) {
	folder, err := helmchart.Folder()
	must(t, err)
	text, err := os.ReadFile(filepath.Join(folder, "values.yaml"))
	must(t, err)
	values, err := chartutil.ReadValues(text)
	must(t, err)
	properties := chartSchema(t)["properties"].(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		if _, there := values[name]; !there && name != "global" {
			t.Errorf("values.yaml does not have %s, which the schema knows", name)
		}
	}
	above := ""
	for i, line := range strings.Split(string(text), "\n") {
		trimmed := strings.TrimSpace(line)
		at, key := len(line)-len(strings.TrimLeft(line, " ")), strings.SplitN(trimmed, ":", 2)[0]
		isKey := regexp.MustCompile(`^[a-zA-Z]+:`).MatchString(trimmed)
		if isKey && at == 0 && !strings.HasPrefix(above, "#") && !isBlock(line) && !selfEvident(key) {
			t.Errorf("values.yaml:%d: %s has no comment", i+1, key)
		}
		above = trimmed
	}
	var open func(path string, schema map[string]any)
	open = func(path string, schema map[string]any) {
		if below, ok := schema["properties"].(map[string]any); ok {
			var others any = false
			if path == "/config/featureGates" {
				others = map[string]any{"type": "boolean"}
			}
			if got := schema["additionalProperties"]; !reflect.DeepEqual(got, others) {
				t.Errorf("%s: additionalProperties are %v, want %v", path, got, others)
			}
			for name, sub := range below {
				open(path+"/"+name, sub.(map[string]any))
			}
		}
		if items, ok := schema["items"].(map[string]any); ok {
			open(path+"/*", items)
		}
	}
	open("", chartSchema(t))
}

func isBlock(line string) bool { return strings.HasSuffix(strings.TrimSpace(line), ":") }

func selfEvident(key string) bool { return key == "podLabels" || key == "priorityClassName" }

// jsonConfig is the client configuration of a dynamic client, which only uses JSON.
func jsonConfig() *rest.Config {
	c := bed.API.RESTConfig(controlplane.AdminUser)
	c.ContentType = "application/json"
	return c
}
