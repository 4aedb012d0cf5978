package relay

import (
	"net/netip"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

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

// originalDst is SO_ORIGINAL_DST (include/uapi/linux/netfilter_ipv4.h) and IP6T_SO_ORIGINAL_DST
// (netfilter_ipv6/ip6_tables.h).
const originalDst = 80

// asked returns the address that a client connected to: the original destination in conntrack if a
// rule redirected the packets, else that of the socket. bound is the listener's address.
func asked(fd int, bound netip.AddrPort) netip.AddrPort {
	if bound.Addr().Is4() {
		var sa unix.RawSockaddrInet4
		size := uint32(unsafe.Sizeof(sa))
		if getsockopt(fd, unix.SOL_IP, originalDst, unsafe.Pointer(&sa), &size) == nil {
			return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), swap(sa.Port))
		}
	} else {
		var sa unix.RawSockaddrInet6
		size := uint32(unsafe.Sizeof(sa))
		if getsockopt(fd, unix.SOL_IPV6, originalDst, unsafe.Pointer(&sa), &size) == nil {
			return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr), swap(sa.Port))
		}
	}
	if !bound.Addr().IsUnspecified() {
		return bound
	}
	if sa, err := unix.Getsockname(fd); err == nil {
		return addrPort(sa)
	}
	return bound
}

// swap reads a port in network byte order.
func swap(port uint16) uint16 {
	b := (*[2]byte)(unsafe.Pointer(&port))
	return uint16(b[0])<<8 | uint16(b[1])
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
