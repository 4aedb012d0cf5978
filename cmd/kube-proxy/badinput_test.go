//go:build linux

package main

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/tools/txtar"

	"kube-proxy/test/golden"
)

// Every file of testdata/badinput has one fault, and is given to the real program:
//
//	the fault
//	-- args --     the command line; that of usual by default
//	-- m/… --      files, beside m/good.yaml with the Node and a good Service; generated has non-text data
//	-- says --     all output except lines of level INFO, log lines sorted
//	-- serves --   the kernel's contents afterwards; empty if the program exits by itself: then they are unchanged
//	-- exit --     its exit code if it exits by itself; otherwise it runs until SIGTERM, and then exits with 0
func TestBadInput(t *testing.T) {
	files, err := filepath.Glob("testdata/badinput/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	// A program that exits must leave existing rules: one set of them is enough for all cases.
	serving := newNode(t)
	serving.serve("nftables").stop()
	unused := maps.Clone(generated)
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txtar")
		delete(unused, name)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, err := txtar.ParseFile(file)
			do(t, err)
			if wants(c, "exit") != "" {
				testBadInput(serving.with(t), file, c, generated[name])
			} else {
				testBadInput(newNamespace(t), file, c, generated[name])
			}
		})
	}
	for name := range unused {
		t.Errorf("there is no testdata/badinput/%s.txtar", name)
	}
}

func testBadInput(n *namespace, file string, c *txtar.Archive, g spoiler) {
	t, dir := n.t, n.dir
	n.write("m/good.yaml", good())
	args := usual("nftables")
	for _, f := range c.Files {
		switch f.Name {
		case "args":
			args = strings.Fields(string(f.Data))
		case "says", "serves", "exit":
		default:
			write(t, filepath.Join(dir, f.Name), f.Data)
		}
	}
	if g.files != nil {
		g.files(t, dir)
	}
	p := n.start(args, g.process)
	got := map[string]string{}
	if wants(c, "exit") != "" {
		got["exit"] = fmt.Sprintln(p.end(0))
		n.wantGood("after the end")
	} else {
		p.await(allWritten)
		got["serves"] = n.serves()
		p.stop()
	}
	got["says"] = said(p.log())
	for name, text := range got {
		if want := wants(c, name); text != want && !*golden.Update {
			t.Errorf("%s:\n%swant:\n%s", name, text, want)
		}
	}
	if *golden.Update {
		c.Files = slices.DeleteFunc(c.Files, func(f txtar.File) bool { _, found := got[f.Name]; return found })
		for _, name := range []string{"says", "serves", "exit"} {
			if text, ok := got[name]; ok {
				c.Files = append(c.Files, txtar.File{Name: name, Data: []byte(text)})
			}
		}
		write(t, file, txtar.Format(c))
	}
}

func wants(c *txtar.Archive, name string) string {
	for _, f := range c.Files {
		if f.Name == name {
			return string(f.Data)
		}
	}
	return ""
}

var header = regexp.MustCompile(`^([IWE])\d{4} \S+ +\d+ \S+\] `)

// said returns the output of a program, without times and lines of level INFO; several goroutines
// log, so its lines are sorted.
func said(log string) string {
	var logged, rest []string
	for line := range strings.Lines(log) {
		switch line = header.ReplaceAllString(line, "$1 "); {
		case strings.HasPrefix(line, "I "):
		case strings.Contains(line, "set oom_score_adj to"): // whether that is allowed is the machine's
		case strings.HasPrefix(line, "W ") || strings.HasPrefix(line, "E "):
			logged = append(logged, line)
		default:
			rest = append(rest, line)
		}
	}
	slices.Sort(logged)
	return strings.Join(append(logged, rest...), "")
}

// spoiler creates faults that a text file cannot hold.
type spoiler struct {
	files   func(t *testing.T, dir string)
	process func(*exec.Cmd)
}

var generated = map[string]spoiler{
	"names-at-the-limit": file(namesAtTheLimit),
	"1000-ports":         file(thousandPorts),
	"5000-endpoints":     file(manyEndpoints),

	"1000-special-addresses": file(specialAddresses),

	"binary-manifest": file(func() []byte { return bytes.Repeat([]byte{0xff, 0, 0x80, '\n'}, 1000) }),
	"10-MB-manifest":  file(func() []byte { return bytes.Repeat([]byte("lorem ipsum dolor\n"), 10_000_000/18) }),
	"broken-list":     file(brokenList),
	"odd-files":       {files: oddFiles},
	"folder-empty": {files: func(t *testing.T, dir string) {
		do(t, os.Remove(filepath.Join(dir, "m/good.yaml")))
	}},
	"folder-missing": {files: func(t *testing.T, dir string) { do(t, os.RemoveAll(filepath.Join(dir, "m"))) }},
	"folder-unreadable": {func(t *testing.T, dir string) { do(t, os.Chmod(filepath.Join(dir, "m"), 0)) },
		without("dac_override,-dac_read_search")},
	"manifest-unreadable": {unreadableFile, without("dac_override,-dac_read_search")},
	"config-not-UTF-8": {files: func(t *testing.T, dir string) {
		write(t, filepath.Join(dir, "config"),
			[]byte("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: \"\xff\"\n"))
	}},
	"two-problems":      {process: without("net_admin")},
	"not-root":          {process: env(asUser + "=65534")},
	"without-NET_ADMIN": {process: without("net_admin")},
	"blank-not-root":    {process: env(asUser + "=65534")},
	"iptables-not-root": {process: env(asUser + "=65534")},
	"root-of-another-user-namespace": {process: func(c *exec.Cmd) {
		ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}}
		c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids}
	}},
	"no-packet-filter":         {process: env(noNetfilter+"=1", "PATH=")},
	"kernel-without-netfilter": {process: env(noNetfilter + "=1")},
}

