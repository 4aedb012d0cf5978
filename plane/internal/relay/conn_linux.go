package relay

import (
	"errors"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/lb"
)

// conn is one client, and its backend once that is reached. Most of ten thousand conns are idle, so
// rarely needed parts are behind a pointer.
type conn struct {
	from  *listening
	dial  *dialling // while no backend is reached
	ports *clientPorts
	to    netip.AddrPort // the backend, also while it is dialled
	ends  [2]end
	// When a byte was moved last, and when the backend was last known to serve; both since the
	// engine began.
	active, served time.Duration
	slot           uint32
	queued         bool // in the loop's ready
}

// The ends of a connection.
const (
	client = iota
	backend
)

// end is one socket of a connection, and the way from it to the other. It remembers what epoll
// reported, because epoll reports only changes.
type end struct {
	pipe     *pipe    // bytes read from here that the other end has not taken
	held     *message // read from here, to be passed on
	inPipe   int32    // number of these bytes
	fd       int32
	gen      int32 // differs for each socket, so that late events of a closed one are recognised
	readable bool
	writable bool
	finished bool // nothing more comes from here
	shut     bool // nothing more is sent to here
	failed   bool // the kernel has an error to report
	copies   bool // has sent urgent bytes, which stop splice
}

// dialling is the search for a backend. It ends when a backend completes the handshake: from then
// on the connection is that backend's, and a reset goes to the client too. Another attempt would
// branch at each relay of a loop, and might repeat what the first backend did.
type dialling struct {
	client Client
	hops   int // left to the client's packets, 0 if unknown
	tried  []netip.AddrPort
	until  time.Time // no attempt begins after this
	timer  timer     // of this attempt
}

// edges are the events of a socket.
const edges = unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLPRI | unix.EPOLLET

// adopt begins to serve a client, whose descriptors have been taken from the budget.
func (l *loop) adopt(s *listening, fd int, sa unix.Sockaddr) {
	if l.stopping {
		unix.Close(fd)
		l.engine.fds.Give(&s.share, perConn)
		return
	}
	c := &conn{from: s}
	c.ends[client].fd, c.ends[backend].fd = int32(fd), -1
	if n := len(l.free); n > 0 {
		c.slot, l.free = l.free[n-1], l.free[:n-1]
		l.conns[c.slot] = c
	} else {
		c.slot = uint32(len(l.conns))
		l.conns = append(l.conns, c)
	}
	s.count.accepted.Add(1)
	s.count.open.Add(1)
	l.open.Add(1)

	c.dial = &dialling{
		client: Client{Addr: addrPort(sa), Local: asked(fd, s.at)},
		hops:   c.hops(),
		until:  time.Now().Add(l.engine.relay.cfg.DialTotal),
		timer: timer{fire: func() { // the attempt takes too long
			l.failed(c, os.NewSyscallError("connect", syscall.ETIMEDOUT))
			l.attempt(c)
		}},
	}
	if err := l.register(c, client); err != nil || l.engine.stranger(s, fd, c.dial.client.Local) {
		l.refuse(c)
		return
	}
	l.attempt(c)
}

// stranger reports whether a client came to the listener's own port, untranslated, where that is
// not allowed. It is false for SCTP, whose sockets have no address in the kernel's lookup.
func (e *conns) stranger(s *listening, fd int, asked netip.AddrPort) bool {
	direct := e.relay.cfg.Direct
	if direct == nil || s.proto != lb.TCP || asked.Port() != s.at.Port() || direct(s.proto, asked.Port()) {
		return false
	}
	at, err := localAddr(fd)
	return err == nil && at == asked
}

// register adds one end to epoll.
func (l *loop) register(c *conn, end int32) error {
	e := &c.ends[end]
	l.gens++
	e.gen, e.writable = l.gens, end == client
	return l.control(unix.EPOLL_CTL_ADD, int(e.fd), edges, token{kind: end, id: int32(c.slot), gen: e.gen})
}

// attempt tries backends until an attempt does not fail at once.
func (l *loop) attempt(c *conn) {
	d, count := c.dial, c.from.count
	for d.hops != 1 && len(d.tried) < maxAttempts && time.Now().Before(d.until) {
		to := c.from.owner.balancer().Pick(d.client, d.tried)
		if !to.IsValid() {
			break
		}
		if len(d.tried) == 1 {
			count.retried.Add(1)
		}
		c.to = to
		err := l.connect(c, to)
		if err == nil {
			return
		}
		if exhausted(err) { // not the backend's fault
			count.outOfDescriptors.Add(1)
			l.engine.outOfDescriptors(c.from.at, err)
			break
		}
		l.failed(c, err)
	}
	l.refuse(c)
}

