package relay

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// newUDPSocket makes a socket in the namespace of the thread. It fragments datagrams that are too
// long for a link: the client's own path MTU discovery ends at the relay.
func newUDPSocket(a netip.Addr) (int, error) {
	fd, err := unix.Socket(familyOf(a), unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_UDP)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	cut := forFamily(a, option{"IP_MTU_DISCOVER", unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DONT},
		option{"IPV6_MTU_DISCOVER", unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DONT})
	if err := setOptions(fd, cut); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// bindUDP makes the socket of a listener.
func bindUDP(at netip.AddrPort) (int, error) {
	fd, err := newUDPSocket(at.Addr())
	if err != nil {
		return -1, err
	}
	options := []option{wantHops(at.Addr()), {"IP_PKTINFO", unix.IPPROTO_IP, unix.IP_PKTINFO, 1}}
	if at.Addr().Is6() {
		options = []option{wantHops(at.Addr()), {"IPV6_V6ONLY", unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1},
			{"IPV6_RECVPKTINFO", unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1}}
	}
	err = setOptions(fd, options...)
	for _, o := range [][2]int{{unix.SO_RCVBUFFORCE, unix.SO_RCVBUF}, {unix.SO_SNDBUFFORCE, unix.SO_SNDBUF}} {
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, o[0], udpBuffer) != nil {
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, o[1], udpBuffer) // as much as the node allows
		}
	}
	if err == nil {
		err = distinguish(fd, at.Addr())
	}
	if err == nil {
		err = os.NewSyscallError("bind", unix.Bind(fd, sockaddr(at)))
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// udpSocket is the socket of a listener, or of a session. It never blocks a thread.
type udpSocket struct {
	file *os.File // for the runtime's poller
	raw  syscall.RawConn

	session *udpSession
	hops    int           // TTL of sent packets, 0 for the node's own
	client  unix.Sockaddr // receiver of replies
	from    []byte        // control message that sets their source address
}

func newUDPFile(fd int) (*udpSocket, error) {
	s := &udpSocket{file: os.NewFile(uintptr(fd), "udp")}
	var err error
	s.raw, err = s.file.SyscallConn()
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// newFrontSocket makes the socket of a listener.
func newFrontSocket(at netip.AddrPort) (*udpSocket, error) {
	fd, err := bindUDP(at)
	if err != nil {
		return nil, err
	}
	return newUDPFile(fd)
}

func (s *udpSocket) addr() (at netip.AddrPort) {
	_ = s.do(func(fd int) (err error) {
		at, err = localAddr(fd)
		return err
	})
	return at
}

// close returns when the port is free.
func (s *udpSocket) close() { s.file.Close() }

// do calls fn with the descriptor, unless the socket is closed.
func (s *udpSocket) do(fn func(fd int) error) error {
	var err error
	if closed := s.raw.Control(func(fd uintptr) { err = fn(int(fd)) }); closed != nil {
		return net.ErrClosed
	}
	return err
}

// await waits until the socket is readable, and reads it.
func (s *udpSocket) await(read func(fd int, buf []byte) (int, error)) (d datagram, err error) {
	if closed := s.raw.Read(func(fd uintptr) bool {
		d.buf = buffers.Get().(*[datagramSize]byte)
		for {
			d.n, err = read(int(fd), d.buf[:])
			if err != unix.EINTR {
				break
			}
		}
		if err != nil {
			d.free()
		}
		return err != unix.EAGAIN
	}); closed != nil {
		return d, net.ErrClosed
	}
	return d, err
}

// fromClient waits for a client's datagram.
func (s *udpSocket) fromClient() (datagram, error) {
	var control [recvControlSize]byte
	var controlled int
	var from unix.Sockaddr
	d, err := s.await(func(fd int, buf []byte) (n int, err error) {
		n, controlled, _, from, err = unix.Recvmsg(fd, buf, control[:], unix.MSG_DONTWAIT)
		return n, err
	})
	if err == nil {
		d.client, d.received = addrPort(from), parseControl(control[:controlled])
	}
	return d, err
}

// fromBackend waits for the backend's datagram.
func (s *udpSocket) fromBackend() (datagram, error) { return s.await(unix.Read) }

// reply sends a datagram to the client of a session.
func (s *udpSocket) reply(datagram []byte, of *udpSocket) error {
	return s.do(func(fd int) error {
		_, err := unix.SendmsgN(fd, datagram, of.from, of.client, unix.MSG_DONTWAIT)
		return err
	})
}

// newBackendSocket makes a socket that is connected to the backend of a session, with a random
// port.
func newBackendSocket(of *udpSession, r *Relay) (*udpSocket, error) {
	fd, err := newUDPSocket(of.backend.Addr())
	if err != nil {
		return nil, err
	}
	report := forFamily(of.backend.Addr(), option{"IP_RECVERR", unix.IPPROTO_IP, unix.IP_RECVERR, 1},
		option{"IPV6_RECVERR", unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1})
	err = setOptions(fd, append(r.mark(), report)...)
	if err == nil {
		err = os.NewSyscallError("connect", unix.Connect(fd, sockaddr(of.backend)))
	}
	// The kernel gives a socket its port before it connects it. A datagram in between may come from
	// another host.
	for err == nil {
		if _, e := unix.Read(fd, make([]byte, 1)); e != nil && e != unix.EINTR {
			break
		}
	}
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	s, err := newUDPFile(fd)
	if err == nil {
		s.session, s.client, s.from = of, sockaddr(of.key.client), sourceControl(of.key.local)
	}
	return s, err
}

// send is part of sessionSocket.
func (s *udpSocket) send(datagram []byte, hops int) error {
	return s.do(func(fd int) error {
		if hops != s.hops {
			limit := hops
			if hops == 0 {
				limit = -1
			}
			if err := setOptions(fd, limitHops(s.session.backend.Addr(), limit)); err != nil {
				return err
			}
			s.hops = hops
		}
		err := write(fd, datagram)
		if err == nil || isOurs(err) {
			return err
		}
		// It may be the error of an earlier datagram, which the kernel reports only once.
		_ = s.readErrors(fd)
		if s.session.lost {
			return err
		}
		return write(fd, datagram)
	})
}

func write(fd int, datagram []byte) error {
	for {
		if err := unix.Send(fd, datagram, unix.MSG_DONTWAIT); err != unix.EINTR {
			return err
		}
	}
}

// failed records the network's error reports after a read has failed.
func (s *udpSocket) failed() {
	_ = s.do(s.readErrors)
}

// maxErrors is the number of errors read at a time: more than the kernel keeps by default.
const maxErrors = 1024

// readErrors reads the network's error reports about datagrams sent to the backend.
func (s *udpSocket) readErrors(fd int) error {
	var control [512]byte
	var payload [1]byte
	for range maxErrors {
		_, n, _, _, err := unix.Recvmsg(fd, payload[:], control[:], unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			break
		}
		if why, by := unreachable(control[:n]); why != 0 {
			of := s.session
			of.front.table.refused(of, why, by == of.backend.Addr().WithZone(""), of.front.owner.relay.ns.isLocal(by))
		}
	}
	// Otherwise an error without an entry in the queue would be reported forever.
	return socketError(int32(fd))
}

// isLocal reports whether the node has an address. With IPv4 the kernel drops packets from
// elsewhere with such a source address; with IPv6 only forged packets have it.
func (n namespace) isLocal(a netip.Addr) bool {
	if !a.IsValid() || a.IsUnspecified() {
		return false
	}
	return n.run(func() error {
		fd, err := newUDPSocket(a)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Bind(fd, sockaddr(netip.AddrPortFrom(a, 0)))
	}) == nil
}

// recvControlSize fits an address of either family and the hops left.
const recvControlSize = 128

// parseControl reads the control messages of a datagram, and skips unknown ones.
func parseControl(b []byte) (r received) {
	for hdr, data := range controls(b) {
		switch {
		case hdr.Level == unix.IPPROTO_IP && hdr.Type == unix.IP_PKTINFO && len(data) >= unix.SizeofInet4Pktinfo:
			// The source for a reply (4:8) is the destination (8:12), unless that is a multicast or
			// broadcast address.
			r.local = netip.AddrFrom4([4]byte(data[8:12]))
			r.unicast = [4]byte(data[4:8]) == [4]byte(data[8:12])
		case hdr.Level == unix.IPPROTO_IPV6 && hdr.Type == unix.IPV6_PKTINFO && len(data) >= unix.SizeofInet6Pktinfo:
			r.local = netip.AddrFrom16([16]byte(data[:16]))
			r.unicast = !r.local.IsMulticast()
		case isHops(hdr) && len(data) >= 4:
			r.hops = int(int32(binary.NativeEndian.Uint32(data)))
		}
	}
	return r
}

func isHops(hdr unix.Cmsghdr) bool {
	return hdr.Level == unix.IPPROTO_IP && hdr.Type == unix.IP_TTL || hdr.Level == unix.IPPROTO_IPV6 &&
		hdr.Type == unix.IPV6_HOPLIMIT
}

// sourceControl is the control message that sets the source address of a datagram.
func sourceControl(a netip.Addr) []byte {
	if a.Is4() {
		return unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: a.As4()})
	}
	return unix.PktInfo6(&unix.Inet6Pktinfo{Addr: a.As16()})
}

