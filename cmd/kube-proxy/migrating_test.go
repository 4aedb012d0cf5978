//go:build linux

package main

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Every command of docs/migrating.md marked sh runs, in the order of the page, in a namespace, in a
// folder with the files that other programs make on the page. None prints an error, and each exits
// with 0, except check, which exits with its finding.
func TestMigratingPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/migrating.md")
	do(t, err)
	n := newNamespace(t)
	for name, from := range map[string][]string{"proxy.yaml": {"configmap.yaml", "daemonset.yaml"}} {
		var text []byte
		for _, f := range from {
			data, err := os.ReadFile("../../test/testdata/kubeadm/" + f)
			do(t, err)
			text = append(append(text, data...), '\n')
		}
		write(t, n.path(name), text)
	}
	n.write("cilium-config.yaml", []byte("kind: ConfigMap\nmetadata: {name: cilium-config, namespace: kube-system}\n"+
		"data: {kube-proxy-replacement: \"true\", cluster-pool-ipv4-cidr: 10.0.0.0/8, bpf-lb-mode: dsr}\n"))
	n.write("kube-proxy.service", []byte("[Service]\nEnvironmentFile=/etc/kubernetes/proxy\n"+
		"ExecStart=/usr/bin/kube-proxy $KUBE_PROXY_ARGS\n"))
	n.write("environment", []byte("KUBE_PROXY_ARGS=\"--proxy-mode=iptables \\\n  --cluster-cidr=10.244.0.0/16\"\n"))
	n.write("manifests/web.yaml", good())
	n.write("bin/kube-proxy", fmt.Appendf(nil, "#!/bin/sh\n%s=1 exec %s \"$@\"\n", asProgram, self(t)))
	do(t, os.Chmod(n.path("bin/kube-proxy"), 0o755))
	commands := 0
	for _, block := range regexp.MustCompile("(?ms)^ *```sh\n(.*?)^ *```").FindAllStringSubmatch(string(page), -1) {
		for line := range strings.Lines(block[1]) {
			line = strings.TrimSpace(line)
			if line == "" {
				continue
			}
			commands++
			var out []byte
			var err error
			cmd := exec.Command("sh", "-c", line)
			cmd.Dir, cmd.Env = n.dir, append(os.Environ(), "PATH="+n.dir+"/bin:"+os.Getenv("PATH"))
			n.Do(func() { out, err = cmd.CombinedOutput() })
			may := []int{0}
			if strings.HasPrefix(line, "kube-proxy check") {
				may = []int{0, 2, 3}
			}
			if !slices.Contains(may, cmd.ProcessState.ExitCode()) || complains(string(out)) {
				t.Errorf("%s: %v\n%s", line, err, out)
			}
		}
	}
	if commands < 8 {
		t.Errorf("the page has %d commands that can be run", commands)
	}
	for _, name := range []string{"config.yaml", "migration.json", "node-1.json"} {
		if data, err := os.ReadFile(n.path(name)); err != nil || len(data) == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// complains reports whether the program reports a fault, other than the warnings on the page.
func complains(out string) bool {
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, "kube-proxy: ") &&
			!strings.Contains(line, "warning: clientConnection.kubeconfig is ignored because --manifests is given") {
			return true
		}
	}
	return false
}
