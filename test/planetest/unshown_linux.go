package planetest

import (
	"os/exec"
	"strings"
	"testing"

	"kube-proxy/lb"
)

// HideTables adds a rule that iptables cannot print before and after those of each base chain of a
// family: iptables-save leaves out these tables. It works in the network namespace of the calling
// thread.
func HideTables(t testing.TB, f lb.Family) {
	t.Helper()
	table, chain := "", ""
	for line := range strings.Lines(ruleset(t, f)) {
		switch words := strings.Fields(line); {
		case len(words) > 2 && words[0] == "table":
			table = words[2]
		case len(words) > 1 && words[0] == "chain":
			chain = words[1]
		case len(words) > 3 && words[0] == "type" && words[2] == "hook":
			for _, verb := range []string{"insert", "add"} {
				nft(t, verb, "rule", nftFamily(f), table, chain, "ct", "state", "new", "limit", "rate", "10/second",
					"accept")
			}
		}
	}
	program := map[lb.Family]string{lb.IPv4: "iptables-nft-save", lb.IPv6: "ip6tables-nft-save"}[f]
	if out, err := exec.Command(program).CombinedOutput(); err != nil || strings.Contains(string(out), "-A ") {
		t.Skipf("this iptables prints such tables: %v\n%s", err, out)
	}
}

// Leading returns the rules of nf_tables of a family that name a chain of Kubernetes.
func Leading(t testing.TB, f lb.Family) (rules []string) {
	t.Helper()
	for line := range strings.Lines(ruleset(t, f)) {
		if strings.Contains(line, "KUBE-") {
			rules = append(rules, strings.TrimSpace(line))
		}
	}
	return rules
}

func ruleset(t testing.TB, f lb.Family) string {
	t.Helper()
	return nft(t, "-s", "list", "ruleset", nftFamily(f))
}

func nftFamily(f lb.Family) string { return map[lb.Family]string{lb.IPv4: "ip", lb.IPv6: "ip6"}[f] }

func nft(t testing.TB, args ...string) string {
	t.Helper()
	out, err := exec.Command("nft", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("nft %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}
