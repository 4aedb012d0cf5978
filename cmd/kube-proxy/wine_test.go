//go:build linux

package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"kube-proxy/internal/wine"
)

// TestWindows proves what Wine can show of kube-proxy.exe; internal/wine says what it cannot.
func TestWindows(t *testing.T) {
	t.Parallel()
	exe := filepath.Join(t.TempDir(), "kube-proxy.exe")
	build := exec.Command("go", "build", "-buildvcs=false", "-trimpath", "-o", exe, ".") // what `make check` has compiled
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=windows", "GOARCH=amd64")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", build, err, out)
	}
	for name, test := range map[string]func(*windowsNode){
		"commands": windowsCommands,
	} {
		t.Run(name, func(t *testing.T) { test(&windowsNode{newNamespace(t), wine.New(t), exe}) })
	}
}

// windowsNode is a machine of Windows in a network namespace.
type windowsNode struct {
	*namespace
	machine *wine.Machine
	exe     string
}

// run runs kube-proxy.exe until it ends.
func (n *windowsNode) run(args ...string) (out, errOut string, code int) {
	n.t.Helper()
	return n.runProgram(n.exe, args...)
}

func (n *windowsNode) runProgram(name string, args ...string) (out, errOut string, code int) {
	n.t.Helper()
	var o, e bytes.Buffer
	c := n.machine.Command(name, args...)
	c.Stdout, c.Stderr = &o, &e
	var err error
	n.Do(func() { err = c.Start() })
	do(n.t, err)
	end := time.AfterFunc(patience, func() { c.Process.Kill() })
	defer end.Stop()
	_ = c.Wait() // its code tells
	return o.String(), e.String(), c.ProcessState.ExitCode()
}

// startExe starts kube-proxy.exe and leaves it running.
func (n *windowsNode) startExe(dir string, args ...string) *process {
	n.t.Helper()
	c := n.machine.Command(n.exe, args...)
	p := &process{t: n.t, cmd: c, done: make(chan struct{})}
	c.Dir, c.Stdout, c.Stderr = dir, &p.out, &p.out
	var err error
	n.Do(func() { err = c.Start() })
	do(n.t, err)
	go func() { c.Wait(); close(p.done) }()
	n.t.Cleanup(func() { c.Process.Kill(); <-p.done })
	return p
}

// What a program for Windows says, and writes, and with which exit codes (FL-01, FL-02, FL-05, FL-06, CF-19): under Wine.
func windowsCommands(n *windowsNode) {
	t := n.t
	dir := filepath.Join(t.TempDir(), "Program Files", "kube proxy")
	write(t, filepath.Join(dir, "crlf.yaml"), []byte(strings.ReplaceAll(
		"apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nclusterCIDR: 10.0.0.0/16\nwinkernel:\n  networkName: cbr0\n", "\n", "\r\n")))
	written := filepath.Join(dir, "written here.yaml")
	for _, tc := range []struct {
		name        string
		args        []string
		code        int
		out, errOut string // regular expressions
	}{
		{"version", []string{"--version"}, 0, `^Kubernetes v1\.\d+\.\d+\r?\n$`, `^$`},
		{"raw version", []string{"--version=raw"}, 0, `"platform": "windows/amd64"`, `^$`},
		{"help", []string{"--help"}, 0, `(?s)^Usage: kube-proxy \[flags\].*--windows-service`, `^$`},
		{"a flag that is none", []string{"--bad"}, 1, `^$`, `^kube-proxy: unknown flag: --bad\n`},
		{"two bad values", []string{"--bind-address=x", "--oom-score-adj=5000"}, 1, `^$`, `(?s)--bind-address: "x".*--oom-score-adj: "5000"`},
		{"a mode of Linux", []string{"--proxy-mode=nftables"}, 1, `^$`, `--proxy-mode: "nftables": this mode is for Linux: want `},
		{"a file that is not there", []string{"--config", `C:\none here\config.yaml`}, 1, `^$`, `C:\\none here\\config\.yaml`},
		{"the configuration written, from a file with CRLF, to a path with blanks",
			[]string{"--config", wine.Path(filepath.Join(dir, "crlf.yaml")), "--write-config-to", wine.Path(written)}, 0, `^$`, `(?s).*`},
		{"a service is not for a console", []string{"--windows-service", "--manifests", wine.Path(dir), "--hostname-override=n1"}, 1, `^$`,
			`--windows-service \(windowsRunAsService\) is for a process that the service control manager starts`},
		{"render a mode of Linux", []string{"render", "--proxy-mode=nftables", "--manifests", wine.Path(dir)}, 1, `^$`, `this mode is for Linux`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			out, errOut, code := n.run(tc.args...)
			if code != tc.code || !regexp.MustCompile(tc.out).MatchString(out) || !regexp.MustCompile(tc.errOut).MatchString(errOut) {
				t.Errorf("exit %d\nout: %s\nerr: %s\nwant exit %d, %s and %s", code, out, errOut, tc.code, tc.out, tc.errOut)
			}
		})
	}
	text, err := os.ReadFile(written)
	do(t, err)
	has(t, "--write-config-to", string(text), "clusterCIDR: 10.0.0.0/16", "networkName: cbr0")
}
