//go:build linux

package main

import (
	"fmt"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"
)

// fewFiles is the limit of open files in TestCrowd: more than the process needs, but less than the
// clients open.
const fewFiles = 300

// Clients of a port of the proxy may open connections and send nothing, send byte by byte, or not
// read the answer. Each server has a limit for them; the other servers continue, and changes reach
// the kernel.
func TestCrowd(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	n.command("ip", "addr", "add", "192.0.2.1/32", "dev", "lo") // the Node's, where NodePorts answer
	n.write("m/node.yaml", node(""))
	n.write("m/web.yaml", balanced(32100, 1))
	p := n.start(usual("nftables"), env(fmt.Sprintf("%s=%d", asFiles, fewFiles)))
	p.await(allWritten)
	asked := []string{healthURL + "/readyz", "http://192.0.2.1:32100/", metricsURL + "/metrics"}
	for _, url := range asked {
		n.code(url, 200)
	}
	for _, url := range asked {
		for _, says := range []string{"", "GET / HTTP/1.1\r\nHost: a\r\nX-Slow: ",
			"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 999\r\n\r\n1",
			"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"} {
			n.openMany(url, fewFiles/2, says)
		}
	}
	for _, url := range asked {
		n.code(url, 200)
	}
	n.write("m/web.yaml", balanced(32100, 2))
	n.until(asked[1], "both endpoints", func(a answer) bool {
		return strings.Contains(a.body, `"localEndpoints": 2`)
	})
	has(t, "the kernel", n.command("nft", "list", "ruleset"), "10.0.0.11")
	if open := p.files(); open > fewFiles*3/4 {
		t.Errorf("%d descriptors of %d are in use:\n%s", open, fewFiles, p.log())
	}
	if lines := strings.Count(p.log(), "\n"); lines > 100 {
		t.Errorf("%d lines of log:\n%s", lines, p.log())
	}
	p.stop()
}

// Health-check ports of Services have a share of the descriptors too: a namespace with more such
// Services gets a warning, and the others' changes reach the kernel.
func TestManyHealthCheckPorts(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	n.command("ip", "addr", "add", "192.0.2.1/32", "dev", "lo")
	n.write("m/node.yaml", node(""))
	n.write("m/good.yaml", service("good", "10.96.0.1", 80, "10.0.0.1"))
	var many []byte
	for i := range 2 * fewFiles {
		many = fmt.Appendf(many, "---\nkind: Service\nmetadata: {name: s%d, namespace: many}\n"+
			"spec: {type: LoadBalancer, clusterIP: 10.97.%d.%d, "+
			"externalTrafficPolicy: Local, healthCheckNodePort: %d, ports: [{port: 80, nodePort: %d}]}\n", i, i/250,
			i%250, 31000+i, 30000+i)
	}
	n.write("m/many.yaml", many)
	p := n.start(usual("nftables"), env(fmt.Sprintf("%s=%d", asFiles, fewFiles)))
	p.await(allWritten)
	p.await(regexp.MustCompile(`Health check port cannot listen.* listeners are open, and the process may have 300 ` +
		`files in all: raise that limit`))
	n.code(healthURL+"/readyz", 200)
	n.code(metricsURL+"/metrics", 200)
	n.write("m/good.yaml", service("good", "10.96.0.1", 80, "10.0.0.77"))
	n.eventually("10.0.0.77", "nft", "list", "map", "ip", "kube-proxy", "backends")
	if open := p.files(); open > fewFiles*3/4 {
		t.Errorf("%d descriptors of %d are in use", open, fewFiles)
	}
	p.stop()
}

// openMany opens connections to a server, sends says on each, and leaves them open until the test
// ends.
func (n *namespace) openMany(url string, many int, says string) {
	n.t.Helper()
	addr, _, _ := strings.Cut(strings.TrimPrefix(url, "http://"), "/")
	for i := range many {
		var conn net.Conn
		var err error
		n.Do(func() { conn, err = net.DialTimeout("tcp", addr, timeout) })
		if err != nil {
			n.t.Fatalf("connection %d to %s: %v", i, addr, err)
		}
		n.t.Cleanup(func() { conn.Close() })
		conn.SetWriteDeadline(time.Now().Add(timeout))
		conn.Write([]byte(says)) // the other end may have closed it already
	}
}
