package migrate

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// kopsVersions are the versions of a kops Cluster.
var kopsVersions = []string{"kops/v1alpha2", "kops.k8s.io/v1alpha2", "kops.k8s.io/v1alpha3"}

// kopsFlags are the fields of a kops Cluster's spec.kubeProxy and their flags; "" for those of its
// pod.
var kopsFlags = map[string]string{"bindAddress": "bind-address", "clusterCIDR": "cluster-cidr",
	"conntrackMaxPerCore": "conntrack-max-per-core", "conntrackMin": "conntrack-min", "featureGates": "feature-gates",
	"hostnameOverride": "hostname-override", "ipvsExcludeCIDRs": "ipvs-exclude-cidrs",
	"ipvsMinSyncPeriod": "ipvs-min-sync-period", "ipvsScheduler": "ipvs-scheduler",
	"ipvsSyncPeriod": "ipvs-sync-period", "logLevel": "v", "master": "master",
	"metricsBindAddress": "metrics-bind-address", "proxyMode": "proxy-mode",
	"cpuLimit": "", "cpuRequest": "", "image": "", "memoryLimit": "", "memoryRequest": ""}

// kops reads a Cluster of kops.
func (r *reader) kops(fields map[string]any, where string) error {
	spec, _ := fields["spec"].(map[string]any)
	proxy, _ := spec["kubeProxy"].(map[string]any)
	r.Place.Distribution = "kops"
	var words, pod []string
	for _, name := range slices.Sorted(maps.Keys(proxy)) {
		flag, known := kopsFlags[name]
		switch {
		case name == "enabled":
			if proxy[name] != true {
				return fmt.Errorf("%s has spec.kubeProxy.enabled: %v: it runs no kube-proxy", where, proxy[name])
			}
		case !known:
			return fmt.Errorf("%s: spec.kubeProxy.%s is unknown", where, name)
		case flag == "":
			pod = append(pod, name)
		default:
			words = append(words, "--"+flag+"="+kopsValue(proxy[name]))
		}
	}
	if proxy["clusterCIDR"] == nil {
		cluster := spec["podCIDR"]
		if cluster == nil {
			cluster = spec["nonMasqueradeCIDR"]
		}
		if cluster == nil {
			r.add(Change, where, "it has no pod network", "kops derives --cluster-cidr from its network plugin.",
				"Set clusterCIDR, the value that the nodes' /etc/kubernetes/manifests/kube-proxy.manifest has.")
		} else {
			words = append(words, "--cluster-cidr="+fmt.Sprint(cluster))
		}
	}
	if len(pod) > 0 {
		r.ignore(where, "spec.kubeProxy."+strings.Join(pod, ", "), "they were ignored", "They are settings of its pod.")
	}
	r.ignore(where, "other fields of spec", "they were ignored", "They do not configure the proxy.")
	return r.arguments(append([]string{"kube-proxy"}, words...), where)
}

// kopsValue writes a value as its flag does.
func kopsValue(value any) string {
	var parts []string
	switch v := value.(type) {
	case []any:
		for _, part := range v {
			parts = append(parts, fmt.Sprint(part))
		}
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			parts = append(parts, fmt.Sprintf("%s=%v", key, v[key]))
		}
	default:
		return fmt.Sprint(v)
	}
	return strings.Join(parts, ",")
}
