package relay

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/lb"
)

// loop is a thread that serves connections. Only its thread uses fields not marked as shared.
type loop struct {
	engine *conns
	epoll  int
	wake   int // an eventfd, written when posted is not empty
	now    time.Time

	// Shared.
	open   atomic.Int64 // connections
	mu     sync.Mutex
	posted []func()
	gone   bool

	stopping  bool
	listening map[int32]*listening // by id

	conns  []*conn  // by slot
	free   []uint32 // slots without a connection
	gens   int32    // the last generation given to an end
	ready  []*conn  // connections that used up their turn and have more to move
	limits timer    // of the next search for connections past a limit; armed while connections exist
	pipes  pipes
	moved  int64 // bytes, ever
	buf    []byte
}

const (
	// copySize is the number of bytes copied at a time if splice cannot move them.
	copySize = 64 << 10
	// batch is the number of events read from the kernel at a time.
	batch = 256
)

func newLoop(e *conns) (*loop, error) {
	l := &loop{engine: e, pipes: pipes{budget: e.pipes}, listening: map[int32]*listening{},
		buf: make([]byte, copySize)}
	l.limits = timer{fire: l.endPastLimits}
	var err error
	l.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	l.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		unix.Close(l.epoll)
		return nil, os.NewSyscallError("eventfd", err)
	}
	if err := l.control(unix.EPOLL_CTL_ADD, l.wake, unix.EPOLLIN, token{kind: tokenWake}); err != nil {
		unix.Close(l.epoll)
		unix.Close(l.wake)
		return nil, err
	}
	return l, nil
}

// start runs the loop in the relay's namespace until it is stopped. It sends to entered once there.
func (l *loop) start(entered chan<- error) {
	if err := l.engine.relay.ns.run(func() error {
		entered <- nil
		l.run()
		return nil
	}); err != nil && !l.stopping {
		entered <- err
	}
	l.stopping = true
	l.mu.Lock()
	l.gone = true
	unix.Close(l.epoll)
	unix.Close(l.wake)
	posted := l.posted
	l.mu.Unlock()
	for _, fn := range posted { // clients that other loops accepted must be closed
		fn()
	}
}

// post makes the loop's thread call fn soon. It returns false after the loop's end. Any goroutine
// may call it.
func (l *loop) post(fn func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gone {
		return false
	}
	l.posted = append(l.posted, fn)
	if len(l.posted) == 1 {
		unix.Write(l.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}
	return true
}

func (l *loop) run() {
	events := make([]unix.EpollEvent, batch)
	for !l.stopping {
		wait := -1 // for ever
		if len(l.ready) > 0 {
			wait = 0
		}
		n, err := unix.EpollWait(l.epoll, events, wait)
		if err != nil && err != unix.EINTR {
			panic(fmt.Sprintf("relay: epoll_wait: %v", err)) // only a bug of ours makes it fail
		}
		l.now = time.Now()
		for i := range max(n, 0) {
			l.event(&events[i])
		}
		l.serveReady()
	}
	l.endAll()
	for _, p := range l.pipes.free {
		p.close()
	}
}

// token is the owner of an event: a listening socket, one end of a connection, or the loop itself.
type token struct {
	kind int32
	id   int32 // the listening socket's, or the connection's slot
	gen  int32 // of the connection's end
}

// Kinds of token: an end of a connection is its number.
const (
	tokenWake = iota + 2
	tokenListening
	tokenKinds
)

func (l *loop) control(op, fd int, events uint32, t token) error {
	ev := unix.EpollEvent{Events: events, Fd: t.id*tokenKinds + t.kind, Pad: t.gen}
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(l.epoll, op, fd, &ev))
}

func (l *loop) event(ev *unix.EpollEvent) {
	id, kind := ev.Fd/tokenKinds, ev.Fd%tokenKinds
	switch kind {
	case tokenWake:
		l.runPosted()
	case tokenListening:
		if s := l.listening[id]; s != nil {
			l.accept(s)
		}
	default:
		if c := l.conns[id]; c != nil && c.ends[kind].gen == ev.Pad {
			l.ended(c, kind, ev.Events)
		}
	}
}

func (l *loop) runPosted() {
	var counter [8]byte
	unix.Read(l.wake, counter[:])
	l.mu.Lock()
	posted := l.posted
	l.posted = nil
	l.mu.Unlock()
	for _, fn := range posted {
		fn()
	}
}

// serveReady gives each connection that has more to move another turn.
func (l *loop) serveReady() {
	ready := l.ready
	l.ready = nil
	for _, c := range ready {
		c.queued = false
		if l.conns[c.slot] == c { // else it was closed
			l.serve(c)
		}
	}
}

