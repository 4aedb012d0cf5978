package relay

import (
	"net/netip"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"kube-proxy/lb"
)

// The relay is a router among others: what it sends to backends has a hop less before it than what came. Or two relays
// whose backends are each other, which whoever writes endpoints may have, would pass a connection on until neither has a descriptor left.

// fewHops is how many hops a client must have left at least for a silent or unreachable backend to be blamed for it: with fewer, a router on
// the way may have dropped the packet because of the client's TTL. No path in a cluster is that long.
const fewHops = 32

// wantHops has the kernel remember how many hops the packets of clients have left.
func wantHops(fd int, at Listening) error {
	switch {
	case at.Proto != lb.TCP:
		return nil
	case at.Addr.Addr().Is6():
		return os.NewSyscallError("IPV6_RECVHOPLIMIT", unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT, 1))
	}
	return os.NewSyscallError("IP_RECVTTL", unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_RECVTTL, 1))
}

// hops returns how many hops the client's packets have left; 0 if the kernel does not know.
func (c *conn) hops() int {
	if c.from.proto != lb.TCP {
		return 0
	}
	level, opt := unix.IPPROTO_IP, unix.IP_PKTOPTIONS
	if c.from.at.Addr().Is6() {
		level, opt = unix.IPPROTO_IPV6, unix.IPV6_2292PKTOPTIONS
	}
	var b [recvControlSize]byte
	size := uint32(len(b))
	if _, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(c.ends[client].fd), uintptr(level), uintptr(opt),
		uintptr(unsafe.Pointer(&b)), uintptr(unsafe.Pointer(&size)), 0); errno != 0 {
		return 0 // the client has gone, which is heard in another way
	}
	return parseControl(b[:min(int(size), len(b))]).hops
}

// passHops limits the hops of packets to a backend.
func (c *conn) passHops(fd int, to netip.AddrPort) error {
	switch hops := c.dial.hops; {
	case hops == 0:
		return nil
	case to.Addr().Is4():
		return os.NewSyscallError("IP_TTL", unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TTL, hops-1))
	default:
		return os.NewSyscallError("IPV6_UNICAST_HOPS", unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, hops-1))
	}
}
