//go:build linux

package nftables

import (
	"regexp"
	"strings"
	"testing"

	"kube-proxy/lb"
	"kube-proxy/test/kerneltest"
	"kube-proxy/test/planetest"
)

// core lists the scenarios that other kernels run. Together they use all expressions, sets and
// hooks of the mode, as TestCore proves. The last two make the kernel remember clients and flows,
// and hold many objects, while rules change.
var core = []string{
	"all-ways-in", "detect-bridge", "detect-interface-prefix", "equal-shares", "external-ip-of-node",
	"external-policy-local-affinity-fallback",
	"hairpin", "hairpin-affinity", "no-endpoints", "nodeport-addresses-localhost", "policies-cross", "restart",
	"same-port-different-protocols",
	"sctp", "source-ranges", "source-ranges-local-policy", "source-ranges-without-endpoints",
	"terminating-external-local", "unknown-port",
	"changes-while-down", "established-connections", "established-udp-flow", "session-affinity-survives-changes",
	"session-affinity-timeout",
	"udp-endpoint-drains", "generated-five-thousand-endpoints", "generated-many-services", "generated-thousand-ports",
}

// TestCore proves that the scenarios for other kernels make the plane write every form of rule and
// set.
func TestCore(t *testing.T) {
	kerneltest.Later(t)
	planetest.Core(t, planetest.Config{Mode: "nftables", Core: core}, func(f lb.Family, table *lb.Table) ([]string,
		error) {
		text, err := Render(Config{Family: f}, table)
		return forms(string(text)), err
	})
}

var (
	remark  = regexp.MustCompile(`(^| )comment ".*"$| *#.*$`)
	numbers = regexp.MustCompile(`\b(0x[0-9a-f]+|[0-9][0-9a-f.:/]*)|\b[0-9a-f]*:[0-9a-f:/]+|(nat|sources)\.[a-z0-9.-]+`)
)

// forms returns the rules of a rendered table without addresses, numbers and chain names, the
// declarations of the sets, and the names of sets that have elements.
func forms(text string) []string {
	var all []string
	set, inElements := "", false
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(remark.ReplaceAllString(strings.TrimSpace(line), ""))
		words := strings.Fields(line)
		switch {
		case len(words) == 3 && (words[0] == "set" || words[0] == "map"):
			set = words[1]
		case line == "elements = {":
			all, inElements = append(all, "elements of "+set), true
		case line == "}":
			inElements = false
		case line != "" && !inElements && words[0] != "chain" && words[0] != "table":
			all = append(all, numbers.ReplaceAllString(line, "N"))
		}
	}
	return all
}
