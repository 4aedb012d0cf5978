//go:build linux

package ebpf

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	cebpf "github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/test/kerneltest"
	"kube-proxy/test/planetest"
)

// stranger attaches a program of another name, which changes nothing, to connect() in a cgroup,
// alone where it can be; it ends with the test.
func (b *bench) stranger(name, cgroup string) (remove func()) {
	b.t.Helper()
	return b.strangerWith(name, cgroup, map[bool]uint32{true: unix.BPF_F_ALLOW_MULTI}[cgroup == b.Cgroup(netlab.Node1)])
}

// strangerWith attaches such a program with flags: 0 or one of BPF_F_ALLOW_*.
func (b *bench) strangerWith(name, cgroup string, flags uint32) (remove func()) {
	b.t.Helper()
	p, err := cebpf.NewProgram(&cebpf.ProgramSpec{Name: name, Type: cebpf.CGroupSockAddr,
		AttachType: cebpf.AttachCGroupInet6Connect,
		License:    "Apache-2.0", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()}})
	b.must(err)
	dir, err := os.Open(cgroup)
	b.must(err)
	defer dir.Close()
	if !eventually(func() bool { // until the kernel has detached those before
		err = link.RawAttachProgram(link.RawAttachProgramOptions{Target: int(dir.Fd()), Program: p,
			Attach: cebpf.AttachCGroupInet6Connect, Flags: flags})
		return err == nil
	}) {
		b.t.Fatalf("attach %s to %s: %v", name, cgroup, err)
	}
	return func() {
		dir, err := os.Open(cgroup)
		b.must(err)
		defer dir.Close()
		err = link.RawDetachProgram(link.RawDetachProgramOptions{Target: int(dir.Fd()), Program: p,
			Attach: cebpf.AttachCGroupInet6Connect})
		if err != nil {
			b.t.Error(err)
		}
		p.Close()
	}
}

