//go:build linux

package cleanup

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane/all"
	"kube-proxy/plane/ipvs"
)

// theirs creates the objects of other programs, some with names like ours. KUBE-FIREWALL and the
// kubelet's other objects stay too (DP-15).
func theirs(t *testing.T) {
	t.Helper()
	const text = `*mangle
:KUBE-IPTABLES-HINT - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
COMMIT
*filter
:DOCKER-USER - [0:0]
:KUBE-FIREWALL - [0:0]
:KUBE-ROUTER-FORWARD - [0:0]
-A INPUT -j KUBE-FIREWALL
-A OUTPUT -j KUBE-FIREWALL
-A FORWARD -j KUBE-ROUTER-FORWARD
-A FORWARD -j DOCKER-USER
-A KUBE-FIREWALL -m mark --mark 0x8000/0x8000 -j DROP
-A KUBE-ROUTER-FORWARD -m set --match-set KUBE-SRC-AAAA src -j ACCEPT
COMMIT
*nat
:KUBE-MARK-DROP - [0:0]
-A POSTROUTING -m mark --mark 0x10/0x10 -j MASQUERADE
COMMIT
`
	run(t, "", "ipset", "create", "KUBE-SRC-AAAA", "hash:ip")
	run(t, "", "ipset", "create", "KUBE-CLUSTER-IP-2", "hash:ip,port")
	run(t, text, "iptables-nft-restore", "--noflush")
	run(t, strings.ReplaceAll(text, "-A KUBE-ROUTER-FORWARD -m set --match-set KUBE-SRC-AAAA src -j ACCEPT\n", ""),
		"ip6tables-nft-restore", "--noflush")
	run(t, "", "nft", "table inet kube-proxy { chain c { drop; }; }; table ip kube-proxy-x { chain c { drop; }; }")
	run(t, "", "ip", "link", "add", "kube-dummy0", "type", ipvs.DeviceType)
}

// ours creates the objects that modes iptables, ipvs and nftables leave.
func ours(t *testing.T) {
	t.Helper()
	oursIPVS(t)
	for _, b := range backends {
		if b == xtables.NFT || legacyWorks() {
			start(t, bothFamilies, openIPTables(b))
		}
	}
	start(t, bothFamilies, openNFTables)
}

// oursIPVS creates the objects that mode ipvs leaves, except virtual servers.
func oursIPVS(t *testing.T) {
	t.Helper()
	var sets strings.Builder
	for _, fam := range []lb.Family{lb.IPv4, lb.IPv6} {
		inet := "inet"
		if fam == lb.IPv6 {
			inet = "inet6"
		}
		for _, name := range ipvs.SetNames(fam) {
			typ := "hash:ip,port family " + inet
			switch {
			case strings.Contains(name, "NODE-PORT") && !strings.Contains(name, "SCTP-HAS"):
				typ = "bitmap:port range 0-65535"
			case strings.HasSuffix(name, "IPVS-IPS"):
				typ = "hash:ip family " + inet
			case strings.HasSuffix(name, "LOOP-BACK"), strings.HasSuffix(name, "SOURCE-IP"):
				typ = "hash:ip,port,ip family " + inet
			case strings.Contains(name, "SOURCE-CID"):
				typ = "hash:ip,port,net family " + inet
			}
			fmt.Fprintln(&sets, "create", name, typ)
		}
	}
	sets.WriteString(`add KUBE-NODE-PORT-TCP 30080
add KUBE-6-NODE-PORT-UDP 30053
add KUBE-CLUSTER-IP 10.96.0.10,tcp:80
add KUBE-6-CLUSTER-IP fd00:10:96::10,udp:53
add KUBE-IPVS-IPS 10.96.0.77
add KUBE-NODE-PORT-SCTP-HASH 192.0.2.1,sctp:30090
`)
	run(t, sets.String(), "ipset", "restore")
	run(t, `*filter
:KUBE-NODE-PORT - [0:0]
-I INPUT -m comment --comment "kubernetes health check rules" -j KUBE-NODE-PORT
-A KUBE-NODE-PORT -m set --match-set KUBE-HEALTH-CHECK-NODE-PORT dst -j ACCEPT
COMMIT
*nat
:KUBE-POSTROUTING - [0:0]
-I POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-POSTROUTING -m set --match-set KUBE-LOOP-BACK dst,dst,src -j MASQUERADE
COMMIT
`, "iptables-nft-restore", "--noflush")
	run(t, "", "ip", "link", "add", ipvs.Device, "type", ipvs.DeviceType)
	run(t, "", "ip", "link", "set", ipvs.Device, "up")
	for _, a := range []string{"10.96.0.10/32", "10.96.0.1/32", "fd00:10:96::10/128"} {
		run(t, "", "ip", "addr", "add", a, "dev", ipvs.Device, "nodad")
	}
}

func needsAll(t *testing.T) {
	t.Helper()
	needsRoot(t)
	needs(t, "iptables-nft", "ip6tables-nft", "nft", "ipset", "ip")
}

