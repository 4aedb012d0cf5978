package nftables

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// socket is a netlink socket to the netfilter subsystem of the network namespace in which it was opened.
//
// mdlayher/netlink would do all of this but two things that matter at 100,000 services: a dump is handed
// out message by message instead of being collected, and a batch of 100 MB is sent from many buffers
// without another copy.
type socket struct {
	fd   int
	pid  uint32
	seq  uint32
	recv []byte
	snd  int // present size of the send buffer
}

func openSocket() (*socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("open a netfilter netlink socket: %w", err)
	}
	s := &socket{fd: fd, recv: make([]byte, 64<<10)}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		s.close()
		return nil, fmt.Errorf("bind a netfilter netlink socket: %w", err)
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		s.close()
		return nil, fmt.Errorf("name of a netfilter netlink socket: %w", err)
	}
	s.pid = sa.(*unix.SockaddrNetlink).Pid
	// Answers come without the request, which may be 100 MB; extended acks say what was wrong.
	for _, opt := range []int{unix.NETLINK_CAP_ACK, unix.NETLINK_EXT_ACK} {
		if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, opt, 1); err != nil {
			s.close()
			return nil, fmt.Errorf("set netlink option %d: %w", opt, err)
		}
	}
	if err := s.receiveBuffer(8 << 20); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *socket) close() error { return unix.Close(s.fd) }

// receiveBuffer sets the size of the receive buffer in bytes, beyond the system's limit if we may.
func (s *socket) receiveBuffer(n int) error {
	if unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, n) == nil {
		return nil
	}
	if err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, n); err != nil {
		return fmt.Errorf("set the netlink receive buffer to %d bytes: %w", n, err)
	}
	return nil
}

// kernelError is an error that the kernel answered to a message.
type kernelError struct {
	errno syscall.Errno
	seq   uint32
	text  string // the extended ack's message, if any
}

func (e *kernelError) Error() string {
	if e.text != "" {
		return e.errno.Error() + ": " + e.text
	}
	return e.errno.Error()
}

func (e *kernelError) Unwrap() error { return e.errno }

// send sends one datagram made of the buffers.
func (s *socket) send(bufs [][]byte) error {
	total := 0
	for _, b := range bufs {
		total += len(b)
	}
	if need := total + 1<<16; need > s.snd {
		if err := s.sendBuffer(need); err != nil {
			return fmt.Errorf("set the netlink send buffer to %d bytes: %w", need, err)
		}
	}
	for {
		_, err := unix.SendmsgBuffers(s.fd, bufs, nil, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return os.NewSyscallError("sendmsg", err)
	}
}

// sendBuffer makes room for a datagram of n bytes. In a user namespace of its own, root may not go beyond the
// system's limit, which is enough for small clusters.
func (s *socket) sendBuffer(n int) error {
	forced := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, n)
	if forced == nil {
		s.snd = n
		return nil
	}
	if err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, n); err != nil {
		return err
	}
	got, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUF)
	if err != nil {
		return err
	}
	if got < n {
		return forced
	}
	s.snd = got
	return nil
}

// message is a netlink message as received. Its body is only valid while it is handled.
type message struct {
	typ, flags uint16
	seq        uint32
	pid        uint32 // the socket whose request it answers or tells of
	body       []byte
}

// receive reads one datagram and calls f for each message in it. It reports unix.EAGAIN if wait is false
// and nothing is there.
func (s *socket) receive(wait bool, f func(m message) error) error {
	var n int
	for {
		var err error
		if wait {
			n, err = unix.Read(s.fd, s.recv) // which, unlike the other, makes no garbage
		} else {
			n, _, err = unix.Recvfrom(s.fd, s.recv, unix.MSG_DONTWAIT)
		}
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return os.NewSyscallError("receive", err)
		}
		break
	}
	b := s.recv[:n]
	for len(b) >= nlHeader {
		l := int(order.Uint32(b))
		if l < nlHeader || l > len(b) {
			return fmt.Errorf("netlink message of %d bytes in %d: %w", l, len(b), unix.EBADMSG)
		}
		m := message{order.Uint16(b[4:]), order.Uint16(b[6:]), order.Uint32(b[8:]), order.Uint32(b[12:]), b[nlHeader:l]}
		if err := f(m); err != nil {
			return err
		}
		b = b[min((l+3)&^3, len(b)):]
	}
	return nil
}

