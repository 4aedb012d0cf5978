//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
)

// chartCapabilities are those that the chart gives a container of mode ebpf, as far as this machine
// may grant them.
var chartCapabilities = granted(map[string]uint{"CAP_NET_ADMIN": unix.CAP_NET_ADMIN, "CAP_BPF": unix.CAP_BPF,
	"CAP_PERFMON": unix.CAP_PERFMON, "CAP_SYS_ADMIN": unix.CAP_SYS_ADMIN, "CAP_SYS_RESOURCE": unix.CAP_SYS_RESOURCE})

func granted(all map[string]uint) (names []string) {
	for name, bit := range all {
		if may, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(bit), 0, 0, 0); err == nil && may == 1 {
			names = append(names, name)
		}
	}
	return names
}

// inPod starts the program in node1 as a container of the chart in mode ebpf: with its mounts and
// capabilities, containerd's seccomp filter, a read-only root and a PID namespace of its own. The
// folders of --ebpf-cgroup and --ebpf-bpffs are mounted where the chart mounts the host's.
func (n *nodeLab) inPod(args ...string) *labProgram {
	n.t.Helper()
	dir := n.t.TempDir()
	for i, a := range args {
		if path, is := strings.CutPrefix(a, "--ebpf-cgroup="); is {
			n.cgroup, args[i] = path, "--ebpf-cgroup=/run/cgroup"
		}
		if path, is := strings.CutPrefix(a, "--ebpf-bpffs="); is {
			n.bpffs, args[i] = path, "--ebpf-bpffs=/sys/fs/bpf"
		}
	}
	lock := filepath.Join(dir, "xtables.lock")
	do(n.t, os.WriteFile(lock, nil, 0o600))
	do(n.t, os.Mkdir(filepath.Join(dir, "rootfs"), 0o755))
	type object = map[string]any
	bind := func(source, destination string, options ...string) object {
		return object{"destination": destination, "type": "bind", "source": source,
			"options": append([]string{"rbind"}, options...)}
	}
	mounts := []object{
		{"destination": "/proc", "type": "proc", "source": "proc"},
		{"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": []string{"nosuid", "mode=755"}},
		{"destination": "/sys", "type": "sysfs", "source": "sysfs",
			"options": []string{"nosuid", "noexec", "nodev", "ro"}},
		{"destination": "/tmp", "type": "tmpfs", "source": "tmpfs"},
		bind(lock, "/run/xtables.lock", "rw"),
		bind(n.dir, n.dir, "rw"), // the configuration, and the folder of the admin socket
		bind(self(n.t), "/usr/local/bin/kube-proxy", "ro"),
		bind("/run/netns", "/run/netns", "ro", "rslave"),
	}
	do(n.t, os.MkdirAll("/run/netns", 0o755))
	for _, libraries := range []string{"/lib", "/lib64"} { // of a test that is linked with them
		if _, err := os.Stat(libraries); err == nil {
			mounts = append(mounts, bind(libraries, libraries, "ro"))
		}
	}
	if n.bpffs != "" {
		mounts = append(mounts, bind(n.bpffs, "/sys/fs/bpf", "rw"), bind(n.cgroup, "/run/cgroup", "ro"))
	}
	spec, err := json.Marshal(object{
		"ociVersion": "1.0.2", "mounts": mounts,
		"root": object{"path": filepath.Join(dir, "rootfs"), "readonly": true},
		"linux": object{
			"namespaces": []object{{"type": "pid"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"}},
			"seccomp":    runtimeDefault(n.t),
			"maskedPaths": []string{"/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
				"/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/sys/firmware", "/proc/scsi"},
			"readonlyPaths": []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
		},
		"process": object{
			"user": object{"uid": 0, "gid": 0}, "cwd": "/", "noNewPrivileges": true,
			"env":  []string{asProgram + "=1", asChild + "=1", "PATH=/usr/local/bin"},
			"args": append([]string{"/usr/local/bin/kube-proxy"}, args...),
			"capabilities": object{"bounding": chartCapabilities, "effective": chartCapabilities,
				"permitted": chartCapabilities},
		},
	})
	do(n.t, err)
	do(n.t, os.WriteFile(filepath.Join(dir, "config.json"), spec, 0o600))
	state, id := filepath.Join(dir, "runc"), fmt.Sprintf("kp-%d-%s", os.Getpid(), filepath.Base(filepath.Dir(dir))+
		filepath.Base(dir))
	n.t.Cleanup(func() { // runc has removed it, unless runc itself was killed
		if out, err := exec.Command("runc", "--root", state, "delete", "--force", id).CombinedOutput(); err != nil {
			n.t.Errorf("the container %s is left: %v: %s", id, err, out)
		}
	})
	cmd := n.Command(netlab.Node1, "runc", "--root", state, "run", "--bundle", dir, id)
	p := launch(n.t, cmd.Cmd, cmd.Start, cmd.Wait)
	p.kill = func() error { return p.killContainer(state, id) }
	return &labProgram{p, n}
}

// killContainer kills the process in the container, and waits until runc, whose process p is, has
// removed the container. A kill of runc would end neither: it passes other signals on, but cannot
// pass on SIGKILL.
func (p *process) killContainer(state, id string) error {
	for end := time.Now().Add(timeout); ; {
		select {
		case <-p.done:
			return nil
		default:
		}
		// runc says no while it has not yet created the container, and when that has ended
		out, err := exec.Command("runc", "--root", state, "kill", id, "KILL").CombinedOutput()
		if time.Now().After(end) {
			return errors.Join(fmt.Errorf("the container %s does not end: %v: %s", id, err, out), p.cmd.Process.Kill())
		}
		select {
		case <-p.done:
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// runtimeDefault returns the seccomp filter that containerd gives a container with the capabilities
// of the chart, as containerd prints it.
func runtimeDefault(t testing.TB) json.RawMessage {
	t.Helper()
	filter, err := readDefault()
	if err != nil {
		t.Fatalf("read containerd's seccomp filter (`make deps` installs containerd): %v", err)
	}
	return filter
}

var readDefault = sync.OnceValues(func() (filter json.RawMessage, err error) {
	dir, err := os.MkdirTemp("", "kp-containerd-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	socket, config := filepath.Join(dir, "sock"), filepath.Join(dir, "config.toml")
	text := fmt.Sprintf("version = 2\nroot = %q\nstate = %q\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n"+
		"[grpc]\naddress = %q\n[ttrpc]\naddress = %q\n", dir+"/root", dir+"/state", socket, socket+".ttrpc")
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, err
	}
	daemon := exec.Command("containerd", "--config", config)
	if err := daemon.Start(); err != nil {
		return nil, err
	}
	defer daemon.Wait()
	defer daemon.Process.Signal(syscall.SIGTERM)
	ctr := func(args ...string) ([]byte, error) {
		out, err := exec.Command("ctr", append([]string{"--address", socket}, args...)...).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("ctr %s: %w: %s", strings.Join(args, " "), err, out)
		}
		return out, err
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if _, err := ctr("version"); err == nil {
			break
		} else if time.Now().After(end) {
			return nil, err
		}
	}
	create := []string{"containers", "create", "--seccomp"}
	for _, c := range chartCapabilities {
		create = append(create, "--cap-add", c)
	}
	if _, err := ctr(append(create, "--rootfs", dir, "probe")...); err != nil {
		return nil, err
	}
	out, err := ctr("containers", "info", "probe")
	if err != nil {
		return nil, err
	}
	var info struct {
		Spec struct {
			Linux struct{ Seccomp json.RawMessage }
		}
	}
	if err := json.Unmarshal(out, &info); err != nil {
		return nil, fmt.Errorf("read the container: %w", err)
	}
	filter = info.Spec.Linux.Seccomp
	if !strings.Contains(string(filter), "SCMP_ACT_ERRNO") {
		return nil, fmt.Errorf("the filter is %s", filter)
	}
	return filter, nil
})