// --cleanup removes all our objects, in both families and both back ends, and changes no foreign
// ones (PR-08, G3, DP-15).
func TestRunAll(t *testing.T) {
	needsAll(t)
	inNetns(t)
	theirs(t)
	before := state(t)
	if r := clean(t, all.Modes()); len(r.Removed)+len(r.Left) > 0 {
		t.Errorf("where there is nothing: %+v", r)
	}
	if after := state(t); after != before {
		t.Errorf("where there is nothing, others had\n%s\nand have\n%s", before, after)
	}
	ours(t)
	r := clean(t, all.Modes())
	if len(r.Left) > 0 {
		t.Errorf("left: %q", r.Left)
	}
	said := strings.Join(r.Removed, "\n")
	for _, want := range []string{"chains of iptables (nft, IPv4)", "rules in chains of others of iptables (nft, IPv6)",
		"device kube-ipvs0 with 3 service addresses",
		fmt.Sprintf("%d ipsets", 2*len(ipvs.SetNames(lb.IPv4))), "the nftables table kube-proxy of IPv4",
		"the nftables table kube-proxy of IPv6"} {
		if !strings.Contains(said, want) {
			t.Errorf("not reported: %s\nreported:\n%s", want, said)
		}
	}
	var after []string
	for line := range strings.Lines(state(t)) {
		after = append(after, line)
	}
	for line := range strings.Lines(before) {
		i := slices.Index(after, line)
		if i < 0 {
			t.Errorf("gone: %s", line)
			continue
		}
		after = slices.Delete(after, i, i+1)
	}
	for _, line := range after { // tables of iptables cannot be removed; they are empty
		switch {
		case line[0] == '*', line == "COMMIT\n", strings.HasPrefix(line, ":") && strings.HasSuffix(line, " ACCEPT \n"),
			strings.HasPrefix(line, "table "):
		// As the kubelet has it, which did not have it before.
		case strings.Contains(line, "KUBE-FIREWALL"):
		default:
			t.Errorf("left: %s", line)
		}
	}
	if r := clean(t, all.Modes()); len(r.Removed)+len(r.Left) > 0 {
		t.Errorf("a second time: %+v", r)
	}
}

// --cleanup-iptables removes only iptables rules. TestGuardStaysWithAddresses has
// --cleanup-ipvs=false.
func TestRunParts(t *testing.T) {
	needsAll(t)
	inNetns(t)
	ours(t)
	if r := clean(t, only("iptables")); len(r.Left) > 0 {
		t.Errorf("left: %q", r.Left)
	}
	now := state(t)
	for part, stays := range map[string]bool{"KUBE-SVC-": false, "KUBE-CLUSTER-IP\n": true, ipvs.Device: true,
		"table ip kube-proxy\n": true} {
		if strings.Contains(now, part) != stays {
			t.Errorf("%q: want it there: %t", part, stays)
		}
	}
}

// Objects that cannot be removed are reported, with the remedy, and the others are still removed.
func TestRunFailures(t *testing.T) {
	needsAll(t)
	inNetns(t)
	ours(t)
	run(t, "", "iptables-nft", "-A", "FORWARD", "-m", "set", "--match-set", "KUBE-LOOP-BACK", "dst,dst,src", "-j",
		"ACCEPT")
	_, err := Run(t.Context(), all.Modes(), mode.Removal{})
	if err == nil || !strings.Contains(err.Error(), "destroy ipset KUBE-LOOP-BACK: rules use it; they belong to "+
		"other programs") {
		t.Errorf("a set that others use: %v", err)
	}
	if now := state(t); strings.Contains(now, "KUBE-CLUSTER-IP") || strings.Contains(now, "table ip kube-proxy") ||
		!strings.Contains(now, "KUBE-LOOP-BACK") {
		t.Errorf("there is\n%s", now)
	}
}

// Without the programs of iptables, chains of ours are an error, because they cannot be removed.
// Without such chains there is no error.
func TestRunWithoutIPTables(t *testing.T) {
	needsAll(t)
	inNetns(t)
	bin := t.TempDir()
	for _, p := range []string{"nft", "ipset", "ip"} {
		path, _ := exec.LookPath(p)
		must(t, os.Symlink(path, filepath.Join(bin, p)))
	}
	path := os.Getenv("PATH")
	t.Setenv("PATH", bin)
	clean(t, all.Modes())
	t.Setenv("PATH", path)
	ours(t)
	t.Setenv("PATH", bin)
	r, err := Run(t.Context(), all.Modes(), mode.Removal{})
	if err == nil || !strings.Contains(err.Error(), "there are chains of kube-proxy for IPv4, but no program to "+
		"remove them") ||
		!strings.Contains(err.Error(), "for IPv6, but") || !strings.Contains(err.Error(), "install iptables") {
		t.Errorf("without programs: %v", err)
	}
	if legacyTables() && !strings.Contains(strings.Join(r.Left, "\n"),
		"iptables (legacy, IPv4): the kernel has such tables") {
		t.Errorf("left: %q", r.Left)
	}
	if now := run(t, "", "nft", "list", "tables"); strings.Contains(now, "table ip kube-proxy") {
		t.Errorf("the nftables tables stay:\n%s", now)
	}
}

