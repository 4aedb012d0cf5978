package conntrack

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// errSocket marks errors of the socket itself, as opposed to those that the kernel answers.
var errSocket = errors.New("netlink socket")

// socket is a netlink socket with one receive buffer for its whole life. The libraries in go.mod copy every
// message of a dump; here entries are judged where they lie.
type socket struct {
	fd     int
	seq    uint32
	buf    []byte
	unread []byte // of buf
	opened bool
}

func (s *socket) open(protocol, buffer int) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return fmt.Errorf("open a netlink socket for protocol %d: %w", protocol, err)
	}
	s.fd, s.buf, s.opened = fd, make([]byte, buffer), true
	limit := unix.NsecToTimeval(int64(patience))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit); err != nil {
		return fmt.Errorf("limit the wait for answers: %w", err)
	}
	// An acknowledgement need not repeat the request.
	if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1); err != nil {
		return fmt.Errorf("ask for short acknowledgements: %w", err)
	}
	return nil
}

func (s *socket) close() {
	if s.opened {
		unix.Close(s.fd)
		s.opened = false
	}
}

// next returns a new sequence number.
func (s *socket) next() uint32 {
	s.seq++
	return s.seq
}

func (s *socket) send(b []byte) error {
	for {
		err := unix.Sendto(s.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// answers hands each message that answers seq to f, until the last: an error, an acknowledgement or the end
// of a dump. What the kernel answers as an error is returned as a unix.Errno; other errors wrap errSocket,
// or are f's, which does not hinder that the rest is read first. Answers to other requests are left out,
// such as the rest of one that took too long.
func (s *socket) answers(seq uint32, f func(typ uint16, body []byte) error) error {
	var failed error
	for {
		if len(s.unread) == 0 {
			if err := s.receive(); err != nil {
				return err
			}
		}
		b := s.unread
		n := 0
		if len(b) >= unix.SizeofNlMsghdr {
			n = int(binary.NativeEndian.Uint32(b))
		}
		if n < unix.SizeofNlMsghdr || n > len(b) {
			s.unread = nil
			return fmt.Errorf("%w: message of %d bytes in %d", errSocket, n, len(b))
		}
		s.unread = b[min((n+3)&^3, len(b)):]
		if binary.NativeEndian.Uint32(b[8:]) != seq {
			continue
		}
		typ, body := binary.NativeEndian.Uint16(b[4:]), b[unix.SizeofNlMsghdr:n]
		switch typ {
		case unix.NLMSG_ERROR, unix.NLMSG_DONE:
			// DONE carries an error number too, in kernels that have something to say.
			if len(body) >= 4 {
				if code := int32(binary.NativeEndian.Uint32(body)); code < 0 {
					return unix.Errno(-code)
				}
			}
			return failed
		}
		if failed == nil {
			failed = f(typ, body)
		}
	}
}

func (s *socket) receive() error {
	for {
		// Not recvmsg, which would allocate the sender's address. A part of an answer is far below the
		// length of buf; one that fills it may be cut off.
		n, err := unix.Read(s.fd, s.buf)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return fmt.Errorf("%w: receive: %w", errSocket, err)
		case n == len(s.buf):
			return fmt.Errorf("%w: a message has %d bytes or more", errSocket, n)
		}
		s.unread = s.buf[:n]
		return nil
	}
}
