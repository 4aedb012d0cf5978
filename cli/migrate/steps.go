package migrate

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"kube-proxy/config"
)

// Place says where a cluster has its kube-proxy. Fields are "" if the input does not show them.
type Place struct {
	// Distribution is one of [Distributions].
	Distribution string
	// Namespace, DaemonSet and Container run it; Selector is the DaemonSet's, as for kubectl -l.
	Namespace, DaemonSet, Container, Selector string
	// ConfigMap and Key hold its configuration, and Path is the value of --config.
	ConfigMap, Key, Path string
}

// Step is a command for an operator's shell, with the reason.
type Step struct {
	For string `json:"for"`
	Run string `json:"run"`
}

// pod reads the names of the object that runs the proxy.
func (at *Place) pod(o object, p pod) {
	at.Namespace, at.Container = cmp.Or(o.Metadata.Namespace, "kube-system"), p.Containers[0].Name
	if o.Kind == "DaemonSet" {
		at.DaemonSet = o.Metadata.Name
		var labels []string
		if o.Spec.Selector != nil {
			for _, key := range slices.Sorted(maps.Keys(o.Spec.Selector.MatchLabels)) {
				labels = append(labels, key+"="+o.Spec.Selector.MatchLabels[key])
			}
		}
		at.Selector = cmp.Or(strings.Join(labels, ","), "k8s-app=kube-proxy")
	}
	if at.Distribution != "" {
		return
	}
	image, words := p.Containers[0].Image, slices.Concat(p.Containers[0].Command, p.Containers[0].Args)
	for _, mark := range []struct {
		distribution string
		found        bool
	}{
		{"gke", strings.Contains(image, "-gke.")},
		{"eks", strings.Contains(image, "/eks/kube-proxy")},
		{"aks", strings.Contains(image, "/oss/kubernetes/kube-proxy")},
		{"rke2", strings.Contains(image, "rancher/")},
		{"openshift", strings.HasPrefix(at.Namespace, "openshift-")},
		{"kops", at.DaemonSet == "" && slices.ContainsFunc(words, func(w string) bool {
			return strings.HasSuffix(w, "go-runner")
		})},
		{"talos", at.DaemonSet != "" && slices.Contains(words, "--kubeconfig=/etc/kubernetes/kubeconfig")},
	} {
		if mark.found {
			at.Distribution = mark.distribution
			return
		}
	}
}

// settle decides the distribution when all input is read.
func (at *Place) settle() {
	switch {
	case at.Distribution != "":
	case at.ConfigMap == "kube-proxy-config":
		at.Distribution = "eks"
	case at.ConfigMap == "kube-proxy":
		at.Distribution = "kubeadm"
	}
}

// disabling is how a distribution starts and ends its own kube-proxy.
type disabling struct {
	name    string
	off, on []Step
}

const restartK3s = "systemctl restart k3s || systemctl restart k3s-agent"
const restartRKE2 = "systemctl restart rke2-server || systemctl restart rke2-agent"