// endAll ends all connections.
func (l *loop) endAll() {
	for _, c := range l.conns {
		if c != nil {
			l.close(c, true)
		}
	}
}

// timer calls a function of a loop later. Only the loop's thread uses it.
type timer struct {
	fire    func()
	pending *time.Timer // nil if it is not armed
}

// arm sets when a timer fires, whether it is armed or not.
func (l *loop) arm(t *timer, after time.Duration) {
	t.disarm()
	var pending *time.Timer
	pending = time.AfterFunc(after, func() {
		l.post(func() {
			if t.pending == pending { // else it was disarmed meanwhile
				t.pending = nil
				t.fire()
			}
		})
	})
	t.pending = pending
}

func (t *timer) disarm() {
	if t.pending != nil {
		t.pending.Stop()
		t.pending = nil
	}
}

// watch begins to accept clients at a socket.
func (l *loop) watch(s *listening) {
	var err error
	s.mu.RLock()
	if !s.closed && !l.stopping {
		l.listening[s.id] = s
		err = l.control(unix.EPOLL_CTL_ADD, s.fd, unix.EPOLLIN|unix.EPOLLEXCLUSIVE,
			token{kind: tokenListening, id: s.id})
	}
	s.mu.RUnlock()
	if err != nil {
		// ENOMEM, ENOSPC: there may be room later. pause takes the read lock, which must not be
		// held twice while a close waits
		l.pause(s, err)
	}
}

// pause lets the clients of a socket wait for a while.
func (l *loop) pause(s *listening, err error) {
	s.count.outOfDescriptors.Add(1)
	l.engine.outOfDescriptors(s.at, err)
	s.mu.RLock()
	if !s.closed {
		unix.EpollCtl(l.epoll, unix.EPOLL_CTL_DEL, s.fd, nil)
	}
	s.mu.RUnlock()
	l.arm(&timer{fire: func() {
		if l.listening[s.id] != nil {
			l.watch(s)
		}
	}}, acceptPause)
}

// accepts is the number of clients accepted from one socket before other sockets have their turn.
const accepts = 16

// accept accepts the clients that wait at a socket.
func (l *loop) accept(s *listening) {
	for range accepts {
		if !l.engine.fds.Take(&s.share, perConn) {
			l.pause(s, errShare)
			return
		}
		s.mu.RLock()
		fd, sa, err := -1, unix.Sockaddr(nil), error(unix.EAGAIN)
		if !s.closed {
			fd, sa, err = unix.Accept4(s.fd, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		}
		s.mu.RUnlock()
		if err == nil {
			if to := l.engine.lightest(l); to == l || !to.post(func() { to.adopt(s, fd, sa) }) {
				l.adopt(s, fd, sa)
			}
			continue
		}
		l.engine.fds.Give(&s.share, perConn)
		switch {
		case err == unix.EAGAIN:
			return
		case !passing(err):
			l.pause(s, os.NewSyscallError("accept4", err))
			return
		}
	}
}

// Keep-alive probes keep an idle connection while both peers exist, and with it two descriptors and
// a source port. The limit is conntrack's for connections of the other modes.

// idleLook is the interval of the search for connections past a limit, unless a limit is short.
const idleLook = time.Minute

// elapsed is the loop's time, since the engine began.
func (l *loop) elapsed() time.Duration { return l.now.Sub(l.engine.began) }

// watchLimits schedules the next search for connections past a limit.
func (l *loop) watchLimits() {
	if l.limits.pending != nil {
		return
	}
	after := idleLook
	for _, limit := range []time.Duration{l.engine.relay.cfg.TCPIdle(), l.engine.relay.cfg.Grace} {
		if limit > 0 {
			after = min(after, inspectEvery(limit))
		}
	}
	l.arm(&l.limits, after)
}

// endPastLimits resets the connections that have been idle for too long, or whose backend has not
// served for the grace.
func (l *loop) endPastLimits() {
	idle, grace, now := l.engine.relay.cfg.TCPIdle(), l.engine.relay.cfg.Grace, l.elapsed()
	left := false
	for _, c := range l.conns {
		if c == nil || c.dial != nil {
			continue
		}
		if grace > 0 && c.from.owner.balancer().Serves(c.to) {
			c.served = now
		}
		if idle > 0 && now-c.active >= idle && c.from.proto == lb.TCP || grace > 0 && now-c.served >= grace {
			l.close(c, true)
		} else {
			left = true
		}
	}
	if left {
		l.watchLimits()
	}
}
