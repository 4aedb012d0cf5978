package unanswered

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"kube-proxy/conntrack"
	"kube-proxy/lb"
)

// prod sends clients a segment that they acknowledge, in the name of the Service's address.
type prod struct {
	file *os.File // a raw socket
	err  error    // the reason if the socket is missing
	// sequence is the number of its segments, by which rules recognise them.
	sequence uint32
}

// newProd opens the socket, which needs CAP_NET_RAW, in the calling thread's network namespace.
func newProd(family lb.Family) *prod {
	p := &prod{sequence: rand.Uint32()}
	af := unix.AF_INET
	if family == lb.IPv6 {
		af = unix.AF_INET6
	}
	fd, err := unix.Socket(af, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_RAW)
	if err != nil {
		p.err = fmt.Errorf("open a raw socket (CAP_NET_RAW): %w", err)
		return p
	}
	p.file = os.NewFile(uintptr(fd), "raw")
	return p
}

func (p *prod) close() error {
	if p.file == nil {
		return nil
	}
	return p.file.Close()
}

// send sends a segment to the client of a connection.
func (p *prod) send(c conntrack.Connection) error {
	if p.err != nil {
		return p.err
	}
	packet, to := segment(c.Frontend, c.Client, p.sequence)
	raw, err := p.file.SyscallConn()
	if err != nil {
		return err
	}
	failed := raw.Control(func(fd uintptr) { err = unix.Sendto(int(fd), packet, 0, to) })
	if failed != nil {
		return failed
	}
	if err != nil {
		return fmt.Errorf("send a segment to %s: %w", c.Client, os.NewSyscallError("sendto", err))
	}
	return nil
}

// segment returns an IP packet with a TCP segment without data: an acknowledgement with that
// sequence number.
func segment(from, to netip.AddrPort, sequence uint32) (packet []byte, addr unix.Sockaddr) {
	const length, hops = 20, 64
	be := binary.BigEndian
	tcp := be.AppendUint16(nil, from.Port())
	tcp = be.AppendUint16(tcp, to.Port())
	tcp = be.AppendUint32(tcp, sequence)
	tcp = append(tcp, 0, 0, 0, 0, length/4<<4, 0x10 /* ACK */, 0, 0, 0, 0, 0, 0)
	pseudo := append(from.Addr().AsSlice(), to.Addr().AsSlice()...)
	pseudo = append(pseudo, 0, unix.IPPROTO_TCP, 0, length)
	be.PutUint16(tcp[16:], checksum(append(pseudo, tcp...)))
	if to.Addr().Is6() {
		ip := append(be.AppendUint32(nil, 6<<28), 0, length, unix.IPPROTO_TCP, hops)
		ip = append(append(ip, from.Addr().AsSlice()...), to.Addr().AsSlice()...)
		return append(ip, tcp...), &unix.SockaddrInet6{Addr: to.Addr().As16()}
	}
	// The kernel fills in the checksum.
	ip := []byte{4<<4 | 5, 0, 0, 20 + length, 0, 0, 0, 0, hops, unix.IPPROTO_TCP, 0, 0}
	ip = append(append(ip, from.Addr().AsSlice()...), to.Addr().AsSlice()...)
	return append(ip, tcp...), &unix.SockaddrInet4{Addr: to.Addr().As4()}
}

// checksum is the Internet checksum of an even number of bytes (RFC 1071).
func checksum(b []byte) uint16 {
	sum := uint32(0)
	for i := 0; i < len(b); i += 2 {
		sum += uint32(b[i])<<8 | uint32(b[i+1])
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