// disablings are those of distributions that get the chart.
var disablings = []disabling{
	{name: "k3s", off: []Step{{"each server", "echo 'disable-kube-proxy: true' >>/etc/rancher/k3s/config.yaml"},
		{"each server, then each agent", restartK3s}},
		on: []Step{{"each server", "sed -i '/^disable-kube-proxy:/d' /etc/rancher/k3s/config.yaml"},
			{"each server, then each agent", restartK3s}}},
	{name: "rke2", off: []Step{{"each server", "echo 'disable-kube-proxy: true' >>/etc/rancher/rke2/config.yaml"},
		{"each server, then each agent", "rm -f /var/lib/rancher/rke2/agent/pod-manifests/kube-proxy.yaml && { " +
			restartRKE2 + "; }"}},
		on: []Step{{"each server", "sed -i '/^disable-kube-proxy:/d' /etc/rancher/rke2/config.yaml"},
			{"each server, then each agent", restartRKE2}}},
	{name: "kops", off: []Step{{"the cluster", "kops edit cluster --set=spec.kubeProxy.enabled=false"},
		{"the cluster", "kops update cluster --yes && kops rolling-update cluster --yes"}},
		on: []Step{{"the cluster", "kops edit cluster --set=spec.kubeProxy.enabled=true"},
			{"the cluster", "kops update cluster --yes && kops rolling-update cluster --yes"}}},
	{name: "aks", off: []Step{
		{"the preview of --kube-proxy-config", "az extension add --name aks-preview && az feature register " +
			"--namespace " +
			"Microsoft.ContainerService --name KubeProxyConfigurationPreview"},
		{"the cluster", `echo '{"enabled": false}' >off.json && az aks update --resource-group GROUP --name CLUSTER ` +
			"--kube-proxy-config off.json"}},
		on: []Step{{"the cluster", `echo '{"enabled": true}' >on.json && az aks update --resource-group GROUP ` +
			"--name CLUSTER --kube-proxy-config on.json"}}},
	{name: "openshift", off: []Step{{"the cluster, with a third-party network plugin only", "kubectl patch " +
		`network.operator.openshift.io cluster --type merge -p '{"spec":{"deployKubeProxy":false}}'`}},
		on: []Step{{"the cluster", "kubectl patch network.operator.openshift.io cluster --type merge -p " +
			`'{"spec":{"deployKubeProxy":true}}'`}}},
	{name: "talos", off: []Step{
		{"each control plane " +
			"node", `talosctl -n NODE patch machineconfig -p '{"cluster":{"proxy":{"disabled":true}}}'`},
		{"the cluster", "kubectl -n kube-system delete daemonset kube-proxy"}},
		on: []Step{
			{"each control plane " +
				"node", `talosctl -n NODE patch machineconfig -p '{"cluster":{"proxy":{"disabled":false}}}'`},
			{"the cluster; it writes the DaemonSet", "talosctl -n NODE upgrade-k8s --to VERSION"}}},
}

// Distributions are those whose steps are known.
func Distributions() []string {
	names := []string{"kubeadm", "eks", "gke"}
	for _, d := range disablings {
		names = append(names, d.name)
	}
	slices.Sort(names)
	return names
}

// On sets the distribution; "" keeps what the input shows. The error is for one that is unknown.
func (p *Proxy) On(distribution string) error {
	if distribution == "" {
		return nil
	}
	if !slices.Contains(Distributions(), distribution) {
		return config.Problems{{Where: "--distribution", Value: distribution, Want: "want " +
			strings.Join(Distributions(), ", ")}}
	}
	p.Place.Distribution = distribution
	return nil
}

// Steps returns the commands that bring the configuration to the cluster, and those of the way
// back; none if the input does not show the distribution. IMAGE, NODE, GROUP, CLUSTER, HOST and
// VERSION are for the operator to fill in. Before them, the output of migrate is in config.yaml.
func (at Place) Steps() (forth, back []Step, err error) {
	if at.Distribution == "gke" {
		return nil, nil, fmt.Errorf("GKE writes its kube-proxy to each node at boot and has no setting without it: " +
			"this " +
			"proxy cannot replace it")
	}
	if i := slices.IndexFunc(disablings, func(d disabling) bool { return d.name == at.Distribution }); i >= 0 {
		d := disablings[i]
		return slices.Concat(d.off, chart), slices.Concat([]Step{unchart}, d.on), nil
	}
	if at.DaemonSet == "" {
		if at.Distribution != "kubeadm" && at.Distribution != "eks" {
			return nil, nil, nil
		}
		at.Namespace, at.DaemonSet, at.Container = "kube-system", "kube-proxy", "kube-proxy"
		at.Selector = "k8s-app=kube-proxy"
	}
	if at.ConfigMap == "" { // it has only flags: ours is installed beside, and the old one selects no node
		patch := func(p string) string {
			return fmt.Sprintf("kubectl -n %s patch daemonset %s -p '%s'", at.Namespace, at.DaemonSet, p)
		}
		none := `{"spec":{"template":{"spec":{"nodeSelector":{"kube-proxy.example/none":"%s"}}}}}`
		return slices.Concat([]Step{{"the old pods end, and their rules " +
				"stay", patch(fmt.Sprintf(none, "true"))}}, chart),
			[]Step{unchart, {"the old pods start", patch(strings.Replace(none, `"%s"`, "null", 1))}}, nil
	}
	return at.replace()
}

