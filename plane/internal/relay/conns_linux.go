package relay

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/ratelimit"
	"kube-proxy/lb"
)

// conns is the engine of TCP and SCTP. Its loops, each a thread with an epoll instance, own the
// connections that they accepted. A connection is two sockets and some hundred bytes; the kernel
// holds the bytes in between.
type conns struct {
	relay *Relay
	fds   *Budget
	pipes *Budget // of those in use
	held  *Budget // bytes of messages of SCTP
	loops []*loop
	work  sync.WaitGroup
	began time.Time

	tcp, sctp counters

	lastID atomic.Int32 // of a listening socket

	waiting *ratelimit.Limiter // messages about clients that wait for a descriptor
	shares  *ratelimit.Limiter // messages about clients with their share of source ports
	full    *ratelimit.Limiter // messages about associations without room for a message
}

// maxLoops bounds the threads; more do not make the kernel faster.
const maxLoops = 16

func newConns(r *Relay) (connEngine, error) {
	e := &conns{relay: r, began: time.Now(), fds: r.cfg.Descriptors, waiting: ratelimit.New(r.cfg.Log, "Descriptors"),
		shares: ratelimit.New(r.cfg.Log, "Source ports"), full: ratelimit.New(r.cfg.Log, "SCTP message memory"),
		held: &Budget{max: maxHeld}, pipes: &Budget{max: min(maxPipes, max(1, r.cfg.Descriptors.max/pipeShare/2))}}
	for range min(runtime.GOMAXPROCS(0), maxLoops) {
		l, err := newLoop(e)
		if err == nil {
			e.loops = append(e.loops, l)
			entered := make(chan error)
			e.work.Go(func() { l.start(entered) })
			err = <-entered
		}
		if err != nil {
			e.stop()
			return nil, err
		}
	}
	return e, nil
}

func (e *conns) stats() (tcp, sctp Connections) { return e.tcp.read(), e.sctp.read() }

// each runs fn on all loops, without waiting.
func (e *conns) each(fn func(*loop)) {
	for _, l := range e.loops {
		l.post(func() { fn(l) })
	}
}

func (e *conns) end() { e.each((*loop).endAll) }

func (e *conns) stop() {
	e.each(func(l *loop) { l.stopping = true })
	e.work.Wait()
}

// uneven, plus a quarter of the other's connections, is how many more connections than another a
// loop may have before the other gets its clients.
const uneven = 16

// lightest returns the loop for a client that l has accepted. It is l, which needs no waking,
// unless that has many more connections than another: the kernel always wakes the same one of
// several idle loops.
func (e *conns) lightest(l *loop) *loop {
	best, least := l, l.open.Load()
	for _, other := range e.loops {
		if n := other.open.Load(); n+n/4+uneven < least {
			best, least = other, n
		}
	}
	return best
}

// outOfDescriptors logs, at a limited rate, that clients have to wait.
func (e *conns) outOfDescriptors(at netip.AddrPort, err error) {
	e.warn(e.waiting, "No file descriptor for another client, which waits: raise the limit of open files "+
		"(ulimit -n, LimitNOFILE)", "listener", at, "err", err)
}

// warn logs a message at the limited rate of its kind.
func (e *conns) warn(kind *ratelimit.Limiter, message string, args ...any) {
	if kind.Allow("") {
		e.relay.cfg.Log.Warn(message, args...)
	}
}

// errShare says why a client waits although the process has descriptors.
var errShare = errors.New("the listener has its share of the relay's descriptors")

// listening is a socket of one listener. All loops wait for its clients; each client wakes one.
type listening struct {
	engine *conns
	owner  *Listener
	id     int32 // its key in the loops, never reused
	proto  lb.Proto
	count  *counters // of the protocol
	at     netip.AddrPort
	share  Share // of descriptors
	pipes  Share // of pipes
	held   Share // of held bytes

	mu     sync.RWMutex // held to read while fd is used
	fd     int
	closed bool
}

func (e *conns) listen(l *Listener, at Listening) (socket, netip.AddrPort, error) {
	s := &listening{engine: e, owner: l, share: Share{group: &l.group.descriptors}, held: Share{group: &l.group.held},
		id: e.lastID.Add(1), proto: at.Proto, count: &e.tcp}
	if at.Proto == lb.SCTP {
		s.count = &e.sctp
	}
	if err := e.relay.ns.run(func() (err error) {
		s.fd, s.at, err = listenSocket(at, e.relay.cfg)
		return err
	}); err != nil {
		return nil, at.Addr, err
	}
	e.each(func(l *loop) { l.watch(s) })
	return s, s.at, nil
}

// backlog is how many clients may wait to be accepted; the kernel has a limit of its own
// (net.core.somaxconn).
const backlog = 1 << 15

