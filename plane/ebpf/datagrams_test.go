//go:build linux

package ebpf

import (
	"errors"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	cilium "github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/plane/ebpf/bpf"
	"kube-proxy/test/kerneltest"
)

// TestConnectBeforeEndpoints: a UDP socket that connects while a Service has no endpoints, as
// clients of logs and metrics do once, is served when it has some (EB-41).
func TestConnectBeforeEndpoints(t *testing.T) {
	eachFamily(t, func(b *bench) {
		none := strings.Replace(shop, "balance shop/dns:dns/udp/cluster", "reject", 1)
		b.change(none)
		var fds []int
		for _, host := range []string{"pod3", netlab.Node1} {
			fd := b.socket(host, unix.SOCK_DGRAM, false)
			if err := unix.Connect(fd, sockaddr(b.to("VIP:53"))); err != nil {
				b.t.Errorf("%s connects to a Service without endpoints by UDP: %v", host, err)
			}
			_ = b.ask(fd) // the rules refuse it
			fds = append(fds, fd)
		}
		b.change(shop)
		for i, fd := range fds {
			var err error
			if !eventually(func() bool { err = b.ask(fd); return err == nil }) {
				b.t.Errorf("socket %d, after the Service got an endpoint: %v", i, err)
			}
			b.hasPeer("a socket from before", fd, b.to("VIP:53"))
		}
	})
}

// dnsAt is the table shop with another endpoint of the Service dns.
func dnsAt(endpoint string) string {
	const set = "set shop/dns:dns/udp/cluster\n  "
	return strings.Replace(shop, set+"pod1:8080", set+endpoint, 1)
}

// udpServer opens a UDP socket in pod1 at port 9999, whose datagrams the test writes itself.
func (b *bench) udpServer() (fd int) {
	b.t.Helper()
	fd = b.socket("pod1", unix.SOCK_DGRAM, false)
	b.must(unix.Bind(fd, sockaddr(b.to("pod1:9999"))))
	return fd
}

// request has a server receive a datagram, and returns from where.
func (b *bench) request(server int) unix.Sockaddr {
	b.t.Helper()
	_, from, err := receive(server, make([]byte, 1500))
	b.must(err)
	return from
}

// says has a server send a datagram to a client, which must receive it from that address.
func (b *bench) says(when string, server int, to unix.Sockaddr, client int, from string) {
	b.t.Helper()
	b.must(unix.Sendto(server, []byte("x"), 0, to))
	_, is, err := receive(client, make([]byte, 1500))
	if err != nil || addrPort(is) != b.to(from) {
		b.t.Errorf("%s: a datagram from %s, error %v; want one from %s", when, addrPort(is), err, b.to(from))
	}
}

// TestEndpointsOwnDatagrams: what an endpoint sends has the Service's address while the Service has
// the endpoint, until the socket sends to the endpoint itself (EB-42).
func TestEndpointsOwnDatagrams(t *testing.T) {
	with := func(c *Config) { c.Stale = "none" }
	eachFamilyWith(t, with, func(b *bench) {
		own, gone := dnsAt("pod1:9999"), dnsAt("pod2:8080")
		server := b.udpServer()
		vip, pod := sockaddr(b.to("VIP:53")), sockaddr(b.to("pod1:9999"))
		for _, host := range []string{"pod3", netlab.Node1} {
			b.change(own)
			seed, connected := b.socket(host, unix.SOCK_DGRAM, false), b.socket(host, unix.SOCK_DGRAM, false)
			b.must(unix.Sendto(seed, []byte("x"), 0, vip))
			peer := b.request(server)
			b.says("a reply", server, peer, seed, "VIP:53")
			b.must(unix.Sendto(seed, []byte("x"), 0, pod))
			b.says("after a datagram to the endpoint itself", server, b.request(server), seed, "pod1:9999")
			b.must(unix.Sendto(seed, []byte("x"), 0, vip))
			b.says("after another to the Service", server, b.request(server), seed, "VIP:53")
			b.must(unix.Connect(connected, vip))
			b.must(unix.Sendto(connected, []byte("x"), 0, vip))
			other := b.request(server)
			b.says("a reply to a connected socket", server, other, connected, "VIP:53")
			b.change(gone)
			b.says("after the endpoint left", server, peer, seed, "pod1:9999")
			b.says("after the endpoint left a connected socket", server, other, connected, "pod1:9999")
			b.hasPeer("a connected socket", connected, b.to("VIP:53"))
		}
	})
}

