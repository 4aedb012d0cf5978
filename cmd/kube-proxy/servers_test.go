//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	healthURL  = "http://127.0.0.1:10256"
	metricsURL = "http://127.0.0.1:10249"
)

// standing checks HT-01 and HT-02 for an answer, and returns its body.
func standing(t *testing.T, a answer) map[string]any {
	t.Helper()
	if typ, sniff := a.header.Get("Content-Type"), a.header.Get("X-Content-Type-Options"); typ != "application/json" ||
		sniff != "nosniff" {
		t.Errorf("Content-Type %q, X-Content-Type-Options %q", typ, sniff)
	}
	body := map[string]any{}
	if err := json.Unmarshal([]byte(a.body), &body); err != nil {
		t.Fatalf("%v: %s", err, a.body)
	}
	for _, key := range []string{"lastUpdated", "currentTime"} {
		if s, _ := body[key].(string); s != "" || key == "currentTime" {
			if _, err := time.Parse(time.RFC3339, s); err != nil {
				t.Errorf("%s: %v in %s", key, err, a.body)
			}
		}
	}
	return body
}

// node is a manifest of the Node.
func node(spec string) []byte {
	return []byte("kind: Node\nmetadata: {name: n1}\nspec: {" + spec +
		"}\nstatus: {addresses: [{type: InternalIP, address: 192.0.2.1}]}\n")
}

// HT-01 to HT-06, PN-70: no API server answers, so the Node and Services are unknown; the process
// is alive.
func TestHealthBeforeFirstSync(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	n.start([]string{"--proxy-mode=nftables", "--hostname-override=n1", "--master=http://" + noServer})
	for path, want := range map[string]struct {
		code int
		has  []string
	}{
		"/healthz": {503, []string{`"nodeEligible":false,"healthy":true,"status":{"IPv4":{"lastUpdated":"`,
			`"IPv6":{"lastUpdated":"`}},
		"/livez":  {200, []string{`"healthy":true,"status":{"IPv4":{"lastUpdated":"`}},
		"/readyz": {503, []string{`"ready":false,"draining":false,"missing":["IPv4","IPv6"]`}},
	} {
		a := n.get(healthURL + path)
		if a.code != want.code {
			t.Errorf("%s: %d, want %d", path, a.code, want.code)
		}
		standing(t, a)
		has(t, path, a.body, want.has...)
		if path == "/livez" && strings.Contains(a.body, "nodeEligible") {
			t.Errorf("/livez: %s", a.body)
		}
	}
	if a := n.get(healthURL + "/other"); a.code != 404 { // HT-03
		t.Errorf("/other: %d", a.code)
	}
}

// HT-01, HT-02, HT-05, HT-06, MT-15: after the first sync all checks succeed; the autoscaler's
// taint fails /healthz only, until it is removed.
func TestHealthTaint(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	n.write("m/node.yaml", node(""))
	n.write("m/good.yaml", service("good", "10.96.0.1", 80, "10.0.0.1"))
	n.serve("nftables")
	n.code(healthURL+"/readyz", 200)
	body := standing(t, n.code(healthURL+"/healthz", 200))
	if body["nodeEligible"] != true || body["healthy"] != true || body["lastUpdated"] != body["currentTime"] ||
		body["status"] == nil {
		t.Errorf("/healthz: %v", body)
	}
	body = standing(t, n.code(healthURL+"/livez", 200))
	if _, there := body["nodeEligible"]; there || body["healthy"] != true ||
		body["lastUpdated"] != body["currentTime"] {
		t.Errorf("/livez: %v", body)
	}

	n.write("m/node.yaml", node("taints: [{key: ToBeDeletedByClusterAutoscaler, effect: PreferNoSchedule}]"))
	body = standing(t, n.code(healthURL+"/healthz", 503))
	if body["nodeEligible"] != false || body["healthy"] != true || body["lastUpdated"] == body["currentTime"] {
		t.Errorf("/healthz with the taint: %v", body)
	}
	n.code(healthURL+"/livez", 200)
	n.code(healthURL+"/readyz", 200)
	n.write("m/node.yaml", node("taints: [{key: other, effect: NoSchedule}]"))
	n.code(healthURL+"/healthz", 200)
	has(t, "/metrics", n.get(metricsURL+"/metrics").body, `kubeproxy_proxy_healthz_total{code="503"}`,
		`kubeproxy_proxy_healthz_total{code="200"}`, `kubeproxy_proxy_livez_total{code="200"} 2`)
}

// held returns a PATH whose iptables-restore programs wait while the file exists that is returned
// too; each that waits writes a line there.
func held(t *testing.T) (path, hold string) {
	t.Helper()
	hold = filepath.Join(t.TempDir(), "hold")
	return restoreBy(t, func(program string) string {
		return fmt.Sprintf("#!/bin/sh\nif [ -e %[1]s ]; then echo $0 >>%[1]s; fi\n"+
			"while [ -e %[1]s ]; do sleep 0.01; done\nexec %[2]s \"$@\"\n", hold, program)
	}), hold
}

