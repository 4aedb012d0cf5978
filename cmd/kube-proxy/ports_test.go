//go:build linux

package main

import (
	"errors"
	"net"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// HT-07: a health or metrics port in use is retried every 5 s, and packets are served meanwhile.
func TestOccupiedPorts(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	health, metrics := n.listen("127.0.0.1:10256"), n.listen("127.0.0.1:10249")
	p := n.serve("nftables")
	p.await(regexp.MustCompile(`E.*\] "Health server cannot listen" address="0.0.0.0:10256" err=.*address already in ` +
		`use.* again=true`))
	p.await(regexp.MustCompile(`E.*\] "Metrics server cannot listen, retrying" every="5s" ` +
		`err=.*127.0.0.1:10249.*address already in use`))
	n.wantGood("with occupied ports")
	health.Close()
	metrics.Close()
	n.code(healthURL+"/readyz", 200)
	n.code(metricsURL+"/metrics", 200)
	p.stop()
}

// HT-07, EV-02, EV-03: with bindAddressHardFail, all ports in use are reported with their flag or
// field, the process ends, and the rules stay.
func TestOccupiedPortsHardFail(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.serve("nftables").end(syscall.SIGTERM)
	n.listen("127.0.0.1:10256")
	n.listen("127.0.0.1:10249")
	n.write("config", nftablesFile("bindAddressHardFail: true\nclusterCIDR: 10.0.0.0/16,fd00::/48\n"+
		"hostnameOverride: n1\n"))
	for _, c := range []struct {
		args []string
		says []string
	}{
		{usual("nftables", "--bind-address-hard-fail"), []string{
			`kube-proxy: --healthz-bind-address: health server: listen tcp 0.0.0.0:10256: bind: address already in use`,
			`kube-proxy: --metrics-bind-address: metrics server: listen tcp 127.0.0.1:10249: bind: address already ` +
				`in use`}},
		{usual("nftables", "--bind-address-hard-fail", "--healthz-bind-address="), []string{
			`kube-proxy: --metrics-bind-address: metrics server: listen tcp 127.0.0.1:10249: bind: address already ` +
				`in use`}},
		{[]string{"--config=config", "--manifests=m"}, []string{
			`kube-proxy: KubeProxyConfiguration.healthzBindAddress: health server: listen tcp 0.0.0.0:10256: bind: ` +
				`address already in use`,
			`kube-proxy: KubeProxyConfiguration.metricsBindAddress: metrics server: listen tcp 127.0.0.1:10249: ` +
				`bind: address already in use`}},
	} {
		p := n.start(c.args)
		if code := p.end(0); code != 1 {
			t.Errorf("exit code %d", code)
		}
		has(t, strings.Join(c.args, " "), p.log(), c.says...)
		if got := strings.Count(p.log(), "\nkube-proxy: "); got != len(c.says) {
			t.Errorf("%d problems, want %d:\n%s", got, len(c.says), p.log())
		}
		n.wantGood("after the end")
	}
}

// PN-60, SV-65: a program of the node that listens on a NodePort is logged once; one that listens
// on another port, or on an address that does not answer NodePorts, is not. A Service with the
// node's own address takes a port from a program of the node and from another Service's NodePort;
// it is served, and one line reports it.
func TestPortsTaken(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	for _, addr := range []string{"192.0.2.1/32", "198.51.100.1/32"} {
		n.command("ip", "address", "add", addr, "dev", "lo")
	}
	n.write("m/good.yaml", good())
	n.write("m/web.yaml", balanced(32000, 1))
	for _, addr := range []string{"192.0.2.1:2379", "192.0.2.1:30080", "192.0.2.1:30090", "198.51.100.1:30081",
		"127.0.0.1:30081"} {
		n.listen(addr)
	}
	p := n.serve("nftables", "--nodeport-addresses=192.0.2.0/24",
		"--feature-gates=KubeProxyNFTablesLocalhostNodePorts=false")
	warns := regexp.MustCompile(`W.*\] "Service port is in use on this node" service="shop/web" ` +
		`note="NodePort 30080/tcp .*192.0.2.1:30080`)
	p.await(warns)
	n.write("m/web.yaml", balanced(32000, 2)) // the same again
	n.write("m/taker.yaml", []byte("kind: Service\nmetadata: {name: taker, namespace: evil}\n"+
		"spec: {clusterIP: 10.96.7.8, externalIPs: [192.0.2.1, 192.0.2.2], ports: [{name: a, port: 2379}, {name: c, "+
		" port: 30080}, {name: d, port: 80}]}\n"))
	p.await(regexp.MustCompile(`W.*\] "Service port is in use on this node" service="evil/taker\S*" ` +
		`note="192.0.2.1:\d+/tcp is at an address of node n1 itself and takes traffic from .*; there are \d more ` +
		`such ports of this Service"`))
	n.until(metricsURL+"/metrics", "two kinds of taken ports", func(a answer) bool {
		return strings.Contains(a.body, `kubeproxy_ports_taken{kind="node-port"} 1`+"\n") &&
			strings.Contains(a.body, `kubeproxy_ports_taken{kind="node-address"} 3`+"\n")
	})
	p.stop()
	if got := len(warns.FindAllString(p.log(), -1)); got != 1 || strings.Contains(p.log(), "30081") ||
		strings.Contains(p.log(), "30090") || strings.Contains(p.log(), "192.0.2.2") {
		t.Errorf("%d warnings:\n%s", got, p.log())
	}
}

// Where nodePortAddresses does not select localhost, a NodePort is rejected there, also from a
// program that listens: the log reports it (TN-57, PN-60).
func TestLocalhostPortRejectedTN57(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	n.write("m/good.yaml", good())
	n.write("m/web.yaml", balanced(32000, 1))
	n.listen("127.0.0.1:30080")
	p := n.serve("nftables")
	p.await(regexp.MustCompile(`W.*\] "Service port is in use on this node" service="shop/web" ` +
		`note="NodePort 30080/tcp takes traffic from a program on node n1 that listens on 127.0.0.1:30080"`))
	n.refused("127.0.0.1:30080")
	p.stop()
}

// A Service without endpoints that names the node's addresses would have probes of the proxy and of
// the kubelet refused. Their ports stay the node's: at an address that the node gets later, and at
// a port to which the health server moves. Log and `why` report it (TN-98).
func TestOwnPortsTN98(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	n.command("ip", "address", "add", "192.0.2.1/32", "dev", "lo")
	n.listen("0.0.0.0:10250")
	n.write("m/taker.yaml", []byte("kind: Service\nmetadata: {name: taker, namespace: evil}\nspec: {clusterIP: "+
		"10.96.7.8, externalIPs: [192.0.2.1, 198.51.100.1], ports: [{name: a, port: 10256}, {name: b, port: 10249}, "+
		"{name: c, port: 10250}, {name: d, port: 10300}, {name: e, port: 81}]}\n"))
	file := n.path("config.yaml")
	const metrics = "metricsBindAddress: 0.0.0.0:10249\nclusterCIDR: 10.1.0.0/16\n"
	write(t, file, nftablesFile(metrics))
	p := n.configured(file)
	p.await(regexp.MustCompile(`W.*\] "Part of a Service is refused" note=".*192.0.2.1 is this node's, where port ` +
		`10249 is the proxy's metrics server's.*" service="evil/taker"`))
	n.code("http://192.0.2.1:10256/livez", 200)
	n.code("http://192.0.2.1:10249/metrics", 200)
	n.Do(func() {
		kubelet, err := net.Dial("tcp", "192.0.2.1:10250")
		if err != nil {
			t.Error(err)
			return
		}
		kubelet.Close()
	})
	n.refused("192.0.2.1:10300")
	list := []string{"nft", "list", "table", "ip", "kube-proxy"}
	n.eventually("198.51.100.1 . tcp . 10256", list...)
	_, out, _ := n.kubeProxy("why", "evil/taker")
	has(t, "why", unfolded(out), "192.0.2.1 is this node's, where port 10249 is the proxy's metrics server's")

	n.command("ip", "address", "add", "198.51.100.1/32", "dev", "lo")
	n.code("http://198.51.100.1:10256/livez", 200)
	n.without("198.51.100.1 . tcp . 10256", list...)

	write(t, file, nftablesFile(metrics+"healthzBindAddress: 0.0.0.0:10300\n"))
	n.code("http://192.0.2.1:10300/livez", 200)
	n.command("ip", "address", "del", "198.51.100.1/32", "dev", "lo")
	n.eventually("198.51.100.1 . tcp . 10249", list...)
	p.stop()
}

// A program keeps its port at 127.0.0.1 beside a NodePort of mode nftables, and log, event and
// metrics report it (TN-58).
func TestLocalhostNodePortTakenTN58(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	n.write("m/web.yaml", balanced(32000, 1))
	n.listen("127.0.0.1:30080")
	p := n.start(usual("nftables", "--nodeport-addresses=localhost",
		"--feature-gates=KubeProxyNFTablesLocalhostNodePorts=true"), nil)
	p.await(regexp.MustCompile(`W.*\] "Failed to listen for localhost NodePort, retrying" family="IPv4" ` +
		`service="shop/web:?\S*" port=30080 err="relay: listen at 127.0.0.1:30080/tcp: .*address already in use`))
	p.await(regexp.MustCompile(`W.*\] "Service port is in use on this node" .*NodePort 30080/tcp is not served at ` +
		`the address of a program on node n1 that listens on 127.0.0.1:30080`))
	metrics := n.get(metricsURL + "/metrics").body
	has(t, "/metrics", metrics, `kubeproxy_nftables_localhost_nodeport_listeners{ip_family="IPv4"} 1`,
		`kubeproxy_nftables_localhost_nodeport_rejected_packets_total{ip_family="IPv4",protocol="UDP"} 0`)
	if strings.Contains(metrics,
		`kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total{ip_family="IPv4"} 0`) {
		t.Error("the failure is not counted")
	}
	for port, want := range map[string]string{"30080": "this process cannot listen at 127.0.0.1:30080",
		"30081": "listener 127.0.0.1:30081/tcp of this process, for shop/web:b"} {
		_, out, errOut := n.kubeProxy("trace", "node", "127.0.0.1:"+port, "-o", "wide")
		if !strings.Contains(out, want) || strings.Contains(out, "THE KERNEL DIFFERS") != (port == "30080") {
			t.Errorf("trace to port %s, want %q:\n%s%s", port, want, out, errOut)
		}
	}
	p.stop()
}

// Failures shortly after the first are reported with it; the process ends once, because of the
// first.
func TestFailures(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var ended []error
		f := &failures{end: func(because error) { ended = append(ended, because) }}
		if err := f.err(); err != nil {
			t.Errorf("error %v of nothing", err)
		}
		first, second := errors.New("the first"), errors.New("the second")
		f.add(first)
		time.Sleep(50 * time.Millisecond)
		if len(ended) > 0 {
			t.Error("it ends before others can fail")
		}
		if err := f.err(); err != first {
			t.Errorf("error %v", err)
		}
		f.add(second)
		time.Sleep(time.Second)
		if len(ended) != 1 || ended[0] != first {
			t.Errorf("ended because of %v", ended)
		}
		if err := f.err(); err == nil || err.Error() != "the first\nthe second" {
			t.Errorf("error %v", err)
		}
	})
}
