//go:build linux

package main

import (
	"fmt"
	"regexp"
	"testing"
)

// TestDriftNamed has nft change and delete the proxy's table: events, status and the log name the
// process and the objects (ST-05).
func TestDriftNamed(t *testing.T) {
	for mode, table := range map[string]string{"nftables": "ip kube-proxy", "userspace": "ip kube-proxy-userspace"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			n := newTraceLab(t, mode)
			p := n.serve()
			defer p.stop()
			ask := func(command string) string {
				a := n.program(command, "--admin-socket="+n.dir+"/admin.sock")
				<-a.done
				return a.log()
			}
			for _, c := range []struct{ do, what string }{
				{"nft flush table " + table, "rules of chain "},
				{"nft delete table " + table, "the table"},
			} {
				n.shell(t, c.do)
				want := regexp.MustCompile(`nft \(PID [1-9][0-9]*\) changed ` + c.what)
				until(t, func() string {
					for _, command := range []string{"events", "status"} {
						if says := ask(command); !want.MatchString(says) {
							return fmt.Sprintf("%s: %s lacks %s:\n%s", c.do, command, want, says)
						}
					}
					return ""
				})
			}
			p.await(regexp.MustCompile(`nft \(PID [1-9][0-9]*\) changed rules of chain `)) // a line a minute
			n.shell(t, "nft list table "+table)
		})
	}
}
