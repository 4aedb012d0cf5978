//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"kube-proxy/cli/selftest"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane/all"
)

// selftestProgram is a script that does something before and after this program, which it starts by
// "$@"; $dir is the lab's folder.
func selftestProgram(t *testing.T, script string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "program")
	text := "#!/bin/sh\nexport " + asProgram + "=1\nset -- " + self(t) +
		" \"$@\"\nfor a; do case $a in --manifests=*) dir=${a#--manifests=};; esac; done\n" + script + "\n"
	do(t, os.WriteFile(name, []byte(text), 0o755))
	t.Cleanup(func() { // a killed script cannot stop its children
		left, _ := os.ReadFile(name + ".left")
		for _, pid := range strings.Fields(string(left)) {
			_ = exec.Command("kill", "-9", pid).Run() // it may have ended
		}
	})
	return name
}

// selftestLines runs the self-test of a mode, and returns its lines.
func selftestLines(t *testing.T, name string, timeout time.Duration, program string) (lines []selftest.Line, ok bool) {
	t.Helper()
	m, _ := all.Modes().Find(name)
	ok = selftest.Run(t.Context(), selftest.Config{Mode: name, Configured: name, Terminates: m.Terminates,
		Sizes: []int{10, 100}, Timeout: timeout, Program: program}, func(l selftest.Line) { lines = append(lines, l) })
	return lines, ok
}

// named are the names of the lines with a result.
func withResult(lines []selftest.Line, result string) (names []string) {
	for _, l := range lines {
		if l.Result == result {
			names = append(names, l.Name)
		}
	}
	return names
}

// On Linux each mode passes its self-test in network namespaces: all steps except those of HNS, and
// those that need packets to pass the kernel in mode userspace (WN-03).
func TestSelftest(t *testing.T) {
	t.Parallel()
	for _, m := range all.Modes() {
		if !m.Here() || !m.Built() {
			continue
		}
		// The pins of mode ebpf belong to the machine, not to a namespace: proxies in other modes,
		// which run beside this test, remove them. plane/ebpf has its own file system and tests the
		// mode.
		if m.Name == "ebpf" {
			continue
		}
		t.Run(m.Name, func(t *testing.T) {
			t.Parallel()
			if err := m.Able(mode.Settings{Family: lb.IPv4}); err != nil {
				_, ok := selftestLines(t, "", time.Second, "/none") // the result for a mode that cannot run
				if ok {
					t.Errorf("it passes, and %v", err)
				}
				return
			}
			var lines []selftest.Line
			ok := true
			if m.Name == "nftables" { // as users run it
				code, out, errOut := newNamespace(t).kubeProxy("selftest", "--proxy-mode=nftables", "-o", "json")
				for d := json.NewDecoder(strings.NewReader(out)); d.More(); {
					lines = append(lines, selftest.Line{})
					do(t, d.Decode(&lines[len(lines)-1]))
				}
				if code != 0 {
					t.Errorf("exit %d: %s", code, errOut)
				}
			} else {
				lines, ok = selftestLines(t, m.Name, timeout, selftestProgram(t, `exec "$@"`))
			}
			skipped := []string{"step", "step"}
			if m.Terminates {
				skipped = append(skipped, "client-address", "undisturbed")
			}
			if got := withResult(lines, selftest.Skipped); !ok || !slices.Equal(got, skipped) || len(lines) < 25 {
				t.Errorf("passed %t, skipped %v of %d; %s", ok, got, len(lines), printed(lines))
			}
			for i := range selftest.Titles {
				if !slices.ContainsFunc(lines, func(l selftest.Line) bool { return l.Step == i+1 }) {
					t.Errorf("step %d has no line", i+1)
				}
			}
		})
	}
}

func printed(lines []selftest.Line) string {
	var b strings.Builder
	for _, l := range lines {
		fmt.Fprintf(&b, "%+v\n", l)
	}
	return b.String()
}

