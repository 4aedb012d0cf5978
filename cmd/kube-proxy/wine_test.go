//go:build linux

package main

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"kube-proxy/cli"
	"kube-proxy/config"
	"kube-proxy/test/wine"
)

// TestWindows tests what Wine supports of kube-proxy.exe; test/wine lists what it does not.
func TestWindows(t *testing.T) {
	t.Parallel()
	exe := filepath.Join(t.TempDir(), "kube-proxy.exe")
	build := exec.Command("go", "build", "-buildvcs=false", "-trimpath", "-o", exe, ".") // compiled by `make check`
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=windows", "GOARCH=amd64")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", build, err, out)
	}
	do(t, wine.Adapt(exe))
	for name, test := range map[string]func(*windowsNode){
		"commands": windowsCommands,
		"serves":   windowsServes,
		"service":  windowsService,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := &windowsNode{newNamespace(t), wine.New(t), exe}
			n.machine.Boot(t, n.begin)
			test(n)
		})
	}
}

// windowsNode is a machine of Windows in a network namespace.
type windowsNode struct {
	*namespace
	machine *wine.Machine
	exe     string
}

// begin starts a command in the namespace.
func (n *windowsNode) begin(c *exec.Cmd) (err error) {
	n.Do(func() { err = c.Start() })
	return err
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
	do(n.t, n.begin(c))
	end := time.AfterFunc(timeout, func() { c.Process.Kill() })
	defer end.Stop()
	_ = c.Wait() // the exit code has the result
	return o.String(), wine.Errors(e.String()), c.ProcessState.ExitCode()
}

// Output, files and exit codes of a program for Windows (FL-01, FL-02, FL-05, FL-06, CF-19): under
// Wine.
func windowsCommands(n *windowsNode) {
	t := n.t
	dir := filepath.Join(t.TempDir(), "Program Files", "kube proxy")
	write(t, filepath.Join(dir, "crlf.yaml"), []byte(strings.ReplaceAll(
		"apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nclusterCIDR: 10.0.0.0/16\n"+
			"winkernel:\n  networkName: cbr0\n", "\n", "\r\n")))
	write(t, filepath.Join(dir, "m", "all.yaml"), []byte(windowsManifests))
	do(t, os.Mkdir(filepath.Join(dir, "logs"), 0o755))
	written := filepath.Join(dir, "written here.yaml")
	for _, tc := range []struct {
		name        string
		args        []string
		code        int
		out, errOut string // regular expressions
	}{
		{"version", []string{"--version"}, 0, `^Kubernetes v1\.\d+\.\d+\r?\n$`, `^$`},
		{"help", []string{"--help"}, 0, `(?s)^Usage: kube-proxy \[flags\].*--windows-service`, `^$`},
		{"a flag that is none", []string{"--bad"}, 1, `^$`, `^kube-proxy: unknown flag: --bad\n`},
		{"a file that is not there", []string{"--config", `C:\none here\config.yaml`}, 1, `^$`,
			`C:\\none here\\config\.yaml`},
		{"the configuration written, from a file with CRLF, to a path with blanks",
			[]string{"--config", wine.Path(filepath.Join(dir, "crlf.yaml")), "--write-config-to", wine.Path(written)},
			0, `^$`, `(?s).*`},
		{"a service is not for a console", []string{"--windows-service", "--manifests", wine.Path(dir),
			"--hostname-override=n1"}, 1, `^$`,
			`--windows-service \(windowsRunAsService\) is for a process that the service control manager starts`},
		{"a clean-up", []string{"--cleanup", "--hostname-override=n1"}, 0, `^$`, `No kube-proxy rules found`},
		{"a log in a folder", []string{"--cleanup", "--hostname-override=n1", "--logtostderr=false", "--log-dir",
			wine.Path(filepath.Join(dir, "logs"))}, 0, `^$`, `^$`},
		{"render kernelspace", []string{"render", "--proxy-mode=kernelspace", "--manifests",
			wine.Path(filepath.Join(dir, "m")), "--hostname-override=n1"}, 0, `10\.96\.0\.1`, `^$`},
		{"check", []string{"check", "--manifests", wine.Path(dir), "--hostname-override=n1", "-o=json"}, 2,
			`(?s)"id": "mode".*"about": "kernelspace IPv4".*"id": "mode-configured",\s+"severity": "error",\s+` +
				`"seen": "[^"]*--proxy-mode=userspace`, `^$`},
		{"a blank mode without HNS", []string{"--manifests", wine.Path(dir), "--hostname-override=n1"}, 1, `^$`,
			`this machine has no Host Networking Service.*use --proxy-mode=userspace`},
		{"render a mode of Linux", []string{"render", "--proxy-mode=nftables", "--manifests", wine.Path(dir)}, 1, `^$`,
			`this mode is for Linux`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			out, errOut, code := n.run(tc.args...)
			if code != tc.code || !regexp.MustCompile(tc.out).MatchString(out) || !regexp.MustCompile(tc.errOut).
				MatchString(errOut) {
				t.Errorf("exit %d\nout: %s\nerr: %s\nwant exit %d, %s and %s", code, out, errOut, tc.code, tc.out,
					tc.errOut)
			}
		})
	}
	out, errOut, code := n.run("selftest", "--proxy-mode=userspace") // Wine starts no service again that crashed
	if code != cli.ExitFound || strings.Count(out, "  failed   ") != 1 || !strings.Contains(out, "  failed   crash ") {
		t.Errorf("selftest: exit %d, want one failure:\n%s%s", code, out, errOut)
	}
	has(t, "selftest", out, "  ok       create ", "  ok       start ", "  ok       parameter-change ",
		"  ok       stop ")
	logs, err := filepath.Glob(filepath.Join(dir, "logs", "kube-proxy.*.log.INFO.*"))
	do(t, err)
	if len(logs) != 1 {
		t.Errorf("logs in the folder with a blank: %v", logs)
	}
	text, err := os.ReadFile(written)
	do(t, err)
	has(t, "--write-config-to", string(text), "clusterCIDR: 10.0.0.0/16", "networkName: cbr0")
}

