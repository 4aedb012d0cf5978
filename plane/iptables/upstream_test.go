//go:build linux

package iptables

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/test/planetest"
)

// A node with so many services that the dispatchers are trees changes back to upstream. Upstream's
// first restore rewrites KUBE-SERVICES and deletes unknown chains with names of DP-02; its later
// ones delete the chains of removed services. If one of our chains that upstream does not know
// jumped to one of them, the deletion would fail, and with it every later restore of upstream's
// (G4).
func TestUpstreamDeletesWhatItKnows(t *testing.T) {
	eachOnce(t, func(t *testing.T, w planetest.World, cfg Config) {
		p := newPlane(t, cfg)
		table := w.Table(60, 1)
		for i := range 40 {
			table.Replace(w.Full(1000+i, 7000+i, 1, 1, 0))
		}
		table.Replace(restricted(w, 200, 3, someRanges(w, 0, 5), lb.Balance))
		table.Replace(restricted(w, 201, 3, someRanges(w, 0, 5), lb.Reject))
		reset(t, p, table)
		for _, root := range []dispatcherIndex{inServices, inNodePorts} {
			if p.st.dispatchers[root].Nodes[""].Children == nil {
				t.Fatalf("dispatcher %d is no tree", root)
			}
		}
		for _, left := range []int{60, 30, 0} { // upstream's services
			var declared, rules []string
			active := map[string]bool{}
			for i := range left {
				svc := chainOf(i)
				active[svc] = true
				declared = append(declared, svc)
				rules = append(rules, fmt.Sprintf("-A KUBE-SERVICES -d %s -p tcp -m tcp --dport 80 -j %s",
					w.Addr(10, i+1), svc))
			}
			for line := range strings.Lines(run(t, "", p.Tool.Program+"-save", "-t", "nat")) {
				name, _, _ := strings.Cut(strings.TrimPrefix(line, ":"), " ")
				known := slices.ContainsFunc([]string{"KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-FW-", "KUBE-SEP-"},
					func(prefix string) bool {
						return strings.HasPrefix(name, prefix)
					})
				if line[0] == ':' && known && !active[name] {
					declared, rules = append(declared, name), append(rules, "-X "+name)
				}
			}
			input := "*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-NODEPORTS - [0:0]\n"
			for _, name := range declared {
				input += ":" + name + " - [0:0]\n"
			}
			run(t, input+strings.Join(rules, "\n")+"\n"+"COMMIT\n", p.Tool.Program+"-restore", "--noflush")
		}
		for line := range strings.Lines(run(t, "", p.Tool.Program+"-save", "-t", "nat")) {
			if id := xtables.NAT.Chain(strings.Fields(line[1:] + " -")[0]); line[0] == ':' && xtables.IsDynamic(id) {
				t.Errorf("upstream leaves %s behind", id.Name)
			}
		}
		reset(t, p, table) // and back
		repairs(t, p, 0, "after another change of mode")
	})
}
