//go:build linux

package ebpf

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
	"kube-proxy/internal/thread"
	"kube-proxy/test/kerneltest"
)

// eventually waits until f is true; it reports whether it was.
func eventually(f func() bool) bool {
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if f() {
			return true
		}
	}
	return false
}

// link makes a link to the network namespace of a host in a folder.
func (b *bench) link(host, folder string) (name string) {
	b.t.Helper()
	ns, err := b.Namespace(host)
	name = filepath.Join(folder, host+".net")
	if err = errors.Join(err, os.Symlink(fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), int(ns)), name)); err != nil {
		b.t.Fatal(err)
	}
	return name
}

// TestExempt: sockets of network namespaces and cgroups that match --ebpf-exempt take the packet
// path, from the moment at which their file is there, and the others do not; open ones keep their
// endpoint (EB-14).
func TestExempt(t *testing.T) {
	kerneltest.Later(t)
	eachFamily(t, func(b *bench) {
		folder := filepath.Join(b.t.TempDir(), "exempt")
		open := b.connectOnly("pod3", b.to("VIP:53"))
		b.must(b.plane.balance("all", folder+"/*.net"))
		if !b.direct("pod3") {
			b.t.Fatal("a pod is exempt without a pattern")
		}
		b.must(os.Mkdir(folder, 0o700))
		name := b.link("pod3", folder)
		if !eventually(func() bool { return !b.direct("pod3") }) {
			b.t.Error("the pod is not exempt, whose namespace has a link in the folder")
		}
		if !b.direct("pod2") {
			b.t.Error("another pod is exempt")
		}
		b.hasPeer("an open socket", open, b.to("VIP:53"))
		b.must(os.Remove(name))
		if !eventually(func() bool { return b.direct("pod3") }) {
			b.t.Error("the pod is exempt though its link is gone")
		}
	})
}

// TestExemptCgroup: a cgroup that is made under a watched one is exempt with those below it
// (EB-14).
func TestExemptCgroup(t *testing.T) {
	kerneltest.Later(t)
	eachFamily(t, func(b *bench) {
		root := b.Cgroup(netlab.Node1)
		b.must(b.plane.balance("all", root+"/vm-*"))
		deep := b.folder(b.folder(filepath.Join(root, "vm-1")) + "/deeper")
		for cgroup, direct := range map[string]bool{root: true, deep: false} {
			if !eventually(func() bool { return b.passesIn(cgroup) != direct }) {
				b.t.Errorf("the connection of a process in %s: direct is not %v", cgroup, direct)
			}
		}
	})
}

// passesIn reports whether the connection of a thread in a cgroup takes the packet path, where the
// endpoint of a NodePort sees the node's address.
func (b *bench) passesIn(cgroup string) bool {
	b.t.Helper()
	ns, err := b.Namespace("pod3")
	b.must(err)
	var passes bool
	thread.Own(func() {
		err = errors.Join(netns.Set(ns), os.WriteFile(cgroup+"/cgroup.threads", []byte(fmt.Sprint(unix.Gettid())), 0))
		if err == nil {
			passes, err = masqueraded(b.to("NODE:30080"))
		}
	})
	if err != nil {
		b.t.Fatalf("connect in %s: %v", cgroup, err)
	}
	return passes
}

// masqueraded reports whether the server sees another address than the client has.
func masqueraded(to netip.AddrPort) (bool, error) {
	c, err := net.DialTimeout("tcp", to.String(), 5*time.Second)
	if err != nil {
		return false, err
	}
	defer c.Close()
	if _, err := c.Write([]byte("hello\n")); err != nil {
		return false, err
	}
	reply, err := bufio.NewReader(c).ReadString('\n')
	local := c.LocalAddr().(*net.TCPAddr).AddrPort().Addr().Unmap().String()
	return !strings.Contains(reply, local), err
}

// folder makes a cgroup for threads, which ends with the test.
func (b *bench) folder(path string) string {
	b.t.Helper()
	b.must(errors.Join(os.Mkdir(path, 0o755), os.WriteFile(path+"/cgroup.type", []byte("threaded"), 0)))
	b.t.Cleanup(func() {
		if !eventually(func() bool { return os.Remove(path) == nil }) {
			b.t.Errorf("cannot remove %s", path)
		}
	})
	return path
}
