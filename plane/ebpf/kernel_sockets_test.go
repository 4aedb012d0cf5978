//go:build linux

package ebpf

import (
	"errors"
	"maps"
	"testing"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
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

// kept returns how many sockets with storage the programs count: all, and by network namespace.
func (b *bench) kept() (all int32, each map[uint64]int32) {
	b.t.Helper()
	n, err := b.plane.kernel.census.read()
	b.must(err)
	maps.DeleteFunc(n.of, func(_ uint64, n int32) bool { return n == 0 })
	return n.all.Sockets, n.of
}
