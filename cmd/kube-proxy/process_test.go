//go:build linux

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"kube-proxy/cli"
	"kube-proxy/internal/kernel"
	"kube-proxy/internal/netlab"
	"kube-proxy/test/logtest"
)

// timeout is how long a thing may take that takes no time on a machine that is not busy.
const timeout = 3 * time.Minute // in emulation, on a busy machine, a start takes one

// seccomp installs a filter in all threads of this process.
func seccomp(filter []unix.SockFilter) error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return errno
	}
	return nil
}

// namespace is a network namespace that ends with the test.
type namespace struct {
	*netlab.Namespace
	t   *testing.T
	dir string // working directory of programs
}

func newNamespace(t *testing.T) *namespace {
	t.Helper()
	n := &namespace{netlab.NamespaceForTest(t), t, t.TempDir()}
	var err error
	n.Do(func() { err = errors.Join(showConntrackMax(t.TempDir()), unix.Mount("none", "/run", "tmpfs", 0, "")) })
	if err != nil {
		t.Fatalf("have programs of the namespace find a large nf_conntrack_max and a /run of their own, where admin "+
			"sockets and locks are: %v", err)
	}
	n.command("ip", "link", "set", "lo", "up")
	// as on any node
	n.command("sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward; echo 1 >/proc/sys/net/ipv6/conf/all/forwarding")
	return n
}

// routed gives the namespace a device for its pods and one for other destinations, as any node has.
// What is sent there is lost.
func (n *namespace) routed() *namespace {
	n.t.Helper()
	for _, link := range []string{"pods", "uplink"} {
		n.command("ip", "link", "add", link, "type", "veth", "peer", "name", "far-"+link)
		n.command("ip", "link", "set", link, "arp", "off") // no pod answers
		n.command("ip", "link", "set", "far-"+link, "up")
		n.command("ip", "link", "set", link, "up")
	}
	for _, six := range []string{"-4", "-6"} {
		n.command("ip", six, "route", "add", "default", "dev", "uplink")
	}
	n.command("ip", "route", "add", "10.1.1.0/24", "dev", "pods")
	var batch strings.Builder // for traces: without ARP no other address gets packets
	for host := range 30 {
		for net, link := range map[string]string{"10.1.1.": "pods", "10.0.0.": "uplink", "192.0.2.": "uplink"} {
			fmt.Fprintf(&batch, "neighbour add %s%d lladdr 02:00:00:00:00:01 dev %s\n", net, host, link)
		}
	}
	n.write("neighbours", []byte(batch.String()))
	n.command("ip", "-batch", n.path("neighbours"))
	return n
}

// showConntrackMax shows the thread and its programs a sysctl, which the machine has once and a
// namespace cannot set, with a value as large as any command line requests: the machine's value
// depends on its memory, and the requested one on its CPUs.
func showConntrackMax(dir string) error {
	if err := kernel.LoadConntrack(); err != nil { // a machine just booted has no such file
		return err
	}
	file := filepath.Join(dir, "nf_conntrack_max")
	if err := os.WriteFile(file, []byte("67108864\n"), 0o644); err != nil {
		return err
	}
	const on = "/proc/sys/net/netfilter/nf_conntrack_max"
	if err := unix.Mount(file, on, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount on %s: %w", on, err)
	}
	if err := unix.Mount("", on, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("make %s read-only: %w", on, err)
	}
	return nil
}

// newNode is a namespace with a folder of manifests that has the Service that works.
func newNode(t *testing.T) *namespace {
	t.Helper()
	n := newNamespace(t)
	n.write("m/good.yaml", good())
	return n
}

// with returns the namespace for a subtest.
func (n *namespace) with(t *testing.T) *namespace { return &namespace{n.Namespace, t, t.TempDir()} }

// path returns the path of a file in the folder.
func (n *namespace) path(name ...string) string {
	return filepath.Join(append([]string{n.dir}, name...)...)
}