// The types of "destination unreachable": RFC 792 and RFC 4443.
const icmpUnreachable, icmp6Unreachable = 3, 1

// unreachable reads the control messages of a network error. It returns the error, and the host
// that reports it; 0 if the error does not mean that a backend is unreachable.
func unreachable(b []byte) (errno unix.Errno, by netip.Addr) {
	for hdr, data := range controls(b) {
		known := hdr.Level == unix.IPPROTO_IP && hdr.Type == unix.IP_RECVERR || hdr.Level == unix.IPPROTO_IPV6 &&
			hdr.Type == unix.IPV6_RECVERR
		const size = 16 // struct sock_extended_err of linux/errqueue.h; the reporter's address follows
		if !known || len(data) < size {
			continue
		}
		switch [2]byte{data[4], data[5]} { // origin and type
		case [2]byte{unix.SO_EE_ORIGIN_ICMP, icmpUnreachable}, [2]byte{unix.SO_EE_ORIGIN_ICMP6, icmp6Unreachable}:
		default:
			continue // "time exceeded" is EHOSTUNREACH too, and the client's TTL can cause it
		}
		switch errno = unix.Errno(binary.NativeEndian.Uint32(data)); errno {
		case unix.ECONNREFUSED, unix.EHOSTUNREACH, unix.ENETUNREACH, unix.EHOSTDOWN, unix.ENONET, unix.ENOPROTOOPT,
			unix.EACCES:
			return errno, rawAddrPort(data[size:]).Addr()
		}
	}
	return 0, by
}

// EphemeralPorts returns the node's number of ports for sockets that request none.
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
