//go:build linux

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"kube-proxy/internal/pause"
)

// logs starts the program with flags of the log on a folder of manifests where one file is wrong, ends it, and returns
// what it printed.
func (n *namespace) logs(dir string, flags ...string) string {
	n.t.Helper()
	write(n.t, filepath.Join(dir, "m/good.yaml"), good())
	write(n.t, filepath.Join(dir, "m/bad.yaml"), []byte("kind: Service\nmetadata: {name: bad\n"))
	p := n.start(dir, append(flags, usualArgs()...), func(c *exec.Cmd) { c.Args[0] = "kube-proxy" }) // the name of log files
	n.code(healthURL+"/readyz", 200)
	p.stop()
	return p.log()
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	do(t, err)
	return string(text)
}

// klogLine is the header of a line of the classic text.
var klogLine = regexp.MustCompile(`(?m)^I\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ run\.go:\d+\] "kube-proxy starts" `)

// Section 1.6: klog's file flags write files, through the real process.
func TestLogFiles(t *testing.T) {
	t.Parallel()
	t.Run("folder", func(t *testing.T) {
		t.Parallel()
		n, dir := newNamespace(t), t.TempDir()
		do(t, os.Mkdir(filepath.Join(dir, "logs"), 0o755))
		out := n.logs(dir, "--logtostderr=false", "--log_dir=logs", "-v=1")
		// The flags are there because of -v=1 (FL-05).
		info, warning := read(t, filepath.Join(dir, "logs/kube-proxy.INFO")), read(t, filepath.Join(dir, "logs/kube-proxy.WARNING"))
		if !klogLine.MatchString(info) {
			t.Errorf("the file has\n%s", info)
		}
		has(t, "INFO", info, `] "FLAG: --log-dir=\"logs\""`, "bad.yaml:2: is not YAML", "stopping: the rules stay in force")
		has(t, "WARNING", warning, "bad.yaml:2: is not YAML")
		if strings.Contains(warning, "kube-proxy starts") || strings.Contains(out, "kube-proxy starts") {
			t.Errorf("WARNING:\n%s\nstderr:\n%s", warning, out)
		}
		files, err := filepath.Glob(filepath.Join(dir, "logs/kube-proxy.*.log.INFO.*"))
		if err != nil || len(files) != 1 {
			t.Errorf("files %q, %v", files, err)
		}
	})
	t.Run("one output", func(t *testing.T) {
		t.Parallel()
		n, dir := newNamespace(t), t.TempDir()
		do(t, os.Mkdir(filepath.Join(dir, "logs"), 0o755))
		out := n.logs(dir, "--logtostderr=false", "--log-dir=logs", "--one_output", "--alsologtostderr")
		info := read(t, filepath.Join(dir, "logs/kube-proxy.INFO"))
		if strings.Contains(info, "is not YAML") || !klogLine.MatchString(info) {
			t.Errorf("INFO:\n%s", info)
		}
		has(t, "WARNING", read(t, filepath.Join(dir, "logs/kube-proxy.WARNING")), "is not YAML")
		has(t, "stderr", out, "kube-proxy starts", "is not YAML")
	})
	t.Run("one file, emptied when full", func(t *testing.T) {
		t.Parallel()
		n, dir := newNamespace(t), t.TempDir()
		file := filepath.Join(dir, "p.log")
		write(t, file, []byte(strings.Repeat("of the process before\n", 1<<20/22)))
		out := n.logs(dir, "--logtostderr=false", "--log-file="+file, "--log-file-max-size=1", "--stderrthreshold=WARNING", "-v=4")
		text := read(t, file)
		if len(text) >= 1<<20 || strings.Contains(text, "of the process before") {
			t.Errorf("the file has %d bytes, and begins with %.200q", len(text), text)
		}
		has(t, "file", text, "is not YAML", "stopping: the rules stay in force")
		has(t, "stderr", out, "is not YAML")
		if strings.Contains(out, "kube-proxy starts") {
			t.Errorf("stderr:\n%s", out)
		}
	})
	t.Run("json", func(t *testing.T) {
		t.Parallel()
		n, dir := newNamespace(t), t.TempDir()
		if out := n.logs(dir, "--logging-format=json"); !regexp.MustCompile(`(?m)^\{"ts":[\d.]+,"v":0,"caller":"[^"]*run\.go:\d+","msg":"kube-proxy starts",`).MatchString(out) {
			t.Errorf("stderr:\n%s", out)
		}
	})
}

