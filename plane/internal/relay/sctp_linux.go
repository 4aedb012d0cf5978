package relay

import (
	"net/netip"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// SCTP is served like TCP, except that data comes in messages, each with a stream and a protocol
// number. The relay passes them on as messages; splice does not support them.

// From include/uapi/linux/sctp.h.
const (
	sctpInitMsg     = 2  // SCTP_INITMSG
	sctpNoDelay     = 3  // SCTP_NODELAY
	sctpStatus      = 14 // SCTP_STATUS
	sctpRecvRcvInfo = 32 // SCTP_RECVRCVINFO

	cmsgSndInfo = 2 // SCTP_SNDINFO
	cmsgRcvInfo = 3 // SCTP_RCVINFO

	sctpUnordered = 1 // SCTP_UNORDERED
)

// sndInfo is struct sctp_sndinfo.
type sndInfo struct {
	stream, flags uint16
	ppid, context uint32 // ppid in the byte order of its sender
	assoc         int32
}

// rcvInfo is struct sctp_rcvinfo.
type rcvInfo struct {
	stream, ssn, flags         uint16
	ppid, tsn, cumtsn, context uint32
	assoc                      int32
}

// initMsg is struct sctp_initmsg.
type initMsg struct{ out, in, attempts, timeout uint16 }

// status is the first part of struct sctp_status.
type status struct {
	assoc, state, rwnd    uint32
	unacked, pending      uint16
	inStreams, outStreams uint16
	_                     [256]byte
}

// of fills in the status of a socket's association. It returns an error without one.
func (s *status) of(fd int32) error {
	size := uint32(unsafe.Sizeof(*s))
	return getsockopt(int(fd), unix.IPPROTO_SCTP, sctpStatus, unsafe.Pointer(s), &size)
}

const (
	// maxStreams is how many streams an association may have each way. Those that a peer may open
	// cost memory of the kernel.
	maxStreams = 256
	// maxMessage is the size of the largest message, in bytes; a larger one resets the association.
	maxMessage = 1 << 20
	// maxHeld is the number of bytes of messages that a relay holds for all its associations; an
	// association that needs more is reset. No listener or group gets all of it.
	maxHeld = 64 << 20
)

// tuneSCTP sets the options of both sockets. The kernel detects vanished peers by heartbeats.
func tuneSCTP(fd int) error {
	if err := setOptions(fd, option{"SCTP_NODELAY", unix.IPPROTO_SCTP, sctpNoDelay, 1},
		option{"SCTP_RECVRCVINFO", unix.IPPROTO_SCTP, sctpRecvRcvInfo, 1}); err != nil {
		return err
	}
	return setStreams(fd, initMsg{out: maxStreams, in: maxStreams})
}

func setStreams(fd int, m initMsg) error {
	raw := (*[unsafe.Sizeof(m)]byte)(unsafe.Pointer(&m))
	return os.NewSyscallError("SCTP_INITMSG", unix.SetsockoptString(fd, unix.IPPROTO_SCTP, sctpInitMsg, string(raw[:])))
}

// prepareSCTP gives the backend's socket as many streams as the client has, and binds it to the
// source address of the route. An unbound socket announces all addresses of the node to the
// backend, which might answer to any of them.
func (c *conn) prepareSCTP(to netip.AddrPort) error {
	fd := int(c.ends[backend].fd)
	var s status
	if s.of(c.ends[client].fd) == nil {
		if err := setStreams(fd, initMsg{out: min(s.inStreams, maxStreams),
			in: min(s.outStreams, maxStreams)}); err != nil {
			return err
		}
	}
	from, err := sourceFor(to)
	if err != nil {
		return err
	}
	return os.NewSyscallError("bind", unix.Bind(fd, sockaddr(netip.AddrPortFrom(from, 0))))
}

// sourceFor returns the node's source address for packets to another address.
func sourceFor(to netip.AddrPort) (netip.Addr, error) {
	fd, err := newUDPSocket(to.Addr())
	if err != nil {
		return netip.Addr{}, err
	}
	defer unix.Close(fd)
	if err := unix.Connect(fd, sockaddr(to)); err != nil {
		return netip.Addr{}, os.NewSyscallError("connect", err)
	}
	at, err := localAddr(fd)
	return at.Addr(), err
}

// message is a message that has not been passed on, because parts of it are missing or because
// there was no room for it.
type message struct {
	data  []byte
	info  sndInfo
	whole bool
}

// moveMessages is moveBytes for SCTP. No more than one message is held each way.
func (l *loop) moveMessages(c *conn, from int) outcome {
	src, dst := &c.ends[from], &c.ends[1-from]
	before := l.moved
	defer func() { c.count(from, l.moved-before) }()
	for turn := before + turnBytes; ; {
		held := src.held != nil && src.held.whole
		switch {
		case !held && src.finished:
			dst.finish()
			return nothingLeft
		case !dst.writable:
			return nothingLeft
		case held:
			switch err := l.send(dst, src.held); err {
			case nil:
				l.unhold(&c.from.held, src)
			case unix.EAGAIN:
				dst.writable = false
			default:
				return targetFailed
			}
		case !src.readable:
			return nothingLeft
		case l.moved >= turn:
			return turnOver
		default:
			if result := l.receive(&c.from.held, src, dst); result != nothingLeft {
				return result
			}
		}
	}
}

// receive reads a message, or a part of one, and passes it on if that is possible at once.
func (l *loop) receive(s *Share, src, dst *end) outcome {
	var control [256]byte
	n, controlled, flags, _, err := unix.Recvmsg(int(src.fd), l.buf, control[:], unix.MSG_DONTWAIT)
	switch {
	case err == unix.EAGAIN:
		src.readable = false
		// Only this call reports an association that ended by an answered shutdown.
		src.finished = src.shut && new(status).of(src.fd) != nil
		return nothingLeft
	case err == unix.EINTR:
		return nothingLeft
	case err != nil:
		return sourceFailed
	case n == 0:
		src.finished = true
		l.unhold(s, src) // the rest will not arrive
		return nothingLeft
	}
	m := message{data: l.buf[:n], info: infoOf(control[:controlled]), whole: flags&unix.MSG_EOR != 0}
	if src.held == nil && m.whole {
		switch err := l.send(dst, &m); err {
		case nil:
			return nothingLeft
		case unix.EAGAIN:
			dst.writable = false
		default:
			return targetFailed
		}
	}
	return l.hold(s, src, m)
}

// hold copies a message, or a part of one, because the next one overwrites the loop's buffer.
func (l *loop) hold(s *Share, src *end, m message) outcome {
	h := src.held
	if h == nil {
		h = &message{info: m.info}
	}
	if len(h.data)+len(m.data) > maxMessage {
		return sourceFailed
	}
	if !l.engine.held.Take(s, int64(len(m.data))) {
		l.engine.warn(l.engine.full, "SCTP associations fill their share of message memory, resetting one", "bytes",
			s.Used())
		return sourceFailed
	}
	h.data, h.whole, src.held = append(h.data, m.data...), m.whole, h
	return nothingLeft
}

// unhold drops the held message of an end.
func (l *loop) unhold(s *Share, e *end) {
	if e.held != nil {
		l.engine.held.Give(s, int64(len(e.held.data)))
		e.held = nil
	}
}

// send sends a whole message.
func (l *loop) send(dst *end, m *message) error {
	var control [64]byte
	h := (*unix.Cmsghdr)(unsafe.Pointer(&control[0]))
	h.Level, h.Type = unix.IPPROTO_SCTP, cmsgSndInfo
	h.SetLen(unix.CmsgLen(int(unsafe.Sizeof(m.info))))
	*(*sndInfo)(unsafe.Pointer(&control[unix.CmsgLen(0)])) = m.info
	for {
		n, err := unix.SendmsgN(int(dst.fd), m.data, control[:unix.CmsgSpace(int(unsafe.Sizeof(m.info)))], nil,
			unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		if err == unix.EINTR {
			continue
		}
		if err == nil {
			l.moved += int64(n)
		}
		return err
	}
}

// infoOf returns the send parameters for a message that came with such control data.
func infoOf(control []byte) sndInfo {
	for header, data := range controls(control) {
		if header.Level == unix.IPPROTO_SCTP && header.Type == cmsgRcvInfo &&
			len(data) >= int(unsafe.Sizeof(rcvInfo{})) {
			got := *(*rcvInfo)(unsafe.Pointer(&data[0]))
			return sndInfo{stream: got.stream, flags: got.flags & sctpUnordered, ppid: got.ppid}
		}
	}
	return sndInfo{}
}
