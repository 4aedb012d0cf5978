//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"kube-proxy/cli"
	"kube-proxy/debug/inspect"
	"kube-proxy/test/golden"
)

// Each command prints for a folder, in each format, the contents of the golden file. The folder has
// unusual objects: many Services of one name, an address that two claim, an endpoint on a node
// whose name has terminal escapes. Answers for people fit 80 columns. A misspelled name comes with
// the nearest one (TN-85).
func TestAskGolden(t *testing.T) {
	t.Chdir("testdata/ask")
	for name, args := range map[string]string{
		"trace":          "trace 10.1.1.13 shop/web",
		"trace-json":     "trace 10.1.1.13 shop/web -o json",
		"trace-yaml":     "trace 10.1.1.13 shop/web -o yaml",
		"trace-pod":      "trace --from pod shop/web-1 10.96.0.10",
		"trace-bare":     "trace --from pod web-2 shop/web",
		"trace-slice":    "trace --from pod/shop/web-2 web.shop.svc.cluster.local:80/tcp",
		"trace-node":     "trace node nodeport:30080",
		"trace-unknown":  "trace 10.1.1.13 10.96.77.77:80",
		"trace-pass":     "trace 10.1.1.13 203.0.113.9:443",
		"trace-ping":     "trace 10.1.1.13 10.96.0.10/icmp",
		"table":          "table",
		"table-wide":     "table shop/ -o wide",
		"table-json":     "table 10.96.0.10 -o json",
		"table-yaml":     "table 10.96.0.10 -o yaml",
		"backends":       "backends shop/web",
		"backends-wide":  "backends shop/web -o wide",
		"backends-json":  "backends shop/web -o json",
		"backends-yaml":  "backends shop/web -o yaml",
		"why":            "why shop/web",
		"why-empty":      "why shop/empty",
		"why-lost":       "why shop/thief",
		"why-json":       "why shop/empty -o json",
		"none":           "table nothing-has-this",
		"help":           "why --help",
		"bad-ambiguous":  "why same",
		"bad-unknown":    "why shop/absent",
		"bad-alike":      "backends thie",
		"bad-port":       "why shop/web:nope",
		"bad-address":    "trace 10.1.1.300 shop/web",
		"bad-family":     "trace fd00::1 10.96.0.10:80",
		"bad-pod":        "trace --from pod shop/absent shop/web",
		"bad-pod-name":   "trace --from pod a/b/c shop/web",
		"bad-pod-bare":   "trace --from pod absent shop/web",
		"bad-pod-same":   "trace pod/same-1 shop/web",
		"bad-from":       "trace --from 10.1.1.13 10.1.1.14 shop/web",
		"bad-args":       "trace shop/web",
		"bad-many":       "why a b",
		"bad-output":     "why shop/web -o xml",
		"bad-flag":       "why shop/web --nope",
		"bad-hostile":    "why \x1b[31m<script>alert(1)</script>",
		"bad-filter":     "table " + strings.Repeat("x", 400),
		"status":         "status",
		"status-yaml":    "status -o yaml",
		"why-all":        "why",
		"why-all-json":   "why -o json",
		"bad-diff":       "diff",
		"bad-events":     "events",
		"bad-top":        "top",
		"bad-completion": "completion tcsh",
		"bad-command":    "backend shop/web",
		"like-service":   "why shop/wbe",
		"like-namespace": "backends team/thief",
		"like-flag":      "trace node shop/web --outptu json",
		"like-kind":      "table nodprot",
		"like-row":       "table shop/theif",
		"like-pod":       "trace --from pdo shop/web-1 shop/web",
		"like-nodeport":  "trace node nodeprot:30080",
	} {
		t.Run(name, func(t *testing.T) {
			line := strings.Fields(args)
			if line[0] != "completion" {
				line = append(line, "--manifests=m", "--hostname-override=n1", "--cluster-cidr=10.1.0.0/16")
			}
			code, out, errOut := inProcess(t, line...)
			text := fmt.Sprintf("$ kube-proxy %q\n%s%sexit code %d\n", args, out, errOut, code)
			if strings.ContainsFunc(text, func(r rune) bool { return r < ' ' && r != '\n' }) {
				t.Errorf("a terminal would obey it: %q", text)
			}
			for line := range strings.Lines(out) {
				if code != 1 && line[0] != '{' && !strings.Contains(args, "-o ") && !strings.Contains(args, "--help") &&
					utf8.RuneCountInString(line) > 81 {
					t.Errorf("more than 80 columns: %s", line)
				}
			}
			golden.Equal(t, name+".golden", text)
		})
	}
}

