//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"kube-proxy/debug/inspect"
)

// situation is a Service, and the expected text of every output.
type situation struct {
	name, policy string // policy is further fields of the spec
	ports        string // of the slice
	endpoints    string
	state        inspect.State
	severity     inspect.Severity
	reason       string // that why gives
}

const (
	localReady = "{addresses: [10.0.0.7], nodeName: n1, conditions: {ready: true}}"
	farReady   = "{addresses: [10.0.0.8], nodeName: n2, conditions: {ready: true}}"
	farEnding  = "{addresses: [10.0.0.9], nodeName: n2, conditions: {ready: false, serving: true, terminating: true}}"
	farUnready = "{addresses: [10.0.0.10], nodeName: n2, conditions: {ready: false, serving: false}}"
	outsideTo  = "type: NodePort, externalTrafficPolicy: Local, "
	insideTo   = "internalTrafficPolicy: Local, "
	httpPort   = "[{name: http, port: 8080}]"
)

var situations = []situation{
	{"fine", "", httpPort, localReady, inspect.OK, inspect.Fine, "The objects are in order."},
	{"none", "", httpPort, "", inspect.NoBackends, inspect.Warning, "have no endpoint"},
	{"unready", "", httpPort, farUnready, inspect.NoBackends, inspect.Warning, "1 not ready"},
	{"ending", "", httpPort, farEnding, inspect.Terminating, inspect.Warning, "terminating endpoints that still serve"},
	{"inside", insideTo, httpPort, farReady, inspect.NoLocalBackends, inspect.Warning,
		"internal traffic policy is Local"},
	{"outside", outsideTo, httpPort, farReady, inspect.NoLocalBackends, inspect.Info,
		"external traffic policy is Local"},
	{"outside-none", outsideTo, httpPort, "", inspect.NoBackends, inspect.Warning, "have no endpoint"},
	{"outside-ending", outsideTo, httpPort, strings.ReplaceAll(farEnding, "n2", "n1") + ", " + farReady,
		inspect.Terminating, inspect.Info, "terminating ones that still serve"},
	// As the EndpointSlice controller writes a targetPort that names no port of the pods.
	{"target", "", "[]", farReady, inspect.NoBackends, inspect.Warning,
		"does targetPort of the port \"http\" name a port of the pods' containers?"},
	{"target-of-two", "", "[{name: other, port: 9000}]", farReady, inspect.NoBackends, inspect.Warning,
		"Does targetPort name a port of the pods?"},
	{"late", "clusterIP: 10.96.5.1, ", httpPort, localReady, inspect.Contested, inspect.Warning,
		"belongs to another Service"},
	{"headless", "clusterIP: None, ", httpPort, localReady, inspect.NotProxied, inspect.Fine, "headless"},
}

// manifest is the Service of a situation, of that number.
func (s situation) manifest(n int) []byte {
	ip, nodePort := fmt.Sprintf("clusterIP: 10.96.5.%d, ", n+1), ""
	if strings.Contains(s.policy, "NodePort") {
		nodePort = fmt.Sprintf(", nodePort: %d", 30100+n)
	}
	if strings.Contains(s.policy, "clusterIP") {
		ip = ""
	}
	return fmt.Appendf(nil, `
kind: Service
metadata: {name: %[1]s, namespace: shop, creationTimestamp: "2026-01-01T00:00:%02[6]dZ"}
spec: {%[2]s%[3]sports: [{name: http, port: 80, targetPort: web%[7]s}]}
---
kind: EndpointSlice
metadata: {name: %[1]s-1, namespace: shop, labels: {kubernetes.io/service-name: %[1]s}}
addressType: IPv4
ports: %[4]s
endpoints: [%[5]s]
`, s.name, ip, s.policy, s.ports, s.endpoints, n, nodePort)
}

// ST-01, ST-02, ST-03: commands, page and metrics agree on the state and the severity of each
// Service, and no summary is green if a part is not.
func TestStatesAgree(t *testing.T) {
	t.Parallel()
	n := newNamespace(t).routed()
	n.command("ip", "address", "add", "172.18.0.2/24", "dev", "uplink")
	n.command("mkdir", "-p", "/run/kube-proxy")
	n.write("m/fine.yaml", situations[0].manifest(0))
	n.serve("nftables", "--metrics-bind-address=127.0.0.1:10249")
	ui := n.start([]string{"ui", "--listen=127.0.0.1:10300"})
	address := regexp.MustCompile(`(?m)^http://127\.0\.0\.1:10300/[A-Z2-7]{26}/$`)
	ui.await(address)
	url := address.FindString(ui.log())

	code, out, errOut := n.kubeProxy("status")
	if code != 0 || !strings.Contains(out, "no problems") {
		t.Errorf("status of a fine proxy: exit code %d:\n%s%s", code, out, errOut)
	}
	has(t, "the page of a fine proxy", n.code(url, 200).body, `class="head fine"`, "all frontends in force")
	if code, out, _ := n.kubeProxy("why"); code != 0 || !strings.Contains(out, "no Service needs attention") {
		t.Errorf("why of a fine proxy: exit code %d:\n%s", code, out)
	}

	for k, s := range situations[1:] {
		n.write("m/"+s.name+".yaml", s.manifest(k+1))
	}
	last := situations[len(situations)-1].name
	until(t, func() string {
		if code, _, _ := n.kubeProxy("why", "shop/"+last); code != 0 {
			return "the proxy does not know shop/" + last
		}
		return ""
	})
	bad := n.statesOf(url)
	n.statusSays(url, bad)
}

