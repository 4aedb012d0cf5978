package iptables

import (
	"strings"
	"testing"
)

// Nothing of ours stays, nor of upstream's, and everything of others does (DP-15).
func TestRemoveDP15(t *testing.T) {
	eachKind(t, func(t *testing.T, w world, cfg Config) {
		p := newPlane(t, cfg)
		theirs := "*filter\n:THEIRS - [0:0]\n:KUBE-FIREWALL - [0:0]\n-A THEIRS -j ACCEPT\n-A INPUT -j THEIRS\n" +
			"-A KUBE-FIREWALL -m mark --mark 0x8000/0x8000 -j DROP\nCOMMIT\n*mangle\n:KUBE-IPTABLES-HINT - [0:0]\nCOMMIT\n"
		run(t, theirs, p.tool.program+"-restore", "--noflush")
		table := w.table(40, 3)
		table.Replace(w.full(100, 1000, 3, 0))
		reset(t, p, table)
		for range 2 {
			if err := p.Remove(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		out := run(t, "", p.tool.program+"-save")
		for line := range strings.Lines(out) {
			if strings.Contains(line, "KUBE-") && !strings.Contains(line, "KUBE-FIREWALL") && !strings.Contains(line, "KUBE-IPTABLES-HINT") {
				t.Errorf("left: %s", line)
			}
		}
		for _, want := range []string{"-A INPUT -j THEIRS", "-A KUBE-FIREWALL -m mark", ":KUBE-IPTABLES-HINT "} {
			if !strings.Contains(out, want) {
				t.Errorf("gone: %s\n%s", want, out)
			}
		}
		reset(t, p, table)
	})
}