// unfolded is an answer for people without its line breaks.
func unfolded(text string) string { return strings.Join(strings.Fields(text), " ") }

// report: the report of a running proxy has all answers, without a name or an address of the folder
// (TN-92); with --names it has them. A file that exists stays.
func (n *namespace) report(answers func(code int, says string, args ...string)) {
	n.t.Helper()
	file := n.path("r.tar.gz")
	answers(0, ", 0 missing", "report", "--file="+file)
	text := unpacked(n.t, file)
	for _, want := range []string{"status.json", "configuration.json", "diff.json", "table.json", "service-01.json",
		`"differences": []`, "service-1", "nftables"} {
		has(n.t, "the report", text, want)
	}
	// The pseudonym of 10.96.0.0/12 is the same prefix in one of 16 reports.
	if secret := regexp.MustCompile(`shop|thief|10\.1\.1\.|10\.96\.0\.[1-9]|"n1"`).FindString(text); secret != "" {
		n.t.Errorf("the report has %s:\n%.2000s", secret, text)
	}
	answers(1, "exists", "report", "--file="+file)
	answers(0, ", 0 missing", "report", "--names", "--file="+n.path("names.tar.gz"))
	has(n.t, "the report with names", unpacked(n.t, n.path("names.tar.gz")), "shop/web")
	answers(cli.ExitNotAsked, "no kube-proxy runs here", "report", "--admin-socket=/nowhere/a.sock")
}

