//go:build linux

package iptables

import (
	"regexp"
	"strings"
	"testing"

	"kube-proxy/lb"
	"kube-proxy/test/planetest"
)

// core lists the scenarios that other kernels run. Together they use all matches and targets of the
// mode, in every table and for every protocol, as TestCore proves. They are few, because each state
// starts programs, which is slow in emulation.
var core = []string{
	"all-ways-in", "detect-bridge", "detect-interface-prefix", "external-ip-of-node", "external-policy-local",
	"hairpin-affinity", "health-check-port",
	"no-endpoints", "nodeport-addresses-localhost", "restart", "same-port-different-protocols", "sctp",
	"session-affinity", "source-ranges",
	"source-ranges-without-endpoints", "terminating-external-local", "udp", "unknown-port",
}

// TestCore proves that the scenarios for other kernels make the plane write all matches and
// targets.
func TestCore(t *testing.T) {
	planetest.Core(t, planetest.Config{Mode: "iptables", Core: core}, func(f lb.Family, table *lb.Table) ([]string,
		error) {
		text, err := Render(Config{Family: f}, table)
		return clauses(string(text)), err
	})
}

// remark matches a comment, which does not affect the rule's meaning.
var remark = regexp.MustCompile(` -m comment --comment ("[^"]*"|\S+)`)

// values matches the values of a rule's options: names of our chains, addresses, numbers.
var values = regexp.MustCompile(`KUBE-[A-Z0-9-]+|\b[0-9][0-9a-fx.:/]*|\b[0-9a-f]*:[0-9a-f:./]+|::`)

// clauses returns the matches and targets of a rendered text, each once with its table, as in "*nat
// -m addrtype --dst-type LOCAL".
func clauses(text string) []string {
	var all []string
	table := ""
	for line := range strings.Lines(text) {
		words := strings.Fields(remark.ReplaceAllString(line, ""))
		if strings.HasPrefix(line, "*") {
			table = words[0]
		}
		if !strings.HasPrefix(line, "-") {
			continue
		}
		clause := ""
		for i, w := range words {
			option := w
			if w == "!" {
				option = words[i+1]
			}
			if strings.HasPrefix(option, "-") && !strings.HasPrefix(option, "--") && (i == 0 || words[i-1] != "!") &&
				clause != "" {
				all, clause = append(all, clause), ""
			}
			if clause == "" {
				clause = table
			}
			clause += " " + values.ReplaceAllString(w, "N")
		}
		all = append(all, clause)
	}
	return all
}
