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

// oldLines reads the command lines and files of real clusters' manifests; package config tests
// their meaning, which is left out here.
func oldLines(t *testing.T) map[string]*oldLine {
	t.Helper()
	data, err := os.ReadFile("../../config/testdata/manifests.txt")
	do(t, err)
	lines := map[string]*oldLine{}
	for paragraph := range strings.SplitSeq(strings.TrimSpace(string(data)), "\n\n") {
		l := new(oldLine)
		for line := range strings.Lines(paragraph) {
			mark, text, _ := strings.Cut(strings.TrimRight(line, "\n"), " ")
			switch mark {
			case "#":
				lines[text] = l
			case "$":
				l.args = append(l.args, strings.Fields(text)...)
			case "|":
				l.file += text + "\n"
			case "NODE_NAME":
				l.env = []string{"NODE_NAME=" + text}
			case "+", "=", "!", "~":
			default:
				t.Fatalf("manifests.txt: %q", line)
			}
		}
	}
	return lines
}

type oldLine struct {
	args []string
	file string
	env  []string
}

// noServer is an address without an API server.
const noServer = "127.0.0.1:9"

var (
	kubeconfigField = regexp.MustCompile(`(?m)(kubeconfig: )(/[^,}\s]+)`)
	pathFlag        = regexp.MustCompile(`^(--(?:kubeconfig|log[-_](?:file|dir))=)(/.*)$`)
	masterFlag      = regexp.MustCompile(`^(--master=https?://).*$`)
)

// into moves everything that the command line names into a folder: files, and API servers to an
// unused address.
func (l *oldLine) into(t *testing.T, dir string) {
	for _, folder := range []string{"var/log", "var/lib/kube-proxy", "var/lib/kubelet", "run"} {
		do(t, os.MkdirAll(filepath.Join(dir, folder), 0o755))
	}
	kubeconfig := func(path string) {
		write(t, path, []byte("apiVersion: v1\nkind: Config\ncurrent-context: c\n"+
			"clusters: [{name: k, cluster: {server: 'https://"+noServer+"'}}]\n"+
			"users: [{name: u, user: {token: t}}]\ncontexts: [{name: c, context: {cluster: k, user: u}}]\n"))
	}
	reachable := false
	for i, arg := range l.args {
		if m := pathFlag.FindStringSubmatch(arg); m != nil {
			l.args[i] = m[1] + dir + m[2]
			if strings.Contains(m[1], "kubeconfig") {
				kubeconfig(dir + m[2])
				reachable = true
			}
		}
		if m := masterFlag.FindStringSubmatch(arg); m != nil {
			l.args[i] = m[1] + noServer
			reachable = true
		}
	}
	if l.file != "" {
		if m := kubeconfigField.FindStringSubmatch(l.file); m != nil {
			kubeconfig(dir + m[2])
			reachable = true
		}
		config := filepath.Join(dir, "config.conf")
		write(t, config, []byte(kubeconfigField.ReplaceAllString(l.file, "${1}"+dir+"${2}")))
		l.args = append([]string{"--config=" + config}, l.args...)
	}
	if !reachable {
		l.env = append(l.env, "KUBERNETES_SERVICE_HOST=127.0.0.1", "KUBERNETES_SERVICE_PORT=9")
	}
}

// asPod gives a process without a configured API server the files of a pod, at their fixed place.
func asPod(c *exec.Cmd) {
	const script = `d=/var/run/secrets/kubernetes.io/serviceaccount
mount -t tmpfs none /var/run/ && mkdir -p $d && echo t >$d/token && echo >$d/ca.crt && exec "$0" "$@"`
	c.Args = append([]string{"unshare", "--mount", "sh", "-c", script, c.Path}, c.Args[1:]...)
	c.Path = "/usr/bin/unshare"
}

// G1: command lines of real manifests start: the mode is chosen, both servers answer, although no
// API server does, and SIGTERM ends them in order. testdata/starts.tsv has a row for each, with the
// result.
func TestOldCommandLines(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("testdata/starts.tsv")
	do(t, err)
	var rows [][]string
	for line := range strings.Lines(string(data)) {
		if !strings.HasPrefix(line, "#") {
			rows = append(rows, strings.Split(strings.TrimSuffix(line, "\n"), "\t"))
		}
	}
	lines := oldLines(t)
	for _, row := range rows {
		if len(row) != 5 {
			t.Fatalf("starts.tsv: %d columns in %q", len(row), row)
		}
		name, mode, healthz, metrics, says := row[0], row[1], row[2], row[3], row[4]
		l := lines[name]
		if l == nil {
			t.Errorf("%s: there is no such manifest", name)
			continue
		}
		delete(lines, name)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNamespace(t)
			l.into(t, n.dir)
			p := n.start(l.args, func(c *exec.Cmd) {
				c.Env = append(append(c.Env, noIPVS+"=1"), l.env...) // the result in mode ipvs depends on the kernel
				if strings.Contains(strings.Join(l.env, " "), "KUBERNETES") {
					asPod(c)
				}
			})
			said := regexp.MustCompile(regexp.QuoteMeta(says))
			if mode == "-" { // it cannot run, and reports why
				if code := p.end(0); code != 1 || !said.MatchString(p.log()) {
					t.Errorf("exit code %d, want 1 and %q:\n%s", code, says, p.log())
				}
				return
			}
			for url, want := range map[string]string{healthz + "/livez": `"healthy":true`, metrics +
				"/proxyMode": mode} {
				if addr, _, _ := strings.Cut(url, "/"); addr != "-" {
					has(t, url, n.code("http://"+url, 200).body, want)
				}
			}
			if healthz != "-" { // PN-70: no objects yet
				n.code("http://"+healthz+"/readyz", 503)
			}
			logged := p.log()
			files, err := filepath.Glob(n.dir + "/var/log/*")
			do(t, err)
			for _, f := range files {
				text, err := os.ReadFile(f)
				do(t, err)
				logged += string(text)
			}
			if !said.MatchString(logged) {
				t.Errorf("want %q:\n%s", says, logged)
			}
			p.stop()
		})
	}
	for name := range lines {
		t.Errorf("%s: starts.tsv has no row", name)
	}
}