// unpacked returns names and contents of the files of an archive.
func unpacked(t *testing.T, file string) string {
	t.Helper()
	out, err := exec.Command("tar", "-xzOvf", file).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

// Commands query a running proxy, in each format, across a reload and a restart; a client without
// permission, or an invalid query, gets an error. A report has no names (TN-92).
func TestAskRunning(t *testing.T) {
	n := newNamespace(t).routed()
	do(t, os.CopyFS(n.path("m"), os.DirFS("testdata/ask/m")))
	n.command("mkdir", "-p", "/run/kube-proxy", "/run/other")
	file := n.path("config.yaml")
	configure := func(more string) {
		write(t, file, []byte("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"+
			"mode: nftables\nclusterCIDR: 10.1.0.0/16\nmetricsBindAddress: none\nhealthzBindAddress: none\n"+more))
	}
	configure("")
	p := n.start([]string{"--config=config.yaml", "--hostname-override=n1", "--manifests=m"})
	p.await(allWritten)
	p.await(regexp.MustCompile("Admin socket listening"))

	answers := func(code int, says string, args ...string) {
		t.Helper()
		got, out, errOut := n.kubeProxy(args...)
		if got != code || !strings.Contains(out+errOut, says) {
			t.Errorf("%q: exit code %d, want %d and %q:\n%s%s", args, got, code, says, out, errOut)
		}
	}
	answers(0, "as the table says", "trace", "node", "shop/web")
	answers(0, `"kernel": {`, "trace", "node", "shop/web", "-o", "json")
	answers(0, "kernel:\n", "trace", "node", "shop/web", "-o", "yaml")
	answers(0, "pod shop/web-1 is at 10.1.1.11", "trace", "--from", "pod", "shop/web-1", "shop/web")
	answers(0, "no difference", "diff")
	answers(0, `"differences": []`, "diff", "-o", "json")
	answers(0, "Service created", "events")
	if _, out, _ := n.kubeProxy("events"); strings.Contains(out, "no row changed") { // all are of IPv4, or of no family
		t.Errorf("an answer has a Service in a family without addresses:\n%s", out)
	}
	answers(0, `"newest":`, "events", "-o", "json")
	n.report(answers)
	answers(0, "Service created", "events", "shop/web")
	answers(0, `"service": "shop/web"`, "events", "web", "-o", "json")
	answers(1, "no Service shop/nope", "events", "shop/nope")
	answers(1, "no Service nope", "events", "nope")
	answers(1, "no Service nope", "events", "nope", "-o", "json")
	answers(1, "no Service nope", "events", "nope", "--watch")
	answers(1, "12 Services have the name same", "events", "same")
	answers(0, "10.96.0.10:80/tcp", "table", "-o", "wide")
	answers(2, "no-backends", "why", "shop/empty")
	answers(1, "12 Services have the name same", "why", "same")
	answers(0, "no new connections to Services", "top")
	answers(0, "spanSeconds", "top", "-o", "yaml")
	answers(0, "shop/web", "__complete", "why", "")
	if code, out, _ := n.kubeProxy("__complete", "backends", "shop/w"); code != 0 ||
		!strings.HasPrefix(out, "shop/web\n") {
		t.Errorf("completions %q", out)
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		code, out, errOut := n.kubeProxy("completion", shell)
		if code != 0 || len(out) < 1000 || errOut != "" {
			t.Errorf("completion %s: exit code %d, %d bytes, %s", shell, code, len(out), errOut)
		}
	}

	// The question of root alone.
	if code, _, errOut := n.kubeProxyAs([]string{asUser + "=65534"}, "why", "shop/web"); code != 3 ||
		!strings.Contains(errOut, "only for root") {
		t.Errorf("without root: exit code %d, %s", code, errOut)
	}
	n.command("chmod", "755", "/run/kube-proxy")
	if code, _, errOut := n.kubeProxyAs([]string{asUser + "=65534"}, "why", "shop/web"); code != 3 ||
		!strings.Contains(errOut, "only for root") {
		t.Errorf("without root, in a folder for all: exit code %d, %s", code, errOut)
	}

	// A reload moves the admin socket, and an empty path turns it off.
	configure("adminSocket: /run/other/a.sock\n")
	do(t, p.cmd.Process.Signal(syscall.SIGHUP))
	p.await(regexp.MustCompile(`Admin socket listening" socket="/run/other/a.sock"`))
	answers(3, "there is no socket /run/kube-proxy/admin.sock", "why", "shop/web")
	answers(0, "shop/web", "why", "shop/web", "--admin-socket=/run/other/a.sock")
	if code, out, errOut := n.kubeProxy("why", "shop/web", "--config="+file); code != 0 {
		t.Errorf("by the file: exit code %d, %s%s", code, out, errOut)
	}
	configure("adminSocket: \"\"\n")
	do(t, p.cmd.Process.Signal(syscall.SIGHUP))
	p.await(regexp.MustCompile(`(?s)Applied the changed configuration.*Applied the changed configuration`))
	until(t, func() string {
		if code, _, errOut := n.kubeProxy("why", "shop/web", "--admin-socket=/run/other/a.sock"); code != 3 ||
			!strings.Contains(errOut, "there is no socket") {
			return fmt.Sprintf("turned off: exit code %d, %s", code, errOut)
		}
		return ""
	})
	answers(3, "turned off", "why", "shop/web", "--config="+file)
	configure("")
	do(t, p.cmd.Process.Signal(syscall.SIGHUP))
	until(t, func() string {
		if code, _, errOut := n.kubeProxy("why", "shop/web"); code != 0 {
			return errOut
		}
		return ""
	})

	// The next process waits for this one, which answers until it ends; after a kill the next one
	// has the socket all the same.
	next := n.start([]string{"--config=config.yaml", "--hostname-override=n1", "--manifests=m"})
	next.await(regexp.MustCompile("Another kube-proxy"))
	answers(0, "shop/web", "why", "shop/web")
	p.end(syscall.SIGKILL)
	next.await(regexp.MustCompile("Admin socket listening"))
	answers(0, "as the table says", "trace", "node", "shop/web")
	if warned := regexp.MustCompile("(?m)^W.*socket.*").FindString(next.log()); warned != "" {
		t.Errorf("the next process warns: %s", warned)
	}
	next.stop()
	answers(3, "there is no socket", "why", "shop/web")
}

// Without a proxy each command reports what it found, with the exit code for it.
func TestAskWithoutProxy(t *testing.T) {
	dir := t.TempDir()
	l := listenAt(t, filepath.Join(dir, "left"))
	l.SetUnlinkOnClose(false)
	do(t, l.Close())
	write(t, filepath.Join(dir, "file"), nil)
	for at, says := range map[string]string{"none": "there is no socket", "left": "no process listens at",
		"file": "no process listens at"} {
		for _, line := range []string{"why shop/web", "trace node shop/web", "table", "diff", "events", "top",
			"backends shop/web", "events --watch", "top -w"} {
			code, out, errOut := inProcess(t, append(strings.Fields(line), "--admin-socket="+filepath.Join(dir, at))...)
			if code != cli.ExitNotAsked || out != "" || !strings.Contains(errOut, says) {
				t.Errorf("%s: %s: exit code %d, %s%s", at, line, code, out, errOut)
			}
		}
	}
}

func listenAt(t *testing.T, path string) *net.UnixListener {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path})
	do(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

// --watch runs until it is interrupted, then exits with 0, and reports changes as they occur.
func TestAskWatch(t *testing.T) {
	n := newNode(t).routed()
	n.serve("nftables")
	until(t, func() string { _, _, errOut := n.kubeProxy("table"); return errOut })
	events := n.start([]string{"events", "--watch", "-o", "json"})
	table := n.start([]string{"table", "late", "--watch"})
	one := n.start([]string{"events", "good", "--watch"})
	one.await(regexp.MustCompile("shop/good"))
	events.await(regexp.MustCompile("shop/good"))
	n.write("m/late.yaml", service("late", "10.96.0.7", 80, "10.0.0.7"))
	events.await(regexp.MustCompile(`"object": "shop/late"`))
	table.await(regexp.MustCompile(`(?m)^node n1 at .* UTC\nKEY .*\n10\.96\.0\.7:80/tcp +IPv4 +shop/late`))
	// A deleted Service is found as long as its changes are recorded, also by its bare name;
	// --watch continues.
	do(t, os.Remove(n.path("m/good.yaml")))
	one.await(regexp.MustCompile("shop/good +.*deleted"))
	for _, name := range []string{"shop/good", "good"} {
		if code, out, errOut := n.kubeProxy("events", name); code != 0 || !strings.Contains(out, "deleted") ||
			strings.Contains(out, "shop/late") {
			t.Errorf("events %s after it is gone: exit code %d\n%s%s", name, code, out, errOut)
		}
	}
	n.write("m/good.yaml", good())
	one.await(regexp.MustCompile("(?s)shop/good +[^\n]*deleted.*shop/good +[^\n]*created"))
	if strings.Contains(one.log(), "shop/late") {
		t.Errorf("a watch of one Service reports another:\n%s", one.log())
	}
	for _, p := range []*process{events, table, one} {
		if code := p.end(syscall.SIGINT); code != 0 {
			t.Errorf("exit code %d after an interrupt:\n%s", code, p.log())
		}
	}
}

// Answers that --watch repeats are separated: for people by the time, for programs that read YAML
// as documents. Events, which are printed once and have their own time, have no separator.
func TestAskWatchTellsAnswersApart(t *testing.T) {
	at := filepath.Join(t.TempDir(), "a.sock")
	asked := 0
	go http.Serve(listenAt(t, at), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Kube-Proxy-Admin", "1")
		switch asked++; {
		case r.URL.Path == "/v1/top":
			for range 3 {
				io.WriteString(w, `{"node":"n1","services":[{"service":"a/b","perSecond":1}]}`+"\n")
			}
		case asked > 3:
			w.WriteHeader(http.StatusServiceUnavailable)
		case r.URL.Path == "/v1/events":
			fmt.Fprintf(w, `{"node":"n1","newest":%d,"changes":[{"seq":%[1]d,"object":"a/b","what":"Service `+
				`created","done":"2026-01-01T00:00:00Z"}]}`, asked)
		}
	}))
	watch := func(args ...string) string {
		t.Helper()
		asked = 0
		code, out, errOut := inProcess(t, append(args, "--watch", "--admin-socket="+at)...)
		if code != cli.ExitNotAsked {
			t.Errorf("%v: exit code %d: %s", args, code, errOut)
		}
		return out
	}
	for _, command := range []string{"top", "events"} {
		out := watch(command, "-o", "yaml")
		documents := 0
		for d := yaml.NewDecoder(strings.NewReader(out)); ; documents++ {
			var one map[string]any
			if err := d.Decode(&one); err == io.EOF {
				break
			} else if err != nil || len(one) == 0 {
				t.Fatalf("%s: %v, %v:\n%s", command, one, err, out)
			}
		}
		if documents != 3 || strings.HasPrefix(out, "---") {
			t.Errorf("%s: %d documents, want 3:\n%s", command, documents, out)
		}
	}
	stamp := regexp.MustCompile(`(?m)^node n1 at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC\n`)
	if out := watch("top"); len(stamp.FindAllString(out, -1)) != 3 || strings.Count(out, "\n\nnode ") != 2 ||
		!strings.HasPrefix(out, "node ") {
		t.Errorf("top:\n%s", out)
	}
	if out := watch("events"); stamp.MatchString(out) || strings.Count(out, "a/b") != 3 ||
		strings.Count(out, "node n1\n") != 1 {
		t.Errorf("events:\n%s", out)
	}
}