// restoreBy returns a PATH with scripts in place of the iptables-restore programs; each gets the
// name of the program that it replaces.
func restoreBy(t *testing.T, script func(program string) string) (path string) {
	t.Helper()
	dir := t.TempDir()
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, backend := range []string{"", "-nft", "-legacy"} {
			name := family + backend + "-restore"
			program, err := exec.LookPath(name)
			do(t, err)
			do(t, os.WriteFile(filepath.Join(dir, name), []byte(script(program)), 0o755))
		}
	}
	return dir + ":" + os.Getenv("PATH")
}

// PR-07: from SIGTERM on, load balancers get the answer to use other nodes, while the current write
// is finished; the kubelet's checks do not change. Then the process ends, and the rules stay.
func TestHealthDrains(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	path, hold := held(t)
	n.write("m/good.yaml", good())
	p := n.start(usual("iptables"), env("PATH="+path))
	p.await(allWritten)
	n.code(healthURL+"/healthz", 200)

	write(t, hold, nil)
	n.write("m/other.yaml", service("other", "10.96.0.2", 80, "10.0.0.2"))
	n.eventually("iptables", "cat", hold)
	has(t, "/metrics", n.get(metricsURL+"/metrics").body, `kubeproxy_rows_pending{ip_family="IPv4"} 1`)
	do(t, p.cmd.Process.Signal(syscall.SIGTERM))
	has(t, "/healthz", n.code(healthURL+"/healthz", 503).body, `"nodeEligible":false,"healthy":true`)
	has(t, "/readyz", n.code(healthURL+"/readyz", 503).body, `"ready":false,"draining":true,"missing":[]`)
	n.code(healthURL+"/livez", 200)
	do(t, os.Remove(hold))
	if code := p.end(0); code != 0 {
		t.Errorf("exit code %d:\n%s", code, p.log())
	}
	has(t, "rules", n.rules(), "-A KUBE-SERVICES -d 10.96.0.1/32", "-A KUBE-SERVICES -d 10.96.0.2/32")
	n.refused("127.0.0.1:10256")
}

// HT-01, HT-02, HT-04, HT-05, HT-10, CF-61: a change that waits for the kernel for twice the sync
// period makes all answers but /readyz 503, with the time of the last success; when it is written
// all is well again.
func TestHealthStuck(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	path, hold := held(t)
	n.write("m/good.yaml", good())
	n.write("m/web.yaml", balanced(32000, 1))
	args := usual("iptables", "--iptables-sync-period=1s", "--iptables-min-sync-period=0")
	p := n.start(args, env("PATH="+path))
	p.await(allWritten)
	n.code(healthURL+"/healthz", 200)
	n.code("http://127.0.0.1:32000/", 200)

	write(t, hold, nil)
	n.write("m/other.yaml", service("other", "10.96.0.2", 80, "10.0.0.2"))
	for _, page := range []string{"/healthz", "/livez"} {
		body := standing(t, n.code(healthURL+page, 503))
		families := body["status"].(map[string]any)
		if body["healthy"] != false || body["lastUpdated"] == body["currentTime"] ||
			families["IPv4"].(map[string]any)["healthy"] != false {
			t.Errorf("%s: %v", page, body)
		}
	}
	has(t, "healthCheckNodePort", n.code("http://127.0.0.1:32000/", 503).body, `"localEndpoints": 1,`,
		`"serviceProxyHealthy": false`)
	n.code(healthURL+"/readyz", 200)
	do(t, os.Remove(hold))
	n.code(healthURL+"/healthz", 200)
	n.code(healthURL+"/livez", 200)
	has(t, "healthCheckNodePort", n.code("http://127.0.0.1:32000/", 200).body, `"serviceProxyHealthy": true`)
	p.stop()
}

// balanced is a Service with a health-check port, and so many endpoints on this node.
func balanced(port, local int) []byte {
	b := fmt.Appendf(nil, `
kind: Service
metadata: {name: web, namespace: shop}
spec: {type: LoadBalancer, clusterIP: 10.96.0.5, externalTrafficPolicy: Local, healthCheckNodePort: %d, ports: [{port: 80, nodePort: 30080}, {port: 81, nodePort: 30081, name: b}]}
---
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080}, {port: 8081, name: b}]
endpoints: [{addresses: [10.0.0.9], nodeName: n2}`, port)
	for i := range local {
		b = fmt.Appendf(b, ", {addresses: [10.0.0.%d], nodeName: n1}", 10+i)
	}
	return append(b, "]\n"...)
}

