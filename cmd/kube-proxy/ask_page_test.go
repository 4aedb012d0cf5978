//go:build linux

package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"kube-proxy/test/golden"
)

const askPage = "docs/ask.md" // from the root

// console matches a block of docs/ask.md that starts with commands: for a folder, or for a running
// proxy.
var console = regexp.MustCompile("(?ms)^```console( running)?\n(.*?)^```\n")

// page compares the blocks of docs/ask.md with the output of run for their commands. In blocks of a
// running proxy, numbers and the order of lines do not count.
func page(t *testing.T, running bool, run func(args []string) string) {
	t.Helper()
	text, err := os.ReadFile(askPage)
	do(t, err)
	blocks := 0
	is := console.ReplaceAllStringFunc(string(text), func(block string) string {
		parts := console.FindStringSubmatch(block)
		if (parts[1] != "") != running {
			return block
		}
		blocks++
		var out strings.Builder
		for line := range strings.Lines(parts[2]) {
			command, ok := strings.CutPrefix(line, "$ kube-proxy ")
			if !ok {
				continue
			}
			if out.Len() > 0 {
				out.WriteString("\n")
			}
			out.WriteString(line + run(strings.Fields(command)))
		}
		if running && alike(out.String()) == alike(parts[2]) || out.String() == parts[2] {
			return block
		}
		if !*golden.Update {
			t.Errorf("docs/ask.md has\n%s\nand it is\n%s", parts[2], out.String())
		}
		return "```console" + parts[1] + "\n" + out.String() + "```\n"
	})
	if blocks < 2 {
		t.Errorf("docs/ask.md has %d such blocks", blocks)
	}
	if *golden.Update {
		do(t, os.WriteFile(askPage, []byte(is), 0o644))
	}
}

var numbers = regexp.MustCompile(`\b(0x)?[0-9a-f]*[0-9][0-9a-f]*\b| +|[0-9.]+m?s`)

// alike returns a text without the parts that differ between runs.
func alike(s string) string {
	lines := strings.Split(numbers.ReplaceAllString(s, " # "), "\n")
	slices.Sort(lines)
	return strings.Join(slices.Compact(lines), "\n")
}

// shopNote is the commands' note on stderr for docs/examples/shop without --hostname-override.
const shopNote = "kube-proxy: note: answering for node node1, the only one in the folder\n"

// docs/ask.md shows the output of the commands for docs/examples/shop; -update writes it.
func TestAskPage(t *testing.T) {
	t.Chdir("../..")
	page(t, false, func(args []string) string {
		_, out, errOut := inProcess(t, args...)
		if errOut != shopNote {
			t.Errorf("%v: on stderr is\n%swant\n%s", args, errOut, shopNote)
		}
		return out
	})
}

// The example renders without warnings in each mode.
func TestExampleRenders(t *testing.T) {
	for _, m := range []string{"iptables", "ipvs", "nftables"} {
		if text := renderText(t, "--manifests=../../docs/examples/shop", "--hostname-override=node1",
			"--proxy-mode="+m); len(text) < 1000 {
			t.Errorf("mode %s: %d bytes", m, len(text))
		}
	}
}

var tracesInText = regexp.MustCompile("kube-proxy (trace [0-9][^ `]* [^ `\\n]+)")

// Queries in the text of pages, outside of blocks with answers, have an answer in the example.
func TestTracesInText(t *testing.T) {
	commands := []string{"trace --from pod shop/web-1 shop/cart", "trace pod/shop/web-1 shop/cart:http",
		"trace node nodeport:30080"}
	for _, file := range []string{"README.md", "docs/what.md", "docs/debug.md", askPage} {
		text, err := os.ReadFile("../../" + file)
		do(t, err)
		found := tracesInText.FindAllStringSubmatch(string(text), -1)
		if len(found) == 0 {
			t.Errorf("%s asks nothing", file)
		}
		for _, f := range found {
			commands = append(commands, f[1])
		}
	}
	for _, c := range commands {
		code, out, errOut := inProcess(t, append(strings.Fields(c), "--manifests=../../docs/examples/shop")...)
		if code != 0 || errOut != shopNote || out == "" {
			t.Errorf("%s: exit code %d:\n%s%s", c, code, out, errOut)
		}
	}
}

// docs/ask.md shows the output of the commands for a running proxy.
func TestAskPageRunning(t *testing.T) {
	n := newNamespace(t).routed()
	t.Chdir("../..")
	do(t, os.CopyFS(n.path("m"), os.DirFS("docs/examples/shop")))
	p := n.start([]string{"--proxy-mode=nftables", "--hostname-override=node1", "--manifests=m",
		"--cluster-cidr=10.1.0.0/16,fd00:10:1::/48"})
	p.await(allWritten)
	page(t, true, func(args []string) string {
		code, out, errOut := n.kubeProxy(args...)
		if code != 0 || errOut != "" {
			t.Errorf("%v: exit code %d: %s", args, code, errOut)
		}
		return out
	})
}

// kubeProxy runs a command in the namespace.
func (n *namespace) kubeProxy(args ...string) (code int, out, errOut string) {
	return n.kubeProxyAs(nil, args...)
}

// kubeProxyAs runs a command in the namespace, with more in its environment.
func (n *namespace) kubeProxyAs(env []string, args ...string) (code int, out, errOut string) {
	n.t.Helper()
	cmd := program(n.t, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.Dir = &stdout, &stderr, n.t.TempDir()
	cmd.Env = append(cmd.Env, env...)
	var err error
	n.Do(func() { err = cmd.Run() })
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		n.t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()
}