// connect begins to reach a backend.
func (l *loop) connect(c *conn, to netip.AddrPort) error {
	c.ports = l.engine.relay.ports.take(c.from.proto, to, c.dial.client.Addr.Addr())
	if c.ports == nil {
		l.engine.warn(l.engine.shares, "Client uses its share of source ports to an endpoint, trying another endpoint",
			"client", c.dial.client.Addr.Addr(), "endpoint", to)
		return errPorts
	}
	fd, err := newSocket(to.Addr(), c.from.proto)
	if err != nil {
		return err
	}
	c.ends[backend].fd = int32(fd)
	options := l.engine.relay.mark()
	if hops := c.dial.hops; hops != 0 {
		options = append(options, limitHops(to.Addr(), hops-1))
	}
	if err := errors.Join(tune(fd, c.from.proto, l.engine.relay.cfg), setOptions(fd, options...)); err != nil {
		return err
	}
	if c.from.proto == lb.SCTP {
		if err := c.prepareSCTP(to); err != nil {
			return err
		}
	}
	if err := unix.Connect(fd, sockaddr(to)); err != nil && err != unix.EINPROGRESS {
		return os.NewSyscallError("connect", err)
	}
	if err := l.register(c, backend); err != nil {
		return err
	}
	l.arm(&c.dial.timer, l.engine.relay.cfg.DialTimeout)
	return nil
}

// failed ends a failed attempt, and reports it to the Balancer unless the client may be the cause.
func (l *loop) failed(c *conn, err error) {
	d := c.dial
	d.timer.disarm()
	l.engine.relay.ports.give(c.ports)
	c.ports = nil
	if c.ends[backend].fd >= 0 {
		unix.Close(int(c.ends[backend].fd))
	}
	c.ends[backend] = end{fd: -1}
	d.tried = append(d.tried, c.to)
	c.from.count.dialsFailed.Add(1)
	if errors.Is(err, unix.ECONNREFUSED) || d.hops == 0 || d.hops > fewHops {
		c.from.owner.balancer().Dialled(d.client, c.to, err)
	}
}

// refuse resets a client that has no backend.
func (l *loop) refuse(c *conn) {
	c.from.count.refused.Add(1)
	l.close(c, true)
}

// reached is called when the backend has completed the handshake.
func (l *loop) reached(c *conn) {
	d := c.dial
	d.timer.disarm()
	c.dial, c.ends[backend].writable, c.active, c.served = nil, true, l.elapsed(), l.elapsed()
	l.watchLimits()
	c.from.owner.balancer().Dialled(d.client, c.to, nil)
}

// connected handles an event of the socket of an attempt.
func (l *loop) connected(c *conn, events uint32) {
	switch {
	case events&(unix.EPOLLERR|unix.EPOLLHUP) != 0:
		switch err := socketError(c.ends[backend].fd); err {
		case nil, unix.ECONNRESET, unix.EPIPE: // it completed the handshake and then reset the connection
			l.reached(c)
			l.close(c, true)
		default:
			l.failed(c, os.NewSyscallError("connect", err))
			l.attempt(c)
		}
	case events&unix.EPOLLOUT != 0:
		l.reached(c)
		l.serve(c)
	}
}

// ended handles an event of one end.
func (l *loop) ended(c *conn, which int32, events uint32) {
	e := &c.ends[which]
	e.readable = e.readable || c.from.proto == lb.SCTP || events&(unix.EPOLLIN|unix.EPOLLRDHUP|unix.EPOLLHUP|
		unix.EPOLLERR|unix.EPOLLPRI) != 0
	e.writable = e.writable || events&unix.EPOLLOUT != 0
	e.failed = e.failed || events&unix.EPOLLERR != 0
	e.copies = e.copies || events&unix.EPOLLPRI != 0
	switch {
	case c.dial == nil:
		l.serve(c)
	case which == client:
		if events&(unix.EPOLLERR|unix.EPOLLHUP) != 0 { // it was reset
			l.close(c, true)
		}
	default:
		l.connected(c, events)
	}
}

// socketError returns a socket's error, and clears it.
func socketError(fd int32) error {
	n, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
	if err == nil && n != 0 {
		err = syscall.Errno(n)
	}
	return err
}

// serve moves bytes both ways as far as possible, and closes the connection at its end.
func (l *loop) serve(c *conn) {
	again := false
	for from := range c.ends {
		switch l.move(c, from) {
		case turnOver:
			again = true
		case targetFailed:
			l.move(c, 1-from) // the other end gets the bytes sent before
			l.close(c, true)
			return
		case sourceFailed:
			l.close(c, true)
			return
		}
	}
	for i := range c.ends {
		// The socket has an error that moving bytes did not report: the other end has no room.
		if e := &c.ends[i]; e.failed {
			e.failed = false
			if socketError(e.fd) != nil {
				l.close(c, true)
				return
			}
		}
	}
	if c.ends[client].shut && c.ends[backend].shut {
		l.close(c, false)
		return
	}
	if again && !c.queued {
		c.queued = true
		l.ready = append(l.ready, c)
	}
}

// close ends a connection, with a reset of both ends if it did not end regularly.
func (l *loop) close(c *conn, reset bool) {
	if c.dial != nil {
		c.dial.timer.disarm()
		c.dial = nil
	}
	l.engine.relay.ports.give(c.ports)
	for i := range c.ends {
		e := &c.ends[i]
		if e.pipe != nil {
			l.pipes.budget.Give(&c.from.pipes, 1)
			e.pipe.close()
			e.pipe = nil
		}
		l.unhold(&c.from.held, e)
		if e.fd >= 0 {
			if reset {
				unix.SetsockoptLinger(int(e.fd), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
			}
			unix.Close(int(e.fd))
		}
	}
	l.conns[c.slot] = nil
	l.free = append(l.free, c.slot)
	c.from.count.open.Add(-1)
	if l.open.Add(-1) == 0 {
		l.limits.disarm()
	}
	l.engine.fds.Give(&c.from.share, perConn)
}