// HT-10, HT-13, HT-14, HT-16: the port of a Service counts the node's endpoints, follows the
// Service, and answers on the addresses that NodePorts have, which a reload may change.
func TestHealthCheckNodePort(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	for _, a := range []string{"192.0.2.1/32", "198.51.100.1/32"} {
		n.command("ip", "address", "add", a, "dev", "lo")
	}
	config, manifest := n.path("config"), n.path("m/web.yaml")
	write(t, config, nftablesFile(""))
	write(t, manifest, balanced(32000, 2))
	p := n.configured(config)
	has(t, "two endpoints", n.code("http://192.0.2.1:32000/", 200).body, `"localEndpoints": 2,`)
	write(t, manifest, balanced(32000, 0))
	has(t, "no endpoint", n.code("http://192.0.2.1:32000/", 503).body, `"localEndpoints": 0,`)
	write(t, manifest, balanced(32001, 1))
	has(t, "another port", n.code("http://192.0.2.1:32001/", 200).body, `"localEndpoints": 1,`)
	n.refused("192.0.2.1:32000")

	write(t, config, nftablesFile("nodePortAddresses: [198.51.100.0/24]\n"))
	n.code("http://198.51.100.1:32001/", 200)
	n.refused("192.0.2.1:32001")
	n.refused("127.0.0.1:32001")
	do(t, os.Remove(manifest))
	n.refused("198.51.100.1:32001")
	p.stop()
}

// HT-21 to HT-25: the metrics are those of the running mode, and of no other; the
// other pages are of this process.
func TestMetricsOfMode(t *testing.T) {
	t.Parallel()
	table, err := os.ReadFile("../../status/testdata/metrics.tsv")
	do(t, err)
	for _, mode := range []string{"iptables", "nftables", "userspace"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			asked := []string{"--v=3", "--version=v1.36.5", "--service-metrics=10"}
			if mode == "nftables" { // of the gate
				asked = append(asked, "--feature-gates=KubeProxyNFTablesLocalhostNodePorts=true",
					"--nodeport-addresses=localhost")
			}
			// So that the node has a problem.
			n.command("nft", "add table ip other; "+
				"add chain ip other forward { type filter hook forward priority 0; policy drop; }")
			p := n.start(usual(mode, asked...))
			p.await(allWritten)
			n.code(healthURL+"/livez", 200)
			n.code(healthURL+"/healthz", 200)
			n.code(metricsURL+"/healthz", 200)
			n.write("m/lonely.yaml", []byte("kind: Service\nmetadata: {name: lonely, namespace: shop}\n"+
				"spec: {clusterIP: 10.96.0.11, ports: [{port: 80}]}\n")) // so that a Service is not ok
			// A change with a controller's time stamp, and a removed UDP endpoint: then every
			// metric has a value.
			dns := bytes.ReplaceAll(service("dns", "10.96.0.10", 53, "10.0.0.53"), []byte("port: "),
				[]byte("protocol: UDP, port: "))
			dns = bytes.ReplaceAll(dns, []byte("name: dns-1,"),
				fmt.Appendf(nil, "annotations: {endpoints.kubernetes.io/last-change-trigger-time: %q}, name: dns-1,",
					time.Now().Format(time.RFC3339Nano)))
			n.write("m/dns.yaml", dns)
			n.until(metricsURL+"/metrics", "a programmed change", func(a answer) bool {
				return strings.Contains(a.body,
					`kubeproxy_network_programming_duration_seconds_count{ip_family="IPv4"} 1`)
			})
			do(t, os.Remove(n.path("m/dns.yaml")))
			n.until(metricsURL+"/metrics", "a look at conntrack", func(a answer) bool {
				return strings.Contains(a.body,
					`kubeproxy_conntrack_reconciler_sync_duration_seconds_count{ip_family="IPv4"} `)
			})
			metrics := n.get(metricsURL + "/metrics").body
			for line := range strings.Lines(string(table)) {
				cells := strings.Split(line, "\t")
				if strings.HasPrefix(line, "#") {
					continue
				}
				name, modes := cells[1], cells[4]
				want := modes == "all" || slices.Contains(strings.Split(modes, ","), mode)
				if got := strings.Contains(metrics, "# TYPE "+name+" "+cells[2]+"\n"); got != want {
					t.Errorf("%s: %s is there: %t, want %t", cells[0], name, got, want)
				}
			}
			has(t, "/metrics", metrics, `kubeproxy_mode_info{asked="`+mode+`",mode="`+mode+`",reason=""} 1`,
				`git_version="v1.36.5"`, "process_start_time_seconds")
			if mode != "userspace" { // MT-02 is not of it
				has(t, "/metrics", metrics,
					`kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family="IPv6"} 1`)
			}
			if a := n.get(metricsURL + "/proxyMode"); a.body != mode ||
				a.header.Get("Content-Type") != "text/plain; charset=utf-8" {
				t.Errorf("/proxyMode: %v", a)
			}
			has(t, "/flagz", n.get(metricsURL+"/flagz").body, "hostname-override=n1", "proxy-mode="+mode)
			has(t, "/statusz", n.get(metricsURL+"/statusz").body, "/configz", "/metrics/slis",
				"Binary version: 1.36.5\n")
			has(t, "/metrics/slis", n.get(metricsURL+"/metrics/slis").body, "kubernetes_healthcheck")
			if a := n.get(metricsURL + "/nothing"); a.code != 404 { // HT-27
				t.Errorf("/nothing: %d", a.code)
			}
		})
	}
}

