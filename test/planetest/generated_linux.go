package planetest

import (
	"fmt"
	"strings"
	"testing"

	"kube-proxy/test/scenario"
)

// generated returns scenarios that would be too large to read as files.
func generated(t *testing.T) []*scenario.Scenario {
	t.Helper()
	var all []*scenario.Scenario
	for name, text := range map[string]string{
		"generated-thousand-ports":          thousandPorts(),
		"generated-five-thousand-endpoints": thousandsOfEndpoints(),
		"generated-longest-names":           longestNames(),
		"generated-many-services":           manyServices(),
	} {
		s, err := scenario.Parse(name+".txtar", []byte(text), labYAML)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		all = append(all, s)
	}
	return all
}

const labYAML = `
apiVersion: v1
kind: Node
metadata: {name: node1}
spec: {podCIDRs: [10.1.1.0/24, "fd00:10:1:1::/64"]}
status: {addresses: [{type: InternalIP, address: 172.18.0.2}, {type: InternalIP, address: "fd00:18::2"}]}
---
apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
metadata: {name: kubernetes}
spec: {cidrs: [10.96.0.0/12, "fd00:10:96::/108"]}
`

// service writes a Service; each port is "{name: …, port: …}".
func service(ns, name string, n int, ports []string) string {
	v4, v6 := fmt.Sprintf("10.97.%d.%d", n>>8, n&255), fmt.Sprintf("fd00:10:96::1:%x", n)
	return fmt.Sprintf("---\napiVersion: v1\nkind: Service\nmetadata: {namespace: %s, name: %s}\n"+
		"spec:\n  type: NodePort\n  clusterIP: %s\n  clusterIPs: [%s, %q]\n  ipFamilies: [IPv4, IPv6]\n  ports: [%s]\n",
		ns, name, v4, v4, v6, strings.Join(ports, ", "))
}

// slice writes an EndpointSlice; each endpoint is "{addresses: …}".
func slice(ns, service, name string, six bool, ports, endpoints []string) string {
	family := "IPv4"
	if six {
		family = "IPv6"
	}
	return fmt.Sprintf(
		"---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {namespace: %s, name: %s, "+
			"labels: {kubernetes.io/service-name: %s}}\naddressType: %s\nports: [%s]\nendpoints: [%s]\n",
		ns, name, service, family, strings.Join(ports, ", "), strings.Join(endpoints, ", "))
}

var (
	pods4 = []string{"{addresses: [10.1.1.11], nodeName: node1}", "{addresses: [10.1.2.14], nodeName: node2}"}
	pods6 = []string{`{addresses: ["fd00:10:1:1::11"], nodeName: node1}`,
		`{addresses: ["fd00:10:1:2::14"], nodeName: node2}`}
)

func thousandPorts() string {
	var b strings.Builder
	b.WriteString("A Service with 1,000 ports.\n\nRows: SV-12\n\n-- cluster.yaml --\n")
	var ports, targets []string
	for i := range 1000 {
		ports = append(ports, fmt.Sprintf("{name: p%d, port: %d}", i, 1000+i))
		targets = append(targets, fmt.Sprintf("{name: p%d, port: %d}", i, Ports[i%len(Ports)]))
	}
	b.WriteString(service("shop", "web", 1, ports))
	for i := 0; i < 1000; i += 100 {
		b.WriteString(slice("shop", "web", fmt.Sprintf("web-v4-%d", i), false, targets[i:i+100], pods4))
		b.WriteString(slice("shop", "web", fmt.Sprintf("web-v6-%d", i), true, targets[i:i+100], pods6))
	}
	b.WriteString("-- packets --\n")
	for _, i := range []int{0, 1, 500, 999} {
		port := Ports[i%len(Ports)]
		fmt.Fprintf(&b, "pod3 -> shop/web:p%d : pod1:%d, pod4:%d from same\n", i, port, port)
	}
	b.WriteString("pod3 -> shop/web:2000 : refused\n")
	b.WriteString("-- step gone/delete --\nService shop/web\n-- step gone/packets --\n" +
		"pod3 -> 10.97.0.1|[fd00:10:96::1:1]:1000 : dropped\n")
	return b.String()
}

