//go:build linux

package ipvs

import (
	"regexp"
	"strings"
	"testing"

	"kube-proxy/lb"
	"kube-proxy/test/planetest"
)

// core are the scenarios that other kernels run. Together they have virtual servers and members of ipsets of every form that the
// mode writes, which TestCore proves; the others show what a kernel does with them.
var core = []string{
	"all-ways-in", "address-of-a-pod", "detect-bridge", "detect-interface-prefix", "established-connections", "established-udp-flow", "external-ip-of-node",
	"external-policy-local", "external-policy-local-affinity-fallback", "external-policy-local-none-local", "external-policy-local-udp", "hairpin-affinity", "health-check-port",
	"host-network-endpoints", "internal-policy-local", "no-endpoints", "policies-cross", "restart", "same-port-different-protocols", "sctp", "session-affinity",
	"session-affinity-survives-changes", "session-affinity-udp", "source-ranges", "source-ranges-local-policy", "source-ranges-node", "terminating-external-local", "udp", "unallocated-address", "unknown-port",
}

// TestCore proves that the scenarios for other kernels have the plane write virtual servers and members of all forms.
func TestCore(t *testing.T) {
	planetest.Core(t, planetest.Config{Mode: "ipvs", Core: core}, func(f lb.Family, table *lb.Table) ([]string, error) {
		return forms(previewText(previewOf(testLayout(f), nodeAddresses(f), table))), nil
	})
}

// figures are addresses, ports, times and numbers, but for marks.
var figures = regexp.MustCompile(`\[[0-9a-f:.]+\]|\b[0-9]+(\.[0-9]+){3}(/[0-9]+)?|\b[0-9a-f]*:[0-9a-f]*:[0-9a-f:.]*(/[0-9]+)?|\b[0-9]+\b`)

// forms are the lines of a preview, with what a mark asks for in its place and without other numbers.
func forms(text string) (all []string) {
	m := marks{1 << 14}
	marked := regexp.MustCompile(`0x[0-9a-f]+(/0x[0-9a-f]+)?`)
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "create") {
			continue
		}
		line = marked.ReplaceAllStringFunc(line, func(s string) string {
			switch {
			case strings.Contains(s, "/"):
				return "masquerade"
			case parseHex(s) == m.drop():
				return "drop"
			case parseHex(s)&m.masq != 0:
				return "server, masquerade"
			}
			return "server"
		})
		all = append(all, strings.TrimSpace(figures.ReplaceAllString(line, "N")))
	}
	return all
}

func parseHex(s string) (v uint32) {
	for _, c := range s[2:] {
		v = v<<4 | uint32(strings.IndexRune("0123456789abcdef", c))
	}
	return v
}