// answer turns an NLMSG_ERROR message into an error; nil for an acknowledgement.
func answer(m message) error {
	if len(m.body) < 4 {
		return unix.EBADMSG
	}
	errno := -int32(order.Uint32(m.body))
	if errno == 0 {
		return nil
	}
	e := &kernelError{errno: syscall.Errno(errno), seq: m.seq}
	if m.flags&unix.NLM_F_ACK_TLVS != 0 && len(m.body) > 4+nlHeader {
		e.text = cstr(attribute(m.body[4+nlHeader:], unix.NLMSGERR_ATTR_MSG))
	}
	return e
}

// commit sends a batch and waits for its outcome. The kernel handles a batch within sendmsg, so all the
// answers are there when it returns. last is the sequence number of the message that asks for an ack.
func (s *socket) commit(bufs [][]byte, last uint32) error {
	// What is left of an earlier answer must not be taken for this one's.
	for s.receive(false, func(message) error { return nil }) == nil {
	}
	if err := s.send(bufs); err != nil {
		return err // the kernel has not seen it
	}
	var failed, lost error
	acked := false
	for {
		err := s.receive(false, func(m message) error {
			if m.typ != unix.NLMSG_ERROR {
				return nil
			}
			err := answer(m)
			if err == nil && m.seq == last {
				acked = true
			}
			// The first error is the cause; later ones often follow from it.
			if failed == nil {
				failed = err
			}
			return nil
		})
		switch {
		case errors.Is(err, unix.EAGAIN):
			switch {
			case failed != nil || acked:
				return failed
			case lost != nil:
				return fmt.Errorf("%w: %w", errUnknownOutcome, lost)
			}
			return errUnknownOutcome
		case errors.Is(err, unix.ENOBUFS): // an answer found no room; what we wait for may be there all the same
			lost = err
		case err != nil:
			return fmt.Errorf("%w: %w", errUnknownOutcome, err)
		}
	}
}

// errUnknownOutcome is for a batch that was sent, of which nobody heard whether the kernel took it.
var errUnknownOutcome = errors.New("no answer to a batch")

var errInterrupted = errors.New("the ruleset changed while it was read")

// dump sends a request and calls f with the body of each message of the answer, without struct nfgenmsg.
// f must not keep the body. It returns errInterrupted if the ruleset changed meanwhile.
func (s *socket) dump(request []byte, f func(body []byte) error) error {
	if err := s.send([][]byte{request}); err != nil {
		return err
	}
	var bad error
	interrupted, done := false, false
	for !done {
		err := s.receive(true, func(m message) error {
			if m.seq != s.seq { // the rest of an earlier answer
				return nil
			}
			interrupted = interrupted || m.flags&unix.NLM_F_DUMP_INTR != 0
			switch m.typ {
			case unix.NLMSG_DONE:
				done = true
			case unix.NLMSG_ERROR:
				done = true
				if err := answer(m); err != nil {
					bad = err
				}
			default:
				if bad == nil && len(m.body) >= nfHeader {
					bad = f(m.body[nfHeader:])
				}
				done = done || m.flags&unix.NLM_F_MULTI == 0
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	if bad == nil && interrupted {
		return errInterrupted
	}
	return bad
}

// ask sends a request that asks for an acknowledgement and calls f with the body of each message that comes
// before it.
func (s *socket) ask(request []byte, f func(body []byte)) error {
	if err := s.send([][]byte{request}); err != nil {
		return err
	}
	var outcome error
	for done := false; !done; {
		err := s.receive(true, func(m message) error {
			switch {
			case m.seq != s.seq: // the rest of an earlier answer
			case m.typ == unix.NLMSG_ERROR:
				done, outcome = true, answer(m)
			case len(m.body) >= nfHeader:
				f(m.body[nfHeader:])
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return outcome
}