// TestProgramsComeAndGo: a list of programs does not fail because another program is attached while
// it is read.
func TestProgramsComeAndGo(t *testing.T) {
	lab := netlab.ForTest(t, netlab.Options{Cgroup: true, NoNode2: true, NoClient: true})
	b := &bench{TestLab: lab, t: t, f: lb.IPv4}
	cgroup := b.Cgroup(netlab.Node1)
	defer b.stranger("resident", cgroup)()
	failed, end := make(chan error), make(chan struct{})
	go func() {
		connect6 := hook{name: "connect6", attach: cebpf.AttachCGroupInet6Connect}
		for {
			_, err := programsAt(cgroup, connect6, true)
			select {
			case failed <- err:
			case <-end:
				return
			}
		}
	}()
	defer close(end)
	for range 2000 {
		remove := b.stranger("passer-by", cgroup)
		err := <-failed
		if remove(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestNeighbours: a program of a cgroup below does not replace ours, and is reported. One that
// connects sockets to endpoints switches ours off, and the rules serve, until it is gone (EB-19).
func TestNeighbours(t *testing.T) {
	kerneltest.Later(t)
	eachFamily(t, func(b *bench) {
		b.plane.Notices()
		below := b.folder(filepath.Join(b.Cgroup(netlab.Node1), "below"))
		remove := b.stranger("harmless", below)
		audit := func() string {
			if _, err := b.plane.audit(); err != nil {
				b.plane.settle(err)
			}
			var all []string
			for _, n := range b.plane.Notices() {
				all = append(all, n.Text)
				for _, a := range n.Args {
					switch a := a.(type) {
					case error:
						all = append(all, a.Error())
					case string:
						all = append(all, a)
					}
				}
			}
			return strings.Join(all, " ")
		}
		namesake := b.stranger("connect6", b.Cgroup(netlab.Node1))
		if got := audit(); !strings.Contains(got, "connect6 at connect6 of ") {
			b.t.Errorf("a foreign program of the name of ours: notices %q", got)
		}
		namesake()
		if got := audit(); !strings.Contains(got, "harmless at connect6 of "+below) {
			b.t.Errorf("notices %q", got)
		}
		if b.passesIn(below) {
			b.t.Error("a program of a cgroup below replaces ours")
		}
		remove()
		remove = b.stranger("cil_sock6_conne", b.Cgroup(netlab.Node1))
		if got := audit(); !strings.Contains(got, "cil_sock6_conne") ||
			!strings.Contains(got, "Cilium") || b.plane.failed == nil {
			b.t.Errorf("beside Cilium: notices %q, programs off: %v", got, b.plane.failed)
		}
		if b.direct("pod3") {
			b.t.Error("the programs serve beside Cilium's")
		}
		remove()
		if got := audit(); got != "" || !b.direct("pod3") {
			b.t.Errorf("after Cilium has gone: notices %q, and the programs do not serve", got)
		}
		b.must(b.plane.Close()) // its programs serve
		remove = b.stranger("cil_sock6_conne", b.Cgroup(netlab.Node1))
		b.On(netlab.Node1, func() {
			b.plane = b.newPlane()
			if _, err := planetest.ResetAll(b.t.Context(), b.plane, b.table); err != nil {
				b.t.Fatal(err)
			}
			if err := startAlone(b.f, b.Cgroup(netlab.Node1)); err == nil ||
				!strings.Contains(err.Error(), "turn that off in Cilium") {
				b.t.Errorf("a check beside Cilium: %v", err)
			}
		})
		if b.direct("pod3") {
			b.t.Error("the programs of the last process serve after a start beside Cilium's")
		}
		b.plane.Notices()
		remove()
		if got := audit(); strings.Contains(got, "cil_sock6") || !b.direct("pod3") {
			b.t.Errorf("after Cilium has gone: notices %q, and the programs do not serve", got)
		}
	})
}

// TestStrangerAlone: a program of others that was attached without BPF_F_ALLOW_MULTI leaves no room
// at its hook. The error names it, whatever its name; the rules serve, and once it is gone the
// programs do (EB-19).
func TestStrangerAlone(t *testing.T) {
	eachFamily(t, func(b *bench) {
		for _, flags := range []uint32{0, unix.BPF_F_ALLOW_OVERRIDE} {
			for _, name := range []string{"harmless", "cil_sock6_conne"} {
				b.must(errors.Join(b.plane.Close(), unpinFamily(b.plane.cfg.Pins, b.f)))
				remove := b.strangerWith(name, b.Cgroup(netlab.Node1), flags)
				b.On(netlab.Node1, func() {
					b.plane = b.newPlane()
					if _, err := planetest.ResetAll(b.t.Context(), b.plane, b.table); err != nil {
						b.t.Fatal(err)
					}
				})
				if b.plane.failed == nil || !strings.Contains(b.plane.failed.Error(), name+" at connect6 of ") {
					b.t.Errorf("beside %s with flags %d: the error is %v", name, flags, b.plane.failed)
				}
				if b.direct("pod3") {
					b.t.Errorf("the programs serve beside %s with flags %d", name, flags)
				}
				remove()
				if _, err := b.plane.audit(); err != nil {
					b.t.Errorf("after %s with flags %d has gone: %v", name, flags, err)
				}
				if b.plane.settle(nil); !b.direct("pod3") {
					b.t.Errorf("after %s with flags %d has gone, the programs do not serve", name, flags)
				}
			}
		}
	})
}

// TestHostPort: packets to a hostPort, which a CNI plugin translates, pass the programs, from pods
// and the node. A frontend of the same address and port is served by the programs (EB-19).
func TestHostPort(t *testing.T) {
	eachFamily(t, func(b *bench) {
		family := map[lb.Family]string{lb.IPv4: "ip", lb.IPv6: "ip6"}[b.f]
		b.On(netlab.Node1, func() { // as the plugin portmap does
			rules := "add table " + family + " portmap\n"
			for _, hook := range []string{"prerouting", "output"} {
				rules += fmt.Sprintf("add chain %[1]s portmap %[2]s { type nat hook %[2]s priority -100; }\n"+
					"add rule %[1]s portmap %[2]s fib daddr type local tcp dport { 8888, 30080 } dnat to %[3]s\n"+
					"add rule %[1]s portmap %[2]s fib daddr type local udp dport 8888 dnat to %[3]s\n",
					family, hook, b.to("pod2:8080"))
			}
			cmd := exec.Command("nft", "-f", "-")
			cmd.Stdin = strings.NewReader(rules)
			if out, err := cmd.CombinedOutput(); err != nil {
				b.t.Fatalf("write the rules of a plugin: %v: %s\n%s", err, out, rules)
			}
		})
		for _, host := range []string{"pod1", "pod3", netlab.Node1} {
			if got := b.server(host, "NODE:8888"); got != "pod2" {
				b.t.Errorf("%s reaches %s by a hostPort, want pod2", host, got)
			}
			fd := b.socket(host, unix.SOCK_DGRAM, false)
			b.asks("hostPort of UDP from "+host, fd, b.to("NODE:8888"), "pod2")
			if got := b.server(host, "NODE:30080"); got != "pod1" {
				b.t.Errorf("%s reaches %s by a NodePort that is a hostPort too, want the Service's pod1", host, got)
			}
			if got := b.server(host, "VIP:80"); got != "pod1" {
				b.t.Errorf("%s reaches %s by the cluster IP, want pod1", host, got)
			}
		}
	})
}

// TestTwoProxies: proxies in two network namespaces of a host, with one BPF file system, keep their
// tables and pins apart. One whose cgroup has programs of the other does not start (EB-25).
func TestTwoProxies(t *testing.T) {
	kerneltest.Later(t)
	eachFamily(t, func(b *bench) {
		other := newBench(b.t, b.f, nil)
		other.planes = b.planes
		other.Serve(netlab.TCP, 8080, "pod1", "pod2")
		other.Serve(netlab.UDP, 8080, "pod1", "pod2")
		other.On(netlab.Node1, func() { other.plane = other.newPlane() })
		other.table = other.parse(strings.ReplaceAll(shop, "  pod1:8080", "  pod2:8080"))
		other.On(netlab.Node1, func() { other.reset(other.table) })
		b.noRules()
		other.noRules()
		serve := func(what string) {
			b.t.Helper()
			b.reaches("pod3", netlab.TCP, "VIP:80", "pod1")
			if n, err := b.plane.audit(); n != 0 || err != nil {
				b.t.Errorf("%s, the first proxy repaired %d, error %v", what, n, err)
			}
		}
		other.reaches("pod3", netlab.TCP, "VIP:80", "pod2")
		serve("beside another one")
		other.On(netlab.Node1, func() {
			if err := startAlone(b.f, b.Cgroup(netlab.Node1)); err == nil ||
				!strings.Contains(err.Error(), "turn that off in the kube-proxy of network namespace") {
				b.t.Errorf("a start in the cgroup of another proxy: %v", err)
			}
			if err := startAlone(b.f, other.Cgroup(netlab.Node1)); err != nil {
				b.t.Errorf("a start again: %v", err)
			}
			below := b.folder(filepath.Join(b.Cgroup(netlab.Node1), "below"))
			if err := startAlone(b.f, below); err == nil {
				b.t.Error("a start below the cgroup of another proxy")
			}
		})
		if err := errors.Join(other.plane.Close(), unpinFamily(other.plane.cfg.Pins, b.f)); err != nil {
			b.t.Error(err)
		}
		serve("after the other was removed")
	})
}

// TestAble: `check` and a start name each thing that a node lacks, and what to do (EB-20).
func TestAble(t *testing.T) {
	kerneltest.Later(t)
	b := newBench(t, lb.IPv4, nil)
	lab := b.Cgroup(netlab.Node1)
	bare := func(f func() error) func() error { // has no mount of cgroup v2
		return func() error {
			root, err := findCgroupIn("/proc/self/mountinfo")
			if err == nil {
				err = errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
					unix.Unmount(root, unix.MNT_DETACH))
			}
			if err == nil {
				err = f()
			}
			return err
		}
	}
	container := func() error { // sees the hierarchy of its own cgroup namespace alone
		own := t.TempDir()
		tid := []byte(strconv.Itoa(unix.Gettid()))
		err := os.WriteFile(lab+"/cgroup.threads", tid, 0)
		if err == nil {
			err = unix.Unshare(unix.CLONE_NEWCGROUP)
		}
		if err != nil {
			return err
		}
		return bare(func() error {
			if err := unix.Mount("none", own, "cgroup2", 0, ""); err != nil {
				return err
			}
			return errors.Join(ableWith(b.f, b.planes.bpffs, ""), unix.Unmount(own, 0))
		})()
	}
	for name, tc := range map[string]struct {
		able func() error
		want []string
	}{
		"nothing": {func() error { return ableWith(b.f, b.planes.bpffs, lab) }, nil},
		"no place for bpffs, and another folder for the cgroup": {
			func() error { return ableWith(b.f, "/nowhere", t.TempDir()) },
			[]string{"no place for the BPF file system (--ebpf-bpffs)", "/nowhere", "is no cgroup v2"}},
		"no cgroup v2": {bare(func() error { return ableWith(b.f, b.planes.bpffs, "") }),
			[]string{"no cgroup v2 hierarchy is mounted (mount one"}},
		"no BTF": {func() error {
			defer btf.FlushKernelSpec()
			err := errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
				unix.Mount("none", "/sys/kernel/btf", "tmpfs", 0, ""))
			btf.FlushKernelSpec()
			return errors.Join(err, reaps())
		}, []string{"sockets whose endpoint is gone", "this kernel lacks BTF (CONFIG_DEBUG_INFO_BTF)"}},
		"the root of cgroups is hidden": {container, []string{"that of a container", "--ebpf-cgroup"}},
		"Cilium": {func() error {
			defer b.stranger("cil_sock6_conne", lab)()
			return reduced(settingsWith(b.f, b.planes.bpffs, lab))
		}, []string{"cil_sock6_conne at connect6", "turn that off in Cilium"}},
	} {
		err := netlab.Isolated(unix.CLONE_NEWNS, tc.able)
		if len(tc.want) == 0 && err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, w := range tc.want {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("%s: error %v, want one with %q", name, err, w)
			}
		}
	}
}