// TestFailedReconnect: a connect() that fails leaves a UDP socket where it was, with its peer
// (EB-43).
func TestFailedReconnect(t *testing.T) {
	eachFamily(t, func(b *bench) {
		refused := netip.MustParseAddrPort("255.255.255.255:53") // without SO_BROADCAST
		if b.f == lb.IPv6 {
			refused = netip.MustParseAddrPort("[fe80::1]:53") // without a scope
		}
		b.On("pod3", func() {
			pod2 := b.to("pod2:1").Addr().String()
			out, err := exec.Command("ip", "route", "add", "unreachable", pod2).CombinedOutput()
			if err != nil {
				b.t.Fatalf("%v: %s", err, out)
			}
		})
		fd := b.connected("pod3", unix.SOCK_DGRAM, b.to("VIP:53"), false)
		for when, to := range map[string]netip.AddrPort{"to an address": refused, "to a Service": b.to("OTHER:53")} {
			if err := unix.Connect(fd, sockaddr(to)); err == nil {
				b.t.Fatalf("%s: connect() to %s did not fail", when, to)
			}
			b.hasPeer("after a failed connect() "+when, fd, b.to("VIP:53"))
			b.must(unix.Send(fd, []byte("hello\n"), 0))
			if _, from, err := receive(fd, make([]byte, 1500)); err != nil || addrPort(from) != b.to("VIP:53") {
				b.t.Errorf("after a failed connect() %s: a reply from %s, error %v", when, addrPort(from), err)
			}
		}
		b.must(unix.Connect(fd, sockaddr(b.to("pod1:8080"))))
		b.hasPeer("connected to the endpoint itself", fd, b.to("pod1:8080"))
		b.must(unix.Connect(fd, sockaddr(b.to("VIP:53"))))
		b.hasPeer("connected to the Service again", fd, b.to("VIP:53"))
	})
}

// from is the control message by which a datagram has that source address.
func from(a netip.Addr) []byte {
	if a.Is4() {
		return unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: a.As4()})
	}
	return unix.PktInfo6(&unix.Inet6Pktinfo{Addr: a.As16()})
}

// TestSourceOfDatagram: a datagram with a loopback address as its source, by IP_PKTINFO, takes the
// packet path, as one of a bound socket does (EB-44).
func TestSourceOfDatagram(t *testing.T) {
	kerneltest.Later(t)
	eachFamily(t, func(b *bench) {
		for source, served := range map[netip.Addr]bool{b.to("LOCAL:1").Addr(): false, b.to("NODE:1").Addr(): true} {
			fd := b.socket(netlab.Node1, unix.SOCK_DGRAM, false)
			err := unix.Sendmsg(fd, []byte("hello\n"), from(source), sockaddr(b.to("VIP:53")), 0)
			var flows bpf.LBFlows
			known := b.plane.kernel.obj.Flows.Lookup(uint32(fd), &flows)
			if (known == nil) != served || known != nil && !errors.Is(known, cilium.ErrKeyNotExist) {
				b.t.Errorf("from %s: the programs' storage: %v, sendmsg() %v; served %v", source, known, err, served)
			}
		}
	})
}

