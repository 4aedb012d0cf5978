//go:build linux

package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// configured starts the program with a configuration file, and waits until it has written all
// rules.
func (n *namespace) configured(file string) *process {
	n.t.Helper()
	n.write("m/good.yaml", good())
	p := n.start([]string{"--config=" + file, "--hostname-override=n1", "--manifests=m"})
	p.await(allWritten)
	return p
}

func nftablesFile(more string) []byte {
	return []byte("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables\n" + more)
}

// eventually waits until the output of the command in the namespace has the text.
func (n *namespace) eventually(text string, command ...string) {
	n.t.Helper()
	n.settles(text, true, command...)
}

// without waits until it does not have it.
func (n *namespace) without(text string, command ...string) {
	n.t.Helper()
	n.settles(text, false, command...)
}

func (n *namespace) settles(text string, want bool, command ...string) {
	n.t.Helper()
	until(n.t, func() string {
		if out := n.command(command...); strings.Contains(out, text) != want {
			return fmt.Sprintf("%s: %q in it is %v, want %v:\n%s", strings.Join(command, " "), text, !want, want, out)
		}
		return ""
	})
}

// PR-04: live settings take effect, and the process stays; an invalid file changes nothing.
func TestReload(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	file := n.path("config.yaml")
	write(t, file, nftablesFile("clusterCIDR: 10.1.0.0/16\n"))
	p := n.configured(file)
	list := []string{"nft", "list", "table", "ip", "kube-proxy"}
	n.eventually("10.1.0.0/16", list...)

	write(t, file, nftablesFile("clusterCIDR: 10.2.0.0/16\nlogging: {verbosity: 2}\n"))
	p.await(regexp.MustCompile(`"Applied the changed configuration" file=\S+ fields="(?:logging.verbosity ` +
		`clusterCIDR|clusterCIDR logging.verbosity)"`))
	n.eventually("10.2.0.0/16", list...)
	p.await(regexp.MustCompile(`"Wrote rules" .*verb="setnode"`)) // the verbosity counts at once

	// A change of a field that a flag overrides, or of a comment, is logged, so that the user sees
	// that it was noticed.
	write(t, file, nftablesFile("clusterCIDR: 10.2.0.0/16\nlogging: {verbosity: 2}\nhostnameOverride: n2\n"))
	p.await(regexp.MustCompile(`"Reloaded the configuration; nothing changed"`))

	write(t, file, nftablesFile("clusterCIDR: 10.3.0.0/99\nnodePortAddresses: [nonsense]\n"))
	p.await(regexp.MustCompile(`E.*\] "Invalid configuration file; keeping the previous settings" file=.* ` +
		`err=.*10.3.0.0/99.*nonsense`))
	if out := n.command(list...); !strings.Contains(out, "10.2.0.0/16") {
		t.Errorf("after an invalid file:\n%s", out)
	}
	again := `(?s)(?:Invalid configuration file.*"Configuration file is valid again; nothing to change" file=.*){%d}`
	write(t, file, nftablesFile("clusterCIDR: 10.2.0.0/16\nlogging: {verbosity: 2}\n"))
	p.await(regexp.MustCompile(fmt.Sprintf(again, 1)))

	do(t, os.Remove(file))
	p.await(regexp.MustCompile(`Invalid configuration file.*read the configuration file: .*no such file`))
	write(t, file, nftablesFile("clusterCIDR: 10.2.0.0/16\nlogging: {verbosity: 2}\n"))
	p.await(regexp.MustCompile(fmt.Sprintf(again, 2)))
	do(t, os.Remove(file))
	write(t, file, nftablesFile("clusterCIDR: 10.4.0.0/16\n"))
	n.eventually("10.4.0.0/16", list...)

	do(t, p.cmd.Process.Signal(syscall.SIGHUP))
	p.await(regexp.MustCompile(`(?s)(?:Reloaded the configuration; nothing changed.*){2}`))

	write(t, file, []byte(strings.Replace(string(nftablesFile("clusterCIDR: 10.4.0.0/16\n")), "mode: nftables",
		"mode: iptables", 1)))
	if code := p.end(0); code != 1 {
		t.Errorf("exit code %d after a change of the mode, want 1", code)
	}
	if want := "kube-proxy: the content of the configuration file " + file +
		" was updated, and a change of mode takes effect in a new process only"; !strings.Contains(p.log(), want) {
		t.Errorf("want %q in:\n%s", want, p.log())
	}
	n.wantGood("after the end")
}

