package kubectl

import (
	"context"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"kube-proxy/source/kube"
)

// Flags select the cluster, and the proxies in it.
type Flags struct {
	kubeconfig string
	overrides  clientcmd.ConfigOverrides
	// ProxyNamespace has the proxies' pods; Selector, if not "", selects them in place of the
	// labels of kubeadm and of the chart.
	ProxyNamespace, Selector string
}

// selectors are the labels of kubeadm's DaemonSets and of the chart's.
var selectors = []string{"k8s-app in (kube-proxy,kube-proxy-windows)",
	"app.kubernetes.io/name in (kube-proxy,kube-proxy-windows)"}

// Add adds the flags: those of kubectl for the connection, and two for the pods.
func (f *Flags) Add(flags *pflag.FlagSet) {
	flags.StringVar(&f.kubeconfig, clientcmd.RecommendedConfigPathFlag, "", "")
	clientcmd.BindOverrideFlags(&f.overrides, flags, clientcmd.RecommendedConfigOverrideFlags(""))
	// where kubeadm and the chart's documentation install the proxy
	flags.StringVar(&f.ProxyNamespace, "proxy-namespace", "kube-system", "")
	flags.StringVar(&f.Selector, "selector", "", "")
}

// Cluster is one cluster, as one user reaches it. Make one with [Connect].
type Cluster struct {
	flags  *Flags
	config *rest.Config
	client rest.Interface
	// Namespace is that of --namespace or of the context; Given reports whether it is from
	// --namespace.
	Namespace string
	Given     bool
}

// Connect reads the kubeconfig as kubectl does. It connects to nothing yet.
func Connect(f *Flags) (*Cluster, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = f.kubeconfig
	loaded := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &f.overrides)
	config, err := loaded.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	config.QPS = -1 // [Cluster] makes a few requests; callers limit the executions
	config.UserAgent = "kubectl-svcproxy"
	clients, err := kube.Clients(config, core.SchemeGroupVersion)
	if err != nil {
		return nil, err
	}
	c := &Cluster{flags: f, config: config, client: clients[0]}
	if c.Namespace, _, err = loaded.Namespace(); err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	c.Given = f.overrides.Context.Namespace != ""
	return c, nil
}

// Proxy is the pod of one proxy.
type Proxy struct {
	Node string
	// Namespace, Pod and Container are where it runs.
	Namespace, Pod, Container string
	// Unready is the reason why it cannot answer queries; "" for a running container.
	Unready string

	command []string // program and flags by which the container finds the admin socket
}

// podsAtOnce is how many pods are listed at once.
const podsAtOnce = 500

// Proxies returns the proxies of the cluster, one for each node, by the node's name.
func (c *Cluster) Proxies(ctx context.Context) ([]Proxy, error) {
	by := selectors
	if c.flags.Selector != "" {
		by = []string{c.flags.Selector}
	}
	best := map[string]*core.Pod{}
	for _, selector := range by {
		if err := c.pods(ctx, selector, best); err != nil {
			return nil, err
		}
	}
	if len(best) == 0 {
		return nil, fmt.Errorf("no proxy pods in namespace %s with the labels %s: see --proxy-namespace and --selector",
			c.flags.ProxyNamespace, strings.Join(by, " or "))
	}
	var all []Proxy
	for _, pod := range best {
		all = append(all, proxyOf(pod))
	}
	slices.SortFunc(all, func(a, b Proxy) int { return strings.Compare(a.Node, b.Node) })
	return all, nil
}