// Each claim fails where it does not hold: a proxy that does something else is found out (WN-03).
func TestSelftestFails(t *testing.T) {
	t.Parallel()
	const altered = `sed -i -e 's/10.96.0.1\([17]\)/10.96.9.1\1/; s/ClientIP/None/; ` +
		`s/10.96.0.16/&, sessionAffinity: ClientIP/' $dir/all.yaml; exec "$@"`
	again := func(script string) string {
		return `if [ -e $dir/ran ]; then ` + script + `; fi; touch $dir/ran; exec "$@"`
	}
	for name, c := range map[string]struct {
		script string
		failed []string // of those lines; others may fail too
	}{
		"ends at once":    {`exit 7`, []string{"created"}},
		"does not answer": {`exec sleep 60`, []string{"created"}},
		"ignores changes": {`mkdir $dir/copy; cp $dir/*.yaml $dir/copy; exec "$@" --manifests=$dir/copy`,
			[]string{"modified"}},
		"no more Services": {`mkdir $dir/many.yaml; exec "$@"`, []string{"served/10", "many-deleted"}},
		"other Services": {altered, []string{"pod-local", "host-local", "hairpin", "affinity", "balanced",
			"open-connection", "before"}},
		"other endpoints": {`sed -i 's/10.1.2.14\|172.18.0.3/10.1.1.12/' $dir/all.yaml; exec "$@"`,
			[]string{"pod-remote", "host-remote", "pod-node", "host-node", "node-port"}},
		"policy Cluster": {`sed -i 's/Policy: Local/Policy: Cluster/' $dir/all.yaml; exec "$@"`,
			[]string{"client-address"}},
		"no second start": {again(`exit 7`), []string{"crash"}},
		"cleans up first": {again(`"$1" --cleanup --hostname-override=node1; sleep 3`), []string{"undisturbed"}},
		"ends badly": {`"$@" & p=$!; echo $p >>$0.left; trap "kill $p; wait $p; exit 3" TERM; trap "kill -HUP ` +
			`$p" HUP; while kill -0 $p; do wait $p; done; exit 4`, []string{"stop"}},
		"stops following": {again(`mkdir $dir/copy; cp $dir/*.yaml $dir/copy; set -- "$@" --manifests=$dir/copy`),
			[]string{"parameter-change"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lines, ok := selftestLines(t, "nftables", 3*time.Second, selftestProgram(t, c.script))
			got := withResult(lines, selftest.Failed)
			for _, want := range c.failed {
				if ok || !slices.Contains(got, want) {
					t.Errorf("%s does not fail, but %v:\n%s", want, got, printed(lines))
					return
				}
			}
		})
	}
}

// The command prints a text, and its exit code reports failures. TestSelftest reads its transcript.
func TestSelftestCommand(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	code, out, _ := n.kubeProxyAs([]string{noNetfilter + "=1"}, "selftest", "--proxy-mode=nftables")
	if code != 2 || !strings.Contains(out, "  failed   ") {
		t.Errorf("without netfilter: exit %d:\n%s", code, out)
	}
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{"selftest --help", 0, "--disruptive"},
		{"selftest -o yaml", 1, "want text or json"},
		{"selftest --disruptve", 1, "unknown flag: --disruptve: did you mean --disruptive?"},
		{"selftest --proxi-mode=nftables", 1, "did you mean --proxy-mode?"},
		{"selftest --echo=pod1", 1, "want an IPv4 address and a port"},
		{"selftest --proxy-mode=kernelspace", 1, "this mode is for Windows"},
	} {
		code, out, errOut := n.kubeProxy(strings.Fields(c.args)...)
		if code != c.code || !strings.Contains(out+errOut, c.says) {
			t.Errorf("kube-proxy %s: exit %d, want %d and %q:\n%s%s", c.args, code, c.code, c.says, out, errOut)
		}
	}
}
