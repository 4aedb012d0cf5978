//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kube-proxy/cli"
)

// readOnly makes the kernel kill this process if it could change a node or contact another program
// or machine: open a socket, start a program, open a file for writing, make or remove files, enter
// or make namespaces, mount, load modules or BPF programs.
func readOnly() error {
	// offsets in struct seccomp_data: the call, and the low word of its third argument
	const number, flags = 0, 16 + 2*8
	load := func(at uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
	}
	kill := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_KILL_PROCESS}
	filter := []unix.SockFilter{load(number)}
	for _, call := range []uint32{unix.SYS_SOCKET, unix.SYS_CONNECT, unix.SYS_EXECVE, unix.SYS_EXECVEAT,
		unix.SYS_UNSHARE, unix.SYS_SETNS, unix.SYS_MOUNT, unix.SYS_MKDIRAT,
		unix.SYS_UNLINKAT, unix.SYS_RENAMEAT2, unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_BPF,
		unix.SYS_PTRACE, unix.SYS_OPENAT2} {
		filter = append(filter, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: call, Jf: 1}, kill)
	}
	return seccomp(append(filter,
		unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_OPENAT, Jf: 3}, load(flags),
		unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: unix.O_WRONLY | unix.O_RDWR | unix.O_CREAT |
			unix.O_TRUNC, Jf: 1}, kill, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}))
}

// migrated runs the program where it can only read, and returns its output.
func migrated(t *testing.T, stdin string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := program(t, args...)
	cmd.Env = append(cmd.Env, asReader+"=1")
	var out, errOut bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errOut
	cmd.Run() // the exit code has the result
	return out.String(), errOut.String(), cmd.ProcessState.ExitCode()
}

// kube-proxy migrate reads kubeadm's own files, prints a configuration on stdout and the
// differences on stderr, and does nothing else: it is killed for anything that could change a node.
// So is kube-proxy check, which shows that the filter works.
func TestMigrateOnlyReads(t *testing.T) {
	files := []string{"../../test/testdata/kubeadm/configmap.yaml", "../../test/testdata/kubeadm/daemonset.yaml"}
	out, reported, code := migrated(t, "", append([]string{"migrate", "--to=nftables"}, files...)...)
	if code != 0 || !strings.HasPrefix(out, "apiVersion: kubeproxy.config.k8s.io/v1alpha1\n") ||
		!strings.Contains(out, "mode: nftables\n") || !strings.Contains(reported, "NodePorts on 127.0.0.1") {
		t.Errorf("exit code %d\n%s\n%s", code, out, reported)
	}
	// The program accepts its output, with the flags that remain on the command line.
	name := filepath.Join(t.TempDir(), "config.yaml")
	write(t, name, []byte(out))
	if out, reported, code := migrated(t, "", "render", "--config="+name, "--hostname-override=n1", "--manifests="+
		filepath.Dir(name)+"/none"); code != 1 || strings.Contains(reported, "config.yaml") ||
		strings.Contains(reported, "lenient") || strings.Contains(reported, "effect") {
		t.Errorf("exit code %d\n%s\n%s", code, out, reported) // there are no manifests; the configuration has no fault
	}
	data, err := os.ReadFile(files[0])
	do(t, err)
	out, reported, code = migrated(t, string(data), "migrate", "-o=json", "-")
	var m cli.MigrateReport
	if err := json.Unmarshal([]byte(out), &m); err != nil || code != 0 || reported != "" || m.Version != 1 ||
		m.From != "iptables" || m.Flags == nil || len(m.Statements) < 5 ||
		!strings.Contains(m.Config, "clusterCIDR: 10.244.0.0/16") {
		t.Errorf("exit code %d, %v\n%s\n%s", code, err, out, reported)
	}
	if _, reported, code := migrated(t, "", "check", "--manifests=m"); code != -1 {
		t.Errorf("what opens sockets goes on where migrate was run: exit code %d\n%s", code, reported)
	}
}

// A process that waits for input can be interrupted.
func TestMigrateEndsWhileItReads(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	do(t, unix.Mkfifo(fifo, 0o600))
	for name, waits := range map[string]string{"-": "0 0x0 ", fifo: "257 "} { // read of stdin, openat
		cmd := program(t, "migrate", name)
		input, err := cmd.StdinPipe()
		do(t, err)
		defer input.Close()
		var reported bytes.Buffer
		cmd.Stderr = &reported
		do(t, cmd.Start())
		defer cmd.Process.Kill()
		until(t, func() string {
			threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/syscall", cmd.Process.Pid))
			for _, thread := range threads {
				if call, _ := os.ReadFile(thread); strings.HasPrefix(string(call), waits) {
					return ""
				}
			}
			return "migrate does not wait for " + name
		})
		do(t, cmd.Process.Signal(unix.SIGTERM)) // only one: a second would end it in any case
		cmd.Wait()                              // the exit code has the result
		if code := cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(reported.String(), "read the input") {
			t.Errorf("%s: exit code %d, %s", name, code, &reported)
		}
	}
}