// thousandsOfEndpoints has all endpoints answered by node1, which holds the whole range.
func thousandsOfEndpoints() string {
	var b strings.Builder
	b.WriteString("A Service with 5,000 endpoints. One leaves, then all but one.\n\nRows: SV-36\n\n" +
		"-- settings --\nnode-holds: 10.250.0.0/19, fd00:250::/112\n-- cluster.yaml --\n")
	b.WriteString(service("shop", "web", 1, []string{"{name: http, port: 80}"}))
	port := []string{"{name: http, port: 8080}"}
	part := func(i, n int) string {
		var eps4, eps6 []string
		for j := i; j < i+n; j++ {
			eps4 = append(eps4, fmt.Sprintf("{addresses: [10.250.%d.%d]}", j>>8, j&255))
			eps6 = append(eps6, fmt.Sprintf(`{addresses: ["fd00:250::%x"]}`, j+1))
		}
		return slice("shop", "web", fmt.Sprintf("web-v4-%d", i), false, port, eps4) +
			slice("shop", "web", fmt.Sprintf("web-v6-%d", i), true, port, eps6)
	}
	for i := 0; i < 5000; i += 100 {
		b.WriteString(part(i, 100))
	}
	b.WriteString("-- packets --\npod3 -> shop/web:http : node1 from same\n")
	b.WriteString("-- step one-leaves/cluster.yaml --\n" + part(2500, 99))
	b.WriteString("-- step one-leaves/packets --\npod3 -> shop/web:http : node1 from same\n")
	b.WriteString("-- step pods-come/cluster.yaml --\n" + slice("shop", "web", "pods-v4", false, port, pods4[:1]) +
		slice("shop", "web", "pods-v6", true, port, pods6[:1]))
	b.WriteString("-- step all-but-one/delete --\n")
	for i := 0; i < 5000; i += 100 {
		fmt.Fprintf(&b, "EndpointSlice shop/web-v4-%d\nEndpointSlice shop/web-v6-%d\n", i, i)
	}
	b.WriteString("-- step all-but-one/packets --\npod3 -> shop/web:http : pod1 from same\n")
	return b.String()
}

func longestNames() string {
	ns, name, port := strings.Repeat("n", 63), strings.Repeat("s", 63), strings.Repeat("p", 15)
	ports := []string{fmt.Sprintf("{name: %s, port: 65535, nodePort: 32767}", port)}
	targets := []string{fmt.Sprintf("{name: %s, port: 8080}", port)}
	return "Names at the API's limits of length, and the highest port.\n\nRows: SV-12\n\n-- cluster.yaml --\n" +
		service(ns, name, 1, ports) + slice(ns, name, strings.Repeat("e", 253), false, targets, pods4) +
		slice(ns, name, strings.Repeat("f", 253), true, targets, pods6) +
		fmt.Sprintf("-- packets --\npod3 -> %s/%s:%s : pod1, pod4 from same\n", ns, name, port) +
		fmt.Sprintf("client -> nodeport(%s/%s):%s : pod1, pod4 from node1\n", ns, name, port)
}

// manyServices has as many Services as a small cluster, with different numbers of endpoints.
func manyServices() string {
	var b strings.Builder
	b.WriteString("Three hundred Services. Every third changes and every seventh is deleted.\n\nRows: SV-12\n\n" +
		"-- cluster.yaml --\n")
	port := []string{"{name: http, port: 8080}"}
	name := func(i int) string { return fmt.Sprintf("web-%d", i) }
	put := func(i, eps int) {
		b.WriteString(slice("shop", name(i), name(i)+"-v4", false, port, pods4[:eps]))
		b.WriteString(slice("shop", name(i), name(i)+"-v6", true, port, pods6[:eps]))
	}
	for i := range 300 {
		b.WriteString(service("shop", name(i), i, []string{"{name: http, port: 80}"}))
		put(i, i%3)
	}
	b.WriteString("-- packets --\npod3 -> shop/web-0:http : refused\npod3 -> shop/web-1:http : pod1 from same\n" +
		"pod3 -> shop/web-299:http : pod1, pod4 from same\n")
	b.WriteString("-- step changes/cluster.yaml --\n")
	for i := 0; i < 300; i += 3 {
		put(i, 1+i%2)
	}
	b.WriteString("-- step changes/packets --\npod3 -> shop/web-0:http : pod1 from same\n" +
		"pod3 -> shop/web-297:http : pod1, pod4 from same\npod3 -> shop/web-1:http : pod1 from same\n")
	b.WriteString("-- step deletions/delete --\n")
	for i := 0; i < 300; i += 7 {
		fmt.Fprintf(&b, "Service shop/%s\n", name(i))
	}
	b.WriteString("-- step deletions/packets --\npod3 -> 10.97.0.0|[fd00:10:96::1:0]:80 : dropped\n" +
		"pod3 -> shop/web-1:http : pod1 from same\n")
	return b.String()
}
