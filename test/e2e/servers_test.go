package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kube-proxy/internal/netlab"
	"kube-proxy/test/e2e/controlplane"
	"kube-proxy/test/e2e/testbed"
)

// The default addresses of the servers.
var (
	healthPort  = netip.AddrPortFrom(node1Addr(), 10256)
	metricsPort = netip.MustParseAddrPort("127.0.0.1:10249")
)

func node1Addr() netip.Addr {
	node1, _ := netlab.HostByName(netlab.Node1)
	return node1.V4
}

// awaitCode sends requests until the status code is the wanted one.
func awaitCode(t *testing.T, host string, server netip.AddrPort, path string, code int) *testbed.Answer {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		answer, err := bed.Get(t.Context(), host, server, path)
		if err == nil && answer.Code == code {
			return answer
		}
		if time.Now().After(deadline) {
			t.Fatalf("http://%s%s does not answer %d within %v, but %+v, %v", server, path, code, patience, answer, err)
		}
	}
}

// awaitNoServer waits until no server listens there.
func awaitNoServer(t *testing.T, host string, server netip.AddrPort) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		answer, err := bed.Get(t.Context(), host, server, "/healthz")
		if err != nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("http://%s still answers after %v: %+v", server, patience, answer)
		}
	}
}

// localService creates a LoadBalancer service with traffic policy Local and returns the address at
// which node1 reports its endpoints.
func localService(t *testing.T, name string, pods ...string) (*corev1.Service, netip.AddrPort) {
	t.Helper()
	service := controlplane.Service(name, 80)
	service.Spec.Type = corev1.ServiceTypeLoadBalancer
	service.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	must(t, bed.API.Create(t.Context(), service, slice(name, pods...)))
	return service, netip.AddrPortFrom(node1Addr(), uint16(service.Spec.HealthCheckNodePort))
}

// The health port reports the state of the proxy and its node (HT-01 to HT-06, PN-70), and a
// healthCheckNodePort the number of its service's endpoints on the node (HT-10 to HT-14); both as
// seen by an external load balancer.
func TestHealth(t *testing.T) { inModes(t, bothModes, testHealth) }

func testHealth(t *testing.T) {
	begin(t)
	_, local := localService(t, "local", "pod1", "pod2", "pod4")
	p := startProxy(t)
	awaitCode(t, netlab.Client, healthPort, "/readyz", 200)
	for _, path := range []string{"/healthz", "/livez"} {
		answer := awaitCode(t, netlab.Client, healthPort, path, 200)
		var said struct {
			NodeEligible *bool
			Healthy      bool
			LastUpdated  time.Time
			CurrentTime  time.Time
			Status       map[string]struct{ Healthy bool }
		}
		must(t, json.Unmarshal([]byte(answer.Body), &said))
		if !said.Healthy || !said.Status["IPv4"].Healthy || !said.Status["IPv6"].Healthy ||
			(said.NodeEligible != nil) != (path == "/healthz") || time.Since(said.LastUpdated) > time.Minute {
			t.Errorf("%s: %s", path, answer.Body)
		}
		if answer.Header.Get("Content-Type") != "application/json" ||
			answer.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s has the headers %v", path, answer.Header)
		}
		t.Logf("%s: %s", path, answer.Body)
	}
	awaitCode(t, netlab.Client, healthPort, "/metrics", 404)
	checkServiceHealth(t, local)
	checkNodeEligible(t, local)
	must(t, p.StopInOrder())
	awaitNoServer(t, netlab.Client, healthPort)
	awaitNoServer(t, netlab.Client, local)
}

