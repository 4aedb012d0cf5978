package e2e

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"kube-proxy/test/e2e/controlplane"
	"kube-proxy/test/e2e/helmchart"
	"kube-proxy/test/golden"
)

// The Kustomize base equals the chart rendered with its default values and a tag that no image has,
// and an overlay of it equals the chart with the same choices. No name ends in .invalid: a cluster
// without a configured API server gets an error that names it.
func TestKustomize(t *testing.T) {
	const unset = "apiServer: {host: set-the-address-of-the-api-server.invalid}\nimage: {tag: set-the-tag}\n"
	root, err := controlplane.Root()
	must(t, err)
	folder := filepath.Join(root, "..", "..", "charts", "kustomize")
	if *golden.Update {
		writeBase(t, filepath.Join(folder, "base"), render(t, parse(t, unset)))
	}
	for _, c := range []struct{ folder, values string }{
		{"base", unset},
		{"example", "apiServer: {host: 172.18.0.10}\nconfig: {clusterCIDR: 10.244.0.0/16}\n" +
			"image: {repository: images.example/kube-proxy, tag: v1}"},
	} {
		want := byName(render(t, parse(t, c.values)))
		built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(),
			filepath.Join(folder, c.folder))
		must(t, err)
		text, err := built.AsYaml()
		must(t, err)
		objects, err := helmchart.Decode(string(text))
		must(t, err)
		got := byName(objects)
		if len(got) != len(want) || len(got) < 5 {
			t.Errorf("%s: %d objects, the chart makes %d", c.folder, len(got), len(want))
		}
		for name, object := range want {
			if !reflect.DeepEqual(got[name], object) {
				a, _ := yaml.Marshal(got[name])
				b, _ := yaml.Marshal(object)
				t.Errorf("%s: %s is\n%s\nthe chart makes\n%s\nto write the base again: go test . -run TestKustomize "+
					"-update", c.folder, name, a, b)
			}
		}
	}
}

// Two folders have the chart's objects beside the base: charts/kustomize/monitoring with alerts,
// dashboard and ServiceMonitor, from charts/alerts/kube-proxy.yaml and
// charts/dashboards/kube-proxy.json; charts/kustomize/windows for clusters with Windows nodes.
func TestKustomizeBeside(t *testing.T) {
	root, err := controlplane.Root()
	must(t, err)
	const unset = "apiServer: {host: set-the-address-of-the-api-server.invalid}\nimage: {tag: set-the-tag}\n"
	base := map[string]bool{}
	for _, object := range render(t, parse(t, unset)) {
		base[object.GetKind()+" "+plainName(object)] = true
	}
	for name, c := range map[string]struct {
		values string
		kinds  []string
	}{
		"monitoring": {"serviceMonitor: {enabled: true}\nprometheusRule: {enabled: true}\n" +
			"dashboard: {enabled: true}\nconfig: {metricsBindAddress: '0.0.0.0:10249'}",
			[]string{"Service", "ServiceMonitor", "PrometheusRule", "ConfigMap"}},
		"windows": {"windows: {enabled: true}", []string{"DaemonSet", "ConfigMap"}},
	} {
		folder := filepath.Join(root, "..", "..", "charts", "kustomize", name)
		var text strings.Builder
		text.WriteString("# Made by `cd test/e2e && go test . -run TestKustomizeBeside -update`. Do not edit.\n")
		for _, object := range render(t, parse(t, unset+c.values)) {
			if base[object.GetKind()+" "+plainName(object)] {
				continue
			}
			labels := object.GetLabels()
			delete(labels, "helm.sh/chart")
			delete(labels, "app.kubernetes.io/managed-by")
			object.SetLabels(labels)
			y, err := yaml.Marshal(object.Object)
			must(t, err)
			text.WriteString("---\n" + string(y))
		}
		golden.Equal(t, filepath.Join(folder, "objects.yaml"), text.String())
		built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), folder)
		must(t, err)
		kinds := map[string]bool{}
		for _, r := range built.Resources() {
			kinds[r.GetKind()] = true
		}
		for _, kind := range c.kinds {
			if !kinds[kind] {
				t.Errorf("%s has no %s", folder, kind)
			}
		}
	}
}

// plainName is the name of an object, without the hash that the name of the configuration ends in.
func plainName(object *unstructured.Unstructured) string {
	if _, ok, _ := unstructured.NestedString(object.Object, "data", "config.conf"); ok {
		return "config"
	}
	return object.GetName()
}

// writeBase writes the objects without the ConfigMap, and the contents of that.
func writeBase(t *testing.T, folder string, objects []*unstructured.Unstructured) {
	t.Helper()
	var b strings.Builder
	b.WriteString("# Made by `cd test/e2e && go test . -run TestKustomize -update`. Do not edit.\n")
	for _, object := range objects {
		if object.GetKind() == "ConfigMap" {
			data, _, _ := unstructured.NestedString(object.Object, "data", "config.conf")
			must(t, os.WriteFile(filepath.Join(folder, "config.conf"), []byte(data), 0o644))
		}
	}
	for _, object := range objects {
		if object.GetKind() == "ConfigMap" {
			continue
		}
		plain := byName([]*unstructured.Unstructured{object})[object.GetKind()+" "+object.GetName()]
		text, err := yaml.Marshal(plain)
		must(t, err)
		// The generated name is kustomize's to find.
		b.WriteString("---\n" + strings.ReplaceAll(string(text), "kube-proxy-HASH", "kube-proxy"))
	}
	must(t, os.WriteFile(filepath.Join(folder, "objects.yaml"), []byte(b.String()), 0o644))
}

// byName returns the objects by kind and name, without labels and annotations that only Helm's
// have, and with a common name for the ConfigMap, which each tool names in its own way.
func byName(objects []*unstructured.Unstructured) map[string]map[string]any {
	all := map[string]map[string]any{}
	for _, object := range objects {
		o := object.DeepCopy()
		labels := o.GetLabels()
		delete(labels, "helm.sh/chart")
		delete(labels, "app.kubernetes.io/managed-by")
		o.SetLabels(labels)
		switch o.GetKind() {
		case "ConfigMap":
			o.SetName("kube-proxy-HASH")
		case "DaemonSet":
			volumes, _, _ := unstructured.NestedSlice(o.Object, "spec", "template", "spec", "volumes")
			for _, v := range volumes {
				if source, ok := v.(map[string]any)["configMap"].(map[string]any); ok {
					source["name"] = "kube-proxy-HASH"
				}
			}
			_ = unstructured.SetNestedSlice(o.Object, volumes, "spec", "template", "spec", "volumes")
		}
		all[o.GetKind()+" "+o.GetName()] = o.Object
	}
	return all
}
