package relay

import (
	"encoding/binary"
	"iter"
	"net/netip"
	"os"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"

	"kube-proxy/lb"
)

// option is a socket option.
type option struct {
	name              string
	level, opt, value int
}

func setOptions(fd int, all ...option) error {
	for _, o := range all {
		if err := unix.SetsockoptInt(fd, o.level, o.opt, o.value); err != nil {
			return os.NewSyscallError(o.name, err)
		}
	}
	return nil
}

// forFamily returns the option for sockets to an address, of IPv4 or IPv6.
func forFamily(a netip.Addr, v4, v6 option) option {
	if a.Is4() {
		return v4
	}
	return v6
}

// familyOf returns the address family of sockets to an address.
func familyOf(a netip.Addr) int {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// mark returns the option that marks packets to backends; empty without a mark.
func (r *Relay) mark() []option {
	if r.cfg.Mark == 0 {
		return nil
	}
	return []option{{"SO_MARK", unix.SOL_SOCKET, unix.SO_MARK, int(r.cfg.Mark)}}
}

// maxSessionFiles bounds the descriptors of sessions.
func maxSessionFiles() int { return OpenFiles() }

// sockaddr returns an address in the kernel's form.
func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	zone, _ := strconv.ParseUint(a.Addr().Zone(), 10, 32)
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16(), ZoneId: uint32(zone)}
}

// addrPort is the inverse of sockaddr. The zone of a link-local address is the number of its link.
func addrPort(sa unix.Sockaddr) netip.AddrPort {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		a := netip.AddrFrom16(sa.Addr)
		if sa.ZoneId != 0 {
			a = a.WithZone(strconv.FormatUint(uint64(sa.ZoneId), 10))
		}
		return netip.AddrPortFrom(a, uint16(sa.Port))
	}
	return netip.AddrPort{}
}

// controls yields the control messages of a datagram.
func controls(b []byte) iter.Seq2[unix.Cmsghdr, []byte] {
	return func(yield func(unix.Cmsghdr, []byte) bool) {
		for len(b) >= unix.SizeofCmsghdr {
			header, data, rest, err := unix.ParseOneSocketControlMessage(b)
			if err != nil || !yield(header, data) {
				return
			}
			b = rest
		}
	}
}

// localAddr returns the address of a socket.
func localAddr(fd int) (netip.AddrPort, error) {
	sa, err := unix.Getsockname(fd)
	return addrPort(sa), os.NewSyscallError("getsockname", err)
}

// rawAddrPort reads the kernel's socket address, without its zone.
func rawAddrPort(b []byte) netip.AddrPort {
	var a netip.Addr
	switch {
	case len(b) >= unix.SizeofSockaddrInet4 && binary.NativeEndian.Uint16(b) == unix.AF_INET:
		a = netip.AddrFrom4([4]byte(b[4:8]))
	case len(b) >= unix.SizeofSockaddrInet6 && binary.NativeEndian.Uint16(b) == unix.AF_INET6:
		a = netip.AddrFrom16([16]byte(b[8:24]))
	default:
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16(b[2:]))
}

// originalDst is SO_ORIGINAL_DST (include/uapi/linux/netfilter_ipv4.h) and IP6T_SO_ORIGINAL_DST
// (netfilter_ipv6/ip6_tables.h).
const originalDst = 80

// asked returns the address that a client connected to: the original destination in conntrack if a
// rule redirected the packets, else that of the socket. bound is the listener's address.
func asked(fd int, bound netip.AddrPort) netip.AddrPort {
	var b [unix.SizeofSockaddrInet6]byte
	size := uint32(len(b))
	o := forFamily(bound.Addr(), option{level: unix.SOL_IP}, option{level: unix.SOL_IPV6})
	if getsockopt(fd, o.level, originalDst, unsafe.Pointer(&b), &size) == nil {
		return rawAddrPort(b[:size])
	}
	if at, err := localAddr(fd); err == nil {
		return at
	}
	return bound
}

// getsockopt reads an option into size bytes at p, and sets size to its length.
func getsockopt(fd, level, opt int, p unsafe.Pointer, size *uint32) error {
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(opt), uintptr(p),
		uintptr(unsafe.Pointer(size)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// The relay is a router among others: it lowers the TTL of what it sends to backends. Otherwise two
// relays whose backends are each other, which the author of endpoints can arrange, would pass a
// connection on until neither has a descriptor left.

// fewHops is the TTL that a client must have left before a silent or unreachable backend is blamed:
// with less, a router on the way may have dropped the packet. No path in a cluster is that long.
const fewHops = 32

// wantHops enables reports of how many hops the packets of clients have left.
func wantHops(a netip.Addr) option {
	return forFamily(a, option{"IP_RECVTTL", unix.IPPROTO_IP, unix.IP_RECVTTL, 1},
		option{"IPV6_RECVHOPLIMIT", unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT, 1})
}

// limitHops limits the hops of packets to an address; -1 is the node's own limit.
func limitHops(a netip.Addr, hops int) option {
	return forFamily(a, option{"IP_TTL", unix.IPPROTO_IP, unix.IP_TTL, hops},
		option{"IPV6_UNICAST_HOPS", unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, hops})
}

// hops returns how many hops the client's packets have left; 0 if the kernel does not know.
func (c *conn) hops() int {
	if c.from.proto != lb.TCP {
		return 0
	}
	o := forFamily(c.from.at.Addr(), option{level: unix.IPPROTO_IP, opt: unix.IP_PKTOPTIONS},
		option{level: unix.IPPROTO_IPV6, opt: unix.IPV6_2292PKTOPTIONS})
	var b [recvControlSize]byte
	size := uint32(len(b))
	if getsockopt(int(c.ends[client].fd), o.level, o.opt, unsafe.Pointer(&b), &size) != nil {
		return 0 // the client has gone, which epoll reports too
	}
	return parseControl(b[:min(int(size), len(b))]).hops
}