// statesOf queries each situation, and returns how many Services need attention.
func (n *namespace) statesOf(url string) (bad int) {
	list := n.code(url, 200).body
	metrics := n.get("http://127.0.0.1:10249/metrics").body
	counts := map[string]int{}
	for _, s := range situations {
		if s.severity.Bad() {
			bad++
		}
		if s.state != inspect.OK && s.state != inspect.NotProxied {
			counts[fmt.Sprintf(`namespace="shop",severity="%s",state="%s"`, s.severity, s.state)]++
		}
		code, out, errOut := n.kubeProxy("why", "shop/"+s.name)
		if (code == 2) != s.severity.Bad() ||
			!strings.Contains(out, "\n"+string(s.state)) || !strings.Contains(unfolded(out), s.reason) {
			n.t.Errorf("why %s: exit code %d, want %s, %s:\n%s%s", s.name, code, s.state, s.reason, out, errOut)
		}
		_, out, _ = n.kubeProxy("backends", "shop/"+s.name, "-o", "json")
		var d inspect.Detail
		do(n.t, json.Unmarshal([]byte(out), &d))
		if d.State != s.state || d.Severity != s.severity {
			n.t.Errorf("backends %s: %s, %s; want %s, %s", s.name, d.State, d.Severity, s.state, s.severity)
		}
		class := map[inspect.Severity]string{inspect.Warning: "note", inspect.Error: "alarm"}[s.severity]
		if class == "" {
			class = "fine"
		}
		if !strings.Contains(list, `<tr class="`+class+`"><th scope="row"><a href="service?name=shop%2f`+s.name+`">`) {
			n.t.Errorf("the page does not show %s as %s", s.name, class)
		}
		has(n.t, "the page of "+s.name, n.code(url+"service?name=shop/"+s.name, 200).body, `<p class="says `+class+`">`)
	}
	for labels, count := range counts {
		has(n.t, "/metrics", metrics, fmt.Sprintf("kubeproxy_services_not_ok{%s} %d\n", labels, count))
	}
	if got := strings.Count(metrics, "\nkubeproxy_services_not_ok{"); got != len(counts) {
		n.t.Errorf("%d series of kubeproxy_services_not_ok, want %d", got, len(counts))
	}
	return bad
}

// statusSays holds status, why without a Service, and the banner of the page to so many Services.
func (n *namespace) statusSays(url string, bad int) {
	code, out, errOut := n.kubeProxy("status", "-o", "json")
	var s inspect.Status
	do(n.t, json.Unmarshal([]byte(out), &s))
	found := 0
	for k, f := range s.Findings {
		found += f.Services
		if !strings.HasPrefix(f.Next, "kube-proxy ") || !f.Severity.Bad() ||
			k > 0 && f.Severity.Compare(s.Findings[k-1].Severity) > 0 {
			n.t.Errorf("finding %+v", f)
		}
	}
	if code != 2 || found != bad || s.Severity != inspect.Warning {
		n.t.Errorf("status: exit code %d, %d Services, %s; want 2, %d, warning:\n%s%s",
			code, found, s.Severity, bad, out, errOut)
	}
	code, out, _ = n.kubeProxy("why")
	if code != 2 || !strings.Contains(out, fmt.Sprintf("%d Services need attention", bad)) {
		n.t.Errorf("why: exit code %d, want 2 and %d Services:\n%s", code, bad, out)
	}
	page := n.code(url, 200).body
	has(n.t, "the page", page, `class="head note"`, fmt.Sprintf(`id="problems">%d<`, bad))
	if strings.Contains(page, `class="head fine"`) {
		n.t.Error("the page has a green line above what is not")
	}
}

// ST-04: events and the log at -v 2 name added and removed endpoints, with node and reason. ST-06:
// status has the last change with its latency.
func TestEventsNameEndpoints(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	n.command("mkdir", "-p", "/run/kube-proxy")
	web := situation{name: "web", ports: httpPort, endpoints: localReady + ", " + farReady}
	n.write("m/web.yaml", web.manifest(0))
	p := n.serve("nftables", "-v=2")
	web.endpoints = localReady + ", " + strings.Replace(farReady, "ready: true", "ready: false", 1)
	n.write("m/web.yaml", web.manifest(0))
	const want = "−10.0.0.8:8080 (n2, not ready)"
	p.await(regexp.MustCompile(`Endpoints of a Service changed.*service="shop/web" endpoints="` +
		regexp.QuoteMeta(want)))
	until(t, func() string {
		if _, out, _ := n.kubeProxy("events", "shop/web", "-o", "wide"); !strings.Contains(out, want) {
			return "events do not name the endpoint:\n" + out
		}
		return ""
	})
	last := regexp.MustCompile(` last change shop/web: .*` + regexp.QuoteMeta(want) +
		`.*; \d+s ago, in force [0-9.]+(µs|ms|s) after this proxy learned of it `)
	if _, out, _ := n.kubeProxy("status"); !last.MatchString(unfolded(out)) {
		t.Errorf("status lacks %s:\n%s", last, out)
	}
}
