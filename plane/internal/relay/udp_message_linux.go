package relay

import (
	"encoding/binary"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// batchSize is how many messages one system call moves.
	batchSize = 64
	nameSize  = unix.SizeofSockaddrInet6
	// recvControlSize holds an address of either family, the size of segments and the hops that are left.
	recvControlSize = 128
)

// sendControlSize holds the same.
var sendControlSize = unix.CmsgSpace(unix.SizeofInet6Pktinfo) + unix.CmsgSpace(2) + unix.CmsgSpace(4)

// mmsghdr is struct mmsghdr of recvmmsg(2).
type mmsghdr struct {
	hdr    unix.Msghdr
	length uint32
}

// putName writes a as a socket address, and returns its length.
func putName(b *[nameSize]byte, a *udpAddr, six bool) uint32 {
	clear(b[:])
	if !six {
		binary.NativeEndian.PutUint16(b[0:], unix.AF_INET)
		binary.BigEndian.PutUint16(b[2:], uint16(a.port))
		copy(b[4:8], a.ip[12:])
		return unix.SizeofSockaddrInet4
	}
	binary.NativeEndian.PutUint16(b[0:], unix.AF_INET6)
	binary.BigEndian.PutUint16(b[2:], uint16(a.port))
	copy(b[8:24], a.ip[:])
	binary.NativeEndian.PutUint32(b[24:], a.zone)
	return unix.SizeofSockaddrInet6
}

// getName reads a socket address.
func getName(b []byte) (a udpAddr, ok bool) {
	if len(b) < 2 {
		return a, false
	}
	switch binary.NativeEndian.Uint16(b) {
	case unix.AF_INET:
		if len(b) < unix.SizeofSockaddrInet4 {
			return a, false
		}
		mapInto(&a.ip, b[4:8])
	case unix.AF_INET6:
		if len(b) < unix.SizeofSockaddrInet6 {
			return a, false
		}
		copy(a.ip[:], b[8:24])
		a.zone = binary.NativeEndian.Uint32(b[24:])
	default:
		return a, false
	}
	a.port = uint32(binary.BigEndian.Uint16(b[2:]))
	return a, true
}

// mapInto writes an IPv4 address as one of IPv6.
func mapInto(ip *[16]byte, v4 []byte) {
	*ip = [16]byte{10: 0xff, 11: 0xff}
	copy(ip[12:], v4)
}

// received is what the kernel tells about a message beside who sent it.
type received struct {
	local   [16]byte // to which address of the host
	unicast bool
	segment int // the message is datagrams of that size, the last perhaps shorter; 0: it is one
	hops    int // as many routers may pass it on; 0 if that is not known
}

// parseControl reads the control messages of a datagram. What it does not know it leaves out.
func parseControl(b []byte) (r received) {
	for len(b) >= unix.SizeofCmsghdr {
		hdr, data, rest, err := unix.ParseOneSocketControlMessage(b)
		if err != nil {
			return r
		}
		b = rest
		switch {
		case hdr.Level == unix.IPPROTO_IP && hdr.Type == unix.IP_PKTINFO && len(data) >= unix.SizeofInet4Pktinfo:
			// The source for a reply (4:8) is the destination (8:12), unless that is a multicast or broadcast address.
			mapInto(&r.local, data[8:12])
			r.unicast = [4]byte(data[4:8]) == [4]byte(data[8:12])
		case hdr.Level == unix.IPPROTO_IPV6 && hdr.Type == unix.IPV6_PKTINFO && len(data) >= unix.SizeofInet6Pktinfo:
			copy(r.local[:], data[:16])
			r.unicast = data[0] != 0xff
		case hdr.Level == unix.IPPROTO_UDP && hdr.Type == unix.UDP_GRO && len(data) >= 4:
			r.segment = int(int32(binary.NativeEndian.Uint32(data)))
		case isHops(hdr) && len(data) >= 4:
			r.hops = int(int32(binary.NativeEndian.Uint32(data)))
		}
	}
	return r
}

func isHops(hdr unix.Cmsghdr) bool {
	return hdr.Level == unix.IPPROTO_IP && hdr.Type == unix.IP_TTL || hdr.Level == unix.IPPROTO_IPV6 && hdr.Type == unix.IPV6_HOPLIMIT
}