// checkServiceHealth moves the endpoints of the service "local" away and back, and deletes and
// creates another service.
func checkServiceHealth(t *testing.T, local netip.AddrPort) {
	t.Helper()
	says := func(code, n int) {
		t.Helper()
		for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
			answer := awaitCode(t, netlab.Client, local, "/anything", code)
			want := fmt.Sprintf("{\n\t\"service\": {\n\t\t\"namespace\": \"default\",\n\t\t\"name\": \"local\"\n"+
				"\t},\n\t\"localEndpoints\": %d,\n\t\"serviceProxyHealthy\": true\n}", n)
			if answer.Body == want && answer.Header.Get("X-Load-Balancing-Endpoint-Weight") == strconv.Itoa(n) {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s says %q with the headers %v, want %q", local, answer.Body, answer.Header, want)
			}
		}
	}
	says(200, 2)
	move(t, "local", "pod4")
	says(503, 0)
	move(t, "local", "pod2", "pod4")
	says(200, 1)
	_, other := localService(t, "other", "pod3")
	awaitCode(t, netlab.Client, other, "/", 200)
	must(t, bed.API.DeleteService(t.Context(), "other"))
	awaitNoServer(t, netlab.Client, other)
}

// checkNodeEligible marks the node for removal by the autoscaler: only load balancers get the
// answer to leave it.
func checkNodeEligible(t *testing.T, local netip.AddrPort) {
	t.Helper()
	nodes := bed.API.Client.CoreV1().Nodes()
	taint := func(taints ...corev1.Taint) {
		t.Helper()
		ctx := context.WithoutCancel(t.Context()) // also at the end of the test
		node, err := nodes.Get(ctx, netlab.Node1, metav1.GetOptions{})
		must(t, err)
		node.Spec.Taints = taints
		_, err = nodes.Update(ctx, node, metav1.UpdateOptions{})
		must(t, err)
	}
	t.Cleanup(func() { taint() })
	taint(corev1.Taint{Key: "ToBeDeletedByClusterAutoscaler", Effect: corev1.TaintEffectNoSchedule, Value: "1"})
	answer := awaitCode(t, netlab.Client, healthPort, "/healthz", 503)
	if !strings.Contains(answer.Body, `"nodeEligible":false`) || !strings.Contains(answer.Body, `"healthy":true`) {
		t.Errorf("on a node that goes /healthz says %s", answer.Body)
	}
	awaitCode(t, netlab.Client, healthPort, "/livez", 200)
	awaitCode(t, netlab.Client, local, "/", 200)
	taint()
	awaitCode(t, netlab.Client, healthPort, "/healthz", 200)
}

// The metrics server of the real binary: every metric of the mode in the list exists, and the other
// paths do (HT-20 to HT-27). The values match the events: probes, and the time from an endpoint's
// change to the kernel.
func TestMetrics(t *testing.T) { inModes(t, bothModes, testMetrics) }

func testMetrics(t *testing.T) {
	begin(t)
	addr := web(t, "web", "pod1")
	startProxy(t, "--service-metrics=10")
	await(t, "pod3", addr, "pod1")
	get := func(path string) *testbed.Answer { return awaitCode(t, netlab.Node1, metricsPort, path, 200) }
	if body := get("/proxyMode").Body; body != bed.Mode.Name {
		t.Errorf("/proxyMode is %q, want %q", body, bed.Mode.Name)
	}
	if body := get("/healthz").Body; body != "ok" {
		t.Errorf("/healthz of the metrics server is %q", body)
	}
	for path, part := range map[string]string{
		"/configz": `"kubeproxy.config.k8s.io"`, "/flagz": "hostname-override=node1", "/statusz": "kube-proxy",
		"/metrics/slis": "kubernetes_healthcheck",
	} {
		if body := get(path).Body; !strings.Contains(body, part) {
			t.Errorf("%s does not have %q:\n%s", path, part, body)
		}
	}
	awaitCode(t, netlab.Node1, metricsPort, "/debug/pprof/", 404)
	awaitCode(t, netlab.Node1, metricsPort, "/nothing", 404)

	before := metrics(t)
	awaitCode(t, netlab.Client, healthPort, "/healthz", 200)
	awaitCode(t, netlab.Client, healthPort, "/livez", 200)
	changed := slice("web", "pod4")
	// As of a slow controller; events before the start of the process do not count.
	changed.Annotations = map[string]string{"endpoints.kubernetes.io/last-change-trigger-time": time.Now().UTC().
		Format(time.RFC3339Nano)}
	time.Sleep(600 * time.Millisecond)
	must(t, bed.API.Update(t.Context(), changed))
	await(t, "pod3", addr, "pod4")
	for _, c := range []struct {
		metric   string
		increase float64
		what     string
	}{
		{`kubeproxy_network_programming_duration_seconds_count{ip_family="IPv4"}`, 1, "latency"},
		{`kubeproxy_network_programming_duration_seconds_bucket{ip_family="IPv4",le="0.5"}`, 0, "latency below 0.5 s"},
		{`kubeproxy_network_programming_duration_seconds_bucket{ip_family="IPv4",le="60"}`, 1, "latency below 60 s"},
		{`kubeproxy_proxy_healthz_total{code="200"}`, 1, "probes"},
		{`kubeproxy_proxy_livez_total{code="200"}`, 1, "probes"},
	} {
		awaitMetric(t, c.what, c.metric, before[c.metric]+c.increase)
	}
	changeUDP(t)
	checkMetricNames(t)
}

