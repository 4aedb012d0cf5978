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

// hints are the kubelet's objects in iptables; no proxy may touch them (G3, DP-15).
const hints = "*mangle\n:KUBE-IPTABLES-HINT - [0:0]\n:KUBE-KUBELET-CANARY - [0:0]\nCOMMIT\n" +
	"*filter\n:KUBE-FIREWALL - [0:0]\n:MINE - [0:0]\n-A INPUT -j KUBE-FIREWALL\n-A MINE -s 192.0.2.9/32 -j DROP\n" +
	"COMMIT\n"

// rules are the chains and rules of both families and tables, and the tables of nftables that are
// not iptables'.
func (n *namespace) rules() string {
	n.t.Helper()
	var out strings.Builder
	for _, program := range []string{"iptables-save", "ip6tables-save"} {
		for line := range strings.Lines(n.command(program)) {
			if strings.HasPrefix(line, ":KUBE") || strings.HasPrefix(line, ":MINE") || strings.HasPrefix(line, "-A") {
				out.WriteString(counters.ReplaceAllString(line, ""))
			}
		}
	}
	for line := range strings.Lines(n.command("nft", "list", "tables")) {
		if strings.Contains(line, "kube-proxy") {
			out.WriteString(line)
		}
	}
	return out.String()
}

// others leaves out the chain that the kubelet and the proxy share, and the rules that jump to it:
// it stays, whichever made it.
func others(rules string) string {
	var out strings.Builder
	for line := range strings.Lines(rules) {
		if !strings.Contains(line, "KUBE-FIREWALL") {
			out.WriteString(line)
		}
	}
	return out.String()
}

var counters = regexp.MustCompile(` \[\d+:\d+\]`)

// The mode changes between two runs: the rules of the earlier mode are removed when the new ones
// work (PR-08), and --cleanup removes everything of all modes except the objects of the kubelet and
// others (DP-15).
func TestModeChangeAndCleanup(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.write("hints", []byte(hints))
	n.command("sh", "-c", "iptables-restore --noflush <"+n.path("hints"))
	before := n.rules()

	run := func(mode string, removed string) {
		t.Helper()
		args := usual(mode)
		p := n.start(args, withoutIPVS)
		p.await(allWritten)
		if removed != "" {
			p.await(regexp.MustCompile(removed))
		}
		p.stop()
	}
	has := func(what string, want bool) {
		t.Helper()
		if got := n.rules(); strings.Contains(got, what) != want {
			t.Errorf("%s: want %t in\n%s", what, want, got)
		}
	}
	run("nftables", "")
	has("table ip kube-proxy", true)
	run("iptables", `(?s)"Removed" what="the nftables table kube-proxy of IPv4.*"Removed" what="the nftables table `+
		`kube-proxy of IPv6`)
	has("kube-proxy\n", false)
	has("-A KUBE-SERVICES -d 10.96.0.1/32", true)
	run("nftables", `"Removed" .*iptables`)
	has("KUBE-SERVICES", false)
	has("table ip6 kube-proxy", true)
	run("ipvs", `mode="ipvs" instead="iptables" err="ipvs: connect to IPVS`)
	has("-A KUBE-SERVICES -d 10.96.0.1/32", true)
	for _, flags := range [][]string{{"--cleanup"}, {"--cleanup-iptables"}, {"--cleanup"}} {
		p := n.start(flags)
		if code := p.end(0); code != 0 {
			t.Errorf("%s: exit code %d\n%s", flags, code, p.log())
		}
	}
	if after := n.rules(); others(after) != others(before) || !strings.Contains(after, ":KUBE-FIREWALL") {
		t.Errorf("after --cleanup:\n%swant, beside the kubelet's KUBE-FIREWALL:\n%s", after, before)
	}
}

// PR-08, PN-20: objects of another mode are removed in the end, even if the first try fails, for
// example because others hold the lock of iptables.
func TestModeChangeAgain(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	args := func(mode string) []string { return usual(mode) }
	p := n.start(args("iptables"))
	p.await(allWritten)
	p.stop()
	locked := n.path("locked")
	write(t, locked, nil)
	for _, name := range []string{"iptables", "ip6tables"} {
		for _, does := range []string{"", "-save", "-restore"} {
			program := name + "-nft" + does
			real, err := exec.LookPath(program)
			do(t, err)
			write(t, n.path("bin", program), []byte("#!/bin/sh\n[ -e "+locked+
				" ] && { echo another program holds the lock >&2; exit 4; }\nexec "+real+" \"$@\"\n"))
			do(t, os.Chmod(n.path("bin", program), 0o755))
		}
	}
	p = n.start(args("nftables"), env("PATH="+n.path("bin")+":/usr/bin:/bin"))
	p.await(regexp.MustCompile(`E.*\] "Failed to remove all rules of another mode.*another program holds the lock`))
	do(t, os.Remove(locked))
	p.await(regexp.MustCompile(`"Removed" .* chains of iptables \(nft, IPv4\)"`))
	p.await(regexp.MustCompile(`"Removed" .* chains of iptables \(nft, IPv6\)"`))
	if rules := n.rules(); strings.Contains(rules, "KUBE-SERVICES") {
		t.Errorf("what is left:\n%s", rules)
	}
	p.stop()
	if times := strings.Count(p.log(), "Failed to remove all rules of another mode"); times != 1 {
		t.Errorf("%d reports of the failure:\n%s", times, p.log())
	}
}

