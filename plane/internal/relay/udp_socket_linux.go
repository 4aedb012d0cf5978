package relay

import (
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// udpSocket is a socket of a loop: of a listener, or one of a pool to backends.
type udpSocket struct {
	fd     int
	six    bool
	bound  netip.AddrPort
	front  *udpFront // nil: to backends
	number uint32    // in its pool
	// The datagrams to be sent through it are a list, by their places in the batch plus one.
	first, last int
}

// openUDP makes a socket in the namespace of the thread. toBackends says that errors of the network are to be read from it.
func openUDP(at netip.AddrPort, toBackends, offload bool) (fd int, err error) {
	six := isSix(at.Addr())
	domain, sa := udpSockaddr(at)
	fd, err = unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_UDP)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	defer func() {
		if err != nil {
			unix.Close(fd)
		}
	}()
	type option struct {
		name          string
		level, opt, v int
	}
	options := []option{
		// Who sends datagrams that are too long for a link has them cut, and not refused: the client's own way of finding
		// the length ends at the relay.
		{"IP_MTU_DISCOVER", unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DONT},
	}
	if six {
		options = []option{
			{"IPV6_V6ONLY", unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1},
			{"IPV6_MTU_DISCOVER", unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DONT},
		}
	}
	switch {
	case toBackends && six:
		options = append(options, option{"IPV6_RECVERR", unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1})
	case toBackends:
		options = append(options, option{"IP_RECVERR", unix.IPPROTO_IP, unix.IP_RECVERR, 1})
	case six:
		options = append(options, option{"IPV6_RECVPKTINFO", unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1},
			option{"IPV6_RECVHOPLIMIT", unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT, 1})
	default:
		options = append(options, option{"IP_PKTINFO", unix.IPPROTO_IP, unix.IP_PKTINFO, 1}, option{"IP_RECVTTL", unix.IPPROTO_IP, unix.IP_RECVTTL, 1})
	}
	if !toBackends { // a service address may not be there yet, and comes when somebody listens
		options = append(options, option{"IP_FREEBIND", unix.IPPROTO_IP, unix.IP_FREEBIND, 1})
	}
	for _, o := range options {
		if err := unix.SetsockoptInt(fd, o.level, o.opt, o.v); err != nil {
			return -1, fmt.Errorf("set %s: %w", o.name, err)
		}
	}
	for _, o := range [][2]int{{unix.SO_RCVBUFFORCE, unix.SO_RCVBUF}, {unix.SO_SNDBUFFORCE, unix.SO_SNDBUF}} {
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, o[0], udpBuffer) != nil {
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, o[1], udpBuffer) // as much as the node allows
		}
	}
	if offload {
		unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_GRO, 1) // since Linux 5.0; without it datagrams come one by one
	}
	if !toBackends {
		if err := distinguish(fd, six); err != nil {
			return -1, err
		}
	}
	if err := unix.Bind(fd, sa); err != nil {
		return -1, os.NewSyscallError("bind", err)
	}
	return fd, nil
}

// ownAddress reports whether the node has an address. The kernel drops what comes from one from elsewhere, in IPv4; in IPv6 only who forges
// addresses could send it.
func ownAddress(a udpAddr, six bool) bool {
	at := a.addrPort().Addr()
	if isSix(at) != six || at.IsUnspecified() {
		return false
	}
	domain, sa := udpSockaddr(netip.AddrPortFrom(at, 0))
	fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return unix.Bind(fd, sa) == nil
}

// udpSockaddr is an address as system calls take it.
func udpSockaddr(at netip.AddrPort) (domain int, sa unix.Sockaddr) {
	a := packAddr(at)
	if isSix(at.Addr()) {
		return unix.AF_INET6, &unix.SockaddrInet6{Addr: a.ip, Port: int(at.Port()), ZoneId: a.zone}
	}
	return unix.AF_INET, &unix.SockaddrInet4{Addr: [4]byte(a.ip[12:]), Port: int(at.Port())}
}

func boundTo(fd int) (netip.AddrPort, error) {
	sa, err := unix.Getsockname(fd)
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port)), nil
	case *unix.SockaddrInet6:
		return udpAddr{sa.Addr, sa.ZoneId, uint32(sa.Port)}.addrPort(), nil
	}
	return netip.AddrPort{}, os.NewSyscallError("getsockname", err)
}

// EphemeralPorts is how many ports the node has for sockets that ask for none.
func EphemeralPorts() int {
	const path = "/proc/sys/net/ipv4/ip_local_port_range"
	var first, last int
	content, err := os.ReadFile(path)
	if err == nil {
		_, err = fmt.Sscan(string(content), &first, &last)
	}
	if err != nil || last < first {
		return 60999 - 32768 + 1 // Linux' default
	}
	return last - first + 1
}
