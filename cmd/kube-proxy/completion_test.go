//go:build linux

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A shell completes each argument: Services, by full and, if unique, by bare name; their ports; the
// values of flags; nothing where no value is known; and only existing commands.
func TestCompletionByPlace(t *testing.T) {
	folder := "--manifests=testdata/ask/m"
	services := func(more ...string) []string {
		names := []string{"shop/empty", "shop/headless", "shop/thief", "shop/web"}
		for n := range 12 {
			names = append(names, "team-"+string([]byte{'0' + byte(n/10), '0' + byte(n%10)})+"/same")
		}
		return append(names, more...)
	}
	for _, c := range []struct {
		typed string // words up to the incomplete one
		want  []string
	}{
		{"|", []string{"backends", "check", "completion", "connect", "diff", "events", "migrate", "probe", "render",
			"report",
			"selftest", "status", "table", "top", "trace", "ui", "why"}},
		{"no|", nil},
		{"completion|", []string{"completion"}},
		{"completion |", []string{"bash", "fish", "zsh"}},
		{"why |", services()},
		{"why shop/w|", []string{"shop/web"}},
		{"why web|", []string{"web"}},
		{"why we|", []string{"web"}},
		{"why shop|", []string{"shop/empty", "shop/headless", "shop/thief", "shop/web"}},
		{"why same|", nil}, // twelve have the name, so it is ambiguous
		{"why shop/web:|", []string{"shop/web:http"}},
		{"why web:h|", []string{"web:http"}},
		{"why shop/web:x|", nil},
		{"why shop/absent:|", nil},
		{"why shop/web |", nil},
		{"diff |", nil},
		{"trace |", []string{"node", "pod/"}},
		{"trace n|", []string{"node"}},
		{"trace shop|", nil},
		{"trace --from pod |", nil},
		{"trace --from pod shop/web-1 shop/w|", []string{"shop/web"}},
		{"trace --from |", []string{"node", "pod"}},
		{"trace --from=|", []string{"node", "pod"}},
		{"trace --from 10.1.1.13 |", services("nodeport:")},
		{"trace --from 10.1.1.13 shop/web |", nil},
		{"trace node |", services("nodeport:")},
		{"trace node nodep|", []string{"nodeport:"}},
		{"trace node nodeport:3|", nil},
		{"trace node shop/web:|", []string{"shop/web:http"}},
		{"trace node shop/web |", nil},
		{"top -o |", []string{"json", "wide", "yaml"}},
		{"check -o |", []string{"json", "text"}},
		{"migrate --output |", []string{"json", "text"}},
		{"migrate --to |", []string{"ebpf", "iptables", "ipvs", "nftables", "userspace"}},
		{"--proxy-mode |", []string{"ebpf", "iptables", "ipvs", "nftables", "userspace"}},
		{"render --proxy-mode |", []string{"ebpf", "iptables", "ipvs", "nftables", "userspace"}},
		{"why --proxy-mode |", []string{"ebpf", "iptables", "ipvs", "nftables", "userspace"}},
	} {
		line := strings.Split(strings.TrimSuffix(c.typed, "|"), " ")
		args := []string{"__completeNoDesc"}
		if strings.Contains("why trace diff", line[0]) && line[0] != "" {
			args = append(args, line[0], folder)
			args = append(args, line[1:]...)
		} else {
			args = append(args, line...)
		}
		code, out, errOut := inProcess(t, args...)
		if code != 0 {
			t.Errorf("%s: %s", c.typed, errOut)
		}
		lines := strings.Split(strings.TrimSpace(out), "\n")
		got := slices.Sorted(slices.Values(lines[:len(lines)-1])) // the last one is the directive
		if !slices.Equal(got, slices.Sorted(slices.Values(c.want))) {
			t.Errorf("%s: completions %q, want %q", c.typed, got, c.want)
		}
	}
}

// A real bash completes the same, with the functions of the package bash-completion if present, and
// else with the two that the script needs of it.
func TestCompletionInBash(t *testing.T) {
	bin := t.TempDir()
	do(t, os.Symlink(self(t), filepath.Join(bin, "kube-proxy")))
	m, err := filepath.Abs("testdata/ask/m")
	do(t, err)
	cmd := exec.Command("bash", "--norc", "--noprofile", "testdata/completion.bash", m)
	cmd.Env = append(os.Environ(), asProgram+"=1", "PATH="+bin+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	do(t, err)
	want := `kube-proxy tr| trace
kube-proxy no|
kube-proxy why --manifests M shop/w| shop/web
kube-proxy why --manifests=M shop/w| shop/web
kube-proxy why --manifests M we| web
kube-proxy why --manifests M shop/web:| http
kube-proxy trace --manifests M node shop/t| shop/thief
kube-proxy trace --manifests M n| node
kube-proxy top -o | json wide yaml
kube-proxy migrate --to=ip| iptables ipvs
`
	if got := strings.ReplaceAll(string(out), m, "M"); got != want {
		t.Errorf("a TAB at | offers\n%s\nwant\n%s", got, want)
	}
}
