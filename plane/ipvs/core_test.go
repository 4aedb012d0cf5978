//go:build linux

package ipvs

import (
	"regexp"
	"strconv"
	"strings"
	"testing"

	"kube-proxy/lb"
	"kube-proxy/test/planetest"
)

// core lists the scenarios that other kernels run. Together they have virtual servers and ipset
// members of every form that the mode writes, as TestCore proves; the others exercise the kernel.
var core = []string{
	"all-ways-in", "address-of-a-pod", "detect-bridge", "detect-interface-prefix", "established-connections",
	"established-udp-flow", "external-ip-of-node",
	"external-policy-local", "external-policy-local-affinity-fallback", "external-policy-local-none-local",
	"external-policy-local-udp", "hairpin-affinity", "health-check-port",
	"host-network-endpoints", "internal-policy-local", "no-endpoints", "policies-cross", "restart",
	"same-port-different-protocols", "sctp", "session-affinity",
	"session-affinity-survives-changes", "session-affinity-udp", "source-ranges", "source-ranges-local-policy",
	"source-ranges-node", "terminating-external-local", "udp", "unallocated-address", "unknown-port",
}

// TestCore proves that the scenarios for other kernels make the plane write every form of virtual
// server and member.
func TestCore(t *testing.T) {
	planetest.Core(t, planetest.Config{Mode: "ipvs", Core: core}, func(f lb.Family, table *lb.Table) ([]string, error) {
		return forms(previewText(previewOf(testLayout(f), nodeAddresses(f), table))), nil
	})
}

// figures matches addresses, ports, times and numbers, except marks.
var figures = regexp.MustCompile(
	`\[[0-9a-f:.]+\]|\b[0-9]+(\.[0-9]+){3}(/[0-9]+)?|\b[0-9a-f]*:[0-9a-f]*:[0-9a-f:.]*(/[0-9]+)?|\b[0-9]+\b`)

// hexadecimal matches a mark, or a mark and its mask.
var hexadecimal = regexp.MustCompile(`0x[0-9a-f]+(/0x[0-9a-f]+)?`)

// forms returns the lines of a preview, with marks replaced by their meaning, and without other
// numbers.
func forms(text string) (all []string) {
	m := marks{1 << 14}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "create") {
			continue
		}
		line = hexadecimal.ReplaceAllStringFunc(line, func(s string) string {
			value, _ := strconv.ParseUint(s, 0, 32)
			switch {
			case strings.Contains(s, "/"):
				return "masquerade"
			case uint32(value) == m.drop():
				return "drop"
			case uint32(value)&m.masq != 0:
				return "server, masquerade"
			}
			return "server"
		})
		all = append(all, strings.TrimSpace(figures.ReplaceAllString(line, "N")))
	}
	return all
}
