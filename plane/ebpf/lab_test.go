//go:build linux

package ebpf

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/plane/nftables"
	"kube-proxy/test/planetest"
)

// bpffs mounts a BPF file system of the test's own, which ends with it, and with it what is pinned
// there.
func bpffs(t testing.TB) string {
	t.Helper()
	at := t.TempDir()
	if err := unix.Mount("bpf", at, "bpf", 0, ""); err != nil {
		t.Fatalf("mount a BPF file system: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(at, 0); err != nil {
			t.Errorf("unmount the BPF file system: %v", err)
		}
	})
	return at
}

// threadCgroup returns the folder of the calling thread's cgroup, which is the lab's.
func threadCgroup() (string, error) {
	text, err := os.ReadFile("/proc/thread-self/cgroup")
	if err != nil {
		return "", err
	}
	_, path, _ := strings.Cut(string(text), "0::")
	if path = strings.TrimSpace(path); path == "/" || path == "" {
		return "", fmt.Errorf("the thread is not in a cgroup of a lab")
	}
	mounts, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	defer mounts.Close()
	for lines := bufio.NewScanner(mounts); lines.Scan(); {
		if before, after, _ := strings.Cut(lines.Text(), " - "); strings.HasPrefix(after, "cgroup2 ") {
			return filepath.Join(strings.Fields(before)[4], path), nil
		}
	}
	return "", fmt.Errorf("no cgroup v2 is mounted")
}

// planes makes planes for the labs of a test.
type planes struct {
	bpffs string
	with  func(*Config) // changes the configuration; nil for none
}

// new makes a plane in the namespace and the cgroup of the calling thread.
func (p *planes) new(f lb.Family) (planetest.Plane, error) {
	cgroup, err := threadCgroup()
	if err != nil {
		return nil, err
	}
	is, err := p.at(f, cgroup)
	if err != nil {
		return nil, err
	}
	return checked{is}, nil
}

// checked is a plane whose programs must not fail: without them it would serve as well.
type checked struct{ *Plane }

func (c checked) Reset(ctx context.Context, want *lb.Table) (plane.ResetResult, error) {
	res, err := c.Plane.Reset(ctx, want)
	return res, errors.Join(err, c.failed)
}

func (c checked) Apply(ctx context.Context, changes []lb.Change) (plane.ApplyResult, error) {
	res, err := c.Plane.Apply(ctx, changes)
	return res, errors.Join(err, c.failed)
}

func (c checked) SetNode(ctx context.Context, n lb.Node) error {
	return errors.Join(c.Plane.SetNode(ctx, n), c.failed)
}

func (p *planes) at(f lb.Family, cgroup string) (*Plane, error) {
	under, err := nftables.New(nftables.Config{Family: f})
	if err != nil {
		return nil, err
	}
	cfg := Config{Family: f, Cgroup: cgroup, Pins: p.bpffs,
		Sockets: "all", Stale: "udp"}
	if p.with != nil {
		p.with(&cfg)
	}
	return New(cfg, under)
}

// bind binds a socket of its own to an address, and closes it: before Linux 5.17 one that was
// refused keeps the port.
func (b *bench) bind(host string, kind int, at netip.AddrPort) (err error) {
	family := map[bool]int{true: unix.AF_INET, false: unix.AF_INET6}[at.Addr().Is4()]
	b.On(host, func() {
		var fd int
		if fd, err = unix.Socket(family, kind|unix.SOCK_CLOEXEC, 0); err == nil {
			err = errors.Join(unix.Bind(fd, sockaddr(at)), unix.Close(fd))
		}
	})
	return err
}

// busy is the error of bind() to a NodePort.
func busy() unix.Errno {
	if setsErrors() != nil { // before Linux 5.18
		return unix.EPERM
	}
	return unix.EADDRINUSE
}
