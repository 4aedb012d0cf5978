//go:build linux

package iptables

import (
	"context"
	"os/exec"
	"strings"
	"testing"

	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/test/planetest"
)

// If another program adds a rule to a table that iptables cannot show, such as one of nft,
// iptables-save omits the table. Audits and restarts leave our rules as they are and insert nothing
// twice, and changes still work. A missing rule is restored, also one that jumps to an endpoint
// (TN-70).
func TestTableThatIptablesCannotShow(t *testing.T) {
	eachFamily(t, xtables.NFT, func(t *testing.T, w planetest.World, cfg Config) {
		if _, err := exec.LookPath("nft"); err != nil {
			t.Skip(err)
		}
		family := "ip"
		if w.Family == lb.IPv6 {
			family = "ip6"
		}
		p := newPlane(t, cfg)
		table := w.Table(3, 2)
		node := w.Node()
		node.NodePorts = append(node.NodePorts, xtables.Loopback4)
		if w.Family == lb.IPv4 { // with the rule that blocks localnet
			table.Node = node
		}
		table.Replace(w.ClusterIP(4, 0, 0)) // refused in filter
		reset(t, p, table)
		for _, chain := range []string{"filter INPUT", "nat OUTPUT"} {
			run(t, "", "nft", strings.Fields("add rule "+family+" "+chain+
				" ct state new limit rate 10/second accept")...)
		}
		if rules := run(t, "", p.Tool.Program+"-save"); strings.Count(rules, "is incompatible") != 2 {
			t.Skipf("this iptables shows the rule:\n%s", rules)
		}
		leading := func() int {
			rules := run(t, "", "nft", "list", "table", family, "filter") + run(t, "", "nft", "list", "table", family,
				"nat")
			return strings.Count(rules, "jump KUBE-") + strings.Count(rules, "block incoming localnet")
		}
		want := leading()
		for range 2 {
			repairs(t, p, 0, "unchanged")
		}
		again := newPlane(t, cfg)
		reset(t, again, table)
		if got := leading(); got != want {
			t.Errorf("%d rules lead to our chains, and after audits and a restart %d", want, got)
		}
		replace(t, again, table)(w.ClusterIP(9, 100, 3))
		replace(t, again, table)(lb.Owner{Name: "ns/svc-9"}, nil)
		for _, chain := range []string{"filter FORWARD", "nat " + chainOf(1)} {
			run(t, "", "nft", strings.Fields("flush chain "+family+" "+chain)...)
			if repaired, err := again.Audit(context.Background(), false); repaired == 0 || err != nil {
				t.Errorf("the rules of %s are gone: repaired %d, %v", chain, repaired, err)
			}
			repairs(t, again, 0, "the rules of "+chain+" are back")
		}
		if got := leading(); got != want {
			t.Errorf("%d rules lead to our chains, want %d again", got, want)
		}
	})
}