// changeUDP has flows to look for: a UDP service loses its endpoint (MT-18).
func changeUDP(t *testing.T) {
	t.Helper()
	udp := func(pod string) *discoveryv1.EndpointSlice {
		s, proto := slice("udp", pod), corev1.ProtocolUDP
		s.Ports[0].Protocol = &proto
		return s
	}
	service := controlplane.Service("udp", 53)
	service.Spec.Ports[0].Protocol = corev1.ProtocolUDP
	must(t, bed.API.Create(t.Context(), service, udp("pod1")))
	marker(t, "marker-udp")
	must(t, bed.API.Update(t.Context(), udp("pod4")))
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		if metrics(t)[`kubeproxy_conntrack_reconciler_sync_duration_seconds_count{ip_family="IPv4"}`] > 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Error("conntrack was not cleaned after a UDP service lost its endpoint")
			return
		}
	}
}

// metrics are all samples by name and labels.
func metrics(t *testing.T) map[string]float64 {
	t.Helper()
	samples := map[string]float64{}
	for line := range strings.Lines(awaitCode(t, netlab.Node1, metricsPort, "/metrics", 200).Body) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		name, value, _ := strings.Cut(strings.TrimSpace(line), "} ")
		if value == "" {
			name, value, _ = strings.Cut(strings.TrimSpace(line), " ")
		} else {
			name += "}"
		}
		v, err := strconv.ParseFloat(value, 64)
		must(t, err)
		samples[name] = v
	}
	return samples
}

// awaitMetric waits until a sample has the wanted value: counters may lag behind the effect.
func awaitMetric(t *testing.T, what, name string, want float64) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		got := metrics(t)[name]
		if got == want {
			t.Logf("%s: %s is %v", what, name, got)
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("%s: %s is %v, want %v", what, name, got, want)
			return
		}
	}
}

// checkMetricNames compares names and types with the list that was written by hand from the
// specification.
func checkMetricNames(t *testing.T) {
	t.Helper()
	body := awaitCode(t, netlab.Node1, metricsPort, "/metrics", 200).Body
	list, err := os.ReadFile(filepath.Join("..", "..", "status", "testdata", "metrics.tsv"))
	must(t, err)
	rows := 0
	for line := range strings.Lines(string(list)) {
		f := strings.Split(strings.TrimSpace(line), "\t")
		if strings.HasPrefix(line, "#") || len(f) < 5 {
			continue
		}
		row, name, kind, modes := f[0], f[1], f[2], f[4]
		mine := modes == "all" || strings.Contains(","+modes+",", ","+bed.Mode.Name+",")
		there := regexp.MustCompile(`(?m)^# TYPE ` + name + " " + kind + `$`).MatchString(body)
		switch {
		case row == "MT-16" || row == "MT-17": // where the kernel has nfacct
		case name == "kubeproxy_services_not_ok": // without such Services it has no series
		case row == "MT-19": // with its feature gate: cmd/kube-proxy.TestMetricsOfMode
		case mine != there:
			t.Errorf("%s %s %s: in /metrics: %v, want %v", row, kind, name, there, mine)
		}
		rows++
	}
	if rows < 20 {
		t.Errorf("the list has %d rows", rows)
	}
}