// Faults are reported on stderr, stdout is empty, and the exit code is 1.
func TestMigrateRefuses(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "deployment.yaml"), []byte("kind: Deployment\nmetadata: {name: kube-proxy}\n"))
	write(t, filepath.Join(dir, "empty"), nil)
	head := "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: userspace\n"
	wrong, types := dir+"/wrong.yaml", dir+"/types.yaml"
	write(t, wrong, []byte(head+"portRange: x\niptables: {masqueradeBit: 99}\n"))
	write(t, types, []byte(head+"ipvs: {scheduler: 3}\nconntrack: {min: x}\n"))
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"migrate", wrong}, "kube-proxy: " + wrong + ": KubeProxyConfiguration.iptables.masqueradeBit: " +
			"\"99\": want 0 to 31\nkube-proxy: " + wrong + ": KubeProxyConfiguration.portRange: "},
		{[]string{"migrate", types}, "kube-proxy: " + types + ": KubeProxyConfiguration.conntrack.min: \"x\": failed " +
			"to decode: want a whole number below 2^31\nkube-proxy: " + types +
			": KubeProxyConfiguration.ipvs.scheduler: "},
		{[]string{"migrate", "--", "--proxy-mode=magic", "--cluster-cidr=x"}, "kube-proxy: the command line after " +
			"--: --proxy-mode: \"magic\": want ebpf, iptables, ipvs, nftables, userspace, or nothing for the default" +
			"\nkube-proxy: the command line after --: --cluster-cidr: "},
		{[]string{"check", "--config=" + types}, "kube-proxy: " + types + ": KubeProxyConfiguration.conntrack.min: " +
			"\"x\": failed to decode: want a whole number below 2^31\nkube-proxy: " + types +
			": KubeProxyConfiguration.ipvs.scheduler: "},
		{[]string{"--config=" + wrong}, "kube-proxy: " + wrong + ": KubeProxyConfiguration.portRange: "},
		{[]string{"render", "--config=" + wrong}, "kube-proxy: " + wrong + ": KubeProxyConfiguration.portRange: "},
		{[]string{"table", "--config=" + wrong}, "kube-proxy: " + wrong + ": KubeProxyConfiguration.portRange: "},
		{[]string{"check", "--config=" + wrong, "--v=x"}, "kube-proxy: --v: \"x\": "},
		{[]string{"migrate"}, "kube-proxy: want a file, - for stdin, or flags after --"},
		{[]string{"migrate", dir + "/none"}, "none: no such file"},
		{[]string{"migrate", dir}, "is a directory"},
		{[]string{"migrate", dir + "/empty"}, "empty: it is empty: want a ConfigMap"},
		{[]string{"migrate", dir + "/deployment.yaml"}, "deployment.yaml: it is a Deployment"},
		{[]string{"migrate", "--proxy-mode=ipvs"}, "flags of the proxy to migrate come after --"},
		{[]string{"migrate", "--to=magic", "--", "--v=2"}, "--to: \"magic\": want iptables"},
		{[]string{"migrate", "-o=xml", "--", "--v=2"}, "--output: \"xml\": want text or json"},
		{[]string{"migrate", "--", "--no-such"}, "the command line after --: unknown flag: --no-such"},
		{[]string{"check", "-o=xml"}, "--output: \"xml\": want text or json"},
		{[]string{"check", "--no-such"}, "unknown flag: --no-such"},
		{[]string{"check", "--proxy-mode=xdp"}, "--proxy-mode: \"xdp\": want ebpf, iptables, ipvs, nftables, " +
			"userspace, or nothing"},
		{[]string{"check", "--config=" + dir + "/deployment.yaml"},
			"deployment.yaml: failed to decode: its apiVersion is missing"},
		{[]string{"check", "now"}, "does not take any arguments"},
	} {
		if code, out, errOut := inProcess(t, c.args...); code != 1 || !strings.Contains(errOut, c.want) || out != "" {
			t.Errorf("%q: exit code %d\n%s\n%s\nwant %q", c.args, code, out, errOut, c.want)
		}
	}
}

// --help of both commands describes the exit codes.
func TestCheckAndMigrateHelp(t *testing.T) {
	for _, name := range []string{"check", "migrate"} {
		if code, out, errOut := inProcess(t, name, "--help"); code != 0 ||
			!strings.HasPrefix(out, "Usage: kube-proxy "+name) || !strings.Contains(out, "Exit codes: 0 ") {
			t.Errorf("exit code %d\n%s\n%s", code, out, errOut)
		}
	}
}

// These commands print contents of files and process names that others wrote: no escape sequence in
// them reaches the terminal.
func TestTerminalIsLeftAlone(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pod.yaml")
	write(t, file, []byte("kind: Pod\nmetadata: {name: kube-proxy-n1}\nspec: {containers: [{name: kube-proxy, image: "+
		"\"a\\e]0;owned\\a\", command: [kube-proxy, \"--hostname-override=\\e[2J\"]}]}\n"))
	_, out, errOut := inProcess(t, "migrate", file)
	_, _, missing := inProcess(t, "migrate", file+"\x1b[2J")
	for _, s := range []string{out, errOut, missing} {
		if strings.ContainsAny(s, "\x1b\x07\r\u009b") {
			t.Errorf("%q", s)
		}
	}
	if !strings.Contains(errOut, `a\x1b]0;owned`) {
		t.Errorf("the kept value is not reported:\n%s", errOut)
	}
}
