package relay

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// udpLoops is how many loops a relay has at most: what one listener can use is one of them.
const udpLoops = 4

// udpEngine serves UDP by epoll: loops, each on a thread of its own, each with its listeners, sessions and sockets to
// backends, which no other touches.
type udpEngine struct {
	shared *udpShared
	loops  []*udpLoop
	mu     sync.Mutex // of the choice of a loop
}

func newUDP(r *Relay) (engine, error) {
	loops := min(runtime.GOMAXPROCS(0), udpLoops)
	return newUDPEngine(r, newUDPShared(r.cfg.UDPIdle, loops, OpenFiles(), EphemeralPorts()), loops, true)
}

// newUDPEngine begins the loops. offload has the kernel join datagrams that it receives, and cut those that are sent.
func newUDPEngine(r *Relay, shared *udpShared, loops int, offload bool) (*udpEngine, error) {
	e := &udpEngine{shared: shared}
	for range loops {
		l, err := newUDPLoop(r, e.shared, offload)
		if err != nil {
			e.stop()
			return nil, fmt.Errorf("begin a loop for UDP: %w", err)
		}
		e.loops = append(e.loops, l)
	}
	return e, nil
}

func (e *udpEngine) add(s *Stats) {
	for _, l := range e.loops {
		s.UDP.add(l.sessions.count.read())
	}
	s.UDP.Open += e.shared.sessions.Load()
	s.UDP.Sockets += e.shared.sockets.Load()
}

func (e *udpEngine) end() {
	for _, l := range e.loops {
		l.do(l.removeAll)
	}
}

func (e *udpEngine) stop() {
	for _, l := range e.loops {
		l.stop()
	}
}

func (e *udpEngine) listen(owner *Listener, at Listening) (socket, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	l := slices.MinFunc(e.loops, func(a, b *udpLoop) int { return a.listeners - b.listeners })
	var s *udpSocket
	var err error
	open := func() error { return l.relay.ns.run(func() { s, err = l.openFront(owner, at.Addr) }) }
	nsErr := open()
	if nsErr == nil && errors.Is(err, unix.EADDRINUSE) && e.vacate(at.Addr) {
		nsErr = open()
	}
	if nsErr != nil {
		return nil, nsErr
	}
	if err != nil {
		return nil, err
	}
	err = ErrClosed
	l.do(func() { err = l.serve(s) })
	if err != nil {
		unix.Close(s.fd)
		return nil, err
	}
	l.listeners++
	return &udpListener{engine: e, loop: l, socket: s}, nil
}

// vacate gives up a port that a socket to backends has, and reports whether one had it.
func (e *udpEngine) vacate(at netip.AddrPort) (vacated bool) {
	for _, l := range e.loops {
		l.do(func() { vacated = l.vacate(at) || vacated })
	}
	return vacated
}

// udpListener is a listener of a loop.
type udpListener struct {
	engine *udpEngine
	loop   *udpLoop
	socket *udpSocket
	once   sync.Once
}

func (u *udpListener) addr() netip.AddrPort { return u.socket.front.at }

// close ends the sessions too: without the socket there is no way back to their clients.
func (u *udpListener) close() {
	u.once.Do(func() {
		u.loop.do(func() { u.loop.remove(u.socket) })
		u.engine.mu.Lock()
		u.loop.listeners--
		u.engine.mu.Unlock()
	})
}

// leave ends the sessions to backends at once: a session has no end of its own that could be waited for.
func (u *udpListener) leave(gone []netip.AddrPort, grace time.Duration) {
	if grace < 0 {
		return
	}
	u.loop.do(func() { u.loop.sessions.leave(u.socket.front.id, gone, u.loop.clock()) })
}

// udpLoop is one thread, and what it serves. Only the loop uses what is below calls.
type udpLoop struct {
	relay     *Relay
	offload   bool
	poll      int // epoll
	wake      int // eventfd: there are calls
	done      chan struct{}
	listeners int // guarded by udpEngine.mu

	mu      sync.Mutex
	calls   []func()
	stopped bool

	begun    time.Time
	now      time.Duration // of the round, since begun
	sessions *udpSessions
	fronts   map[uint32]*udpSocket
	pools    [2][]*udpSocket
	sockets  []*udpSocket // by descriptor
	batch    *udpBatch
	errors   *udpErrors
	tried    []netip.AddrPort
	// The datagrams of trains are at most short bytes long until shortUntil.
	short      int
	shortUntil time.Duration
	shrinkAt   time.Duration
}

