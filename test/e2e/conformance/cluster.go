package conformance

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kube-proxy/internal/netlab"
	"kube-proxy/test/e2e/controlplane"
	"kube-proxy/test/e2e/helmchart"
	"kube-proxy/test/e2e/pods"
	"kube-proxy/test/e2e/testbed"
)

// hosts are the nodes.
var hosts = []string{netlab.Node1, netlab.Node2, netlab.Client}

// patience is the time limit for the cluster to be ready.
const patience = 5 * time.Minute

//go:embed dns.yaml
var dns string

// Options configure a Cluster.
type Options struct {
	Mode              string   // of the proxy
	Network           string   // of the pods, one of networks
	NodePortAddresses []string // nodePortAddresses of its configuration
	Logf              func(format string, args ...any)
}

// Cluster is a running cluster of three nodes.
type Cluster struct {
	bed     *testbed.Bed
	bin     string // folder of the programs that were built
	nodes   []*pods.Node
	plugin  string // CNI plugin of the pods
	routers []*controlplane.Process
	logf    func(format string, args ...any)
}

// Start builds what is not built, starts the cluster, installs the proxy and waits until all nodes
// and pods are ready. On error nothing is left.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	if !slices.Contains(networks(), o.Network) {
		return nil, fmt.Errorf("network %q of the pods: want one of %q", o.Network, networks())
	}
	programs := []string{"kube-controller-manager", "kube-scheduler", "kubelet", "kubectl", "agnhost", invalidState,
		"coredns", "ginkgo", "e2e.test"}
	plugin := o.Network
	if router, ok := routers[o.Network]; ok {
		programs, plugin = append(programs, router.program), "bridge"
	}
	bin, err := controlplane.Build(ctx, o.Logf, programs...)
	if err != nil {
		return nil, err
	}
	c := &Cluster{bin: bin, plugin: plugin, logf: o.Logf}
	if c.bed, err = testbed.New(ctx, testbed.Options{Pods: true, Logf: o.Logf}); err != nil {
		return nil, err
	}
	if err := c.start(ctx, o); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context, o Options) error {
	proxy, err := pods.ImageProxy(ctx, c.bed.Dir)
	if err != nil {
		return err
	}
	upstream, err := writeImages(ctx, c.bin, c.bed.Dir)
	if err != nil {
		return err
	}
	c.logf("the images are made")
	if err := c.bed.API.StartControllerManager(filepath.Join(c.bin, "kube-controller-manager"), "*"); err != nil {
		return err
	}
	if err := c.bed.API.StartScheduler(filepath.Join(c.bin, "kube-scheduler")); err != nil {
		return err
	}
	if err := c.connectThirdNode(ctx); err != nil {
		return err
	}
	for _, host := range hosts {
		node, err := pods.StartNode(ctx, c.bed, pods.NodeOptions{Host: host, Kubelet: filepath.Join(c.bin, "kubelet"),
			Network: c.plugin, Logf: c.logf})
		if err != nil {
			return err
		}
		c.nodes = append(c.nodes, node)
		for _, archive := range []string{proxy, upstream} {
			if err := node.Import(ctx, archive); err != nil {
				return err
			}
		}
	}
	if err := c.startRouters(ctx, o.Network); err != nil {
		return err
	}
	if err := c.install(ctx, o); err != nil {
		return err
	}
	return c.ready(ctx)
}

// connectThirdNode makes the lab's client a node: it forwards, and the others have a route to its
// pods. As theirs, its default route is the sink.
func (c *Cluster) connectThirdNode(ctx context.Context) error {
	at, _ := netlab.HostByName(netlab.Client)
	pods := testbed.PodRanges[netlab.Client].String()
	if err := c.bed.API.PutNode(ctx, controlplane.Node(netlab.Client, at.V4, pods)); err != nil {
		return err
	}
	for _, command := range []struct{ host, line string }{
		{netlab.Client, "sysctl -q -w net.ipv4.ip_forward=1"},
		{netlab.Client, "ip route replace default via " + netlab.Addr(netlab.Sink, false).String()},
		{netlab.Node1, "ip route add " + pods + " via " + at.V4.String()},
		{netlab.Node2, "ip route add " + pods + " via " + at.V4.String()},
	} {
		words := strings.Fields(command.line)
		if _, err := c.bed.Command(ctx, command.host, words[0], words[1:]...); err != nil {
			return err
		}
	}
	return nil
}