// Many clients at the socket change neither the proxy's use of the machine nor the time of writes.
func TestAskCrowd(t *testing.T) {
	n := newNode(t).routed()
	p := n.serve("nftables")
	at := "/run/kube-proxy/admin.sock"
	until(t, func() string { _, _, errOut := n.kubeProxy("table"); return errOut })
	memory, open := p.resident(), p.files()
	var conns []net.Conn
	for i := range 1000 {
		var c net.Conn
		var err error
		n.Do(func() { c, err = net.DialTimeout("unix", at, time.Second) })
		if err != nil {
			break // as many as the kernel keeps waiting
		}
		defer c.Close()
		conns = append(conns, c)
		switch i % 3 {
		case 0:
			io.WriteString(c, "GET /v1/top HTTP/1.1\r\nHost: x\r\n\r\n")
		case 1:
			io.WriteString(c, "GET /v1/table")
		}
	}
	if len(conns) < 100 {
		t.Fatalf("%d could connect", len(conns))
	}
	n.write("m/late.yaml", service("late", "10.96.0.7", 80, "10.0.0.7"))
	until(t, func() string {
		if got := n.serves(); !strings.Contains(got, "10.96.0.7") {
			return "the change is not in the kernel:\n" + got
		}
		return ""
	})
	if f := p.files(); f > open+80 { // 64 connections, and two sockets for each of four that have connections counted
		t.Errorf("%d more descriptors for %d who connect", f-open, len(conns))
	}
	if m := p.resident(); m > memory+64<<20 {
		t.Errorf("%d MiB more for %d who connect", (m-memory)>>20, len(conns))
	}
	for _, c := range conns {
		c.Close()
	}
	until(t, func() string { _, _, errOut := n.kubeProxy("why", "shop/late"); return errOut })
}

