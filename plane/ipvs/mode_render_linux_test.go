package ipvs

import (
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"kube-proxy/internal/scenario"
	"kube-proxy/lb"
	"kube-proxy/mode"
)

// input gives a program its standard input, and returns what it prints.
func input(t *testing.T, text, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Stdin = strings.NewReader(text)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s\n%s", name, strings.Join(args, " "), err, out, text)
	}
	return string(out)
}

// sortedLines are the lines that begin so, in the order of the alphabet.
func sortedLines(text string, prefixes ...string) (lines []string) {
	for line := range strings.Lines(text) {
		if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(line, p) }) {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	slices.Sort(lines)
	return lines
}

// What render prints of the last state of each scenario ipset takes, and then prints itself, and iptables takes the rules. What is for ipvsadm
// TestGoldensRestore and cmd/kube-proxy.TestIPVSRender give it, in VMs.
func TestRenderScenarios(t *testing.T) {
	inNamespace(t)
	for _, p := range []string{"ipset", "ip", "iptables-nft-restore", "ip6tables-nft-restore"} {
		if _, err := exec.LookPath(p); err != nil {
			t.Skip(err)
		}
	}
	output(t, "ip", "link", "set", "lo", "up")
	all, err := scenario.LoadDir("../../testdata/scenarios")
	if err != nil {
		t.Fatal(err)
	}
	taken := map[string]bool{} // rules that iptables has taken already: they differ by the node alone
	for i, sc := range all {
		f := lb.IPv4
		if i%2 != 0 { // both in all, and each scenario once
			f = lb.IPv6
		}
		var last *lb.Table
		for r := sc.Replay(f); ; {
			step, ok, err := r.Next()
			if err != nil {
				t.Fatal(err)
			}
			if !ok {
				break
			}
			last = step.Table
		}
		node := last.Node
		for _, a := range nodeAddresses(f) { // addresses that render knows
			if within(node.NodePorts, a) {
				last.Node.NodePorts = append(slices.Clip(node.NodePorts), netip.PrefixFrom(a, a.BitLen()))
			}
		}
		text, err := render(mode.Settings{Family: f, MasqueradeBit: 14}, last)
		if err != nil {
			t.Fatalf("%s: %v", sc.Name, err)
		}
		parts := strings.Split("\n"+string(text), "\n# ")[1:]
		for i, p := range parts {
			_, parts[i], _ = strings.Cut(p, "\n")
			parts[i] = strings.TrimSuffix(parts[i], "\n") + "\n"
		}
		if len(parts) != 4 {
			t.Fatalf("%s, %s: %d parts", sc.Name, f, len(parts))
		}
		members, rules := parts[1], parts[3]
		input(t, members, "ipset", "restore")
		if got, want := sortedLines(output(t, "ipset", "save"), "add "), sortedLines(members, "add "); !slices.Equal(got, want) {
			t.Errorf("%s, %s: ipset save prints\n%s\nwant\n%s", sc.Name, f, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		if !taken[rules] {
			taken[rules] = true
			program := "iptables-nft-restore"
			if f == lb.IPv6 {
				program = "ip6tables-nft-restore"
			}
			input(t, rules, program, "--noflush", "--test")
		}
		output(t, "ipset", "destroy")
	}
	if len(all) < 50 || len(taken) < 4 {
		t.Errorf("%d scenarios, and %d sets of rules", len(all), len(taken))
	}
}
