//go:build linux

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// withoutIPVS has a process find a kernel without IPVS.
func withoutIPVS(c *exec.Cmd) { c.Env = append(c.Env, noIPVS+"=1") }

// withoutIPTables hides all programs from a process.
func withoutIPTables(c *exec.Cmd) { c.Env = append(c.Env, "PATH=/nowhere") }

// The choice of the mode on real hosts (package mode has the table of all of them; S0 to S3, G7):
// the running mode, the log (PR-01), and the metric.
func TestModeChoice(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, asked string
		host        func(*exec.Cmd)
		runs        string
		says        []string // of the log
		metric      string
	}{
		{"blank", "", nil, "iptables",
			[]string{`"The default mode will change" note="no mode is configured, so kube-proxy on node n1 uses ` +
				`iptables; the default of Kubernetes v1.40 will be nftables. Set mode to keep iptables"`},
			`kubeproxy_mode_info{asked="",mode="iptables",reason=""} 1`},
		{"blank without iptables", "", withoutIPTables, "nftables",
			[]string{`"Mode cannot run on this host" mode="iptables" instead="nftables" err="iptables: no usable ` +
				`iptables: `, `executable file not found in $PATH`},
			`kubeproxy_mode_info{asked="",mode="nftables",reason="mode iptables cannot run on this host, using ` +
				`nftables instead: iptables: no usable iptables: `},
		{"nftables", "nftables", withoutIPTables, "nftables", nil,
			`kubeproxy_mode_info{asked="nftables",mode="nftables",reason=""} 1`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			p := n.start(usual(c.asked), c.host)
			p.await(allWritten)
			has(t, "log", p.log(), c.says...)
			has(t, "/metrics", n.get(metricsURL+"/metrics").body, c.metric)
			if got := n.get(metricsURL + "/proxyMode").body; got != c.runs {
				t.Errorf("/proxyMode: %s, want %s", got, c.runs)
			}
			rules := n.rules()
			if tables, chains := strings.Contains(rules, "table ip kube-proxy"),
				strings.Contains(rules, "-A KUBE-SERVICES -d 10.96.0.1/32"); tables != (c.runs == "nftables") ||
				chains != (c.runs == "iptables") {
				t.Errorf("mode %s:\n%s", c.runs, rules)
			}
			p.stop()
		})
	}
}

// A host that cannot serve IPv6 in the mode logs that, and serves IPv4 (G6); if IPv6 is the primary
// family, the mode falls back (S1).
func TestFamilyThatCannotBeServed(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	bin := n.path("bin")
	do(t, os.Mkdir(bin, 0o755))
	for _, name := range []string{"iptables-nft", "iptables-nft-save", "iptables-nft-restore"} {
		found, err := exec.LookPath(name)
		do(t, err)
		do(t, os.Symlink(found, filepath.Join(bin, name)))
	}
	args := usual("iptables")
	onlyIPv4 := env("PATH=" + bin)
	p := n.start(append(args, "--bind-address=2001:db8::1"), onlyIPv4)
	p.await(regexp.MustCompile(`"Compared and wrote all frontends" family="IPv6"`))
	has(t, "log", p.log(), `instead="userspace"`, "no usable ip6tables", `stack="dual-stack" primary="IPv6"`)
	if rules := n.rules(); strings.Contains(rules, "KUBE-SERVICES") {
		t.Errorf("with IPv6 first there are rules of mode iptables:\n%s", rules)
	}
	p.stop()
	p = n.start(args, onlyIPv4)
	p.await(regexp.MustCompile(`"Compared and wrote all frontends" family="IPv4"`))
	has(t, "log", p.log(), `"Not serving the secondary IP family" family="IPv6"`, "no usable ip6tables",
		`stack="single-stack" primary="IPv4"`)
	if rules := n.rules(); !strings.Contains(rules, "-A KUBE-SERVICES -d 10.96.0.1/32") ||
		strings.Contains(rules, "-A KUBE-SERVICES -d fd") {
		t.Errorf("want rules for IPv4 alone:\n%s", rules)
	}
	p.stop()
}

// DP-14: the rules go to the legacy tables if the kubelet's hint is there, or if the kernel has no
// nf_tables.
func TestModeLegacy(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		hint bool
		host func(*exec.Cmd)
	}{
		"hint":         {true, nil},
		"no nf_tables": {false, env(noNetfilter + "=1")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			if c.hint {
				n.write("hints", []byte(hints))
				n.command("sh", "-c", "iptables-legacy-restore --noflush <"+n.path("hints"))
			}
			p := n.start(usual(""), c.host)
			p.await(allWritten)
			has(t, "iptables-legacy-save", n.command("iptables-legacy-save"), "-A KUBE-SERVICES -d 10.96.0.1/32")
			if out := n.command("iptables-nft-save"); strings.Contains(out, "KUBE-SERVICES") {
				t.Errorf("iptables-nft-save:\n%s", out)
			}
			p.stop()
		})
	}
}
