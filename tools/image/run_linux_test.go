package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"kube-proxy/internal/kernel"
	"kube-proxy/internal/netlab"
)

// asContainer makes this test replace kube-proxy: it starts the image's with runc, as a kubelet
// would, and ends with it. Its value is a container in JSON.
const asContainer = "KUBE_PROXY_IMAGE_CONTAINER"

func TestMain(m *testing.M) {
	if text := os.Getenv(asContainer); text != "" {
		os.Exit(standIn(text, os.Args[1:]))
	}
	os.Exit(m.Run())
}

// container is how kube-proxy is started.
type container struct {
	Dir          string          // has the folder rootfs and all other files
	Config       v1.Config       // the image's
	UID          int             // user of the container
	Capabilities []string        // all that it has
	Ambient      bool            // they are passed on to a process that is not root, as kubelets cannot
	Seccomp      json.RawMessage // allowed system calls
	Init         bool            // a privileged container with --init-only runs before
	Kubelet      string          // the back end of iptables that a kubelet of the node uses
	Sets         bool            // other programs' rules on the node name an ipset
}

// standIn is the process that the demo starts in the lab's node.
func standIn(text string, args []string) int {
	var c container
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := c.serve(args); err != nil {
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() > 0 {
			return exit.ExitCode()
		}
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// serve runs kube-proxy until it is stopped, and records the rules that it leaves.
func (c container) serve(args []string) error {
	if c.Kubelet != "" {
		for _, family := range []string{"iptables", "ip6tables"} {
			if out, err := exec.Command(family+"-"+c.Kubelet, "-t", "mangle", "-N", "KUBE-IPTABLES-HINT").
				CombinedOutput(); err != nil {
				return fmt.Errorf("stand in for a kubelet: %w: %s", err, out)
			}
		}
	}
	if c.Sets {
		for _, command := range []string{"ipset create theirs hash:ip",
			"iptables-nft -A INPUT -m set --match-set theirs src -j ACCEPT"} {
			words := strings.Fields(command)
			if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w: %s", command, err, out)
			}
		}
	}
	args = slices.Clone(args)
	for i, a := range args {
		switch a {
		case "--manifests": // a copy that every user may read, as of a ConfigMap
			if err := os.CopyFS(filepath.Join(c.Dir, "manifests"), os.DirFS(args[i+1])); err != nil {
				return err
			}
		case "--admin-socket": // the demo has it beside the manifests; a container has a separate path for it
			args[i+1] = "/run/kube-proxy/admin.sock"
		}
	}
	if c.Init {
		privileged := c
		privileged.UID, privileged.Capabilities, privileged.Seccomp = 0, everyCapability, nil
		if err := privileged.run("init", append(args, "--init-only"), true); err != nil {
			return fmt.Errorf("run with --init-only: %w", err)
		}
	}
	err := c.run("main", args, false)
	for _, save := range []string{"iptables-nft-save", "ip6tables-nft-save", "iptables-legacy-save",
		"ip6tables-legacy-save"} {
		out, e := exec.Command(save).Output()
		err = errors.Join(err, e, os.WriteFile(filepath.Join(c.Dir, save), out, 0o644))
	}
	return err
}

// run runs one container with runc.
func (c container) run(name string, args []string, privileged bool) error {
	bundle := filepath.Join(c.Dir, name)
	if err := os.MkdirAll(bundle, 0o755); err != nil {
		return err
	}
	spec, err := json.MarshalIndent(c.spec(args, privileged), "", " ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(bundle, "config.json"), spec, 0o644); err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(bundle, "log"))
	if err != nil {
		return err
	}
	defer log.Close()
	id := filepath.Base(c.Dir) + "-" + name
	cmd := exec.Command("runc", "--root", filepath.Join(c.Dir, "runc"), "run", "--bundle", bundle, id)
	cmd.Stdout, cmd.Stderr = io.MultiWriter(os.Stdout, log), io.MultiWriter(os.Stderr, log)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	defer signal.Stop(signals)
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() {
		for s := range signals {
			cmd.Process.Signal(s)
		}
	}()
	return cmd.Wait()
}

// spec returns the configuration for runc: that of containerd for a pod in the host's network, with
// the least rights that the pod may request.
func (c container) spec(args []string, privileged bool) map[string]any {
	type object = map[string]any
	mounts := []object{
		{"destination": "/proc", "type": "proc", "source": "proc", "options": []string{"nosuid", "noexec", "nodev"}},
		{"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": []string{"nosuid", "strictatime",
			"mode=755", "size=65536k"}},
		{"destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": []string{"nosuid", "noexec", "nodev",
			"mode=1777", "size=65536k"}},
		{"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": []string{"nosuid", "noexec", "nodev",
			map[bool]string{true: "rw", false: "ro"}[privileged]}},
		// As in the chart for the admin socket, for any user.
		{"destination": "/run/kube-proxy", "type": "tmpfs", "source": "tmpfs", "options": []string{"nosuid", "noexec",
			"nodev", "mode=777", "size=1m"}},
		// As kubeadm's DaemonSet mounts them.
		{"destination": "/lib/modules", "type": "bind", "source": filepath.Join(c.Dir, "modules"),
			"options": []string{"rbind", "ro"}},
		{"destination": "/run/xtables.lock", "type": "bind", "source": filepath.Join(c.Dir, "xtables.lock"),
			"options": []string{"rbind", "rw"}},
	}
	for i, a := range args {
		if a == "--manifests" {
			mounts = append(mounts, object{"destination": args[i+1], "type": "bind",
				"source": filepath.Join(c.Dir, "manifests"), "options": []string{"rbind", "ro"}})
		}
	}
	capabilities := object{"bounding": c.Capabilities, "effective": c.Capabilities, "permitted": c.Capabilities}
	if c.Ambient {
		capabilities["inheritable"], capabilities["ambient"] = c.Capabilities, c.Capabilities
	}
	linux := object{"namespaces": []object{{"type": "pid"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"}}}
	if !privileged {
		linux["maskedPaths"] = []string{"/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys",
			"/proc/latency_stats", "/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/sys/firmware",
			"/proc/scsi"}
		linux["readonlyPaths"] = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
	}
	if c.Seccomp != nil {
		linux["seccomp"] = c.Seccomp
	}
	return object{
		"ociVersion": "1.0.2", "hostname": "node1", "mounts": mounts, "linux": linux,
		"root": object{"path": filepath.Join(c.Dir, "rootfs"), "readonly": true},
		"process": object{
			"user": object{"uid": c.UID, "gid": c.UID}, "cwd": "/", "env": c.Config.Env,
			"args":         append(c.Config.Entrypoint, args...),
			"capabilities": capabilities, "noNewPrivileges": !privileged,
		},
	}
}

// everyCapability lists those of a privileged container, as far as this machine has them.
var everyCapability = []string{"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_KILL", "CAP_SETGID", "CAP_SETUID",
	"CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_SYS_ADMIN", "CAP_SYS_MODULE"}

// The image serves the shop of `make run` to all hosts of the lab, in both families, as a container
// of a node: read-only, without privilege escalation, with containerd's seccomp filter, and with
// only NET_ADMIN if that suffices according to docs/image.md. Mode ipvs does in a VM, when its
// modules are loaded already.
func TestServes(t *testing.T) {
	l := newContainerLab(t)
	t.Run("imported", l.testImported)
	t.Run("not", l.testServesNot)
	netAdmin := []string{"CAP_NET_ADMIN"}
	for _, c := range []struct {
		name, tag, mode string
		rules           string // the program that lists the Services' chains
		container
	}{
		{"nftables", minimal, "nftables", "", container{Capabilities: netAdmin}},
		{"nftables, not root", minimal, "nftables", "", container{Capabilities: netAdmin, UID: 65532, Ambient: true}},
		{"userspace, not root", minimal, "userspace", "", container{Capabilities: netAdmin, UID: 65532, Ambient: true}},
		{"iptables, nft", "", "iptables", "iptables-nft-save", container{Capabilities: netAdmin, Kubelet: "nft"}},
		{"iptables, nft, beside ipsets", "", "iptables", "iptables-nft-save",
			container{Capabilities: []string{"CAP_NET_ADMIN", "CAP_NET_RAW"}, Kubelet: "nft", Sets: true}},
		{"iptables, nft, not root", "", "iptables", "iptables-nft-save", container{Capabilities: netAdmin, UID: 65532,
			Ambient: true, Kubelet: "nft"}},
		{"ipvs", "", "ipvs", "iptables-nft-save", container{Capabilities: []string{"CAP_NET_ADMIN", "CAP_NET_RAW"}}},
		{"iptables, legacy", "", "iptables", "iptables-legacy-save",
			container{Capabilities: []string{"CAP_NET_ADMIN", "CAP_NET_RAW"}, Kubelet: "legacy"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.mode == "ipvs" && kernel.LoadIPVS() != nil {
				t.Skip("this kernel has no IPVS: `make test-image` has it in a VM")
			}
			c.Init = true
			said, log, err := l.run(t, &c.container, c.tag, c.mode)
			if err != nil || !strings.Contains(said, "48 of 48 cases match") {
				t.Fatalf("%v\n%s\n%s", err, said, log)
			}
			for line := range strings.Lines(log) {
				if regexp.MustCompile(`^[WE]\d{4} `).MatchString(line) && !expected(line) {
					t.Errorf("logged: %s", line)
				}
			}
			c.checkRules(t, c.rules)
		})
	}
}

// expected returns true for warnings of every start in this lab: a container cannot set its
// oom_score_adj, and others about fields missing in the shop's manifests and the command line.
func expected(line string) bool {
	return strings.Contains(line, "oom_score_adj") || strings.Contains(line, "healthCheckNodePort: is missing") ||
		strings.Contains(line, "--nodeport-addresses is not set") ||
		strings.Contains(line, "Mode ipvs is deprecated upstream") ||
		strings.Contains(line, "Mode has a security impact")
}

// A container that lacks a requirement reports it, with a remedy.
func (l containerLab) testServesNot(t *testing.T) {
	for _, c := range []struct {
		name, tag, mode string
		want            string
		container
	}{
		{"no capability", minimal, "nftables", "nf_tables needs root, or the capability NET_ADMIN",
			container{Init: true, Capabilities: []string{}}},
		{"not root, as a kubelet does it", minimal, "nftables", "nf_tables needs root, or the capability NET_ADMIN",
			container{Init: true, Capabilities: []string{"CAP_NET_ADMIN"}, UID: 65532}},
		{"sysctls not set before", minimal, "nftables", "read-only file system; set it outside of this container, or " +
			"run the container privileged", container{Capabilities: []string{"CAP_NET_ADMIN"}}},
		{"NET_ADMIN alone beside ipsets", "", "iptables", "run as root with CAP_NET_ADMIN and CAP_NET_RAW",
			container{Init: true, Capabilities: []string{"CAP_NET_ADMIN"}, Sets: true}},
		{"no iptables in the image", minimal, "iptables", "install iptables, or use --proxy-mode nftables",
			container{Init: true, Capabilities: []string{"CAP_NET_ADMIN"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			said, log, err := l.run(t, &c.container, c.tag, c.mode)
			if err == nil || !strings.Contains(said+log, c.want) {
				t.Errorf("%v, want %q\n%s\n%s", err, c.want, said, log)
			}
		})
	}
}

var demoFlag = flag.String("demo", "", "the program of `make run`, which is the lab of the containers; built if not "+
	"given")

// containerLab holds the common parts of a test's containers.
type containerLab struct {
	image      *readImage
	containerd daemon
	demo       string // the lab, which sends the packets
	seccomp    json.RawMessage
}

func newContainerLab(t *testing.T) containerLab {
	t.Helper()
	archive := builtImage(t)
	if os.Geteuid() != 0 {
		t.Fatal("needs root: it starts containers")
	}
	l := containerLab{image: openImage(t, archive), containerd: startContainerd(t), demo: *demoFlag}
	if l.demo == "" {
		l.demo = filepath.Join(t.TempDir(), "demo")
		if out, err := exec.Command("go", "build", "-buildvcs=false", "-o", l.demo, "kube-proxy/tools/demo").
			CombinedOutput(); err != nil {
			t.Fatalf("build the lab: %v\n%s", err, out)
		}
	}
	l.containerd.ctr("images", "import", "--all-platforms", archive)
	l.seccomp = l.containerd.defaultSeccomp(l.image.name(""))
	return l
}

// run starts a container in a lab as its kube-proxy, and returns the output of the lab and of the
// container.
func (l containerLab) run(t *testing.T, c *container, tag, mode string) (said, log string, err error) {
	t.Helper()
	p := l.image.platform(tag, runtime.GOARCH)
	c.Dir, c.Config, c.Seccomp = t.TempDir(), p.config.Config, l.seccomp
	c.unpack(t, p)
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// The container has the manifests of its start, and cannot be started again.
	cmd := exec.Command(l.demo, "-once", "-no-failover", "-connections", "60", "-mode", mode, "-kube-proxy", self,
		"-lab", fmt.Sprintf("image%d", os.Getpid()), "-shop", "../../docs/examples/shop")
	cmd.Env = append(os.Environ(), asContainer+"="+string(text))
	out, err := cmd.CombinedOutput()
	b, _ := os.ReadFile(filepath.Join(c.Dir, "main", "log")) // missing if it did not start
	return string(out), string(b), err
}

// The result of `ctr image import`: both tags, with the digests in the archive, and both start.
func (l containerLab) testImported(t *testing.T) {
	listed := l.containerd.ctr("images", "ls")
	for tag, top := range l.image.tags() {
		name, line := l.image.name(tag), ""
		for l := range strings.Lines(listed) {
			if strings.HasPrefix(l, name+" ") {
				line = l
			}
		}
		if !strings.Contains(line, top.Digest.String()) ||
			!strings.Contains(line, "linux/amd64,linux/arm64,windows/amd64") {
			t.Errorf("containerd has %q, want %s for all platforms", line, top.Digest)
		}
		if said := l.containerd.ctr("run", "--rm", "--read-only", "--net-host", name, "version"+tag,
			"/usr/local/bin/kube-proxy", "--version"); !strings.HasPrefix(said, "Kubernetes v") {
			t.Errorf("%s: --version says %q", name, said)
		}
	}
}

// unpack writes the image's files, and the node's files for it.
func (c container) unpack(t *testing.T, p readPlatform) {
	t.Helper()
	root := filepath.Join(c.Dir, "rootfs")
	p.unpack(t, root)
	// A runtime makes the places of mounts before it makes the root read-only; here they are made
	// like the image's other files.
	for _, d := range []string{"proc", "sys", "dev", "run/kube-proxy", "tmp", "lib/modules"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// runc gives a tmpfs the mode of its mount point, whatever its options.
	if err := os.Chmod(filepath.Join(root, "run/kube-proxy"), 0o777); err != nil {
		t.Fatal(err)
	}
	err := os.Mkdir(filepath.Join(c.Dir, "modules"), 0o755)
	for _, f := range []string{"xtables.lock", "rootfs/run/xtables.lock"} {
		err = errors.Join(err, os.WriteFile(filepath.Join(c.Dir, f), nil, 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // however it ended
		for _, name := range []string{"init", "main"} {
			exec.Command("runc", "--root", filepath.Join(c.Dir, "runc"), "delete", "--force", filepath.Base(c.Dir)+"-"+
				name).Run()
		}
	})
}

// checkRules checks that the rules are where they belong, and nowhere else.
func (c container) checkRules(t *testing.T, want string) {
	t.Helper()
	for _, save := range []string{"iptables-nft-save", "iptables-legacy-save"} {
		out, err := os.ReadFile(filepath.Join(c.Dir, save))
		if err != nil {
			t.Error(err)
		}
		if has := strings.Contains(string(out), ":KUBE-SERVICES "); has != (save == want) {
			t.Errorf("%s has the Services' chains: %v, want %v", save, has, save == want)
		}
	}
}

// daemon is a separate containerd of a test.
type daemon struct {
	t      *testing.T
	socket string
}

func startContainerd(t *testing.T) daemon {
	t.Helper()
	dir := t.TempDir()
	d := daemon{t, filepath.Join(dir, "sock")}
	config := fmt.Sprintf("version = 2\nroot = %q\nstate = %q\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\", "+
		"\"io.containerd.snapshotter.v1.devmapper\", \"io.containerd.snapshotter.v1.zfs\", "+
		"\"io.containerd.snapshotter.v1.btrfs\"]\n[grpc]\naddress = %q\n[ttrpc]\naddress = %q\n", dir+"/root", dir+
		"/state", d.socket, d.socket+".ttrpc")
	if err := os.WriteFile(filepath.Join(dir, "config.toml"), []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	cmd := exec.Command("containerd", "--config", filepath.Join(dir, "config.toml"))
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v: `make deps` installs it", err)
	}
	t.Cleanup(func() { cmd.Process.Signal(syscall.SIGTERM); cmd.Wait() })
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if exec.Command("ctr", "--address", d.socket, "version").Run() == nil {
			return d
		}
		if time.Now().After(end) {
			t.Fatalf("containerd does not answer:\n%s", log.String())
		}
	}
}

// ctr runs containerd's client.
func (d daemon) ctr(args ...string) string {
	d.t.Helper()
	var stdout, stderr strings.Builder
	cmd := exec.Command("ctr", append([]string{"--address", d.socket}, args...)...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	// plain folders, which are possible on every file system
	cmd.Env = append(os.Environ(), "CONTAINERD_SNAPSHOTTER=native")
	if err := cmd.Run(); err != nil {
		d.t.Fatalf("ctr %s: %v\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return stdout.String()
}

// defaultSeccomp returns the default filter of containerd's containers, as containerd prints it.
func (d daemon) defaultSeccomp(image string) json.RawMessage {
	d.t.Helper()
	d.ctr("containers", "create", "--seccomp", image, "probe")
	var info struct {
		Spec struct {
			Linux struct{ Seccomp json.RawMessage }
		}
	}
	if err := json.Unmarshal([]byte(d.ctr("containers", "info", "probe")), &info); err != nil {
		d.t.Fatal(err)
	}
	if !bytes.Contains(info.Spec.Linux.Seccomp, []byte("SCMP_ACT_ERRNO")) {
		d.t.Fatalf("containerd's filter is %s", info.Spec.Linux.Seccomp)
	}
	return info.Spec.Linux.Seccomp
}

// The programs for the other architecture run, in emulation, with the same output.
func TestOtherArchitecture(t *testing.T) {
	r := openImage(t, builtImage(t))
	emulator, err := exec.LookPath("qemu-aarch64-static")
	if err != nil {
		t.Fatalf("%v: `make deps` installs it", err)
	}
	roots := map[string]string{}
	for _, arch := range architectures {
		roots[arch] = t.TempDir()
		r.platform("", arch).unpack(t, roots[arch])
	}
	// As ld.so finds the libraries of an image that is not at /.
	commands := map[string]func(root string, args ...string) *exec.Cmd{
		"amd64": func(root string, args ...string) *exec.Cmd {
			cmd := exec.Command(filepath.Join("/", args[0]), args[1:]...)
			cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
			cmd.Dir = "/"
			return cmd
		},
		"arm64": func(root string, args ...string) *exec.Cmd {
			return exec.Command(emulator,
				append([]string{"-L", root, "-E", "LD_LIBRARY_PATH=", filepath.Join(root, args[0])}, args[1:]...)...)
		},
	}
	shop, err := os.ReadDir("../../docs/examples/shop")
	if err != nil || len(shop) == 0 {
		t.Fatal(shop, err)
	}
	for _, root := range roots {
		if err := os.CopyFS(filepath.Join(root, "shop"), os.DirFS("../../docs/examples/shop")); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{
		{"usr/local/bin/kube-proxy", "--version"},
		{"usr/sbin/iptables-nft-save", "--version"},
		{"usr/sbin/ip6tables-nft-restore", "--version"}, // iptables-nft queries the kernel first
		{"usr/sbin/iptables-legacy", "--version"},
		{"usr/sbin/ip6tables-legacy-save", "--version"},
		{"usr/sbin/ipset", "help"},
	} {
		said := map[string]string{}
		for _, arch := range architectures {
			out, err := commands[arch](roots[arch], args...).CombinedOutput()
			if err != nil {
				t.Errorf("%s for %s: %v: %s", args[0], arch, err, out)
			}
			said[arch] = string(out)
		}
		if said["amd64"] != said["arm64"] || said["amd64"] == "" {
			t.Errorf("%v says on amd64 %q, on arm64 %q", args, said["amd64"], said["arm64"])
		}
	}
	// The rules of the shop, as both would write them.
	rules := map[string]string{}
	for _, arch := range architectures {
		dir := "/shop"
		if arch == "arm64" {
			dir = filepath.Join(roots[arch], "shop")
		}
		cmd := commands[arch](roots[arch], "usr/local/bin/kube-proxy", "render", "--manifests", dir, "--proxy-mode",
			"iptables", "--hostname-override", "node1", "--cluster-cidr", "10.1.0.0/16,fd00:10:1::/48")
		out, err := cmd.Output()
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && strings.Contains(string(exit.Stderr),
			"healthCheckNodePort: is missing") {
			err = nil // it reports that, and renders the rest
		}
		if err != nil {
			t.Errorf("render on %s: %v", arch, err)
		}
		rules[arch] = string(out)
	}
	if rules["amd64"] != rules["arm64"] || !strings.Contains(rules["arm64"], "KUBE-SERVICES") {
		t.Errorf("the rules differ: %d bytes on amd64, %d on arm64", len(rules["amd64"]), len(rules["arm64"]))
	}
}

// The image has no modprobe, and its container may not load modules: the kernel loads modules on
// request. It does not load the root of the legacy back end, see docs/image.md.
func TestKernelLoads(t *testing.T) {
	r := openImage(t, builtImage(t))
	if line, err := os.ReadFile("/proc/cmdline"); err != nil || !bytes.Contains(line, []byte(" job=")) {
		t.Skip("takes modules out of the kernel, so it runs in a VM: `make test-image` has it there")
	}
	unload := regexp.MustCompile(
		`(?m)^((?:ip_vs|nf|nft|xt|ipt|ip6t|ip_tables|ip6_tables|iptable|ip6table|ip_set|x_tables)\w*) `)
	loaded := func() [][]byte {
		text, err := os.ReadFile("/proc/modules")
		if err != nil {
			t.Fatal(err)
		}
		return unload.FindAll(text, -1)
	}
	for range 10 { // dependencies are unloaded after their users
		for _, m := range loaded() {
			exec.Command("rmmod", strings.TrimSpace(string(m))).Run()
		}
	}
	if left := loaded(); len(left) > 0 {
		t.Fatalf("modules stay: %s", left)
	}
	netlab.EnterForTest(t)
	c := container{Dir: t.TempDir(), Config: r.platform("", runtime.GOARCH).config.Config,
		Capabilities: []string{"CAP_NET_ADMIN", "CAP_NET_RAW"}}
	c.unpack(t, r.platform("", runtime.GOARCH))
	for i, step := range []struct {
		command string
		works   bool
	}{
		{"/usr/sbin/iptables-nft -t nat -A POSTROUTING -m comment --comment x -m statistic --mode random " +
			"--probability 0.5 -j MASQUERADE", true},
		{"/usr/sbin/ip6tables-nft -t filter -A INPUT -m conntrack --ctstate NEW -m addrtype --dst-type LOCAL -m " +
			"recent --name x --set -j REJECT", true},
		{"/usr/sbin/ipset create x hash:ip,port,ip", true},
		{"/usr/sbin/iptables-legacy -t nat -S", false},
		{"modprobe ip_tables", true}, // by the node
		{"/usr/sbin/iptables-legacy -t nat -A POSTROUTING -m comment --comment x -j MASQUERADE", true},
	} {
		words := strings.Fields(step.command)
		var err error
		if words[0] == "modprobe" {
			err = exec.Command(words[0], words[1:]...).Run()
		} else {
			c.Config.Entrypoint = words[:1]
			err = c.run(fmt.Sprintf("main%d", i), words[1:], false)
		}
		if (err == nil) != step.works {
			t.Errorf("%s: %v", step.command, err)
		}
	}
}

// The place, time, umask and time zone of a build make no difference.
func TestReproducible(t *testing.T) {
	archive := builtImage(t)
	name, tag, _ := strings.Cut(openImage(t, archive).name(""), ":")
	dir := filepath.Join(t.TempDir(), "elsewhere")
	if out, err := exec.Command("cp", "-a", "../..", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := os.RemoveAll(filepath.Join(dir, "bin")); err != nil {
		t.Fatal(err)
	}
	second := filepath.Join(t.TempDir(), "second.tar")
	cmd := exec.Command("sh", "-c", `umask 077; go -C tools build -o "$PWD/bin/" ./image && exec bin/image -name `+
		`"$1" -tag "$2" -o "$3"`, "sh", name, tag, second)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "TZ=Pacific/Kiritimati", "LC_ALL=C", "PWD="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, files := range [][2]string{{archive, second}, {billFile(archive), billFile(second)}} {
		first, err := digestOf(files[0])
		if err != nil {
			t.Fatal(err)
		}
		again, err := digestOf(files[1])
		if err != nil {
			t.Fatal(err)
		}
		if first != again {
			t.Errorf("%s is %s, built again it is %s", files[0], first, again)
		}
	}
}
