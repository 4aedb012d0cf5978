package relay

import (
	"encoding/binary"
	"net/netip"
	"os"
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
	size, level := uint32(len(b)), unix.SOL_IPV6
	if bound.Addr().Is4() {
		level = unix.SOL_IP
	}
	if getsockopt(fd, level, originalDst, unsafe.Pointer(&b), &size) == nil {
		return rawAddrPort(b[:size])
	}
	if !bound.Addr().IsUnspecified() {
		return bound
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
