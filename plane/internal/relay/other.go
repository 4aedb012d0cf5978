//go:build !linux

package relay

import (
	"errors"
	"net"
	"net/netip"
)

func newConns(r *Relay) (connEngine, error) { return newPortable(r), nil }

// EphemeralPorts is how many ports the host has for sockets that ask for none: those that IANA has
// set aside (RFC 6335).
func EphemeralPorts() int { return 65535 - 49152 + 1 }

// namespace is nothing where the host has one network.
type namespace struct{}

func currentNamespace() (namespace, error) { return namespace{}, nil }

func (namespace) close() {}

func (namespace) run(fn func() error) error { return fn() }

// maxSessionFiles bounds the descriptors of sessions: each has a buffer, 64 MB together.
func maxSessionFiles() int { return min(OpenFiles(), udpFiles*1024) }

// udpSocket is the socket of a listener, or of a session. A listener at the unspecified address
// answers from that of the route to the client, so each address should have a listener.
type udpSocket struct {
	*net.UDPConn
	session *udpSession
}

// newFrontSocket makes the socket of a listener.
func newFrontSocket(at netip.AddrPort) (*udpSocket, error) {
	conn, err := net.ListenUDP(network("udp", at.Addr()), net.UDPAddrFromAddrPort(at))
	if err != nil {
		return nil, err
	}
	if err := errors.Join(conn.SetReadBuffer(udpBuffer), conn.SetWriteBuffer(udpBuffer)); err != nil {
		conn.Close()
		return nil, err
	}
	return &udpSocket{UDPConn: conn}, nil
}

// newBackendSocket makes a socket that is connected to the backend of a session.
func newBackendSocket(of *udpSession, _ *Relay) (*udpSocket, error) {
	conn, err := net.DialUDP(network("udp", of.backend.Addr()), nil, net.UDPAddrFromAddrPort(of.backend))
	return &udpSocket{conn, of}, err
}

func (s *udpSocket) addr() netip.AddrPort { return unmap(s.LocalAddr().(*net.UDPAddr).AddrPort()) }

func (s *udpSocket) close() { s.Close() }

func (s *udpSocket) fromClient() (d datagram, err error) {
	d.buf = buffers.Get().(*[datagramSize]byte)
	d.n, d.client, err = s.ReadFromUDPAddrPort(d.buf[:])
	d.client, d.local, d.unicast = unmap(d.client), s.addr().Addr(), true
	if err != nil {
		d.free()
	}
	return d, err
}

func (s *udpSocket) fromBackend() (datagram, error) { return s.fromClient() }

func (s *udpSocket) reply(datagram []byte, of *udpSocket) error {
	_, err := s.WriteToUDPAddrPort(datagram, of.session.key.client)
	return err
}

func (s *udpSocket) send(datagram []byte, _ int) error {
	_, err := s.Write(datagram)
	return err
}

// failed records a read error: the backend refuses.
func (s *udpSocket) failed() { s.session.lost = true }