// TestInnocentSocket: of two sockets with the same addresses and ports, by SO_REUSEPORT, the one
// that the programs connected ends with the endpoint, and the other stays (EB-13).
func TestInnocentSocket(t *testing.T) {
	eachFamily(t, func(b *bench) {
		b.reaps()
		pair := func(port int) (fds [2]int) {
			for i := range fds {
				fds[i] = b.socket("pod3", unix.SOCK_DGRAM, false)
				b.must(unix.SetsockoptInt(fds[i], unix.SOL_SOCKET, unix.SO_REUSEPORT, 1))
				b.must(unix.Bind(fds[i], sockaddr(netip.AddrPortFrom(b.f.Everywhere().Addr(), uint16(port)))))
			}
			return fds
		}
		var stale, innocent []int
		for i := range 8 {
			fds := pair(20_000 + i)
			stale, innocent = append(stale, fds[i%2]), append(innocent, fds[1-i%2])
			for k := range fds { // either may connect first
				if fd := fds[k^i>>1&1]; fd == stale[i] {
					b.must(unix.Connect(fd, sockaddr(b.to("VIP:53"))))
				} else {
					b.must(unix.Connect(fd, sockaddr(b.to("pod1:8080"))))
				}
			}
		}
		b.change(dnsAt("pod2:8080"))
		b.must(b.plane.kernel.reaper.pass(t.Context()))
		for i, fd := range innocent {
			if n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR); err != nil || n != 0 {
				b.t.Errorf("innocent socket %d ended: %v, %v", i, unix.Errno(n), err)
			}
			b.hasPeer("innocent", fd, b.to("pod1:8080"))
		}
		kernel, err := btf.LoadKernelSpec()
		b.must(err)
		_, err = kernel.AnyTypeByName("bpf_sock_destroy")
		if byProgram := b.plane.kernel.reaper.ender.obj != nil; byProgram != (err == nil) {
			b.t.Errorf("a program ends sockets: %v; the kernel's function: %v", byProgram, err)
		}
		if err != nil {
			return // before Linux 6.5 the kernel may find the innocent one, and ends none
		}
		for i, fd := range stale {
			if !ended(fd) {
				b.t.Errorf("stale socket %d is still connected", i)
			}
		}
	})
}

// TestOneSourcePort: two TCP sockets of one source port cannot connect to two frontends with one
// endpoint: the second gets EADDRNOTAVAIL (EB-45).
func TestOneSourcePort(t *testing.T) {
	kerneltest.Later(t)
	eachFamily(t, func(b *bench) {
		for _, host := range []string{"pod3", netlab.Node1} {
			var errs [2]error
			for i, to := range []string{"VIP:80", "NODE:30080"} {
				fd := b.socket(host, unix.SOCK_STREAM, false)
				b.must(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1))
				b.must(unix.Bind(fd, sockaddr(netip.AddrPortFrom(b.f.Everywhere().Addr(), 21_000))))
				errs[i] = unix.Connect(fd, sockaddr(b.to(to)))
			}
			if errs[0] != nil || !errors.Is(errs[1], unix.EADDRNOTAVAIL) {
				b.t.Errorf("%s: %v; want none, then EADDRNOTAVAIL", host, errs)
			}
		}
	})
}

// TestErrorQueue: the error queue of a socket, with IP_RECVERR, has the address of the endpoint
// (EB-45).
func TestErrorQueue(t *testing.T) {
	kerneltest.Later(t)
	eachFamily(t, func(b *bench) {
		b.change(dnsAt("pod1:9998")) // a closed port
		level, option := unix.SOL_IP, unix.IP_RECVERR
		if b.f == lb.IPv6 {
			level, option = unix.SOL_IPV6, unix.IPV6_RECVERR
		}
		for _, host := range []string{"pod3", netlab.Node1} {
			fd := b.socket(host, unix.SOCK_DGRAM, false)
			b.must(unix.SetsockoptInt(fd, level, option, 1))
			b.must(unix.Sendto(fd, []byte("x"), 0, sockaddr(b.to("VIP:53"))))
			var at unix.Sockaddr
			if !eventually(func() (ok bool) {
				_, _, _, is, err := unix.Recvmsg(fd, make([]byte, 1500), make([]byte, 512), unix.MSG_ERRQUEUE)
				at = is
				return err == nil
			}) {
				b.t.Fatalf("%s: no error in the queue", host)
			}
			if got := addrPort(at); got != b.to("pod1:9998") {
				b.t.Errorf("%s: the queue has %s, want the endpoint", host, got)
			}
		}
	})
}
