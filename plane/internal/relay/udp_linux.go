package relay

import (
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// udpLoops is how many loops serve UDP at most: a group has one of them.
const udpLoops = 4

// udpEngine serves UDP: loops, each with the listeners and sessions of some groups.
type udpEngine struct {
	relay *Relay
	loops []*udpLoop
	work  sync.WaitGroup
}

func newUDP(r *Relay) (engine, error) {
	return newUDPEngine(r, newUDPBudget(OpenFiles(), EphemeralPorts()))
}

func newUDPEngine(r *Relay, budget *Budget) (*udpEngine, error) {
	e := &udpEngine{relay: r}
	for range min(runtime.GOMAXPROCS(0), udpLoops) {
		l, err := newUDPLoop(r, budget)
		if err == nil {
			err = l.loop.begin(&e.work)
		}
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
		l.table.count.add(&s.UDP)
	}
}

func (e *udpEngine) stop() {
	for _, l := range e.loops {
		l.post(func() { l.stopping = true })
	}
	e.work.Wait()
}

func (e *udpEngine) listen(owner *Listener, at Listening) (socket, error) {
	s := &udpListener{udpSocket: udpSocket{fd: -1, loop: e.loops[owner.group.loop%uint32(len(e.loops))]}}
	if err := e.relay.ns.run(func() (err error) {
		s.fd, err = openUDP(at.Addr)
		return err
	}); err != nil {
		return nil, err
	}
	bound, err := unix.Getsockname(s.fd)
	if err != nil {
		unix.Close(s.fd)
		return nil, os.NewSyscallError("getsockname", err)
	}
	s.front = newUDPFront(owner, addrPort(bound))
	err = ErrClosed
	s.loop.do(func() {
		if err = s.loop.watch(&s.udpSocket); err == nil {
			s.loop.fronts[s.front] = &s.udpSocket
		}
	})
	if err != nil {
		unix.Close(s.fd)
		return nil, err
	}
	return s, nil
}

// udpListener is the socket of a listener.
type udpListener struct {
	udpSocket
	once sync.Once
}

func (s *udpListener) addr() netip.AddrPort { return s.front.at }

// close ends the sessions too: without the socket there is no way back to their clients.
func (s *udpListener) close() {
	s.once.Do(func() { s.loop.do(func() { s.loop.remove(&s.udpSocket) }) })
}

// udpLoop is a loop that serves UDP. Its thread alone touches what it has.
type udpLoop struct {
	*loop
	table   *udpTable
	sockets []*udpSocket // by descriptor
	fronts  map[*udpFront]*udpSocket
	tending timer // armed while there are sessions
	control [recvControlSize]byte
}

// udpSocket is a socket of a loop: of a listener, or to the backend of a session.
type udpSocket struct {
	loop  *udpLoop
	fd    int
	front *udpFront // of a listener

	session *udpSession
	hops    int           // of what is sent, 0 for the node's own
	client  unix.Sockaddr // to whom replies go
	from    []byte        // by which control message from the right address
	via     *udpSocket    // and by which socket
}

func newUDPLoop(r *Relay, budget *Budget) (*udpLoop, error) {
	l, err := newLoop(r)
	if err != nil {
		return nil, err
	}
	u := &udpLoop{loop: l, fronts: map[*udpFront]*udpSocket{}}
	u.table = newUDPTable(r.cfg.UDPIdle, budget, u.dial)
	u.tending = timer{fire: u.tend}
	l.udp = u
	return u, nil
}

// do runs fn in the loop, unless that has ended, and returns when it has run.
func (l *udpLoop) do(fn func()) {
	ran := make(chan struct{})
	if l.post(func() { defer close(ran); fn() }) {
		<-ran
	}
}

// watch has the loop serve a socket.
func (l *udpLoop) watch(s *udpSocket) error {
	if l.stopping {
		return ErrClosed
	}
	if err := l.loop.control(unix.EPOLL_CTL_ADD, s.fd, unix.EPOLLIN, token{kind: tokenUDP, id: int32(s.fd)}); err != nil {
		return err
	}
	if more := s.fd + 1 - len(l.sockets); more > 0 {
		l.sockets = append(l.sockets, make([]*udpSocket, more)...)
	}
	l.sockets[s.fd] = s
	return nil
}

// close closes a socket, which leaves epoll.
func (s *udpSocket) close() {
	if s.fd >= 0 {
		s.loop.sockets[s.fd] = nil
		unix.Close(s.fd)
		s.fd = -1
	}
}

// event takes an event of a socket.
func (l *udpLoop) event(fd int32, events uint32) {
	s := l.sockets[fd]
	switch {
	case s == nil: // an event before in the same round has closed it
	case s.session == nil:
		l.fromClients(s)
	default:
		if events&unix.EPOLLERR != 0 {
			s.readErrors()
		}
		if events&unix.EPOLLIN != 0 {
			l.fromBackend(s)
		}
	}
}

// Datagrams that are taken from one socket before others have their turn.
const (
	clientsTurn = 64
	backendTurn = 16
)

// fromClients forwards datagrams of clients.
func (l *udpLoop) fromClients(s *udpSocket) {
	for range clientsTurn {
		n, controlled, flags, from, err := unix.Recvmsg(s.fd, l.buf, l.control[:], unix.MSG_DONTWAIT)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return
		}
		info := parseControl(l.control[:controlled])
		// The relay is a router among others: two relays whose backends are each other would pass a
		// datagram on forever.
		if flags&unix.MSG_TRUNC != 0 || !info.unicast || info.hops == 1 {
			l.table.count.malformed.Add(1)
			continue
		}
		k := udpKey{client: addrPort(from), local: info.local}
		l.table.forward(s.front, k, l.buf[:n], max(info.hops-1, 0), l.now)
		if l.tending.pending == nil && l.table.count.open.Load() > 0 {
			l.arm(&l.tending, l.table.granule())
		}
	}
}

// fromBackend forwards datagrams of a backend.
func (l *udpLoop) fromBackend(s *udpSocket) {
	for range backendTurn {
		n, err := unix.Read(s.fd, l.buf)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN:
			return
		case err != nil:
			s.readErrors()
			return
		}
		if !l.table.answered(s.session, l.now) {
			return
		}
		if _, err := unix.SendmsgN(s.via.fd, l.buf[:n], s.from, s.client, unix.MSG_DONTWAIT); err != nil {
			l.table.count.sendFailed.Add(1)
			continue
		}
		l.table.count.toClients.Add(1)
		l.table.count.toClientBytes.Add(uint64(n))
	}
}

// tend ends sessions that are idle.
func (l *udpLoop) tend() {
	if l.table.expire(l.now) {
		l.arm(&l.tending, l.table.granule())
	}
}

// closeAll closes all sockets.
func (l *udpLoop) closeAll() {
	for _, s := range l.fronts {
		l.remove(s)
	}
}

// remove closes the socket of a listener, and ends its sessions.
func (l *udpLoop) remove(s *udpSocket) {
	l.table.close(s.front)
	delete(l.fronts, s.front)
	s.close()
}