// segments returns how many datagrams a message of some length is.
func segments(length, segment int) int {
	if segment <= 0 || length <= segment {
		return 1
	}
	return (length + segment - 1) / segment
}

// putControl writes from which address to send, unless that is left to the kernel, the size of segments, if there are any, and the hops that
// are left, if not 0.
func putControl(b []byte, from *[16]byte, six bool, segment, hops int) (n int) {
	put := func(level, typ, size int) []byte {
		h := (*unix.Cmsghdr)(unsafe.Pointer(&b[n]))
		h.Level, h.Type = int32(level), int32(typ)
		h.SetLen(unix.CmsgLen(size))
		data := b[n+unix.CmsgLen(0):][:size]
		n += unix.CmsgSpace(size)
		clear(data)
		return data
	}
	switch {
	case from == nil:
	case six:
		copy(put(unix.IPPROTO_IPV6, unix.IPV6_PKTINFO, unix.SizeofInet6Pktinfo), from[:])
	default:
		copy(put(unix.IPPROTO_IP, unix.IP_PKTINFO, unix.SizeofInet4Pktinfo)[4:8], from[12:])
	}
	switch {
	case hops == 0:
	case six:
		binary.NativeEndian.PutUint32(put(unix.IPPROTO_IPV6, unix.IPV6_HOPLIMIT, 4), uint32(hops))
	default:
		binary.NativeEndian.PutUint32(put(unix.IPPROTO_IP, unix.IP_TTL, 4), uint32(hops))
	}
	if segment > 0 {
		binary.NativeEndian.PutUint16(put(unix.IPPROTO_UDP, unix.UDP_SEGMENT, 2), uint16(segment))
	}
	return n
}

// The types of "destination unreachable": RFC 792 and RFC 4443.
const icmpUnreachable, icmp6Unreachable = 3, 1

// unreachable reads the control messages of an error that the network reports: which, and who says so. 0: it is none that tells
// that a backend cannot be reached.
func unreachable(b []byte) (errno unix.Errno, by udpAddr) {
	for len(b) >= unix.SizeofCmsghdr {
		hdr, data, rest, err := unix.ParseOneSocketControlMessage(b)
		if err != nil {
			return 0, by
		}
		b = rest
		known := hdr.Level == unix.IPPROTO_IP && hdr.Type == unix.IP_RECVERR || hdr.Level == unix.IPPROTO_IPV6 && hdr.Type == unix.IPV6_RECVERR
		const size = 16 // struct sock_extended_err of linux/errqueue.h; behind it is who says so
		if !known || len(data) < size {
			continue
		}
		switch [2]byte{data[4], data[5]} { // origin and type
		case [2]byte{unix.SO_EE_ORIGIN_ICMP, icmpUnreachable}, [2]byte{unix.SO_EE_ORIGIN_ICMP6, icmp6Unreachable}:
		default:
			continue // "time exceeded" is EHOSTUNREACH too, and the client's TTL can cause it
		}
		switch errno = unix.Errno(binary.NativeEndian.Uint32(data)); errno {
		case unix.ECONNREFUSED, unix.EHOSTUNREACH, unix.ENETUNREACH, unix.EHOSTDOWN, unix.ENONET, unix.ENOPROTOOPT, unix.EACCES:
			by, _ = getName(data[size:])
			return errno, by
		}
	}
	return 0, by
}

// recvmmsg takes what has come, up to len(msgs), and does not wait.
func recvmmsg(fd int, msgs []mmsghdr) (int, unix.Errno) {
	n, _, errno := unix.Syscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(&msgs[0])), uintptr(len(msgs)), unix.MSG_DONTWAIT, 0, 0)
	return int(n), errno
}

// sendmmsg sends msgs until one fails, and does not wait. There is an error only if the first fails.
func sendmmsg(fd int, msgs []mmsghdr) (int, unix.Errno) {
	n, _, errno := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(fd), uintptr(unsafe.Pointer(&msgs[0])), uintptr(len(msgs)), unix.MSG_DONTWAIT, 0, 0)
	return int(n), errno
}