func (n *namespace) write(name string, text []byte) { n.t.Helper(); write(n.t, n.path(name), text) }

// command returns the output of a command in the namespace.
func (n *namespace) command(args ...string) string {
	n.t.Helper()
	var out []byte
	var err error
	n.Do(func() { out, err = exec.Command(args[0], args[1:]...).CombinedOutput() })
	if err != nil {
		n.t.Fatalf("%s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// process is a kube-proxy.
type process struct {
	t    testing.TB
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	out  logtest.Buffer
	kill func() error // ends it at once
}

func (p *process) log() string { return p.out.String() }

// inProcess runs a command in this process.
func inProcess(t *testing.T, args ...string) (code int, out, errOut string) {
	var o, e bytes.Buffer
	code = cli.Exit(&e, "kube-proxy", command(&o, &e, args).ExecuteContext(t.Context()))
	return code, o.String(), e.String()
}

// self is the path of the test binary, which is the program with asProgram set.
func self(t testing.TB) string {
	path, err := os.Executable()
	do(t, err)
	return path
}

// program is a command that runs the program.
func program(t testing.TB, args ...string) *exec.Cmd {
	cmd := exec.Command(self(t), args...)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	return cmd
}

// start starts the program in the folder; spoilt may change how.
func (n *namespace) start(args []string, spoilt ...func(*exec.Cmd)) *process {
	n.t.Helper()
	cmd := program(n.t, args...)
	cmd.Dir = n.dir
	for _, change := range spoilt {
		if change != nil {
			change(cmd)
		}
	}
	return launch(n.t, cmd, func() (err error) {
		n.Do(func() { err = cmd.Start() })
		return err
	}, cmd.Wait)
}

// launch starts a command by begin. It ends with the test.
func launch(t testing.TB, cmd *exec.Cmd, begin, wait func() error) *process {
	t.Helper()
	p := &process{t: t, cmd: cmd, done: make(chan struct{}), kill: func() error { return cmd.Process.Kill() }}
	cmd.Stdout, cmd.Stderr = &p.out, &p.out
	do(t, begin())
	go func() { wait(); close(p.done) }()
	t.Cleanup(func() { p.kill(); <-p.done })
	return p
}

// env adds to the environment of a program.
func env(more ...string) func(*exec.Cmd) { return func(c *exec.Cmd) { c.Env = append(c.Env, more...) } }

// serve starts the program on the folder m and waits until it has written all rules.
func (n *namespace) serve(mode string, more ...string) *process {
	n.t.Helper()
	p := n.start(usual(mode, more...))
	p.await(allWritten)
	return p
}

func usual(mode string, more ...string) []string {
	return append([]string{"--proxy-mode=" + mode, "--hostname-override=n1", "--manifests=m",
		"--cluster-cidr=10.0.0.0/16,fd00::/48"}, more...)
}

// allWritten matches the log when both families' rules are written.
var allWritten = regexp.MustCompile(`(?s)all frontends"? family=.*all frontends"? family=`)

// errorLine matches the header of an error in the log.
var errorLine = regexp.MustCompile(`(?m)^E\d{4} `)

// await waits for a text in the log.
func (p *process) await(text *regexp.Regexp) {
	p.t.Helper()
	for end := time.Now().Add(timeout); !text.MatchString(p.log()); time.Sleep(2 * time.Millisecond) {
		select {
		case <-p.done:
			if text.MatchString(p.log()) {
				return
			}
			p.t.Fatalf("ended with %v before it said %q:\n%s", p.cmd.ProcessState, text, p.log())
		default:
		}
		if time.Now().After(end) {
			p.t.Fatalf("did not say %q:\n%s", text, p.log())
		}
	}
}

// signal sends a signal.
func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	send := func() error { return p.cmd.Process.Signal(s) }
	if s == syscall.SIGKILL {
		send = p.kill
	}
	if err := send(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Fatal(err)
	}
}

// end waits until the process ends, with a signal if there is one, and returns its exit code.
func (p *process) end(signal syscall.Signal) int {
	p.t.Helper()
	if signal != 0 {
		p.signal(signal)
	}
	select {
	case <-p.done:
	case <-time.After(timeout):
		p.cmd.Process.Signal(syscall.SIGQUIT) // to see where it hangs
		<-p.done
		p.t.Fatalf("does not end:\n%s", p.log())
	}
	return p.cmd.ProcessState.ExitCode()
}

// stop ends the process with SIGTERM, after which its exit code must be 0.
func (p *process) stop() {
	p.t.Helper()
	if code := p.end(syscall.SIGTERM); code != 0 {
		p.t.Errorf("exit code %d after SIGTERM:\n%s", code, p.log())
	}
}

// files returns how many descriptors the process has open.
func (p *process) files() int {
	p.t.Helper()
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.cmd.Process.Pid))
	do(p.t, err)
	return len(open)
}

