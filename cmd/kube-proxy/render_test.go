//go:build linux

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"kube-proxy/test/golden"
)

// renderText has the program render a folder.
func renderText(t *testing.T, args ...string) string {
	t.Helper()
	code, out, errOut := inProcess(t, append([]string{"render"}, args...)...)
	if code != 0 || errOut != "" {
		t.Fatalf("%v: exit code %d\n%s", args, code, errOut)
	}
	return out
}

var renderArgs = []string{"--manifests=testdata/render/m", "--hostname-override=n1",
	"--cluster-cidr=10.0.0.0/16,fd00::/48", "--nodeport-addresses=primary"}

// Goldens of "kube-proxy render" for each mode; the tools must accept its output unchanged.
func TestRender(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	for _, mode := range []string{"iptables", "nftables", "ipvs"} {
		text := renderText(t, append([]string{"--proxy-mode=" + mode}, renderArgs...)...)
		golden.Equal(t, "testdata/render/"+mode+".golden", text)
		// The same again, and from a configuration file.
		file := filepath.Join(t.TempDir(), "config")
		write(t, file, []byte("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: "+mode+
			"\nclusterCIDR: 10.0.0.0/16,fd00::/48\nnodePortAddresses: [primary]\nhostnameOverride: n1\n"))
		if again := renderText(t, "--config="+file, renderArgs[0]); again != text {
			t.Errorf("%s: with a file:\n%s", mode, again)
		}
	}
	if text := renderText(t, renderArgs...); !strings.HasPrefix(text, "# iptables-restore --noflush\n") {
		t.Errorf("a blank mode rendered\n%s", text)
	}

	nft := filepath.Join(t.TempDir(), "nft")
	write(t, nft, []byte(renderText(t, append([]string{"--proxy-mode=nftables"}, renderArgs...)...)))
	n.command("nft", "-c", "-f", nft)
	n.command("nft", "-f", nft)
	has(t, "nft", n.command("nft", "list", "tables"), "table ip kube-proxy\n", "table ip6 kube-proxy\n")

	text := renderText(t, append([]string{"--proxy-mode=iptables"}, renderArgs...)...)
	v4, v6, both := strings.Cut(text, "# ip6tables-restore --noflush\n")
	if !both {
		t.Fatalf("no IPv6 in\n%s", text)
	}
	for _, backend := range []string{"nft", "legacy"} {
		for program, text := range map[string]string{"iptables": v4, "ip6tables": v6} {
			file := filepath.Join(t.TempDir(), "rules")
			write(t, file, []byte(text))
			program += "-" + backend
			n.command(program+"-restore", "--noflush", "--test", file)
			if listed := n.command(program + "-save"); strings.Contains(listed, "KUBE-") {
				t.Errorf("%s-restore --test wrote\n%s", program, listed)
			}
			n.command(program+"-restore", "--noflush", file)
			if want, got := strings.Count(text, "\n-A "), strings.Count(n.command(program+"-save"),
				"\n-A "); got < want || want < 10 {
				t.Errorf("%s has %d rules, want %d", program, got, want)
			}
		}
	}
}

// All faults are reported on stderr; the rest is rendered as it would be served, the exit code is
// 1, and no privilege is needed.
func TestRenderProblems(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	for at := n.dir; at != os.TempDir() && at != "/"; at = filepath.Dir(at) {
		do(t, os.Chmod(at, 0o755))
	}
	n.write("m/bad.yaml", []byte("kind: Service\nmetadata: {name: bad\n"))
	n.write("m/clash.yaml", service("later", "10.96.0.1", 80, "10.0.0.9"))
	n.write("m/good.yaml", good())
	n.write("m/special.yaml", []byte("kind: Service\nmetadata: {name: special, namespace: shop}\n"+
		"spec: {clusterIP: 10.96.0.77, externalIPs: [127.0.0.77], ports: [{port: 80}]}\n"))
	n.write("m/wrong.yaml", []byte("kind: Service\nmetadata: {name: wrong, namespace: shop}\n"+
		"spec: {clusterIP: 10.96.0.300, ports: [{port: 80}]}\n"))
	for _, mode := range []string{"iptables", "nftables", "ipvs"} {
		p := n.start([]string{"render", "--manifests=m", "--hostname-override=n1", "--proxy-mode=" + mode},
			func(c *exec.Cmd) {
				c.Env = append(c.Env, asUser+"=65534")
			})
		if code := p.end(0); code != 1 {
			t.Errorf("%s: exit code %d", mode, code)
		}
		has(t, mode, p.log(), "bad.yaml:", "wrong.yaml:", "10.96.0.300", "10.96.0.1", "10.0.0.1",
			"kube-proxy: some objects could not be rendered, see above\n",
			"10.96.0.1:80/tcp belongs to shop/good, not to shop/later")
		if reported :=
			"Service shop/special: not served: spec.externalIPs 127.0.0.77 is a loopback address\n"; !strings.Contains(
			p.log(), reported) || strings.Contains(strings.Replace(p.log(), reported, "", 1), "127.0.0.77") {
			t.Errorf("%s: want no rule for 127.0.0.77, and %q:\n%s", mode, reported, p.log())
		}
		if strings.Contains(p.log(), "10.0.0.9") {
			t.Errorf("%s: the loser of a conflict is rendered:\n%s", mode, p.log())
		}
	}
	for args, want := range map[string]string{
		"render": "kube-proxy: --manifests: \"\": want the folder of objects to render",
		// TN-86
		"render --manifests=nowhere": "kube-proxy: --manifests nowhere: read the folder: no such file or directory\n",
		"render --manifests=m --proxy-mode=userspace": "mode userspace cannot be rendered: its rules redirect to " +
			"ports of a running proxy",
		"render --manifests=m -v=x --nonsense":      "kube-proxy: --v: \"x\"",
		"render --manifests=m more":                 "does not take any arguments",
		"render --manifests=m --proxy-mode=magic":   "--proxy-mode: \"magic\"",
		"render --manifests=m --cluster-cidr=1/1/1": "--cluster-cidr: \"1/1/1\"",
	} {
		p := n.start(strings.Fields(args))
		if code := p.end(0); code != 1 || !strings.Contains(p.log(), want) {
			t.Errorf("%s: exit code %d, want 1 and %q:\n%s", args, code, want, p.log())
		}
	}
	p := n.start([]string{"render", "--help"})
	if code := p.end(0); code != 0 || !strings.HasPrefix(p.log(), "Usage: kube-proxy render ") {
		t.Errorf("--help: exit code %d\n%s", code, p.log())
	}
}
