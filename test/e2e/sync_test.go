package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/netip"
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

// nodePortService creates a NodePort service and returns where node1 answers for it.
func nodePortService(t *testing.T, name string, pods ...string) netip.AddrPort {
	t.Helper()
	service := controlplane.Service(name, 80)
	service.Spec.Type = corev1.ServiceTypeNodePort
	must(t, bed.API.Create(t.Context(), service, slice(name, pods...)))
	return netip.AddrPortFrom(node1Addr(), uint16(service.Spec.Ports[0].NodePort))
}

// Services that exist before the proxy starts are served after its first sync, and not before: both
// families, a NodePort, and the service of the API server itself (SV-01, SV-05, SV-10).
func TestFirstSync(t *testing.T) { inModes(t, allModes, testFirstSync) }

func testFirstSync(t *testing.T) {
	begin(t)
	four := web(t, "four", "pod1")
	six := controlplane.Service("six", 80)
	six.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol}
	must(t, bed.API.Create(t.Context(), six, familySlice("six", true, "pod4")))
	nodePort := nodePortService(t, "port", "pod2")
	if name, err := bed.Ask("pod3", four, brief); err == nil {
		t.Fatalf("%s answers at a service address without a proxy", name)
	}
	startProxy(t)
	for _, from := range []string{"pod3", netlab.Node1, netlab.Client} {
		t.Logf("from %-6s %v answers after %v", from, four, await(t, from, four, "pod1"))
		t.Logf("from %-6s %v answers after %v", from, address(six), await(t, from, address(six), "pod4"))
		t.Logf("from %-6s %v answers after %v", from, nodePort, await(t, from, nodePort, "pod2"))
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
	until(t, func() string {
		if err := ask(); err != nil {
			return fmt.Sprintf("from %s the API server does not answer at %s: %v", host, address, err)
		}
		return ""
	})
	t.Logf("from %s the API server answers at the service address %s", host, address)
}

// The node gets another address: NodePorts follow while the process runs (PR-06). In nftables mode
// they answer on the node's primary address only.
func TestNodeAddressChange(t *testing.T) {
	begin(t)
	inMode(t, testbed.NFTables)
	nodePort := nodePortService(t, "port", "pod2")
	startProxy(t)
	await(t, netlab.Client, nodePort, "pod2")

	later := netip.MustParseAddr("172.18.0.22")
	_, err := bed.Command(t.Context(), netlab.Node1, "ip", "address", "add", later.String()+"/24", "dev", netlab.Uplink)
	must(t, err)
	t.Cleanup(func() { must(t, bed.API.SetNodeAddress(netlab.Node1, node1Addr())) })
	moved := netip.AddrPortFrom(later, nodePort.Port())
	if name, err := bed.Ask("pod3", moved, brief); err == nil {
		t.Errorf("%s answers at %s, which the Node does not have yet", name, moved)
	}
	must(t, bed.API.SetNodeAddress(netlab.Node1, later))
	await(t, "pod3", moved, "pod2")
	awaitSilence(t, netlab.Client, nodePort)
}
