package ipvs

import (
	"bytes"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/test/golden"
	"kube-proxy/test/kerneltest"
	"kube-proxy/test/planetest"
)

func prefixes(all ...string) (out []netip.Prefix) {
	for _, p := range all {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

// nodes are facts whose chains are in testdata.
var nodes = map[string]nodeFacts{
	"ipv4": {family: lb.IPv4, masq: 1 << 14, fullyRandom: true, node: lb.Node{NodePorts: prefixes("172.18.0.2/32"),
		Pods: lb.Detector{Prefixes: prefixes("10.1.0.0/16")}, ServiceCIDRs: prefixes("10.96.0.0/12")}},
	"ipv6": {family: lb.IPv6, masq: 1 << 14, fullyRandom: true, node: lb.Node{NodePorts: prefixes("::/0"),
		Pods:         lb.Detector{Prefixes: prefixes("fd00:10:1::/48", "fd00:10:2::/48")},
		ServiceCIDRs: prefixes("fd00:10:96::/108", "fd00:10:97::/108")}},
	"bridge": {family: lb.IPv4, masq: 1 << 5, node: lb.Node{NodePorts: prefixes("0.0.0.0/0"),
		Pods: lb.Detector{Interface: "cbr0"}}},
	"interface-prefix": {family: lb.IPv6, masq: 1 << 31, node: lb.Node{Pods: lb.Detector{InterfacePrefix: "veth"}}},
	"excluded": {family: lb.IPv4, masq: 1 << 14, fullyRandom: true, excluded: prefixes("10.96.0.20/32", "2001:db8::/32",
		"192.0.2.77/24"), node: lb.Node{NodePorts: prefixes("172.18.0.2/32")}},
	"nothing": {family: lb.IPv4, masq: 1 << 14, fullyRandom: true},
}

// textOf returns the chains as input for iptables-restore.
func textOf(n nodeFacts) string {
	var b bytes.Buffer
	saveChains(&b, n)
	return b.String()
}

// The chains of a node equal testdata (DP-33).
func TestChains(t *testing.T) {
	kerneltest.Every(t)
	for name, n := range nodes {
		t.Run(name, func(t *testing.T) {
			golden.Equal(t, filepath.Join("testdata", "chains", name+".rules"), textOf(n))
		})
	}
}

// mustRun returns the output of a program.
func mustRun(t testing.TB, stdin, program string, args ...string) string {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s\n%s", program, strings.Join(args, " "), err, out, stdin)
	}
	return string(out)
}

// makeSets creates the ipsets that rules name, in the network namespace of the calling thread.
func makeSets(t *testing.T, f lb.Family) {
	t.Helper()
	var b strings.Builder
	for s := range setCount {
		fmt.Fprintln(&b, "create", s.made(f))
	}
	mustRun(t, b.String(), "ipset", "restore", "-exist")
}

func programOf(f lb.Family, b xtables.Backend) string {
	return map[lb.Family]string{lb.IPv4: "iptables-", lb.IPv6: "ip6tables-"}[f] + string(b)
}

// Both back ends accept the chains, and print them as they were written. A second Manager writes
// nothing, and an audit repairs nothing. A change of the node writes only the chains that depend on
// it.
func TestChainsInKernel(t *testing.T) {
	kerneltest.Every(t)
	for _, b := range []xtables.Backend{xtables.NFT, xtables.Legacy} {
		for name, n := range nodes {
			t.Run(string(b)+"/"+name, func(t *testing.T) {
				k := manager(t, n, b)
				must(t, k.Reset(t.Context(), n.node))
				second := managerHere(t, n, b)
				if err := second.Reset(t.Context(), n.node); err != nil || second.Stats().Restores != 0 {
					t.Errorf("a second one writes: %+v, %v", second.Stats(), err)
				}
				if rules, err := k.Rules(t.Context()); err != nil || len(rules) != strings.Count(textOf(n),
					"\n-A KUBE-") {
					t.Errorf("the kernel has %d rules, %v: %v", len(rules), err, rules)
				}
				if repaired, err := k.Audit(t.Context(), true); repaired != 0 || err != nil {
					t.Errorf("an audit repairs %d, %v", repaired, err)
				}
				for what, c := range map[string]struct {
					change func(*lb.Node)
					chains uint64
				}{
					"nothing":      {func(*lb.Node) {}, 0},
					"pods":         {func(x *lb.Node) { x.Pods = lb.Detector{Interface: "cbr1"} }, 1},
					"node ports":   {func(x *lb.Node) { x.NodePorts = []netip.Prefix{n.family.Everywhere()} }, 1},
					"service CIDR": {func(x *lb.Node) { x.ServiceCIDRs = []netip.Prefix{n.family.Everywhere()} }, 1},
				} {
					before, node := k.Stats().Chains, n.node
					c.change(&node)
					if err := k.SetNode(t.Context(), node); err != nil {
						t.Errorf("change of %s: %v", what, err)
					}
					if sent := k.Stats().Chains - before; sent > c.chains {
						t.Errorf("change of %s: %d chains are written, want at most %d", what, sent, c.chains)
					}
					if err := k.SetNode(t.Context(), n.node); err != nil {
						t.Errorf("change of %s back: %v", what, err)
					}
				}
			})
		}
	}
}

func manager(t *testing.T, n nodeFacts, b xtables.Backend) *chainManager {
	t.Helper()
	inNamespace(t)
	makeSets(t, n.family)
	return managerHere(t, n, b)
}

func managerHere(t *testing.T, n nodeFacts, b xtables.Backend) *chainManager {
	t.Helper()
	k, err := newChains(nodeFacts{family: n.family, masq: n.masq, excluded: n.excluded}, b, nil)
	must(t, err)
	k.facts.fullyRandom = n.fullyRandom
	t.Cleanup(func() {
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	})
	return k
}

// The plane takes over the chains of upstream's modes ipvs and iptables, and ours: it removes
// unneeded chains, with the rules that jump to them. Chains of other programs stay, and the
// kubelet's (G4).
func TestChainsTakeOver(t *testing.T) {
	kerneltest.Every(t)
	const before = `*mangle
:KUBE-IPTABLES-HINT - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
:OTHER - [0:0]
-A INPUT -j OTHER
COMMIT
*nat
:KUBE-SERVICES - [0:0]
:KUBE-SVC-AAAAAAAAAAAAAAAA - [0:0]
:KUBE-SEP-AAAAAAAAAAAAAAAA - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-PROXY-CANARY - [0:0]
:CNI-HOSTPORT - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT
-A CNI-HOSTPORT -s 10.1.1.0/24 -p tcp -m tcp --dport 8080 -j KUBE-MARK-MASQ
-A KUBE-SERVICES -d 10.96.0.10/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-AAAAAAAAAAAAAAAA
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-A KUBE-SVC-AAAAAAAAAAAAAAAA -j KUBE-SEP-AAAAAAAAAAAAAAAA
-A KUBE-SEP-AAAAAAAAAAAAAAAA -p tcp -m tcp -j DNAT --to-destination 10.1.1.11:8080
COMMIT
*filter
:KUBE-FIREWALL - [0:0]
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
-A INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES
-A INPUT -j KUBE-FIREWALL
-A INPUT -m comment --comment "kube-proxy firewall rules" -j KUBE-PROXY-FIREWALL
-A FORWARD -m comment --comment "kube-proxy firewall rules" -j KUBE-PROXY-FIREWALL
-A KUBE-FIREWALL -m mark --mark 0x8000/0x8000 -j DROP
COMMIT
`
	for _, b := range []xtables.Backend{xtables.NFT, xtables.Legacy} {
		t.Run(string(b), func(t *testing.T) {
			n := nodes["ipv4"]
			k := manager(t, n, b)
			program := programOf(n.family, b)
			mustRun(t, before, program+"-restore")
			must(t, k.Reset(t.Context(), n.node))
			var is, want []string
			for line := range strings.Lines(mustRun(t, "", program+"-save")) {
				if line[0] == ':' && !slices.Contains([]string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT",
					"POSTROUTING"}, strings.Fields(line[1:])[0]) || line[0] == '-' {
					is = append(is, strings.TrimSpace(line))
				}
			}
			for line := range strings.Lines(textOf(n)) {
				if line[0] == ':' || line[0] == '-' {
					want = append(want, strings.TrimSpace(line))
				}
			}
			for line := range strings.Lines(before) {
				if strings.Contains(line, "KUBELET") || strings.Contains(line, "HINT") ||
					strings.Contains(line, "FIREWALL ") && !strings.Contains(line, "PROXY") ||
					strings.Contains(line, "KUBE-FIREWALL") || strings.Contains(line, "OTHER") ||
					strings.Contains(line, "CNI") {
					want = append(want, strings.TrimSpace(line))
				}
			}
			once := func(lines []string) string {
				slices.Sort(lines)
				return strings.Join(slices.Compact(lines), "\n") + "\n"
			}
			if diff := golden.Diff(once(want), once(is)); diff != "" {
				t.Error(diff)
			}
			if repaired, err := k.Audit(t.Context(), true); repaired != 0 || err != nil {
				t.Errorf("an audit repairs %d, %v", repaired, err)
			}
		})
	}
}

