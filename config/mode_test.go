package config

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"kube-proxy/plane/all"
)

// The values that depend on the mode are available for each, whatever mode is configured (CF-19,
// CF-30, CF-37, CF-62, CF-64).
func TestFor(t *testing.T) {
	const file = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
	for _, tc := range []struct {
		name, args, file, mode string
		want                   string // node ports, masquerade-all, bit, sync period
		bad, say               string
	}{
		{"CF-37 nftables: primary", "", "", "nftables", "primary [] false 14 0s", "", ""},
		{"CF-37 iptables: all", "", "", "iptables", " [0.0.0.0/0 ::/0] false 14 30s", "", ""},
		{"CF-37 userspace: all", "", "", "userspace", " [0.0.0.0/0 ::/0] false 14 30s", "", ""},
		{"CF-37 another mode than asked", "--proxy-mode=nftables", "", "iptables", " [0.0.0.0/0 ::/0] false 14 30s", "",
			""},
		{"CF-37 what was asked for stays", "--nodeport-addresses=10.0.0.0/8", "", "nftables",
			" [10.0.0.0/8] false 14 0s", "", ""},
		{"CF-37 words mix with CIDRs", "--nodeport-addresses=primary,10.0.0.0/8", "", "iptables",
			"primary [10.0.0.0/8] false 14 30s", "", ""},
		{"CF-37 localhost without its gate", "--nodeport-addresses=localhost " +
			"--feature-gates=KubeProxyNFTablesLocalhostNodePorts=false", "", "nftables",
			" [127.0.0.0/8 ::1/128] false 14 0s", "",
			`--nodeport-addresses "localhost" has no effect: in mode nftables`},
		{"CF-37 localhost by sockets of the node", "--proxy-mode=ebpf --nodeport-addresses=localhost", "", "ebpf",
			" [127.0.0.0/8 ::1/128] false 14 0s", "", ""},
		{"CF-62 flags feed a blank mode", "--masquerade-all --iptables-masquerade-bit=3", "", "nftables",
			"primary [] true 3 0s", "", ""},
		{"CF-62 a file does not", "", "iptables: {masqueradeAll: true}", "nftables", "primary [] false 14 0s", "",
			"without effect in mode nftables: iptables.masqueradeAll"},
		{"CF-30 each its own", "", "nftables: {masqueradeAll: true, masqueradeBit: 7, syncPeriod: 1m}", "nftables",
			"primary [] true 7 1m0s", "", ""},
		{"CF-30 not that of another", "", "nftables: {masqueradeAll: true}", "iptables",
			" [0.0.0.0/0 ::/0] false 14 30s", "",
			"without effect in mode iptables: nftables.masqueradeAll"},
		{"CF-30 checked when it counts", "", "nftables: {masqueradeBit: 32}", "nftables", "",
			`KubeProxyConfiguration.nftables.masqueradeBit: "32": want 0 to 31`, ""},
		{"CF-30 not before", "", "nftables: {masqueradeBit: 32}", "iptables", " [0.0.0.0/0 ::/0] false 14 30s", "",
			"without effect in mode iptables: nftables.masqueradeBit"},
		{"CF-25 CF-62 its own periods", "--iptables-masquerade-bit=3 --iptables-sync-period=1m --ipvs-sync-period=7s",
			"", "ipvs", " [0.0.0.0/0 ::/0] false 3 7s", "",
			"without effect in mode ipvs: --iptables-sync-period"},
		{"CF-25 not before", "", "ipvs: {scheduler: fast}", "ipvs", "",
			`KubeProxyConfiguration.ipvs.scheduler: "fast": want rr`, ""},
		{"what gave way says what has no effect", "--proxy-mode=ipvs --ipvs-scheduler=rr", "", "iptables",
			" [0.0.0.0/0 ::/0] false 14 30s", "",
			"without effect in mode iptables: --ipvs-scheduler"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := testCase{args: strings.Fields(tc.args)}
			if tc.file != "" {
				c.file = file + tc.file + "\n"
			}
			cfg, err := complete(t, c)
			must(t, err)
			r, err := forMode(t, cfg, tc.mode)
			if tc.bad != "" {
				if err == nil || !strings.HasPrefix(err.Error(), tc.bad) || !errors.As(err, new(Problems)) {
					t.Errorf("error %v, want %s", err, tc.bad)
				}
				return
			}
			must(t, err)
			primary := ""
			if r.NodePorts.Primary {
				primary = "primary"
			}
			got := fmt.Sprintf("%s %v %t %d %s", primary, r.NodePorts.Prefixes, r.Tables.MasqueradeAll,
				r.Tables.MasqueradeBit, r.Tables.SyncPeriod)
			if got != tc.want || r.Mode.Name != tc.mode || r.NodePorts.Unset == strings.Contains(tc.args,
				"--nodeport-addresses") {
				t.Errorf("got %q, want %q; %+v", got, tc.want, r)
			}
			if !strings.HasPrefix(strings.Join(r.Warnings, "\n"), tc.say) || (tc.say == "") != (len(r.Warnings) == 0) {
				t.Errorf("warnings %q, want %q", r.Warnings, tc.say)
			}
		})
	}
}

// The user's names of fields: the source of the value.
func TestName(t *testing.T) {
	byFlag, err := complete(t, testCase{args: []string{"--cluster-cidr=10.0.0.0/8"}})
	must(t, err)
	byFile, err := complete(t, testCase{args: []string{"--hostname-override=x"},
		file: "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"})
	must(t, err)
	for field, want := range map[string][2]string{
		"clusterCIDR":         {"--cluster-cidr", "KubeProxyConfiguration.clusterCIDR"},
		"hostnameOverride":    {"--hostname-override", "--hostname-override"},
		"nftables.syncPeriod": {"--nftables-sync-period", "KubeProxyConfiguration.nftables.syncPeriod"},
	} {
		if got := [2]string{byFlag.Name(field), byFile.Name(field)}; got != want {
			t.Errorf("%s is known as %q, want %q", field, got, want)
		}
	}
}

// 1.7: each gate has the stage that component-base prints.
func TestGateStages(t *testing.T) {
	c, err := complete(t, testCase{args: []string{"--feature-gates=AllowServiceExternalIPs=false,SCTPSupport=true"}})
	must(t, err)
	stages := c.GateStages()
	for _, want := range []Gate{
		{"AllAlpha", "ALPHA", false}, {"AllBeta", "BETA", false}, {"AllowServiceExternalIPs", "DEPRECATED", false},
		{"NFTablesProxyMode", "", true}, {"NFTablesNetlink", "BETA", true}, {"LoggingAlphaOptions", "ALPHA", false},
	} {
		if !slices.Contains(stages, want) {
			t.Errorf("%+v is not in %+v", want, stages)
		}
	}
	if len(stages) != len(c.Gates) ||
		!slices.IsSortedFunc(stages, func(a, b Gate) int { return strings.Compare(a.Name, b.Name) }) ||
		slices.ContainsFunc(stages, func(g Gate) bool { return g.Name == "SCTPSupport" }) {
		t.Errorf("stages %+v, want those of today, sorted", stages)
	}
}

// The ids of this very machine, as far as it has some.
func TestIdentity(t *testing.T) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Skipf("this machine has no boot id: %v", err)
	}
	c, err := NewOptions(all.Modes()).Complete(nil)
	must(t, err)
	if c.BootID != strings.TrimSpace(string(boot)) {
		t.Errorf("boot id %q, want %q", c.BootID, boot)
	}
}