func do(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// file has a manifest beside the good one.
func file(text func() []byte) spoiler {
	return spoiler{files: func(t *testing.T, dir string) { write(t, filepath.Join(dir, "m/bad.yaml"), text()) }}
}

// without takes capabilities from root.
func without(capabilities string) func(*exec.Cmd) {
	return func(c *exec.Cmd) {
		setpriv, err := exec.LookPath("setpriv")
		if err != nil {
			panic(err)
		}
		c.Args = append([]string{setpriv, "--inh-caps=-" + capabilities, "--bounding-set=-" + capabilities, c.Path},
			c.Args[1:]...)
		c.Path = setpriv
	}
}

func namesAtTheLimit() []byte {
	var b bytes.Buffer
	for i, c := range []struct{ namespace, name, port string }{
		{strings.Repeat("n", 63), strings.Repeat("s", 63), strings.Repeat("p", 63)},
		{"shop", strings.Repeat("s", 64), "p"},
		{strings.Repeat("n", 64), "s", "p"},
		{"shop", "s", strings.Repeat("p", 64)},
		{"shop", "Upper", "p"},
	} {
		fmt.Fprintf(&b, "kind: Service\nmetadata: {name: %s, namespace: %s}\n"+
			"spec: {clusterIP: 10.96.1.%d, ports: [{port: 80, name: %s}]}\n---\n", c.name, c.namespace, i+1, c.port)
	}
	part := strings.Repeat("a", 62) + "."
	for i, name := range []string{part + part + part + part + "z", part + part + part + part + "zz"} {
		fmt.Fprintf(&b, "kind: EndpointSlice\nmetadata: {name: %s, namespace: shop, labels: "+
			"{kubernetes.io/service-name: good}}\n"+
			"addressType: IPv4\nports: [{port: 80}]\nendpoints: [{addresses: [10.1.0.%d]}]\n---\n", name, i+1)
	}
	return b.Bytes()
}

func specialAddresses() []byte {
	var b bytes.Buffer
	b.WriteString("kind: Service\nmetadata: {name: bad, namespace: shop}\n" +
		"status: {loadBalancer: {ingress: [{ip: 224.0.0.1}, {ip: 255.255.255.255}]}}\n" +
		"spec:\n  type: LoadBalancer\n  clusterIP: 10.96.7.7\n  ports: [{port: 2379}]\n  externalIPs: [192.0.2.77")
	for i := range 1000 {
		fmt.Fprintf(&b, ", 127.0.%d.%d", i/250, 1+i%250)
	}
	b.WriteString("]\n---\nkind: EndpointSlice\nmetadata: {name: bad-1, namespace: shop, labels: " +
		"{kubernetes.io/service-name: bad}}\naddressType: IPv4\nports: [{port: 2379}]\n" +
		"endpoints: [{addresses: [10.1.7.7]}, {addresses: [127.0.0.1]}, {addresses: [169.254.169.254]}]\n")
	return b.Bytes()
}

func thousandPorts() []byte {
	var ports strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&ports, "{port: %d, name: p%d}, ", 64536+i, i)
	}
	return fmt.Appendf(nil, "kind: Service\nmetadata: {name: many, namespace: shop}\n"+
		"spec: {clusterIP: 10.96.1.1, ports: [%[1]s]}\n---\n"+
		"kind: EndpointSlice\nmetadata: {name: many-1, namespace: shop, labels: {kubernetes.io/service-name: many}}\n"+
		"addressType: IPv4\nports: [%[1]s]\nendpoints: [{addresses: [10.1.0.1]}]\n", ports.String())
}

func manyEndpoints() []byte {
	b := service("many", "10.96.1.1", 80, "10.1.0.0")
	for i := range 4 {
		b = fmt.Appendf(b, "---\nkind: EndpointSlice\nmetadata: {name: many-%d, namespace: shop, labels: "+
			"{kubernetes.io/service-name: many}}\naddressType: IPv4\nports: [{port: 8080}]\nendpoints: [", i+2)
		for j := range 1250 {
			b = fmt.Appendf(b, "{addresses: [10.%d.%d.%d]}, ", i+2, j/250, j%250)
		}
		b = append(b, "]\n"...)
	}
	return b
}

// brokenList is a document of few but long lines without its end: it cannot be parsed.
func brokenList() []byte {
	line := `{"kind": "ConfigMap", "metadata": {"name": "x"}, "data": {` + strings.Repeat(`"k": "v", `, 250) + "}},\n"
	return []byte(`{"kind": "List", "items": [` + "\n" + strings.Repeat(line, 300))
}

func oddFiles(t *testing.T, dir string) {
	m := filepath.Join(dir, "m")
	do(t, os.Mkdir(filepath.Join(m, "folder.yaml"), 0o755))
	do(t, os.Symlink("loop.yaml", filepath.Join(m, "loop.yaml")))
	do(t, os.Symlink("nowhere", filepath.Join(m, "nowhere.yaml")))
	do(t, syscall.Mkfifo(filepath.Join(m, "pipe.yaml"), 0o644))
	write(t, filepath.Join(m, "empty.yaml"), nil)
}

func unreadableFile(t *testing.T, dir string) {
	path := filepath.Join(dir, "m/bad.yaml")
	write(t, path, service("bad", "10.96.0.9", 80, "10.0.0.9"))
	do(t, os.Chmod(path, 0))
}