func legacyTables() bool {
	b, err := os.ReadFile("/proc/thread-self/net/ip_tables_names")
	return err == nil && len(b) > 0
}

// PR-08: the objects that each mode removes, and those that it keeps.
func TestOthers(t *testing.T) {
	needsAll(t)
	if !legacyWorks() {
		t.Skip("this machine has no legacy iptables")
	}
	each := map[lb.Family]xtables.Backend{lb.IPv4: xtables.Legacy, lb.IPv6: xtables.NFT}
	for _, c := range []struct {
		now now
		// What stays of each family: rules of a back end, a table of nftables, an ipset, an
		// address.
		stay4, stay6 string
	}{
		{now{mode: "nftables", exclude: []netip.Prefix{netip.MustParsePrefix("10.96.0.10/32")}},
			"table address", "table"},
		{now{mode: "userspace", families: bothFamilies[1:]}, "nft legacy table set address", ""},
		{now{mode: "iptables", backends: each}, "legacy", "nft"},
		// In its own back end a plane has already taken over the previous rules.
		{now{mode: "ipvs", backends: each}, "legacy set address", "nft set address"},
	} {
		t.Run(c.now.mode, func(t *testing.T) {
			inNetns(t)
			ours(t)
			if _, err := c.now.others(t.Context()); err != nil {
				t.Error(err)
			}
			there := func(ip, table, set, address string) string {
				var all []string
				for _, b := range backends {
					if strings.Contains(rules(t, ip+"-"+string(b)), "KUBE-SVC-") {
						all = append(all, string(b))
					}
				}
				for _, o := range []struct{ name, text, in string }{
					{"table", table, run(t, "", "nft", "list", "tables")},
					{"set", set, run(t, "", "ipset", "list", "-n")},
					{"address", address, run(t, "", "ip", "addr")},
				} {
					if strings.Contains(o.in, o.text) {
						all = append(all, o.name)
					}
				}
				return strings.Join(all, " ")
			}
			if got := there("iptables", "table ip kube-proxy\n", "KUBE-CLUSTER-IP\n", "10.96.0.10"); got != c.stay4 {
				t.Errorf("of IPv4 there is %q, want %q", got, c.stay4)
			}
			if got := there("ip6tables", "table ip6 kube-proxy\n", "KUBE-6-CLUSTER-IP\n",
				"fd00:10:96::10"); got != c.stay6 {
				t.Errorf("of IPv6 there is %q, want %q", got, c.stay6)
			}
		})
	}
	if _, err := Others(t.Context(), all.Modes(), mode.Mode{Name: "new"}, mode.Removal{
		Families: bothFamilies}); err == nil {
		t.Error("a mode that does not say what rules it writes is no error")
	}
}

// Without CAP_NET_ADMIN nothing is removed, and each error names the missing capability.
func TestRunWithoutCapability(t *testing.T) {
	needsAll(t)
	inNetns(t)
	ours(t)
	before := state(t)
	header := &unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	caps := make([]unix.CapUserData, 2)
	must(t, unix.Capget(header, &caps[0]))
	set := func(effective uint32) {
		t.Helper()
		caps[0].Effective = effective
		must(t, unix.Capset(header, &caps[0]))
	}
	had := caps[0].Effective
	set(had &^ (1 << unix.CAP_NET_ADMIN))
	_, err := Run(t.Context(), all.Modes(), mode.Removal{})
	set(had)
	if err == nil || strings.Count(err.Error(), "CAP_NET_ADMIN") < 4 ||
		!strings.Contains(err.Error(), "delete device kube-ipvs0: operation not permitted") {
		t.Errorf("error: %v", err)
	}
	for line := range strings.Lines(fmt.Sprint(err)) {
		t.Log(strings.TrimSpace(line))
	}
	// The legacy programs, which got the capability from root, have removed their rules.
	if after := state(t); !strings.Contains(after, "KUBE-SVC-") || !strings.Contains(after, "table ip kube-proxy\n") ||
		len(after) > len(before) {
		t.Errorf("there is\n%s", after)
	}
}

// An interface of that name and another type belongs to another program.
func TestDeviceOfAnotherType(t *testing.T) {
	needsAll(t)
	inNetns(t)
	run(t, "", "ip", "link", "add", ipvs.Device, "type", "veth", "peer", "name", "other0")
	if r := clean(t, all.Modes()); len(r.Left) != 1 || !strings.Contains(r.Left[0], "of type veth") {
		t.Errorf("left: %q", r.Left)
	}
	if _, err := netlink.LinkByName(ipvs.Device); err != nil {
		t.Error(err)
	}
}

// same returns that back end for both families.
func same(b xtables.Backend) map[lb.Family]xtables.Backend {
	return map[lb.Family]xtables.Backend{lb.IPv4: b, lb.IPv6: b}
}
