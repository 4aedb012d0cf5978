package pods

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"

	"kube-proxy/test/e2e/controlplane"
)

// Apply creates or updates the objects, and removes those of old that are not among them, as `helm
// upgrade` does.
func Apply(ctx context.Context, api *controlplane.ControlPlane, old, objects []*unstructured.Unstructured) error {
	config := api.RESTConfig(controlplane.AdminUser)
	config.ContentType = "application/json"
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	finder, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return err
	}
	kinds := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(finder))
	at := func(o *unstructured.Unstructured) (dynamic.ResourceInterface, error) {
		kind := o.GroupVersionKind()
		mapping, err := kinds.RESTMapping(kind.GroupKind(), kind.Version)
		if err != nil {
			return nil, err
		}
		return client.Resource(mapping.Resource).Namespace(o.GetNamespace()), nil
	}
	for _, o := range objects {
		resource, err := at(o)
		if err != nil {
			return err
		}
		if _, err := resource.Apply(ctx, o.GetName(), o, metav1.ApplyOptions{FieldManager: "test",
			Force: true}); err != nil {
			return fmt.Errorf("apply %s %s: %w", o.GetKind(), o.GetName(), err)
		}
	}
	for _, o := range old {
		same := func(other *unstructured.Unstructured) bool {
			return o.GetKind() == other.GetKind() && o.GetName() == other.GetName()
		}
		if slices.ContainsFunc(objects, same) {
			continue
		}
		resource, err := at(o)
		if err != nil {
			return err
		}
		background := metav1.DeletePropagationBackground
		if err := resource.Delete(ctx, o.GetName(), metav1.DeleteOptions{PropagationPolicy: &background}); err != nil {
			return fmt.Errorf("delete %s %s: %w", o.GetKind(), o.GetName(), err)
		}
	}
	return nil
}

// AttachAt has the chart's pods attach the programs of mode ebpf to a folder of each node, because
// the root of the control groups is that of the whole machine. It removes the capability
// SYS_RESOURCE where this machine is itself a container without it, and can give it to none.
func AttachAt(objects []*unstructured.Unstructured, cgroup string) error {
	for _, o := range objects {
		if o.GetKind() != "DaemonSet" {
			continue
		}
		volumes, _, err := unstructured.NestedSlice(o.Object, "spec", "template", "spec", "volumes")
		if err != nil {
			return err
		}
		for _, v := range volumes {
			if v := v.(map[string]any); v["name"] == "cgroup" {
				v["hostPath"].(map[string]any)["path"] = cgroup
			}
		}
		if err := unstructured.SetNestedSlice(o.Object, volumes, "spec", "template", "spec", "volumes"); err != nil {
			return err
		}
		if mayGrant()&sysResource != 0 {
			continue
		}
		containers, _, err := unstructured.NestedSlice(o.Object, "spec", "template", "spec", "containers")
		if err != nil {
			return err
		}
		has := containers[0].(map[string]any)["securityContext"].(map[string]any)["capabilities"].(map[string]any)
		has["add"] = slices.DeleteFunc(has["add"].([]any), func(c any) bool { return c == "SYS_RESOURCE" })
		err = unstructured.SetNestedSlice(o.Object, containers, "spec", "template", "spec", "containers")
		if err != nil {
			return err
		}
	}
	return nil
}

// sysResource is a capability, as a bit.
const sysResource = 1 << 24

// mayGrant returns the capabilities that this machine can give a container.
func mayGrant() (all uint64) {
	status, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(status)) {
		if text, ok := strings.CutPrefix(line, "CapBnd:"); ok {
			fmt.Sscanf(strings.TrimSpace(text), "%x", &all)
		}
	}
	return all
}