// chart installs this proxy by its chart, with names that no other proxy's objects have; unchart
// removes it.
var (
	chart = []Step{
		{"the values of the chart", "{ echo config:; sed 's/^/  /' config.yaml; } >values.yaml"},
		{"the cluster; HOST is the API server's, not a Service's", "helm install svcproxy charts/kube-proxy -n " +
			"kube-system -f values.yaml --set apiServer.host=HOST,image.repository=IMAGE,image.tag=VERSION"},
		{"the cluster", "kubectl -n kube-system rollout status daemonset svcproxy"},
	}
	unchart = Step{"the cluster; the rules stay until the old proxy replaces them",
		"helm uninstall svcproxy -n kube-system --wait"}
)

// replace returns the steps that keep the DaemonSet and the ConfigMap, and change the image and the
// configuration, node by node.
func (at Place) replace() (forth, back []Step, err error) {
	kubectl := "kubectl -n " + at.Namespace + " "
	next := Step{"each NODE in turn; continue when kube-proxy serves there", kubectl + "delete pod -l " + at.Selector +
		" --field-selector spec.nodeName=NODE"}
	save := func(kind, name, file string) Step {
		return Step{"the way back", fmt.Sprintf("%sget %s %s -o yaml | grep -vE '^  "+
			"(resourceVersion|uid|generation): ' >%s",
			kubectl, kind, name, file)}
	}
	strategy := func(p string) string {
		return kubectl + "patch daemonset " + at.DaemonSet + ` -p '{"spec":{"updateStrategy":` + p + "}}'"
	}
	if at.Distribution == "eks" {
		forth = []Step{{"the add-on, so that EKS does not restore it; its objects stay",
			"aws eks delete-addon --cluster-name CLUSTER --addon-name kube-proxy --preserve"}}
	}
	forth = append(forth, []Step{
		{"pods change only when they are deleted", strategy(`{"type":"OnDelete","rollingUpdate":null}`)},
		save("daemonset", at.DaemonSet, "daemonset-before.yaml"),
		save("configmap", at.ConfigMap, "configmap-before.yaml"),
		{"the configuration, for proxies that start from now on", fmt.Sprintf("%screate configmap %s "+
			"--from-file=%s=config.yaml --dry-run=client -o yaml | %spatch configmap %[2]s --type merge --patch-file "+
			"/dev/stdin", kubectl, at.ConfigMap, at.Key, kubectl)},
		{"the image", fmt.Sprintf("%sset image daemonset/%s %s=IMAGE", kubectl, at.DaemonSet, at.Container)},
		next,
		{"when all nodes have it", strategy(`{"type":"RollingUpdate","rollingUpdate":{"maxUnavailable":"10%"}}`)},
	}...)
	back = []Step{
		{"the old objects", kubectl + "replace -f configmap-before.yaml -f daemonset-before.yaml"},
		next,
		{"when all nodes have it", strategy(`{"type":"RollingUpdate","rollingUpdate":{"maxUnavailable":"10%"}}`)},
	}
	if at.Distribution == "eks" {
		back = append(back, Step{"the add-on", "aws eks create-addon --cluster-name CLUSTER --addon-name kube-proxy " +
			"--resolve-conflicts OVERWRITE"})
	}
	return forth, back, nil
}
