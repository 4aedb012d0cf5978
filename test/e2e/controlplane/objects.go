package controlplane

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// writers is how many requests are in flight at once. The API server writes about 400 objects a
// second on two processors, and more writers do not make it faster.
const writers = 16

// Service is a ClusterIP service in namespace default with one TCP port called "p".
func Service(name string, port int32) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.ServiceSpec{
			Ports: []corev1.ServicePort{{Name: "p", Port: port, Protocol: corev1.ProtocolTCP}}},
	}
}

// Slice is the only slice of a Service: ready endpoints with the TCP port "p". All addresses are of
// one family. nodeName may be nil; it returns the node of an address.
func Slice(service string, port int32, nodeName func(netip.Addr) string,
	addrs ...netip.Addr) *discoveryv1.EndpointSlice {
	name, tcp, ready := "p", corev1.ProtocolTCP, true
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: service,
			Labels: map[string]string{discoveryv1.LabelServiceName: service},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &tcp}},
	}
	for _, addr := range addrs {
		if addr.Is6() {
			slice.AddressType = discoveryv1.AddressTypeIPv6
		}
		endpoint := discoveryv1.Endpoint{
			Addresses:  []string{addr.String()},
			Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &ready},
		}
		if nodeName != nil {
			node := nodeName(addr)
			endpoint.NodeName = &node
		}
		slice.Endpoints = append(slice.Endpoints, endpoint)
	}
	return slice
}

// Node is a node with an InternalIP and pod ranges.
func Node(name string, addr netip.Addr, podCIDRs ...string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}},
		Spec:       corev1.NodeSpec{PodCIDRs: podCIDRs, PodCIDR: podCIDRs[0]},
		Status: corev1.NodeStatus{
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: addr.String()}},
		},
	}
}

// LoadAddr is the endpoint number j (from 0) of the load service number i (from 0) when each has n:
// addresses in 100.64.0.0/10, distinct up to 4,194,304.
func LoadAddr(i, j, n int) netip.Addr {
	var addr [4]byte
	binary.BigEndian.PutUint32(addr[:], 100<<24|64<<16|uint32(i*n+j)&(1<<22-1))
	return netip.AddrFrom4(addr)
}

// LoadName is the name of the load service number i.
func LoadName(i int) string { return fmt.Sprintf("load-%06d", i) }

// CreateLoad creates the load services number from … to-1 on port 80 with the given number of
// endpoints in 100.64.0.0/10 each, on port 8080. Slices are created before services, so that a
// watching proxy sees that order too.
func (c *ControlPlane) CreateLoad(ctx context.Context, from, to, endpoints int) error {
	return c.Each(ctx, "load services created", to-from, func(ctx context.Context, n int) error {
		i := from + n
		addrs := make([]netip.Addr, endpoints)
		for j := range addrs {
			addrs[j] = LoadAddr(i, j, endpoints)
		}
		return c.Create(ctx, Service(LoadName(i), 80), Slice(LoadName(i), 8080, nil, addrs...))
	})
}

// ClusterIP is the first address of a service of namespace default.
func (c *ControlPlane) ClusterIP(ctx context.Context, name string) (netip.Addr, error) {
	service, err := c.Client.CoreV1().Services("default").Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return netip.Addr{}, fmt.Errorf("get service %s: %w", name, err)
	}
	return netip.ParseAddr(service.Spec.ClusterIP)
}

// Create creates the slices of a service and then the service. It sets the ClusterIP in service.
func (c *ControlPlane) Create(ctx context.Context, service *corev1.Service,
	slices ...*discoveryv1.EndpointSlice) error {
	for _, slice := range slices {
		if err := c.CreateSlice(ctx, slice); err != nil {
			return err
		}
	}
	created, err := c.Client.CoreV1().Services(service.Namespace).Create(ctx, service, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create service %s: %w", service.Name, err)
	}
	*service = *created
	return nil
}

// Update replaces a slice, whatever its stored version.
func (c *ControlPlane) Update(ctx context.Context, slice *discoveryv1.EndpointSlice) error {
	slice = slice.DeepCopy()
	slice.ResourceVersion = ""
	if _, err := c.Client.DiscoveryV1().EndpointSlices(slice.Namespace).Update(ctx, slice,
		metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("update slice %s: %w", slice.Name, err)
	}
	return nil
}

// DeleteAll deletes every service and slice of namespace default except those of the API server
// itself.
func (c *ControlPlane) DeleteAll(ctx context.Context) error {
	services, err := c.Client.CoreV1().Services("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list services to delete: %w", err)
	}
	var names []string
	for _, s := range services.Items {
		if s.Name != "kubernetes" {
			names = append(names, s.Name)
		}
	}
	err = c.Each(ctx, "services deleted", len(names), func(ctx context.Context, i int) error {
		return c.Client.CoreV1().Services("default").Delete(ctx, names[i], metav1.DeleteOptions{})
	})
	if err != nil {
		return fmt.Errorf("delete services: %w", err)
	}
	err = c.Client.DiscoveryV1().EndpointSlices("default").DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "!=kubernetes"})
	if err != nil {
		return fmt.Errorf("delete slices: %w", err)
	}
	return nil
}

// PutNode creates a Node, or leaves an existing one of that name unchanged.
func (c *ControlPlane) PutNode(ctx context.Context, node *corev1.Node) error {
	_, err := c.Client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create node %s: %w", node.Name, err)
	}
	return nil
}

// SetNodeAddress gives a Node another InternalIP. It works also when the context of a test has
// ended.
func (c *ControlPlane) SetNodeAddress(name string, addr netip.Addr) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	node, err := c.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("get node %s: %w", name, err)
	}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: addr.String()}}
	if _, err := c.Client.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("update the addresses of node %s: %w", name, err)
	}
	return nil
}

// Each calls f for 0 … n-1 from several goroutines, stops at the first error, and reports its
// progress every 2 s.
func (c *ControlPlane) Each(ctx context.Context, what string, n int, f func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next, done atomic.Int64
	start := time.Now()
	defer every(2*time.Second, func(since time.Duration) {
		c.config.Logf("%d of %d %s, %v", done.Load(), n, what, since)
	})()
	var group sync.WaitGroup
	for range min(writers, n) {
		group.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				if err := f(ctx, i); err != nil {
					cancel(err)
					return
				}
				done.Add(1)
			}
		})
	}
	group.Wait()
	if err := context.Cause(ctx); err != nil && !(errors.Is(err, context.Canceled) && done.Load() == int64(n)) {
		return err
	}
	took := time.Since(start)
	if took > time.Second {
		c.config.Logf("%d %s in %v (%.0f/s)", n, what, took.Round(10*time.Millisecond), float64(n)/took.Seconds())
	}
	return nil
}

// CreateSlice creates a slice alone.
func (c *ControlPlane) CreateSlice(ctx context.Context, slice *discoveryv1.EndpointSlice) error {
	if _, err := c.Client.DiscoveryV1().EndpointSlices(slice.Namespace).Create(ctx, slice,
		metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create slice %s: %w", slice.Name, err)
	}
	return nil
}

// DeleteSlice deletes a slice of namespace default.
func (c *ControlPlane) DeleteSlice(ctx context.Context, name string) error {
	if err := c.Client.DiscoveryV1().EndpointSlices("default").Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("delete slice %s: %w", name, err)
	}
	return nil
}

// DeleteService deletes a service of namespace default; its slices stay, as no controller runs.
func (c *ControlPlane) DeleteService(ctx context.Context, name string) error {
	if err := c.Client.CoreV1().Services("default").Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("delete service %s: %w", name, err)
	}
	return nil
}