// resident is the memory that the process has, in bytes.
func (p *process) resident() int {
	p.t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	do(p.t, err)
	m := regexp.MustCompile(`VmRSS:\s+(\d+) kB`).FindSubmatch(data)
	kb, err := strconv.Atoi(string(m[1]))
	do(p.t, err)
	return kb << 10
}

var elements = regexp.MustCompile(`(?s)elements = \{(.*?)\}`)

// serves lists the frontends and backends that the kernel has; how many, where they are many.
func (n *namespace) serves() string {
	n.t.Helper()
	var out strings.Builder
	for _, family := range []string{"ip", "ip6"} {
		for _, m := range []struct {
			name, what string
			value      int // 0: the keys of the map, 1: its values
		}{{"services", "frontend", 0}, {"backends", "backend", 1}} {
			var lines []string
			if found := elements.FindStringSubmatch(n.command("nft", "list", "map", family, "kube-proxy",
				m.name)); found != nil {
				for element := range strings.SplitSeq(found[1], ",") {
					keyValue := strings.SplitN(element, " : ", 2)
					lines = append(lines, m.what+" "+strings.TrimSpace(keyValue[m.value])+"\n")
				}
			}
			slices.Sort(lines)
			if len(lines) > 20 {
				lines = []string{fmt.Sprintf("%d %ss\n", len(lines), m.what)}
			}
			out.WriteString(strings.Join(lines, ""))
		}
	}
	return out.String()
}

func write(t *testing.T, path string, text []byte) {
	t.Helper()
	do(t, os.MkdirAll(filepath.Dir(path), 0o755))
	do(t, os.WriteFile(path, text, 0o644))
}

// service is a manifest of a Service and its slice.
func service(name, addr string, port int, endpoint string) []byte {
	return fmt.Appendf(nil, `
kind: Service
metadata: {name: %[1]s, namespace: shop}
spec: {clusterIP: %[2]s, ports: [{port: %[3]d}]}
---
kind: EndpointSlice
metadata: {name: %[1]s-1, namespace: shop, labels: {kubernetes.io/service-name: %[1]s}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [%[4]s]}]
`, name, addr, port, endpoint)
}

// good is the Service that works, whatever is wrong beside it.
func good() []byte {
	return append([]byte("kind: Node\nmetadata: {name: n1}\nstatus: {addresses: [{type: InternalIP, address: "+
		"192.0.2.1}]}\n---"), service("good", "10.96.0.1", 80, "10.0.0.1")...)
}

const goodServed = "frontend 10.96.0.1 . tcp . 80\nbackend 10.0.0.1 . 8080\n"

// wantGood fails the test unless the kernel serves [good], and nothing else.
func (n *namespace) wantGood(when string) {
	n.t.Helper()
	if got := n.serves(); got != goodServed {
		n.t.Errorf("%s: the kernel has\n%s", when, got)
	}
}