// FL-02: why the process ends is in the log wherever that goes, and on stderr.
func TestLogEnd(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	for flags, want := range map[string]string{
		"--logtostderr=false --log-file=p.log": `] "kube-proxy ends" err="mode nftables: probe nf_tables: `,
		"--logging-format=json":                `"msg":"kube-proxy ends","err":"mode nftables: probe nf_tables: `,
		"--logging-format=text":                "",
	} {
		dir := t.TempDir()
		write(t, filepath.Join(dir, "m/good.yaml"), good())
		p := n.start(dir, append(strings.Fields(flags), usualArgs()...), func(c *exec.Cmd) { c.Env = append(c.Env, noNetfilter+"=1") })
		if code := p.end(0); code != 1 {
			t.Errorf("%s: exit code %d", flags, code)
		}
		has(t, flags, p.log(), "\nkube-proxy: mode nftables: probe nf_tables: ")
		text := p.log()
		if strings.Contains(flags, "p.log") {
			text = read(t, filepath.Join(dir, "p.log"))
		}
		has(t, flags, text, want)
		if want == "" && strings.Contains(text, "kube-proxy ends") {
			t.Errorf("%s: told twice:\n%s", flags, text)
		}
	}
}

// A reload changes how much is logged, by verbosity and by file; a flag beats the file (FL-03).
func TestLogReload(t *testing.T) {
	t.Parallel()
	n, dir := newNamespace(t), t.TempDir()
	config := filepath.Join(dir, "config")
	write(t, config, nftablesFile("logging: {verbosity: 0}\n"))
	p := n.configured(dir, config)
	wrote := regexp.MustCompile(`"wrote" .*verb="apply"`)
	endpoint := func(addr string) {
		t.Helper()
		write(t, filepath.Join(dir, "m/good.yaml"), append([]byte("kind: Node\nmetadata: {name: n1}\n---"), service("good", "10.96.0.1", 80, addr)...))
		n.eventually(addr, "nft", "list", "map", "ip", "kube-proxy", "backends")
	}
	endpoint("10.0.0.2")
	if wrote.MatchString(p.log()) {
		t.Errorf("at verbosity 0:\n%s", p.log())
	}
	write(t, config, nftablesFile("logging: {verbosity: 2}\n"))
	p.await(regexp.MustCompile(`the changed configuration is in force.*logging.verbosity`))
	endpoint("10.0.0.3")
	p.await(wrote)
	write(t, config, nftablesFile("logging: {verbosity: 0}\n"))
	p.await(regexp.MustCompile(`(?s)(the changed configuration is in force.*){2}`))
	before := len(wrote.FindAllString(p.log(), -1))
	endpoint("10.0.0.4")
	write(t, config, nftablesFile("logging: {verbosity: 0, vmodule: [{filePattern: families, verbosity: 2}]}\n"))
	p.await(regexp.MustCompile(`(?s)(the changed configuration is in force.*){3}`))
	if after := len(wrote.FindAllString(p.log(), -1)); after != before {
		t.Errorf("at verbosity 0 again %d writes are told, and before %d:\n%s", after, before, p.log())
	}
	endpoint("10.0.0.5")
	for range 1000 {
		if len(wrote.FindAllString(p.log(), -1)) > before {
			break
		}
		pause.For(t.Context(), patience/1000)
	}
	if len(wrote.FindAllString(p.log(), -1)) == before {
		t.Errorf("vmodule shows nothing:\n%s", p.log())
	}
}