// listenSocket makes a listening socket, and returns it with its address.
func listenSocket(at Listening, cfg Config) (fd int, actual netip.AddrPort, err error) {
	fd, err = newSocket(at.Addr.Addr(), at.Proto)
	if err != nil {
		return -1, actual, err
	}
	// Connections of an earlier listener there may still be about to end.
	options := []option{{"SO_REUSEADDR", unix.SOL_SOCKET, unix.SO_REUSEADDR, 1}}
	if at.Addr.Addr().Is6() {
		options = append(options, option{"IPV6_V6ONLY", unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1})
	}
	if at.Proto == lb.TCP {
		options = append(options, wantHops(at.Addr.Addr()))
	}
	// The sockets of clients inherit those of tune.
	err = errors.Join(setOptions(fd, options...), distinguish(fd, at.Addr.Addr()), tune(fd, at.Proto, cfg))
	if err == nil {
		err = os.NewSyscallError("bind", unix.Bind(fd, sockaddr(at.Addr)))
	}
	if err == nil {
		err = os.NewSyscallError("listen", unix.Listen(fd, backlog))
	}
	if err == nil {
		actual, err = localAddr(fd)
	}
	if err != nil {
		unix.Close(fd)
	}
	return fd, actual, err
}

// sweep is the most clients that a closing socket accepts; the kernel lets no more wait by default.
const sweep = 4096

// close accepts no new clients. It serves those that the kernel has accepted: closing the socket
// would reset them.
func (s *listening) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	for range sweep { // clients that arrive faster would keep Close from returning
		fd, sa, err := unix.Accept4(s.fd, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		if err == nil {
			s.engine.fds.force(&s.share, perConn)
			l := s.engine.lightest(s.engine.loops[0])
			if !l.post(func() { l.adopt(s, fd, sa) }) {
				unix.Close(fd)
				s.engine.fds.Give(&s.share, perConn)
			}
		} else if !passing(err) {
			break
		}
	}
	s.closed = true
	// A child process keeps the socket between fork and exec. Without the shutdown it would accept
	// clients that no process serves.
	_ = unix.Shutdown(s.fd, unix.SHUT_RD)
	unix.Close(s.fd)
	s.engine.each(func(l *loop) { delete(l.listening, s.id) })
}

// perConn is the number of descriptors of a connection without bytes in transit.
const perConn = 2

// passing reports whether an error of accept only concerns a client that has gone.
func passing(err error) bool {
	return slices.Contains([]error{unix.EINTR, unix.ECONNABORTED, unix.EPROTO, unix.ENETDOWN, unix.ENOPROTOOPT,
		unix.EHOSTDOWN, unix.ENONET, unix.EHOSTUNREACH, unix.ENETUNREACH, unix.EOPNOTSUPP, unix.EPERM}, err)
}

// distinguish marks a listening socket for the guard of package redirect, with IP_TRANSPARENT. That
// takes CAP_NET_ADMIN or CAP_NET_RAW. Without them the process cannot write rules either, so the
// option is omitted.
func distinguish(fd int, a netip.Addr) error {
	err := setOptions(fd, forFamily(a, option{"IP_TRANSPARENT", unix.SOL_IP, unix.IP_TRANSPARENT, 1},
		option{"IPV6_TRANSPARENT", unix.SOL_IPV6, unix.IPV6_TRANSPARENT, 1}))
	if errors.Is(err, unix.EPERM) {
		return nil
	}
	return err
}

// newSocket makes a socket that does not block.
func newSocket(a netip.Addr, p lb.Proto) (int, error) {
	fd, err := unix.Socket(familyOf(a), unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, int(p))
	switch err {
	case nil:
		return fd, nil
	case unix.EPROTONOSUPPORT, unix.ESOCKTNOSUPPORT, unix.EAFNOSUPPORT:
		return -1, fmt.Errorf("the kernel has no %v for %v: %w (%w)", p, a, errors.ErrUnsupported,
			os.NewSyscallError("socket", err))
	}
	return -1, os.NewSyscallError("socket", err)
}

// tune sets the options of both sockets of a connection: no delay of small writes, and detection of
// vanished peers.
func tune(fd int, p lb.Proto, cfg Config) error {
	if p == lb.SCTP {
		return tuneSCTP(fd)
	}
	seconds := func(d time.Duration) int { return max(1, int(d/time.Second)) }
	if err := setOptions(fd, option{"TCP_NODELAY", unix.IPPROTO_TCP, unix.TCP_NODELAY, 1},
		option{"SO_OOBINLINE", unix.SOL_SOCKET, unix.SO_OOBINLINE, 1}, // else urgent bytes would be lost
		option{"SO_KEEPALIVE", unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
		option{"TCP_KEEPIDLE", unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, seconds(cfg.KeepAlive)},
		option{"TCP_KEEPINTVL", unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, seconds(cfg.KeepAlive / keepAliveProbes)},
		option{"TCP_KEEPCNT", unix.IPPROTO_TCP, unix.TCP_KEEPCNT, keepAliveProbes},
		option{"TCP_NOTSENT_LOWAT", unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, maxUnsent}); err != nil {
		return err
	}
	// A process that may not exceed net.core.rmem_max uses tcp_rmem: rmem_max is too little for a
	// stream.
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, maxUnread); err != nil && err != unix.EPERM {
		return os.NewSyscallError("SO_RCVBUFFORCE", err)
	}
	return nil
}

// The most bytes that the kernel keeps each way for a connection whose peers do not read. By
// default it would give a socket tcp_wmem and tcp_rmem, 4 MiB and up to 32 MiB, and soon exhaust
// tcp_mem, the memory of the whole host. Then it resets arbitrary connections.
const (
	// maxUnsent limits the bytes in a socket's buffer that may not be sent yet.
	maxUnsent = 256 << 10
	// maxUnread is the receive buffer offered to a peer; the kernel adds as much for itself. It is
	// a window of 100 MB/s at 10 ms.
	maxUnread = 1 << 20
)
