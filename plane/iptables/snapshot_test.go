//go:build linux

package iptables

import (
	"testing"

	"kube-proxy/internal/xtables"
)

// DP-51: a new process finds the keys that the kernel served, whatever serves them: a list or a
// tree, rules of this proxy or of upstream's. It finds no other keys.
func TestServedBy(t *testing.T) {
	for _, c := range []struct{ chain, rule, want string }{
		{"KUBE-SERVICES", `-d 10.96.0.10/32 -p udp -m comment --comment "kube-system/kube-dns:dns cluster IP" -m udp ` +
			`--dport 53 -j KUBE-SVC-TCOU7JCQXEZGVUNU`, "10.96.0.10:53/udp"},
		{"KUBE-SERVICES", `-d fd00:96::a/128 -p sctp -m sctp --dport 9 -m comment --comment x -j ` +
			`KUBE-FW-TCOU7JCQXEZGVUNU`, "[fd00:96::a]:9/sctp"},
		{"KUBE-SVC-TO-0A60", `-d 10.96.0.1/32 -p tcp -m tcp --dport 443 -j KUBE-SVC-NPX46M4PTMTKRN6Y`,
			"10.96.0.1:443/tcp"},
		{"KUBE-NODEPORTS", `-p tcp -m comment --comment "a/b -j KUBE-SVC-X" -m tcp --dport 30080 -j ` +
			`KUBE-EXT-NPX46M4PTMTKRN6Y`, "nodeport:30080/tcp"},
		{"KUBE-SVC-NP-0753", `-p tcp -m tcp --dport 30000 -j KUBE-EXT-NPX46M4PTMTKRN6Y`, "nodeport:30000/tcp"},
		{"KUBE-NODEPORTS", `-d 127.0.0.0/8 -p tcp -m tcp --dport 30080 -j KUBE-EXT-NPX46M4PTMTKRN6Y`,
			"nodeport:30080/tcp"},
		{"KUBE-SERVICES", `-m comment --comment "last" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS`, ""},
		{"KUBE-SERVICES", `-d 10.96.0.0/16 -j KUBE-SVC-TO-0A60`, ""},
		{"KUBE-SVC-TO-0A60000A0", `-d 10.96.0.10/32 -p tcp -m tcp --dport 0:4095 -j KUBE-SVC-TO-0A60000A00`, ""},
		{"KUBE-SERVICES", `! -d 10.96.0.10/32 -p udp -m udp --dport 53 -j KUBE-SVC-TCOU7JCQXEZGVUNU`, ""},
		{"KUBE-SERVICES", `-d 10.96.0.10/32 -p udp -m udp --dport 53 -j ACCEPT`, ""},
		{"KUBE-EXT-NPX46M4PTMTKRN6Y", `-d 10.96.0.10/32 -p udp -m udp --dport 53 -j KUBE-SVC-TCOU7JCQXEZGVUNU`, ""},
	} {
		k, ok := servedBy(xtables.NAT.Chain(c.chain), c.rule)
		if got := k.String(); ok != (c.want != "") || ok && got != c.want {
			t.Errorf("%s %s: %s, %t, want %q", c.chain, c.rule, got, ok, c.want)
		}
	}
}