func newUDPLoop(r *Relay, shared *udpShared, offload bool) (*udpLoop, error) {
	l := &udpLoop{
		relay: r, offload: offload, wake: -1, done: make(chan struct{}), begun: time.Now(),
		fronts: map[uint32]*udpSocket{}, batch: newUDPBatch(), errors: newUDPErrors(),
	}
	l.sessions = newUDPSessions(shared, l.openBack)
	var err error
	if l.poll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if l.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err == nil {
		err = l.watch(l.wake)
	}
	if err != nil {
		l.free()
		return nil, os.NewSyscallError("eventfd", err)
	}
	entered := make(chan error)
	go func() {
		// The thread is the loop's as long as it runs: a wait of it wakes no other.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		ran := false
		err := r.ns.run(func() {
			ran = true
			entered <- nil
			l.run()
		})
		if !ran {
			entered <- err
		}
	}()
	if err := <-entered; err != nil {
		l.free()
		return nil, err
	}
	return l, nil
}

func (l *udpLoop) clock() time.Duration { return time.Since(l.begun) }

// do runs fn in the loop, or here if that has ended, and returns when it has run.
func (l *udpLoop) do(fn func()) {
	ran := make(chan struct{})
	l.mu.Lock()
	if l.stopped {
		l.mu.Unlock()
		<-l.done
		return // there is nothing left
	}
	l.calls = append(l.calls, func() { fn(); close(ran) })
	l.ring()
	l.mu.Unlock()
	<-ran
}

// ring has the loop look at its calls. The lock is held, without which the loop does not end.
func (l *udpLoop) ring() {
	one := [8]byte{1, 1, 1, 1, 1, 1, 1, 1} // a number, whatever the order of bytes
	unix.Write(l.wake, one[:])             // full means that it will look
}

// stop ends the loop, and returns when all is closed.
func (l *udpLoop) stop() {
	l.mu.Lock()
	if !l.stopped {
		l.stopped = true
		l.ring()
	}
	l.mu.Unlock()
	<-l.done
}

func (l *udpLoop) watch(fd int) error {
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(l.poll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}))
}

// run serves until the loop is stopped.
func (l *udpLoop) run() {
	defer close(l.done)
	defer l.free()
	events := make([]unix.EpollEvent, 2*batchSize)
	for timeout := -1; ; {
		n, err := unix.EpollWait(l.poll, events, timeout)
		if err != nil && err != unix.EINTR {
			panic(fmt.Sprintf("relay: epoll_wait: %v", err)) // the arguments are wrong
		}
		l.now = l.clock()
		called := false
		for _, ev := range events[:max(n, 0)] {
			if int(ev.Fd) == l.wake {
				called = true
				continue
			}
			s := l.sockets[ev.Fd]
			if ev.Events&unix.EPOLLERR != 0 {
				l.readErrors(s)
			}
			if ev.Events&unix.EPOLLIN != 0 {
				l.receive(s)
			}
		}
		l.flush()
		if called && !l.answerCalls() {
			return
		}
		timeout = l.tend()
	}
}

// answerCalls runs what other goroutines ask for, and reports whether the loop goes on.
func (l *udpLoop) answerCalls() bool {
	var count [8]byte
	unix.Read(l.wake, count[:])
	l.mu.Lock()
	calls, stopped := l.calls, l.stopped
	l.calls = nil
	l.mu.Unlock()
	for _, fn := range calls {
		fn()
	}
	return !stopped
}

// shrinkEvery is how often a loop looks whether it has more sockets than it needs.
const shrinkEvery = 10 * time.Second