// TestChainsUnshown (TN-70): iptables-save omits some tables. An audit and a restart add nothing to
// them, chains of another mode are removed, and a removal leaves nothing.
func TestChainsUnshown(t *testing.T) {
	kerneltest.Every(t)
	for _, f := range []lb.Family{lb.IPv4, lb.IPv6} {
		t.Run(f.String(), func(t *testing.T) {
			n := nodeFacts{family: f, masq: 1 << 14}
			k := manager(t, n, xtables.NFT)
			must := func(repaired int, err error) {
				t.Helper()
				if err != nil {
					t.Fatalf("%d repaired, %v", repaired, err)
				}
			}
			must(0, k.Reset(t.Context(), n.node))
			planetest.HideTables(t, f)
			want := len(planetest.Leading(t, f))
			must(k.Audit(t.Context(), true))
			must(0, managerHere(t, n, xtables.NFT).Reset(t.Context(), n.node))
			if got := len(planetest.Leading(t, f)); got != want {
				t.Fatalf("%d lines name our chains, and after an audit and a restart %d", want, got)
			}
			if n, err := k.Audit(t.Context(), true); n != 0 || err != nil {
				t.Errorf("without a foreign change, an audit repaired %d, %v", n, err)
			}
			r, err := xtables.Remove(t.Context(), xtables.RemoveConfig{Family: f, Backend: xtables.NFT})
			if left := planetest.Leading(t, f); err != nil || len(r.Left)+len(left) > 0 {
				t.Errorf("left: %q, %q, %v", r.Left, left, err)
			}
		})
	}
}