// The proxy waits for a port in use by another program; with bindAddressHardFail that ends the
// process with status 1, and an event has the reason (HT-07, EV-02, EV-03).
func TestPortsOccupied(t *testing.T) {
	for _, c := range []struct {
		name   string
		port   netip.AddrPort
		from   string
		reason string
	}{
		{"health", healthPort, netlab.Client, "FailedToStartProxierHealthcheck"},
		{"metrics", metricsPort, netlab.Node1, "FailedToStartMetricServer"},
	} {
		t.Run(c.name, func(t *testing.T) {
			begin(t)
			deleteEvents(t)
			addr := web(t, "web", "pod1")
			other, err := bed.Occupy(netlab.Node1, c.port.Port())
			must(t, err)
			defer other.Close()
			hard := startConfigured(t, clusterCIDR+verbose+quick()+"bindAddressHardFail: true\n")
			select {
			case <-hard.Done():
			case <-time.After(patience):
				t.Fatalf("with hard fail the process goes on:\n%s", hard.LogTail(10))
			}
			if code := hard.ExitCode(); code != 1 || !strings.Contains(hard.LogTail(1),
				strconv.Itoa(int(c.port.Port()))) {
				t.Errorf("status %d, want 1; the last line of the log is %s", code, hard.LogTail(1))
			}
			awaitEvent(t, c.reason, netlab.Node1)

			startConfigured(t, clusterCIDR+verbose+quick())
			await(t, "pod3", addr, "pod1")
			must(t, other.Close())
			awaitCode(t, c.from, c.port, "/healthz", 200)
		})
	}
}

// A healthCheckNodePort in use by another program is reported (EV-05, HT-15), and served once it is
// free.
func TestHealthCheckNodePortOccupied(t *testing.T) {
	begin(t)
	deleteEvents(t)
	service, local := localService(t, "local", "pod1")
	other, err := bed.Occupy(netlab.Node1, local.Port())
	must(t, err)
	defer other.Close()
	startProxy(t)
	e := awaitEvent(t, "FailedToStartServiceHealthcheck", "local")
	if e.Regarding.UID != service.UID || !strings.Contains(e.Note, strconv.Itoa(int(local.Port()))) {
		t.Errorf("uid %q, want %q; note %q", e.Regarding.UID, service.UID, e.Note)
	}
	must(t, other.Close())
	marker(t, "marker") // the next sync
	awaitCode(t, netlab.Client, local, "/", 200)
}

// A NodePort on which a program of the node listens is reported (PN-60).
func TestNodePortInUse(t *testing.T) {
	begin(t)
	deleteEvents(t)
	nodePort := nodePortService(t, "port", "pod2")
	program, err := bed.Occupy(netlab.Node1, nodePort.Port())
	must(t, err)
	defer program.Close()
	startProxy(t)
	await(t, netlab.Client, nodePort, "pod2")
	if e := awaitEvent(t, "KubeProxyNodePortInUse", "port"); !strings.Contains(e.Note,
		strconv.Itoa(int(nodePort.Port()))) {
		t.Errorf("the event does not name the port %d: %s", nodePort.Port(), e.Note)
	}
}

// The servers move to other addresses while they run; no connection through a service notices it.
func TestReloadBindAddresses(t *testing.T) {
	begin(t)
	steady := web(t, "steady", "pod1", "pod4")
	p := startConfigured(t, clusterCIDR+verbose+quick())
	await(t, "pod3", steady, "pod1", "pod4")
	stop := traffic(t, "pod3", steady)
	awaitCode(t, netlab.Client, healthPort, "/healthz", 200)
	awaitCode(t, netlab.Node1, metricsPort, "/healthz", 200)
	p.change(t, clusterCIDR+verbose+quick()+"healthzBindAddress: 172.18.0.2:20256\nmetricsBindAddress: 0.0.0.0:20249\n",
		"healthzBindAddress", "metricsBindAddress")
	awaitCode(t, netlab.Client, netip.AddrPortFrom(node1Addr(), 20256), "/healthz", 200)
	awaitCode(t, netlab.Client, netip.AddrPortFrom(node1Addr(), 20249), "/proxyMode", 200)
	awaitNoServer(t, netlab.Client, healthPort)
	awaitNoServer(t, netlab.Node1, metricsPort)
	time.Sleep(300 * time.Millisecond) // for some more traffic
	stop()
}