// --cleanup beside a running proxy would cause a fight: it reports that, and removes nothing.
func TestCleanupBesideProxy(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.serve("nftables")
	p := n.start([]string{"--cleanup"})
	if code := p.end(0); code != 1 {
		t.Errorf("exit code %d\n%s", code, p.log())
	}
	if want := "kube-proxy: no rule was removed: another kube-proxy runs in this network namespace and would write " +
		"them again: stop it first"; !strings.Contains(p.log(), want) {
		t.Errorf("want %q in\n%s", want, p.log())
	}
	n.wantGood("after a refused cleanup")
}

// PR-09: --init-only makes the settings and ends; a later process finds them.
func TestInitOnly(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	read := func(name string) string {
		t.Helper()
		return strings.TrimSpace(n.command("cat", "/proc/sys/net/"+name))
	}
	p := n.start([]string{"--init-only", "--proxy-mode=iptables", "--conntrack-tcp-timeout-established=7h",
		"--conntrack-udp-timeout=41s"})
	if code := p.end(0); code != 0 {
		t.Errorf("exit code %d\n%s", code, p.log())
	}
	if want := "System initialized and --init-only specified"; !strings.Contains(p.log(), want) {
		t.Errorf("want %q in\n%s", want, p.log())
	}
	for name, want := range map[string]string{
		"netfilter/nf_conntrack_tcp_timeout_established": "25200", "netfilter/nf_conntrack_udp_timeout": "41",
		"ipv4/conf/all/route_localnet": "1",
	} {
		if got := read(name); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
	if rules := n.rules(); rules != "" {
		t.Errorf("rules were written:\n%s", rules)
	}
}

// PR-08, FL-03: --cleanup works with --config and all other flags of a manifest; none of them has
// an effect.
func TestCleanupWithConfig(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.write("config", []byte("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"+
		"mode: iptables\nclientConnection: {kubeconfig: /nowhere}\nmetricsBindAddress: 127.0.0.1:1\n"))
	for _, mode := range []string{"nftables", "iptables"} {
		p := n.serve(mode)
		p.stop()
		if rules := n.rules(); rules == "" {
			t.Errorf("mode %s: there are no rules", mode)
		}
		p = n.start([]string{"--config=config", "--cleanup", "--hostname-override=n1", "--cluster-cidr=10.0.0.0/8"})
		if code := p.end(0); code != 0 {
			t.Errorf("exit code %d:\n%s", code, p.log())
		}
		if rules := others(n.rules()); rules != "" {
			t.Errorf("after mode %s and --cleanup:\n%s\n%s", mode, rules, p.log())
		}
		for _, wrong := range []string{`"serving"`, "listens", "nowhere"} {
			if strings.Contains(p.log(), wrong) {
				t.Errorf("%q in\n%s", wrong, p.log())
			}
		}
		if errorLine.MatchString(p.log()) {
			t.Errorf("an error in\n%s", p.log())
		}
		if again := n.start([]string{"--config=config", "--cleanup"}); again.end(0) != 0 ||
			!strings.Contains(again.log(), "No kube-proxy rules found") {
			t.Errorf("the second --cleanup:\n%s", again.log())
		}
	}
}

// PR-09: after --init-only by root, a process that is not root and may do no more than
// CAP_NET_ADMIN serves.
func TestInitOnlyThenNetAdmin(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	for at := n.dir; at != os.TempDir() && at != "/"; at = filepath.Dir(at) {
		do(t, os.Chmod(at, 0o755))
	}
	n.write("m/good.yaml", good())
	settings := []string{"--proxy-mode=nftables", "--conntrack-tcp-timeout-established=7h",
		"--conntrack-udp-timeout=41s"}
	if p := n.start(append([]string{"--init-only"}, settings...)); p.end(0) != 0 {
		t.Fatal(p.log())
	}
	p := n.start(append(settings, usual("nftables")[1:]...), func(c *exec.Cmd) {
		here := n.path("kube-proxy") // where any user may run it
		do(t, os.Link(c.Path, here))
		c.Args = append([]string{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
			"--bounding-set=-all,+net_admin",
			"--inh-caps=-all,+net_admin", "--ambient-caps=-all,+net_admin", here}, c.Args[1:]...)
		path, err := exec.LookPath("setpriv")
		do(t, err)
		c.Path = path
	})
	n.code(healthURL+"/readyz", 200)
	n.wantGood("without privileges")
	p.stop()
	if errorLine.MatchString(p.log()) { // such as that it may not ask for eBPF programs
		t.Errorf("an error in\n%s", p.log())
	}
}