// startExe starts kube-proxy.exe in a folder, and leaves it running.
func (n *windowsNode) startExe(dir string, args ...string) *process {
	n.t.Helper()
	c := n.machine.Command(n.exe, args...)
	c.Dir = dir
	return launch(n.t, c, func() error { return n.begin(c) }, c.Wait)
}

// windowsManifests has a Service of TCP and UDP, and the Node.
const windowsManifests = `
kind: Node
metadata: {name: n1}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}
---
kind: Service
metadata: {name: echo, namespace: shop}
spec: {type: NodePort, clusterIP: 10.96.0.1, ports: [{name: t, port: 80, nodePort: 30080}, {name: u, port: 53, protocol: UDP}]}
---
kind: EndpointSlice
metadata: {name: echo-1, namespace: shop, labels: {kubernetes.io/service-name: echo}}
addressType: IPv4
ports: [{name: t, port: 8080}, {name: u, port: 8053, protocol: UDP}]
endpoints: [{addresses: [10.0.0.1]}]
`

// Mode userspace serves if configured: TCP and UDP arrive, /healthz answers, a changed file takes
// effect, the commands query it by its named pipe (WN-01), a second process waits for the first,
// and Ctrl-C ends it.
func windowsServes(n *windowsNode) {
	t := n.t
	n.command("ip", "addr", "add", "10.96.0.1/32", "dev", "lo") // Wine gives no machine an address; it has this one
	n.command("ip", "addr", "add", "10.0.0.1/32", "dev", "lo")
	n.echo("10.0.0.1:8080", "10.0.0.1:8053")
	dir := filepath.Join(t.TempDir(), "Program Files")
	write(t, filepath.Join(dir, "m", "all.yaml"), []byte(windowsManifests))
	file := func(v int) []byte {
		return []byte(strings.ReplaceAll(fmt.Sprintf("apiVersion: kubeproxy.config.k8s.io/v1alpha1\n"+
			"kind: KubeProxyConfiguration\n"+
			"hostnameOverride: n1\nmode: userspace\nhealthzBindAddress: 127.0.0.1:10256\n"+
			"udpIdleTimeout: 10s\n"+ // a loaded machine takes longer than the default, 250 ms, for an answer
			"logging: {verbosity: %d}\n", v), "\n", "\r\n"))
	}
	write(t, filepath.Join(dir, "proxy.yaml"), file(2))
	p := n.startExe(dir, "--config=proxy.yaml", `--manifests=.\m`)
	p.await(allWritten)
	has(t, "log", p.log(), `"Serving" mode="userspace"`)
	if strings.Contains(p.log(), "left alone") {
		t.Errorf("there is nothing that could be left:\n%s", p.log())
	}
	n.code("http://127.0.0.1:10256/healthz", 200)
	n.code("http://127.0.0.1:10256/readyz", 200)
	n.echoes("tcp", "10.0.0.1:30080", 1_000)
	for range 20 {
		n.echoes("tcp", "10.96.0.1:80", 100_000)
		n.echoes("udp", "10.96.0.1:53", 1_000)
	}

	// Wine gives the first client the instance that only reserves the name of the pipe.
	n.runProgram("cmd.exe", "/c", "type nul > "+config.AdminSocketOn("windows", config.DefaultAdminSocket))
	for _, tc := range []struct{ args, out string }{
		{"why shop/echo", `(?s)shop/echo  NodePort  10\.96\.0\.1\n`}, {"backends shop/echo", `10\.0\.0\.1:8080`},
		{"table", `10\.96\.0\.1:53/udp`},
		{"events", `shop/echo`}, {"trace node 10.96.0.1:80", `10\.0\.0\.1:8080`},
	} {
		if out, errOut, code := n.run(strings.Fields(tc.args)...); code != 0 ||
			!regexp.MustCompile(tc.out).MatchString(out) || errOut != "" {
			t.Errorf("kube-proxy.exe %s: exit %d\n%s\n%s", tc.args, code, out, errOut)
		}
	}
	has(t, "log", p.log(), `"Admin socket listening" `+
		`socket="\\\\.\\pipe\\ProtectedPrefix\\Administrators\\kube-proxy-admin"`)
	second := n.startExe(dir, "--config=proxy.yaml", `--manifests=.\m`, "--healthz-bind-address=127.0.0.1:20256")
	second.await(regexp.MustCompile(`"Another kube-proxy serves this network namespace`))

	write(t, filepath.Join(dir, "proxy.yaml"), file(4))
	p.await(regexp.MustCompile(`"Applied the changed configuration".*fields="logging.verbosity"`))

	if code := p.end(syscall.SIGINT); code != 0 { // Wine makes Ctrl-C of it
		t.Errorf("exit code %d after Ctrl-C:\n%s", code, p.log())
	}
	second.await(allWritten)
	n.echoes("tcp", "10.96.0.1:80", 1_000)
}