// pods keeps the best pod of each node: one that runs before others, then the newest.
func (c *Cluster) pods(ctx context.Context, selector string, best map[string]*core.Pod) error {
	for next := ""; ; {
		var page core.PodList
		err := c.client.Get().Namespace(c.flags.ProxyNamespace).Resource("pods").Param("labelSelector", selector).
			Param("limit", fmt.Sprint(podsAtOnce)).Param("continue", next).Do(ctx).Into(&page)
		if err != nil {
			return fmt.Errorf("list the proxy's pods in namespace %s: %w", c.flags.ProxyNamespace, err)
		}
		for i := range page.Items {
			pod := &page.Items[i]
			if old := best[pod.Spec.NodeName]; pod.Spec.NodeName != "" && (old == nil || better(pod, old)) {
				best[pod.Spec.NodeName] = pod
			}
		}
		if next = page.Continue; next == "" {
			return nil
		}
	}
}

func better(a, b *core.Pod) bool {
	if x, y := unready(a, containerOf(a).Name) == "", unready(b, containerOf(b).Name) == ""; x != y {
		return x
	}
	return b.CreationTimestamp.Before(&a.CreationTimestamp)
}

// containerOf returns the container kube-proxy, or else the first.
func containerOf(pod *core.Pod) core.Container {
	for _, c := range pod.Spec.Containers {
		if c.Name == "kube-proxy" {
			return c
		}
	}
	return pod.Spec.Containers[0] // the API server lets no pod be without
}

func unready(pod *core.Pod, container string) string {
	for _, s := range pod.Status.ContainerStatuses {
		switch {
		case s.Name != container:
		case s.State.Running != nil:
			return ""
		case s.State.Waiting != nil:
			return fmt.Sprintf("its pod %s does not run: %s", pod.Name, s.State.Waiting.Reason)
		}
	}
	return fmt.Sprintf("its pod %s is %s", pod.Name, pod.Status.Phase)
}

// proxyOf returns the way to query the proxy of a pod: its own program, and the flags for its admin
// socket.
func proxyOf(pod *core.Pod) Proxy {
	container := containerOf(pod)
	p := Proxy{Node: pod.Spec.NodeName, Namespace: pod.Namespace, Pod: pod.Name, Container: container.Name,
		Unready: unready(pod, container.Name)}
	words := slices.Concat(container.Command, container.Args)
	p.command = []string{"kube-proxy", "connect"}
	if len(container.Command) > 0 && strings.HasPrefix(path.Base(container.Command[0]), "kube-proxy") {
		p.command[0] = container.Command[0]
	}
	for i, word := range words {
		for _, flag := range []string{"--config", "--admin-socket"} {
			switch {
			case strings.HasPrefix(word, flag+"="):
				p.command = append(p.command, word)
			case word == flag && i+1 < len(words):
				p.command = append(p.command, word+"="+words[i+1])
			}
		}
	}
	return p
}

// Pod is the source of a traced packet.
type Pod struct {
	Node string
	// Addrs are its addresses, of one family or of both.
	Addrs []string
	// Host: it has the network of its node.
	Host bool
}

// Pod gets a Pod from the API server; it must be on a node and have an address.
func (c *Cluster) Pod(ctx context.Context, namespace, name string) (Pod, error) {
	var pod core.Pod
	err := c.client.Get().Namespace(namespace).Resource("pods").Name(name).Do(ctx).Into(&pod)
	switch {
	case apierrors.IsForbidden(err):
		return Pod{}, fmt.Errorf("find the node of Pod %s/%s: %w; give the Pod's address and --node NODE instead",
			namespace, name, err)
	case err != nil:
		return Pod{}, fmt.Errorf("find the node of Pod %s/%s: %w", namespace, name, err)
	}
	found := Pod{Node: pod.Spec.NodeName, Host: pod.Spec.HostNetwork}
	for _, ip := range pod.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil {
			found.Addrs = append(found.Addrs, a.Unmap().String())
		}
	}
	switch {
	case found.Node == "":
		return found, fmt.Errorf("the Pod %s/%s is on no node yet (%s)", namespace, name, pod.Status.Phase)
	case len(found.Addrs) == 0:
		return found, fmt.Errorf("the Pod %s/%s has no address yet (%s)", namespace, name, pod.Status.Phase)
	}
	return found, nil
}