// tend ends what is idle, and returns for how many milliseconds there is nothing of that kind to do.
func (l *udpLoop) tend() int {
	next := l.sessions.expire(l.now)
	many := len(l.pools[0]) > fewSockets || len(l.pools[1]) > fewSockets
	if many && l.now >= l.shrinkAt {
		l.shrinkAt = l.now + shrinkEvery
		for six, pool := range l.pools {
			n := l.sessions.shrink(six == 1)
			for _, s := range pool[len(pool)-n:] {
				l.forget(s)
			}
			clear(pool[len(pool)-n:])
			l.pools[six] = pool[:len(pool)-n]
			l.sessions.dropSockets(six == 1, n)
		}
	}
	if many && (next == 0 || l.shrinkAt < next) {
		next = l.shrinkAt
	}
	if next == 0 {
		return -1
	}
	return int((max(next-l.now, 0) + time.Millisecond - 1) / time.Millisecond)
}

// openFront makes the socket of a listener. The thread is in the namespace.
func (l *udpLoop) openFront(owner *Listener, at netip.AddrPort) (*udpSocket, error) {
	fd, err := openUDP(at, false, l.offload)
	if err != nil {
		return nil, err
	}
	bound, err := boundTo(fd)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return &udpSocket{fd: fd, six: isSix(bound.Addr()), bound: bound, front: &udpFront{owner: owner, at: bound}}, nil
}

// serve begins to serve a listener.
func (l *udpLoop) serve(s *udpSocket) error {
	if err := l.add(s); err != nil {
		return err
	}
	s.front.id = l.sessions.addListener(s.front.owner.group)
	l.fronts[s.front.id] = s
	return nil
}

// front returns the listener of a session.
func (l *udpLoop) front(id uint32) *udpFront { return l.fronts[id].front }

// remove ends a listener and its sessions.
func (l *udpLoop) remove(s *udpSocket) {
	if l.fronts[s.front.id] != s {
		return
	}
	delete(l.fronts, s.front.id)
	l.sessions.removeListener(s.front.id, l.clock())
	l.forget(s)
}

func (l *udpLoop) removeAll() {
	for _, s := range l.fronts {
		l.remove(s)
	}
}

// openBack makes a socket to backends. It has a port that the kernel chooses, of all addresses of the node: the route to a
// backend says which one it is sent from.
func (l *udpLoop) openBack(six bool) error {
	pool := &l.pools[family(six)]
	s, err := l.newBack(six, uint32(len(*pool)))
	if err != nil {
		return err
	}
	*pool = append(*pool, s)
	return nil
}

func (l *udpLoop) newBack(six bool, number uint32) (*udpSocket, error) {
	fd, err := openUDP(anyPort(six), true, l.offload)
	if err != nil {
		return nil, err
	}
	if mark := l.relay.cfg.Mark; mark != 0 {
		err = os.NewSyscallError("SO_MARK", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, int(mark)))
	}
	s := &udpSocket{fd: fd, six: six, number: number}
	if err == nil {
		s.bound, err = boundTo(fd)
	}
	if err == nil {
		err = l.add(s)
	}
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return s, nil
}

// vacate gives the socket to backends that has a port another port, and reports whether there is one.
func (l *udpLoop) vacate(at netip.AddrPort) bool {
	six := isSix(at.Addr())
	pool := l.pools[family(six)]
	for i, s := range pool {
		if s.bound.Port() != at.Port() {
			continue
		}
		other, err := l.newBack(six, s.number)
		if err != nil {
			return false
		}
		pool[i] = other
		l.forget(s)
		return true
	}
	return false
}

func (l *udpLoop) add(s *udpSocket) error {
	if err := l.watch(s.fd); err != nil {
		return err
	}
	if more := s.fd + 1 - len(l.sockets); more > 0 {
		l.sockets = append(l.sockets, make([]*udpSocket, more)...)
	}
	l.sockets[s.fd] = s
	return nil
}

func (l *udpLoop) forget(s *udpSocket) {
	l.sockets[s.fd] = nil
	unix.Close(s.fd) // leaves epoll
}

// free closes all.
func (l *udpLoop) free() {
	l.removeAll()
	for six, pool := range l.pools {
		for _, s := range pool {
			l.forget(s)
		}
		l.sessions.dropSockets(six == 1, len(pool))
	}
	for _, fd := range []int{l.poll, l.wake} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}
