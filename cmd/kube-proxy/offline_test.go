//go:build linux

package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
)

// trace of a folder answers as that of a proxy that runs with these flags, and as its rules, which
// trace reads from the kernel: also at loopback addresses and at --bind-address (NT-20).
func TestTraceOffline(t *testing.T) {
	t.Parallel()
	const bound = "192.0.2.7"
	answers := map[string]bool{}
	for _, c := range []struct{ mode, flags string }{
		{"iptables", ""},
		{"iptables", "--bind-address=" + bound},
		{"iptables", "--iptables-localhost-nodeports=false"},
		{"iptables", "--nodeport-addresses=192.0.2.0/24 --bind-address=" + bound},
		{"nftables", "--bind-address=" + bound},
		{"nftables", "--nodeport-addresses=127.0.0.0/8,172.18.0.0/16"},
		{"userspace", "--bind-address=" + bound},
	} {
		t.Run(strings.TrimSpace(c.mode+" "+c.flags), func(t *testing.T) {
			n := newNamespace(t)
			n.command("ip", "address", "add", bound+"/32", "dev", "lo")
			n.command("ip", "address", "add", "172.18.0.2/32", "dev", "lo")
			n.write("m/web.yaml", append(balanced(32000, 1), `---
kind: Node
metadata: {name: n1}
status: {addresses: [{type: InternalIP, address: 172.18.0.2}]}
`...))
			flags := strings.Fields(c.flags)
			p := n.serve(c.mode, flags...)
			verdicts := func(args ...string) (table, kernel string) {
				t.Helper()
				_, out, errOut := n.kubeProxy(append([]string{"trace", "-o", "json"}, args...)...)
				var a struct {
					Verdict string
					Kernel  struct{ Verdict string }
				}
				if err := json.Unmarshal([]byte(out), &a); err != nil {
					t.Fatalf("%v: %v\n%s%s", args, err, out, errOut)
				}
				return a.Verdict, a.Kernel.Verdict
			}
			packets := [][]string{{"node", "127.0.0.1:30080"}, {"10.0.0.10", "172.18.0.2:30080"}}
			if strings.Contains(c.flags, bound) { // else the folder does not have it
				packets = append(packets, []string{"10.0.0.10", bound + ":30080"})
			}
			for _, packet := range packets {
				_, kernel := verdicts(packet...)
				of := append(append(usual(c.mode, flags...)[:2:2], "--manifests="+filepath.Join(n.dir, "m"),
					"--cluster-cidr=10.0.0.0/16,fd00::/48"), flags...)
				if table, _ := verdicts(append(of, packet...)...); table != kernel {
					t.Errorf("%s: the folder says %q, and the kernel %q", packet, table, kernel)
				}
				answers[kernel] = true
			}
			p.stop()
		})
	}
	if !answers["balance"] || !answers["pass"] {
		t.Errorf("only %v were compared", answers)
	}
}
