package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"kube-proxy/internal/netlab"
	"kube-proxy/test/e2e/controlplane"
	"kube-proxy/test/e2e/testbed"
)

// slice is the slice of a service whose endpoints are the IPv4 addresses of pods.
func slice(service string, pods ...string) *discoveryv1.EndpointSlice {
	return familySlice(service, false, pods...)
}

func familySlice(service string, six bool, pods ...string) *discoveryv1.EndpointSlice {
	var addrs []netip.Addr
	for _, pod := range pods {
		host, ok := netlab.HostByName(pod)
		if !ok {
			panic("no pod " + pod)
		}
		addrs = append(addrs, host.Addr(six))
	}
	return controlplane.Slice(service, testbed.PodPort, testbed.NodeOf, addrs...)
}

// Services that exist before the proxy starts are served after its first sync: both families, a
// NodePort, and the service of the API server itself (SV-01, SV-05, SV-10).
func TestFirstSync(t *testing.T) { inModes(t, allModes, testFirstSync) }

func testFirstSync(t *testing.T) {
	begin(t)
	four := web(t, "four", "pod1")
	six := controlplane.Service("six", 80)
	six.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol}
	must(t, bed.API.Create(t.Context(), six, familySlice("six", true, "pod4")))
	nodePort := controlplane.Service("port", 80)
	nodePort.Spec.Type = corev1.ServiceTypeNodePort
	must(t, bed.API.Create(t.Context(), nodePort, slice("port", "pod2")))
	node1, _ := netlab.HostByName(netlab.Node1)
	onNode := netip.AddrPortFrom(node1.V4, uint16(nodePort.Spec.Ports[0].NodePort))

	startProxy(t)
	for _, from := range []string{"pod3", netlab.Node1, netlab.Client} {
		t.Logf("from %-6s %v answers after %v", from, four, await(t, from, four, "pod1"))
		t.Logf("from %-6s %v answers after %v", from, address(six), await(t, from, address(six), "pod4"))
		t.Logf("from %-6s %v answers after %v", from, onNode, await(t, from, onNode, "pod2"))
	}
	askAPIServer(t, "pod3", "10.96.0.1:443")
}

// askAPIServer makes a TLS connection from a host to the API server by an address of its
// certificate. It retries for a while, because the API server creates its own service some time
// after it is ready.
func askAPIServer(t *testing.T, host, address string) {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bed.API.RESTConfig(controlplane.AdminUser).CAData)
	server := netip.MustParseAddrPort(address).Addr().String()
	ask := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		conn, err := bed.Dial(ctx, host, "tcp", address)
		if err != nil {
			return err
		}
		defer conn.Close()
		return tls.Client(conn, &tls.Config{RootCAs: roots, ServerName: server}).HandshakeContext(ctx)
	}
	for deadline := time.Now().Add(patience); ; {
		err := ask()
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("from %s the API server does not answer at the service address %s: %v", host, address, err)
		}
	}
	t.Logf("from %s the API server answers at the service address %s", host, address)
}

// A changed endpoint reaches the kernel: the next connection arrives at the new pod, while one that
// was open keeps its own.
func TestChange(t *testing.T) { inModes(t, allModes, testChange) }

func testChange(t *testing.T) {
	begin(t)
	addr := web(t, "web", "pod1")
	startProxy(t)
	await(t, "pod3", addr, "pod1")
	open, err := bed.Lab.Open("pod3", netlab.TCP, addr, netlab.DialOptions{})
	must(t, err)
	defer open.Close()

	var took []time.Duration
	for i := range 40 {
		pod := []string{"pod4", "pod1"}[i%2]
		start := time.Now()
		move(t, "web", pod)
		await(t, "pod3", addr, pod)
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	t.Logf("API write until the new endpoint answers: p50 %v, p90 %v, longest %v of %d", took[len(took)/2],
		took[len(took)*9/10], took[len(took)-1], len(took))
	works(t, open, "still there")
	t.Logf("a connection opened before the changes still reaches %s", open.First().Server)
}

// A service that loses its slice is refused, a deleted one is gone, and one whose slice is added
// first or last is served.
func TestComeAndGo(t *testing.T) { inModes(t, bothModes, testComeAndGo) }

func testComeAndGo(t *testing.T) {
	begin(t)
	startProxy(t)
	service := controlplane.Service("late-slice", 80)
	must(t, bed.API.Create(t.Context(), service))
	marker(t, "marker-a")
	if name, err := bed.Ask("pod3", address(service), brief); err == nil {
		t.Fatalf("a service without slice is answered by %s", name)
	} else {
		t.Logf("without a slice: %v", err)
	}
	must(t, bed.API.CreateSlice(t.Context(), slice("late-slice", "pod2")))
	t.Logf("its slice created, it answers after %v", await(t, "pod3", address(service), "pod2"))
	must(t, bed.API.DeleteSlice(t.Context(), "late-slice"))
	marker(t, "marker-b")
	if name, err := bed.Ask("pod3", address(service), brief); err == nil {
		t.Fatalf("a service whose slice was deleted is answered by %s", name)
	}
	must(t, bed.API.CreateSlice(t.Context(), slice("late-slice", "pod4")))
	t.Logf("another slice created, it answers after %v", await(t, "pod3", address(service), "pod4"))
	must(t, bed.API.DeleteService(t.Context(), "late-slice"))
	marker(t, "marker-c")
	if name, err := bed.Ask("pod3", address(service), brief); err == nil {
		t.Fatalf("a deleted service is answered by %s", name)
	} else {
		t.Logf("deleted: %v", err)
	}
}