// SV-13: the served external IPs change live, and the resulting refusals are logged once for each
// time.
func TestReloadExternalIPCIDRs(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	file := n.path("config.yaml")
	n.write("m/external.yaml", []byte("kind: Service\nmetadata: {name: external, namespace: shop}\n"+
		"spec: {clusterIP: 10.96.7.7, externalIPs: [192.0.2.7, 198.51.100.7], ports: [{port: 80}]}\n"))
	write(t, file, nftablesFile(""))
	p := n.configured(file)
	list := []string{"nft", "list", "table", "ip", "kube-proxy"}
	n.eventually("198.51.100.7", list...)
	refused := "not served: spec.externalIPs 198.51.100.7 is in none of the external networks that are served\" " +
		"service=\"shop/external\" family=\"IPv4\""
	for i := range 2 {
		write(t, file, nftablesFile("externalIPCIDRs: [192.0.2.0/24]\n"))
		p.await(regexp.MustCompile(fmt.Sprintf(`(?s)(?:%s.*){%d}`, regexp.QuoteMeta(refused), i+1)))
		n.without("198.51.100.7", list...)
		if out := n.command(list...); !strings.Contains(out, "192.0.2.7") {
			t.Errorf("what the list allows went, too:\n%s", out)
		}
		write(t, file, nftablesFile("externalIPCIDRs: []\n"))
		n.eventually("198.51.100.7", list...)
	}
	p.stop()
	if got := strings.Count(p.log(), refused); got != 2 {
		t.Errorf("reported %d times, want 2:\n%s", got, p.log())
	}
}

// PR-10: a setting of the host that cannot be made is not reported as in force; all others are.
func TestReloadHostRefuses(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	file := n.path("config.yaml")
	write(t, file, nftablesFile("conntrack: {maxPerCore: 0}\n"))
	p := n.configured(file)
	// The size of the table belongs to the initial network namespace.
	write(t, file, nftablesFile("conntrack: {maxPerCore: 1, min: 2000000000, udpTimeout: 77s}\n"))
	p.await(regexp.MustCompile(`E.*\] "Applied a part of the changed configuration" file=\S+ ` +
		`fields="conntrack.maxPerCore conntrack.min conntrack.udpTimeout" err=.*nf_conntrack_max.*conntrack.min`))
	n.eventually("77", "sysctl", "-n", "net.netfilter.nf_conntrack_udp_timeout")
	p.stop()
	if strings.Contains(p.log(), `"Applied the changed configuration" `) {
		t.Errorf("a setting that could not be made is said to be in force:\n%s", p.log())
	}
}

// PR-07: SIGHUP without a configuration file has no effect.
func TestHangup(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	p := n.serve("nftables")
	do(t, p.cmd.Process.Signal(syscall.SIGHUP))
	p.await(regexp.MustCompile("Received SIGHUP, but there is no configuration file"))
	p.stop()
}

// A file that names the mode which a blank one has chosen changes nothing.
func TestReloadNamesMode(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	file := n.path("config.yaml")
	blank := strings.Replace(string(nftablesFile("")), "mode: nftables\n", "", 1)
	write(t, file, []byte(blank))
	p := n.configured(file)
	write(t, file, []byte(blank+"mode: iptables\n"))
	p.await(regexp.MustCompile(`"Applied the changed configuration" file=\S+ fields="mode"`))
	write(t, file, []byte(blank+"mode: nftables\n"))
	if code := p.end(0); code != 1 {
		t.Errorf("exit code %d after a change of the mode, want 1", code)
	}
}