// HT-24, HT-26, PR-04: a reload shows in /configz, opens and closes /debug, and moves the servers.
func TestServersReload(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	config := n.path("config")
	write(t, config, nftablesFile("clusterCIDR: 10.1.0.0/16\n"))
	p := n.configured(config)
	put := func(base, body string) answer {
		t.Helper()
		a, err := n.ask(http.MethodPut, base+"/debug/flags/v", body)
		do(t, err)
		return a
	}
	has(t, "/configz", n.get(metricsURL+"/configz").body, `{"kubeproxy.config.k8s.io":{`, `"clusterCIDR":"10.1.0.0/16"`,
		`"enableProfiling":false`)
	if a := put(metricsURL, "4"); a.code != 404 {
		t.Errorf("PUT without profiling: %v", a)
	}
	write(t, config, nftablesFile("clusterCIDR: 10.2.0.0/16\nenableProfiling: true\n"))
	n.until(metricsURL+"/configz", "the new file", func(a answer) bool {
		return strings.Contains(a.body, `"clusterCIDR":"10.2.0.0/16"`) &&
			strings.Contains(a.body, `"enableProfiling":true`)
	})
	n.code(metricsURL+"/debug/pprof/", 200)
	if a := put(metricsURL, "x"); a.code != 400 {
		t.Errorf("PUT x: %v", a)
	}
	if a := put(metricsURL, "5"); a.code != 200 || a.body != "successfully set the verbosity to 5\n" {
		t.Errorf("PUT 5: %v", a)
	}
	n.write("m/more.yaml", service("more", "10.96.0.7", 80, "10.0.0.7"))
	p.await(regexp.MustCompile(`"Wrote rules" .*verb="apply"`)) // which takes 2 or more

	write(t, config, nftablesFile("healthzBindAddress: 127.0.0.1:11256\nmetricsBindAddress: 127.0.0.1:11249\n"))
	n.code("http://127.0.0.1:11256/livez", 200)
	n.code("http://127.0.0.1:11249/healthz", 200)
	n.refused("127.0.0.1:10256")
	n.refused("127.0.0.1:10249")
	if a := put("http://127.0.0.1:11249", "4"); a.code != 404 {
		t.Errorf("PUT without profiling again: %v", a)
	}
	// One server for both, as in v1.5, and back.
	write(t, config, nftablesFile("healthzBindAddress: 127.0.0.1:11249\nmetricsBindAddress: 127.0.0.1:11249\n"))
	n.refused("127.0.0.1:11256")
	n.code("http://127.0.0.1:11249/readyz", 200)
	n.code("http://127.0.0.1:11249/metrics", 200)
	write(t, config, nftablesFile(""))
	n.code(healthURL+"/readyz", 200)
	n.code(metricsURL+"/readyz", 404)
	n.refused("127.0.0.1:11249")
}

// FL-04, FL-09, CF-14: settings that turn a server off or move it to another family.
func TestServerAddresses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		flags, health, metrics string // answers; "" without a server
	}{
		{"--metrics-port=0", "127.0.0.1:10256", ""},
		{"--healthz-port=0", "", "127.0.0.1:10249"},
		{"--bind-address=::", "[::1]:10256", "[::1]:10249"},
		{"--healthz-port=11111 --metrics-port=11112", "127.0.0.1:11111", "127.0.0.1:11112"},
	} {
		t.Run(c.flags+" "+c.health, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.start(usual("nftables", strings.Fields(c.flags)...)).await(allWritten)
			if c.health != "" {
				n.code("http://"+c.health+"/livez", 200)
			}
			if c.metrics != "" {
				n.code("http://"+c.metrics+"/healthz", 200)
			}
			listening := n.command("ss", "-Hltn")
			servers := 0
			for _, addr := range []string{c.health, c.metrics} {
				if addr != "" {
					servers++
				}
			}
			if got := strings.Count(listening, "\n"); got != servers {
				t.Errorf("%d servers, want %d:\n%s", got, servers, listening)
			}
		})
	}
}
