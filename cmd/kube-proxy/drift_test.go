//go:build linux

package main

import (
	"fmt"
	"regexp"
	"testing"
)

// TestDriftNamed has nft and iptables-nft change and delete what the proxy wrote: events, status
// and the log name the process and the objects (ST-05).
func TestDriftNamed(t *testing.T) {
	type change struct{ do, by string }
	table := func(name string) []change {
		return []change{{"nft flush table ip " + name, `nft \(PID [1-9][0-9]*\) changed rules of chain `},
			{"nft delete table ip " + name, `nft \(PID [1-9][0-9]*\) changed the table`}}
	}
	for mode, changes := range map[string][]change{
		"nftables": table("kube-proxy"), "userspace": table("kube-proxy-userspace"),
		"iptables": {{"iptables -t nat -F KUBE-SERVICES",
			`iptables \(PID [1-9][0-9]*\) changed rules of chain KUBE-SERVICES`},
			{"nft flush chain ip nat PREROUTING", `nft \(PID [1-9][0-9]*\) changed rules of chain PREROUTING`}},
	} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			n := newTraceLab(t, mode)
			p := n.serve("--iptables-sync-period=1s", "--iptables-min-sync-period=0s")
			defer p.stop()
			for _, c := range changes {
				n.shell(t, c.do)
				want := regexp.MustCompile(c.by)
				until(t, func() string {
					for _, command := range []string{"events", "status"} {
						if _, says := n.query(command); !want.MatchString(unfolded(says)) {
							return fmt.Sprintf("%s: %s lacks %s:\n%s", c.do, command, want, says)
						}
					}
					return ""
				})
			}
			p.await(regexp.MustCompile(changes[0].by)) // a line a minute
			n.shell(t, "nft list table ip "+map[string]string{"iptables": "nat", "nftables": "kube-proxy",
				"userspace": "kube-proxy-userspace"}[mode])
		})
	}
}