// A command's answer for programs is that of the socket, with all its fields.
func TestAskJSONKeepsFields(t *testing.T) {
	at := filepath.Join(t.TempDir(), "a.sock")
	go http.Serve(listenAt(t, at), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Kube-Proxy-Admin", "1")
		io.WriteString(w, `{"service":"a/b","verdict":"pass","backends":[],"later":{"field":12345678901234567890}}`)
	}))
	code, out, errOut := inProcess(t, "trace", "node", "a/b", "-o=json", "--admin-socket="+at)
	if code != 0 || !strings.Contains(out, `"field": 12345678901234567890`) || errOut != "" {
		t.Errorf("exit code %d: %s%s", code, out, errOut)
	}
	var a inspect.TraceAnswer
	if err := json.Unmarshal([]byte(out), &a); err != nil || a.Verdict != "pass" {
		t.Errorf("%v", err)
	}
}

// KC-01: by the name of the plugin, the program has the plugin's commands and kubectl's flags, and
// errors in its name.
func TestAskAsPlugin(t *testing.T) {
	link := filepath.Join(t.TempDir(), "kubectl-svcproxy")
	do(t, os.Symlink(self(t), link))
	for _, c := range []struct {
		args, want string
		code       int
	}{
		{"--help", "Usage: kubectl svcproxy COMMAND", 0},
		{"trace --help", "kubectl svcproxy trace shop/web-1 shop/cart:http", 0},
		{"--context=x trace a b --kubeconfig=/nosuch", "kubectl svcproxy: read the kubeconfig: ", 3},
		{"trce", "did you mean kubectl svcproxy trace?", 1},
		{"trace", "want kubectl svcproxy trace SRC DST", 1},
		{"diff --manifests=x", "unknown flag: --manifests", 1},
	} {
		cmd := exec.Command(link, strings.Fields(c.args)...)
		cmd.Env = append(os.Environ(), asProgram+"=1")
		out, _ := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != c.code || !strings.Contains(string(out), c.want) {
			t.Errorf("%s: exit code %d, want %d and %q:\n%s", c.args, code, c.code, c.want, out)
		}
	}
}