// The service control manager starts it, sees it run, and stops it. A service that cannot work
// ends, and the log has the reason; it does not report a normal stop, so that a manager that
// watches processes, which Wine's does not, restarts it (CF-46).
func windowsService(n *windowsNode) {
	t := n.t
	dir := filepath.Join(t.TempDir(), "Program Files")
	write(t, filepath.Join(dir, "m", "all.yaml"), []byte("kind: Node\nmetadata: {name: n1}\n"))
	path := func(name string) string { return wine.Path(filepath.Join(dir, name)) }
	sc := func(args ...string) string {
		t.Helper()
		out, errOut, code := n.runProgram("sc.exe", args...)
		if code != 0 {
			t.Fatalf("sc.exe %v: exit code %d\n%s%s", args, code, out, errOut)
		}
		return out
	}
	create := func(name string, args ...string) {
		t.Helper()
		command := []string{wine.Path(n.exe), "--windows-service", "--hostname-override=n1", "--proxy-mode=userspace",
			"--logtostderr=false", "--v=2", `"--log-file=` + path(name+".log") + `"`}
		sc("create", name, "binPath=", strings.Join(append(command, args...), " "))
		sc("start", name)
	}
	text := func(name string) string {
		content, _ := os.ReadFile(filepath.Join(dir, name)) // it may not be there yet
		return string(content)
	}
	await := func(what string, is func() bool) {
		t.Helper()
		for end := time.Now().Add(timeout); !is(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("no %s; the log is\n%s\nand\n%s", what, text("good.log"), text("bad.log"))
			}
		}
	}
	state := func(name string, want string) func() bool {
		return func() bool { return strings.Contains(sc("query", name), want) }
	}

	create("good", `"--manifests=`+path("m")+`"`)
	n.code("http://127.0.0.1:10256/readyz", 200)
	await("service that runs", state("good", "RUNNING"))
	sc("stop", "good")
	await("service that has stopped", state("good", "STOPPED"))
	await("word of the stop in the log", func() bool {
		return strings.Contains(text("good.log"), `"Stopping; the rules stay in force" reason="the service control `+
			`manager stops the service"`)
	})

	create("bad", `"--manifests=`+path("none")+`"`)
	await("word of the failure in the log", func() bool {
		return strings.Contains(text("bad.log"), `"kube-proxy failed" err=`)
	})
	await("end of the process", func() bool {
		all, err := filepath.Glob("/proc/[0-9]*/cmdline")
		do(t, err)
		return !slices.ContainsFunc(all, func(name string) bool {
			line, _ := os.ReadFile(name) // of a process that may have ended
			return bytes.Contains(line, []byte(path("bad.log")))
		})
	})
	if now := sc("query", "bad"); !strings.Contains(now, "RUNNING") {
		t.Errorf("it reports that it has stopped: %s", now)
	}
}

// echo returns its input, by TCP and by UDP, until the test ends.
func (n *windowsNode) echo(tcp, udp string) {
	n.t.Helper()
	var l net.Listener
	var c net.PacketConn
	var err error
	n.Do(func() {
		l, err = net.Listen("tcp", tcp)
		if err == nil {
			c, err = net.ListenPacket("udp", udp)
		}
	})
	do(n.t, err)
	n.t.Cleanup(func() { l.Close(); c.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				io.Copy(conn, conn)
			}()
		}
	}()
	go func() {
		b := make([]byte, 1<<16)
		for {
			k, from, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			c.WriteTo(b[:k], from)
		}
	}()
}

// echoes sends size bytes to an address, from the node, and expects them back.
func (n *windowsNode) echoes(network, at string, size int) {
	n.t.Helper()
	sent := make([]byte, size)
	rand.Read(sent)
	got := make([]byte, size)
	var conn net.Conn
	var err error
	n.Do(func() { conn, err = net.DialTimeout(network, at, timeout) })
	do(n.t, err)
	defer conn.Close()
	do(n.t, conn.SetDeadline(time.Now().Add(timeout)))
	go conn.Write(sent)
	if _, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(sent, got) {
		n.t.Errorf("%s %s: %d bytes came back otherwise: %v", network, at, size, err)
	}
}
