package ipvs

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"kube-proxy/internal/netlink/ipset"
	"kube-proxy/internal/netlink/ipvs"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/test/golden"
	"kube-proxy/test/kerneltest"
	"kube-proxy/test/scenario"
)

// sortedLines returns the lines with one of the prefixes, sorted.
func sortedLines(text string, prefixes ...string) string {
	var lines []string
	for line := range strings.Lines(text) {
		if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(line, p) }) {
			lines = append(lines, strings.TrimSpace(line)+"\n")
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// rendered returns render's output for the last state of a scenario, without the lines that name
// programs: for ipvsadm, ipset, ip and iptables. Families alternate between scenarios.
func rendered(t *testing.T, i int, sc *scenario.Scenario) (f lb.Family, parts []string) {
	t.Helper()
	f = lb.IPv4
	if i%2 != 0 { // both families overall, and each scenario once
		f = lb.IPv6
	}
	var last *lb.Table
	for r := sc.Replay(f); ; {
		step, ok, err := r.Next()
		must(t, err)
		if !ok {
			break
		}
		last = step.Table
	}
	node := last.Node
	for _, a := range nodeAddresses(f) { // the addresses that render knows
		if lb.Within(node.NodePorts, a) {
			last.Node.NodePorts = append(slices.Clip(node.NodePorts), netip.PrefixFrom(a, a.BitLen()))
		}
	}
	text, err := render(mode.Settings{Family: f, MasqueradeBit: 14}, last)
	if err != nil {
		t.Fatalf("%s: %v", sc.Name, err)
	}
	parts = strings.Split("\n"+string(text), "\n# ")[1:]
	for i, p := range parts {
		_, parts[i], _ = strings.Cut(p, "\n")
		parts[i] = strings.TrimSuffix(parts[i], "\n") + "\n"
	}
	if len(parts) != 4 {
		t.Fatalf("%s, %s: %d parts", sc.Name, f, len(parts))
	}
	return f, parts
}

// In an empty network namespace, ipvsadm, ipset and iptables load the rendering of each scenario's
// last state. The kernel then lists exactly that: virtual and real servers, members with their
// marks, and rules.
func TestIPVSGoldensRestore(t *testing.T) {
	kerneltest.Every(t)
	inVM(t)
	all, err := scenario.LoadDir("../../test/testdata/scenarios")
	must(t, err)
	if len(all) < 50 {
		t.Errorf("%d scenarios", len(all))
	}
	// Rules that iptables has accepted already: they differ only by node.
	taken, servers := map[string]bool{}, 0
	for i, sc := range all {
		t.Run(sc.Name, func(t *testing.T) {
			inNamespace(t)
			mustRun(t, "", "ip", "link", "set", "lo", "up") // IPVS accepts real servers only with routes
			f, parts := rendered(t, i, sc)
			if parts[0] != "\n" {
				mustRun(t, parts[0], "ipvsadm", "--restore")
			}
			mustRun(t, parts[1], "ipset", "restore")
			same := func(what, got string, want string, prefixes ...string) {
				t.Helper()
				if diff := golden.Diff(sortedLines(want, prefixes...), sortedLines(got, prefixes...)); diff != "" {
					t.Errorf("%s: the kernel has of %s\n%s", f, what, diff)
				}
			}
			listed, n := listServers(t)
			servers += n
			same("servers", listed, parts[0], "-")
			same("sets", listSets(t, f), parts[1], "create ", "add ")
			if !taken[parts[3]] {
				taken[parts[3]] = true
				program := programOf(f, "nft")
				mustRun(t, parts[3], program+"-restore", "--noflush")
				same("rules", mustRun(t, "", program+"-save"), parts[3], "-A ")
			}
		})
	}
	if servers < 100 || len(taken) < 4 {
		t.Errorf("%d virtual servers, %d sets of rules", servers, len(taken))
	}
}

// listServers returns the kernel's virtual and real servers, as render prints them, and their
// number.
func listServers(t *testing.T) (string, int) {
	t.Helper()
	conn, err := ipvs.Open()
	must(t, err)
	defer conn.Close()
	var b strings.Builder
	var ids []ipvs.ServiceID
	err = conn.Services(t.Context(), func(s ipvs.ServiceState) error {
		b.WriteString(ipvs.SaveService(s.Service))
		ids = append(ids, s.ServiceID)
		return nil
	})
	for _, id := range ids {
		all, listErr := conn.Destinations(t.Context(), id)
		for _, d := range all {
			b.WriteString(ipvs.SaveDestination(id, d.Destination))
		}
		err = errors.Join(err, listErr)
	}
	must(t, err)
	return b.String(), len(ids)
}

// listSets returns the kernel's sets and their members, as render prints them.
func listSets(t *testing.T, f lb.Family) string {
	t.Helper()
	conn, err := ipset.Open()
	must(t, err)
	defer conn.Close()
	var b strings.Builder
	for s := range setCount {
		want, members := s.made(f), []ipset.Member(nil)
		is, err := conn.Members(t.Context(), want.Name, func(m ipset.Member) { members = append(members, m) })
		must(t, err)
		if other := is.Differs(want); other != "" {
			t.Errorf("set %s has %s", want.Name, other)
		}
		must(t, ipset.Save(&b, want, members))
	}
	return b.String()
}