// install installs the proxy by its chart, and CoreDNS.
func (c *Cluster) install(ctx context.Context, o Options) error {
	config := map[string]any{"mode": o.Mode, "clusterCIDR": netlab.Cluster4.String()}
	if len(o.NodePortAddresses) > 0 {
		var all []any
		for _, a := range o.NodePortAddresses {
			all = append(all, a)
		}
		config["nodePortAddresses"] = all
	}
	if o.Mode == testbed.EBPF.Name {
		config["ebpf"] = map[string]any{"cgroup": "/run/cgroup"}
	}
	objects, _, err := helmchart.Render(helmchart.Release{Name: "kube-proxy", Namespace: metav1.NamespaceSystem,
		Kubernetes: controlplane.Kubernetes}, map[string]any{
		"apiServer": map[string]any{"host": testbed.APIAddr.String(), "port": testbed.APIPort},
		"image":     map[string]any{"repository": pods.ProxyImage, "tag": "e2e", "pullPolicy": "Never"},
		"config":    config,
	})
	if err != nil {
		return err
	}
	if err := pods.AttachAt(objects, pods.NodeCgroup); err != nil {
		return err
	}
	server, err := helmchart.Decode(strings.ReplaceAll(dns, "CLUSTERDNS", controlplane.ClusterDNS))
	if err != nil {
		return err
	}
	return pods.Apply(ctx, c.bed.API, nil, append(objects, server...))
}

// ready waits until the nodes, the proxies and CoreDNS are ready.
func (c *Cluster) ready(ctx context.Context) error {
	err := until(ctx, func() ([]string, error) { return c.missing(ctx) }, func() string {
		var logs strings.Builder
		for _, node := range c.nodes {
			logs.WriteString(node.Log())
		}
		return logs.String()
	})
	if err == nil {
		c.logf("nodes and pods are ready")
	}
	return err
}

// until looks each second until nothing is missing. After patience the error names what is, and has
// the logs.
func until(ctx context.Context, missing func() ([]string, error), logs func() string) error {
	for deadline := time.Now().Add(patience); ; {
		names, err := missing()
		if err != nil || len(names) == 0 {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not ready after %v: %s\n%s", patience, strings.Join(names, ", "), logs())
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
		}
	}
}

// missing names the nodes and pods that are not ready, and pods that are not created.
func (c *Cluster) missing(ctx context.Context) (names []string, err error) {
	nodes, err := c.bed.API.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, node := range nodes.Items {
		ready := false
		for _, condition := range node.Status.Conditions {
			ready = ready || condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue
		}
		if !ready || len(node.Spec.Taints) > 0 {
			names = append(names, "node "+node.Name)
		}
	}
	list, err := c.bed.API.Client.CoreV1().Pods(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, pod := range list.Items {
		ready := false
		for _, condition := range pod.Status.Conditions {
			ready = ready || condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue
		}
		if !ready {
			names = append(names, "pod "+pod.Name)
		}
	}
	const proxies, servers = 3, 2
	if n := len(list.Items); n < proxies+servers {
		names = append(names, fmt.Sprintf("%d pods", proxies+servers-n))
	}
	return names, nil
}

// Close ends everything.
func (c *Cluster) Close() error {
	var errs []error
	for _, router := range c.routers {
		errs = append(errs, router.Stop(patience))
	}
	for _, node := range c.nodes {
		errs = append(errs, node.Close())
	}
	return errors.Join(append(errs, c.bed.Close())...)
}
