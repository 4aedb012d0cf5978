//go:build linux

package ebpf

import (
	"errors"
	"maps"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/test/kerneltest"
)

// multipath opens an MPTCP socket in a host, which ends with the test. The kernel opens another
// socket for each of its paths, and connects that.
func (b *bench) multipath(host string) (fd int) {
	b.t.Helper()
	family := map[lb.Family]int{lb.IPv4: unix.AF_INET, lb.IPv6: unix.AF_INET6}[b.f]
	b.On(host, func() {
		var err error
		fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_MPTCP)
		if err == unix.EPROTONOSUPPORT || err == unix.ENOPROTOOPT {
			b.t.Skipf("this kernel has no MPTCP (test/vm/suites runs others): %v", err)
		}
		b.must(err)
		wait := unix.Timeval{Sec: 5}
		b.must(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait))
	})
	return fd
}

// TestMultipath: an MPTCP socket reaches a Service by the packet path, and getpeername() answers
// the Service's address. No hook sees those of its paths close, so they have no storage (EB-40).
func TestMultipath(t *testing.T) {
	eachFamily(t, func(b *bench) {
		for _, host := range []string{"pod3", netlab.Node1} {
			for range 40 {
				fd := b.multipath(host)
				b.must(unix.Connect(fd, sockaddr(b.to("VIP:80"))))
				b.must(b.ask(fd))
				b.hasPeer("MPTCP of "+host, fd, b.to("VIP:80"))
				b.must(unix.Close(fd))
			}
		}
		if err := readsKernel(); err != nil {
			b.t.Skip(err)
		}
		if all, each := b.kept(); all != 0 {
			b.t.Errorf("%d sockets with storage are counted, by client %v; none is open", all, each)
		}
	})
}

// TestMultipathFloods: MPTCP connections of a tenant, beside its plain ones, take no room from
// others (EB-24).
func TestMultipathFloods(t *testing.T) {
	kerneltest.Later(t)
	eachFamily(t, func(b *bench) {
		if err := readsKernel(); err != nil {
			b.t.Skip(err)
		}
		b.must(b.plane.setMost(1600))
		for range 1700 {
			fd := b.multipath("pod3")
			b.must(errors.Join(unix.Connect(fd, sockaddr(b.to("VIP:80"))), unix.Close(fd)))
		}
		for _, host := range []string{"pod2", netlab.Node1, "pod3"} {
			if _, known := b.fill(host, 20); known != 20 {
				b.t.Errorf("the programs connected %d of 20 sockets of %s after a flood of MPTCP", known, host)
			}
		}
	})
}

// TestKernelClient: a connection that the kernel opens for a file system reaches a Service by the
// packet path, and has no storage. Of 9P, the kernel connects as it does for NFS (EB-40).
func TestKernelClient(t *testing.T) {
	if list, err := os.ReadFile("/proc/filesystems"); err != nil || !strings.Contains(string(list), "\t9p\n") {
		t.Skipf("this kernel has no 9P (test/vm/suites runs others): %v", err)
	}
	eachFamily(t, func(b *bench) {
		if b.f == lb.IPv6 {
			return // which 9P has from Linux 6.16 on
		}
		if err := readsKernel(); err != nil {
			b.t.Skip(err)
		}
		b.change(shop + "VIP:564/tcp shop/files:p clusterip\n  anywhere balance shop/files:p/tcp/cluster masquerade\n" +
			"set shop/files:p/tcp/cluster\n  pod1:564 local\n")
		server := b.socket("pod1", unix.SOCK_STREAM, false)
		b.must(errors.Join(unix.Bind(server, sockaddr(b.to("pod1:564"))), unix.Listen(server, 1)))
		mounted := make(chan error, 1)
		at := b.t.TempDir()
		go b.On("pod3", func() {
			mounted <- unix.Mount(b.to("VIP:1").Addr().String(), at, "9p", 0, "trans=tcp,port=564")
		})
		fd, _, err := unix.Accept(server)
		b.must(err)
		if all, each := b.kept(); all != 0 {
			b.t.Errorf("%d sockets with storage are counted, by client %v, want none", all, each)
		}
		b.must(unix.Close(fd)) // which ends the mount
		if err := <-mounted; err == nil {
			b.t.Error("mounted what no server serves")
		}
	})
}

// TestKernelDatagrams: a UDP socket that the kernel connects for L2TP keeps the Service's address,
// and has no storage (EB-40).
func TestKernelDatagrams(t *testing.T) {
	eachFamily(t, func(b *bench) {
		if err := readsKernel(); err != nil {
			b.t.Skip(err)
		}
		vip := b.to("VIP:53").Addr()
		pod := netlab.Addr("pod3", b.f == lb.IPv6)
		b.On("pod3", func() {
			l2tp := func(args ...string) string {
				out, err := exec.Command("ip", append([]string{"l2tp"}, args...)...).CombinedOutput()
				if err != nil {
					b.t.Skipf("this kernel has no L2TP (test/vm/suites runs others): %v: %s", err, out)
				}
				return string(out)
			}
			l2tp("show", "tunnel")
			l2tp("add", "tunnel", "tunnel_id", "7", "peer_tunnel_id", "7", "encap", "udp", "local", pod.String(),
				"remote", vip.String(), "udp_sport", "5000", "udp_dport", "53")
			defer l2tp("del", "tunnel", "tunnel_id", "7")
			if shows := l2tp("show", "tunnel"); !strings.Contains(shows, "to "+vip.String()) {
				b.t.Errorf("the kernel's socket does not have the Service's address:\n%s", shows)
			}
		})
		if all, each := b.kept(); all != 0 {
			b.t.Errorf("%d sockets with storage are counted, by client %v, want none", all, each)
		}
	})
}

// kept returns how many sockets with storage the programs count: all, and by network namespace.
func (b *bench) kept() (all int32, each map[uint64]int32) {
	b.t.Helper()
	n, err := b.plane.kernel.census.read()
	b.must(err)
	maps.DeleteFunc(n.of, func(_ uint64, n int32) bool { return n == 0 })
	return n.all.Sockets, n.of
}