// KC-02: "kube-proxy connect" carries requests to the admin socket, and ends when the answer is
// complete.
func TestConnect(t *testing.T) {
	at := filepath.Join(t.TempDir(), "a.sock")
	go http.Serve(listenAt(t, at), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "asked "+r.URL.Path)
	}))
	cmd := program(t, "connect", "--admin-socket="+at)
	in, err := cmd.StdinPipe() // it stays open, as that of an exec may
	do(t, err)
	go io.WriteString(in, "GET /v1/status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
	out, err := cmd.Output()
	if err != nil || !strings.HasPrefix(string(out), "kube-proxy connected\nHTTP/1.1 200 OK\r\n") ||
		!strings.HasSuffix(string(out), "asked /v1/status") {
		t.Errorf("%v: %q", err, out)
	}
}

// Objects that another program removes from the kernel are reported by trace and by diff, also in
// the exit code.
func TestAskSabotage(t *testing.T) {
	n := newNode(t)
	n.serve("iptables", "--iptables-sync-period=1h")
	until(t, func() string {
		if code, out, errOut := n.kubeProxy("diff"); code != 0 {
			return fmt.Sprintf("before: exit code %d: %s%s", code, out, errOut)
		}
		return ""
	})
	save := "iptables-nft-save"
	if !strings.Contains(n.command(save, "-t", "nat"), "KUBE-SERVICES") {
		save = "iptables-legacy-save"
	}
	n.command(strings.TrimSuffix(save, "-save"), "-t", "nat", "-F", "KUBE-SERVICES")
	if code, out, errOut := n.kubeProxy("diff"); code != 2 || !strings.Contains(out, "KUBE-SERVICES") ||
		!strings.Contains(out, "shop/good") {
		t.Errorf("diff: exit code %d\n%s%s", code, out, errOut)
	}
	if code, out, errOut := n.kubeProxy("trace", "10.0.0.9", "good"); code != 2 ||
		!strings.Contains(out, "THE KERNEL DIFFERS") {
		t.Errorf("trace: exit code %d\n%s%s", code, out, errOut)
	}
	if code, out, _ := n.kubeProxy("trace", "10.0.0.9", "good", "-o", "json"); code != 2 ||
		!strings.Contains(out, `"findings": [`) {
		t.Errorf("trace -o json: exit code %d\n%s", code, out)
	}
}
