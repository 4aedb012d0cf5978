//go:build linux

package main

import (
	"fmt"
	"strings"
	"testing"
)

// Rules of another program that stop or divert the packets of a Service are problems of the node,
// in status, exit code and metric; rules that hit no Service are not (CF-70).
func TestOtherRulesInTheWay(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ chain, rule, says string }{
		{"type filter hook output priority 0", "ip daddr 10.0.0.7 tcp dport 8080 drop", "DROPPED on this node"},
		{"type nat hook output priority -150", "ip daddr 10.96.7.7 tcp dport 80 dnat to 192.0.2.9:99",
			"TRANSLATED on this node"},
		{"type filter hook output priority 0", "ip daddr 10.0.0.8 drop", ""},
	} {
		t.Run(c.rule, func(t *testing.T) {
			n := newNamespace(t).routed()
			n.command("sysctl", "-w", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
			n.write("m/web.yaml", service("web", "10.96.7.7", 80, "10.0.0.7"))
			n.write("m/node.yaml", []byte("apiVersion: v1\nkind: Node\nmetadata: {name: n1}\n"+
				"status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}\n"))
			n.command("nft", "add table ip firewall; add chain ip firewall fw { "+c.chain+"; }; "+
				"add rule ip firewall fw "+c.rule)
			p := n.serve("nftables", "--hostname-override=n1", "--cluster-cidr=10.1.0.0/16")
			p.await(allWritten)
			// A look may end before it knows: it takes a second at most.
			until(t, func() string {
				code, out, errOut := n.kubeProxy("status")
				out = unfolded(out)
				if (code == 2) != (c.says != "") || !strings.Contains(out, c.says) ||
					strings.Contains(out, "warning other-rules: shop/web, for ") != (c.says != "") {
					return fmt.Sprintf("exit code %d, want %q:\n%s%s", code, c.says, out, errOut)
				}
				return ""
			})
			for _, command := range [][]string{{"diff"}, {"check"},
				{"check", "--proxy-mode=nftables", "--manifests=m", "--hostname-override=n1"}} {
				_, out, errOut := n.kubeProxy(command...)
				out = unfolded(out)
				says := c.says != "" && strings.Contains(out, c.says)
				if says != (c.says != "") || strings.Contains(out, "shop/web, for ") != says {
					t.Errorf("%v, want %q:\n%s%s", command, c.says, out, errOut)
				}
			}
			if code, out, _ := n.kubeProxy("diff"); (code == 2) != (c.says != "") {
				t.Errorf("diff exits with %d:\n%s", code, out)
			}
			metrics := n.code("http://127.0.0.1:10249/metrics", 200).body
			if strings.Contains(metrics, `reason="other-rules",severity="warning"} 1`) != (c.says != "") {
				t.Errorf("the metric:\n%s", metrics)
			}
		})
	}
}

// The status of a proxy whose node does not forward, whose cluster CIDR lacks the node's pods, and
// beside whose rules another program drops by default says so; so does the metric. It is quiet once
// the node is repaired (CF-67, CF-68).
func TestNodeProblems(t *testing.T) {
	t.Parallel()
	n := newNamespace(t).routed()
	n.command("sysctl", "-w", "net.ipv4.ip_forward=0")
	n.command("nft", "add table ip firewall; "+
		"add chain ip firewall fw { type filter hook forward priority 0; policy drop; }")
	n.write("m/web.yaml", service("web", "10.96.7.7", 80, "10.0.0.7"))
	n.write("m/node.yaml", []byte("apiVersion: v1\nkind: Node\nmetadata: {name: n1}\n"+
		"spec: {podCIDRs: [10.1.7.0/24]}\nstatus: {addresses: [{type: InternalIP, address: 192.0.2.1}]}\n"))
	start := func(cidr string) *process {
		p := n.serve("nftables", "--hostname-override=n1", "--cluster-cidr="+cidr)
		p.await(allWritten)
		return p
	}
	p := start("10.9.0.0/16")
	code, out, errOut := n.kubeProxy("status")
	for _, want := range []string{"net.ipv4.ip_forward: it is 0", "does not contain the pod CIDR 10.1.7.0/24",
		"ip firewall fw: its policy at forward is drop"} {
		if code != 2 || !strings.Contains(unfolded(out), want) {
			t.Errorf("exit code %d, want 2 and %q:\n%s%s", code, want, out, errOut)
		}
	}
	metrics := n.code("http://127.0.0.1:10249/metrics", 200).body
	for _, want := range []string{`reason="ip-forward",severity="error"} 1`,
		`reason="pod-network",severity="warning"} 1`, `reason="drop-policy",severity="info"} 1`} {
		has(t, "the metrics", metrics, "kubeproxy_node_problems{"+want)
	}
	p.stop()

	n.command("sysctl", "-w", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
	n.command("nft", "delete table ip firewall")
	start("10.1.0.0/16")
	if code, out, errOut := n.kubeProxy("status"); code != 0 || !strings.Contains(out, "no problems") {
		t.Errorf("exit code %d:\n%s%s", code, out, errOut)
	}
}
