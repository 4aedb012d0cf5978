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

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	do(t, err)
	return string(text)
}

// klogLine is the header of a line of the classic text.
var klogLine = regexp.MustCompile(`(?m)^I\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ run\.go:\d+\] "Starting kube-proxy" `)

// Section 1.6: klog's file flags write files, through the real process.
func TestLogFiles(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	do(t, os.Mkdir(n.path("logs"), 0o755))
	n.write("m/bad.yaml", []byte("kind: Service\nmetadata: {name: bad\n"))
	p := n.start(usual("nftables", "--logtostderr=false", "--log_dir=logs", "-v=1"), func(c *exec.Cmd) {
		c.Args[0] = "kube-proxy" // the name of log files
	})
	n.code(healthURL+"/readyz", 200)
	p.stop()
	// The flags are logged because of -v=1 (FL-05).
	info, warning := read(t, n.path("logs/kube-proxy.INFO")), read(t, n.path("logs/kube-proxy.WARNING"))
	if !klogLine.MatchString(info) {
		t.Errorf("the file has\n%s", info)
	}
	has(t, "INFO", info, `] "FLAG: --log-dir=\"logs\""`, "bad.yaml:2: is not YAML",
		"Stopping; the rules stay in force")
	has(t, "WARNING", warning, "bad.yaml:2: is not YAML")
	if strings.Contains(warning, "Starting kube-proxy") || strings.Contains(p.log(), "Starting kube-proxy") {
		t.Errorf("WARNING:\n%s\nstderr:\n%s", warning, p.log())
	}
	files, err := filepath.Glob(n.path("logs/kube-proxy.*.log.INFO.*"))
	if err != nil || len(files) != 1 {
		t.Errorf("files %q, %v", files, err)
	}
}

// FL-02: the reason why the process ends is in the log, wherever that goes, and on stderr.
func TestLogEnd(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	for flags, want := range map[string]string{
		"--logtostderr=false --log-file=p.log": `] "kube-proxy failed" err="mode nftables: probe nf_tables: `,
		"--logging-format=json":                `"msg":"kube-proxy failed","err":"mode nftables: probe nf_tables: `,
		"--logging-format=text":                "",
	} {
		p := n.start(usual("nftables", strings.Fields(flags)...), env(noNetfilter+"=1"))
		if code := p.end(0); code != 1 {
			t.Errorf("%s: exit code %d", flags, code)
		}
		has(t, flags, p.log(), "\nkube-proxy: mode nftables: probe nf_tables: ")
		text := p.log()
		if strings.Contains(flags, "p.log") {
			text = read(t, n.path("p.log"))
		}
		has(t, flags, text, want)
		if want == "" && strings.Contains(text, "kube-proxy failed") {
			t.Errorf("%s: reported twice:\n%s", flags, text)
		}
	}
}

// A reload changes how much is logged, by verbosity and by file; a flag beats the file (FL-03).
func TestLogReload(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	config := n.path("config")
	write(t, config, nftablesFile("logging: {verbosity: 2}\n"))
	p := n.configured(config)
	wrote := func() int { return strings.Count(p.log(), `verb="apply"`) }
	endpoint := func(addr string) {
		t.Helper()
		n.write("m/good.yaml", append([]byte("kind: Node\nmetadata: {name: n1}\n---"),
			service("good", "10.96.0.1", 80, addr)...))
		n.eventually(addr, "nft", "list", "map", "ip", "kube-proxy", "backends")
	}
	more := func(than int, when string) {
		t.Helper()
		until(t, func() string {
			if wrote() > than {
				return ""
			}
			return when + " no write is logged:\n" + p.log()
		})
	}
	endpoint("10.0.0.2")
	more(0, "at verbosity 2")
	write(t, config, nftablesFile("logging: {verbosity: 0}\n"))
	p.await(regexp.MustCompile(`Applied the changed configuration.*logging.verbosity`))
	before := wrote()
	endpoint("10.0.0.3")
	write(t, config, nftablesFile("logging: {verbosity: 0, vmodule: [{filePattern: families, verbosity: 2}]}\n"))
	p.await(regexp.MustCompile(`(?s)(Applied the changed configuration.*){2}`))
	if after := wrote(); after != before {
		t.Errorf("at verbosity 0 %d writes are logged, and before %d:\n%s", after, before, p.log())
	}
	endpoint("10.0.0.4")
	more(before, "with vmodule")
}
