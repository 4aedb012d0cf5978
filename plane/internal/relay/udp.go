package relay

import (
	"container/list"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Sessions counts datagrams and sessions. A session is all datagrams from one client to one address
// of one listener, and the replies.
type Sessions struct {
	// Open is the number of sessions.
	Open int64
	// Opened counts sessions that began. Of these, Expired were idle, Evicted made room for
	// another, and Moved lost their backend.
	Opened, Expired, Evicted, Moved uint64
	// ToBackends and ToClients count datagrams that were passed on.
	ToBackends, ToClients Datagrams
	// Dropped counts the others.
	Dropped Dropped
}

// Datagrams counts datagrams, and the bytes in them without headers.
type Datagrams struct{ Datagrams, Bytes uint64 }

// Dropped counts datagrams that were not passed on, by the reason.
type Dropped struct {
	// NoBackend: the Balancer refuses the client.
	NoBackend uint64
	// NoSocket: there is no room for another session, or the host has no socket for it.
	NoSocket uint64
	// Malformed: the datagram went to a multicast or broadcast address, or has no hop left.
	Malformed uint64
	// SendFailed: the kernel did not take it.
	SendFailed uint64
}

// udpCounters are Sessions for concurrent updates.
type udpCounters struct {
	open                                                 atomic.Int64
	opened, expired, evicted, moved                      atomic.Uint64
	toBackends, toBackendBytes, toClients, toClientBytes atomic.Uint64
	noBackend, noSocket, malformed, sendFailed           atomic.Uint64
}

func (c *udpCounters) read() Sessions {
	return Sessions{
		Open: c.open.Load(), Opened: c.opened.Load(), Expired: c.expired.Load(), Evicted: c.evicted.Load(),
		Moved:      c.moved.Load(),
		ToBackends: Datagrams{c.toBackends.Load(), c.toBackendBytes.Load()},
		ToClients:  Datagrams{c.toClients.Load(), c.toClientBytes.Load()},
		Dropped: Dropped{NoBackend: c.noBackend.Load(), NoSocket: c.noSocket.Load(), Malformed: c.malformed.Load(),
			SendFailed: c.sendFailed.Load()},
	}
}

const (
	// udpFiles and udpPorts are the parts of the process's descriptors and of the node's ports that
	// sessions may take: one in so many. Each session takes one of both.
	udpFiles, udpPorts = 8, 4
	// datagramSize is the size of the longest datagram.
	datagramSize = 1 << 16
	// udpBuffer is the size of a listener's buffer in each direction, including the kernel's
	// overhead: at least a few hundred short datagrams.
	udpBuffer = 1 << 20
)

// newUDPBudget bounds the sessions of a relay.
func newUDPBudget(files, ports int) *Budget {
	return &Budget{max: int64(max(1, min(files/udpFiles, ports/udpPorts)))}
}

// sessionSocket is a session's socket. It is connected, so it only receives from the backend.
type sessionSocket interface {
	// send sends a datagram with a TTL, 0 for the host's own. It does not wait.
	send(datagram []byte, hops int) error
	close()
}

// udpKey identifies a session of a listener: the client's address and the address that it sends to.
type udpKey struct {
	client netip.AddrPort
	local  netip.Addr
}

// udpSession forwards the datagrams of one client to one backend.
type udpSession struct {
	front    *udpFront
	key      udpKey
	backend  netip.AddrPort
	socket   sessionSocket
	used     time.Time // last, in either direction
	answered bool
	lost     bool          // the backend is unreachable: the next datagram goes to another
	at       *list.Element // in the order of its front
}

func (s *udpSession) client(again bool) Client {
	return Client{Addr: s.key.client, Local: netip.AddrPortFrom(s.key.local, s.front.at.Port()), Again: again}
}

// dialled reports to the Balancer whether the backend was reached.
func (s *udpSession) dialled(err error) {
	s.front.owner.balancer().Dialled(s.client(false), s.backend, err)
}

// udpFront is the client side of sessions: a listener.
type udpFront struct {
	owner    *Listener
	at       netip.AddrPort
	table    *udpTable
	socket   *udpSocket
	closed   bool
	share    Share
	sessions map[udpKey]*udpSession
	order    list.List // of sessions, most recently used first
}

func newUDPFront(owner *Listener, at netip.AddrPort) *udpFront {
	return &udpFront{owner: owner, at: at, share: Share{group: &owner.group.sessions},
		sessions: map[udpKey]*udpSession{}}
}

// udpGroup is the set of a group's listeners that have sessions.
type udpGroup struct {
	busy map[*udpFront]struct{}
	most *udpFront // the listener with most sessions, nil if unknown
}

// udpTable holds the sessions of some listeners, and forwards datagrams through them. All listeners
// of a group are in one table.
type udpTable struct {
	idle   time.Duration
	budget *Budget      // of all tables of the relay
	count  *udpCounters // of all
	// dial makes the socket of a session.
	dial func(*udpSession) error

	mu      sync.Mutex // is held during all calls
	groups  map[*Group]*udpGroup
	tending *time.Timer // nil without sessions
}

func newUDPTable(idle time.Duration, budget *Budget, count *udpCounters, dial func(*udpSession) error) *udpTable {
	return &udpTable{idle: idle, budget: budget, count: count, dial: dial, groups: map[*Group]*udpGroup{}}
}

// forward sends a client's datagram to its backend, or to another one if that is unreachable.
func (t *udpTable) forward(f *udpFront, k udpKey, datagram []byte, hops int, now time.Time) {
	s := f.sessions[k]
	if s != nil && !f.owner.balancer().Serves(s.backend) {
		t.end(s)
		s = nil
	}
	var tried []netip.AddrPort
	for len(tried) < maxAttempts {
		if s != nil && s.lost {
			if slices.Contains(tried, s.backend) {
				break
			}
			tried = append(tried, s.backend)
			t.count.moved.Add(1)
			t.end(s)
			s = nil
		}
		if s == nil {
			s = t.begin(f, k, tried, now)
			if s == nil {
				return
			}
		}
		if s.lost { // the attempt failed
			continue
		}
		err := s.socket.send(datagram, hops)
		switch {
		case err == nil:
			t.count.toBackends.Add(1)
			t.count.toBackendBytes.Add(uint64(len(datagram)))
			t.use(s, now)
			return
		case s.lost: // an earlier datagram was refused
		case isOurs(err):
			t.count.sendFailed.Add(1)
			return
		default:
			s.lost = true
			s.dialled(err)
		}
	}
	t.count.sendFailed.Add(1)
}

// begin begins a session to a backend that was not tried. It returns nil if the datagram was
// dropped, and counts that.
func (t *udpTable) begin(f *udpFront, k udpKey, tried []netip.AddrPort, now time.Time) *udpSession {
	s := &udpSession{front: f, key: k, used: now}
	c := s.client(len(tried) > 0)
	s.backend = f.owner.balancer().Pick(c, tried)
	if !s.backend.IsValid() && len(tried) > 0 {
		// No other backend is left. The datagram costs nothing, and the last backend may have
		// returned.
		s.backend = f.owner.balancer().Pick(c, nil)
	}
	if !s.backend.IsValid() {
		t.count.noBackend.Add(1)
		return nil
	}
	if !t.makeRoom(f) {
		t.count.noSocket.Add(1)
		return nil
	}
	err := t.dial(s)
	if err != nil && isOurs(err) {
		t.budget.Give(&f.share, 1)
		t.count.noSocket.Add(1)
		return nil
	}
	t.add(s)
	if err != nil {
		s.lost = true
		s.dialled(err)
	}
	return s
}

// isOurs reports whether other backends would fail too: a resource is exhausted, or the datagram is
// too long.
func isOurs(err error) bool { return exhausted(err) || errors.Is(err, syscall.EAGAIN) || tooLong(err) }

// exhausted reports whether an error says that a resource of the process or the host is used up.
func exhausted(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ENOBUFS) ||
		errors.Is(err, syscall.ENOMEM)
}

// makeRoom takes the budget of one more session. If the group has used up its share, the oldest
// session of its largest listener ends, so one group never costs another a session.
func (t *udpTable) makeRoom(f *udpFront) bool {
	for !t.budget.Take(&f.share, 1) {
		g := t.groups[f.owner.group]
		if g == nil {
			return false
		}
		t.count.evicted.Add(1)
		t.end(g.fullest().oldest())
	}
	return true
}

// fullest returns the listener with most sessions.
func (g *udpGroup) fullest() *udpFront {
	if g.most == nil {
		for f := range g.busy {
			g.note(f)
		}
	}
	return g.most
}

func (g *udpGroup) note(f *udpFront) {
	if g.most == nil || len(f.sessions) > len(g.most.sessions) {
		g.most = f
	}
}

// add adds a session.
func (t *udpTable) add(s *udpSession) {
	f := s.front
	g := t.groups[f.owner.group]
	if g == nil {
		g = &udpGroup{busy: map[*udpFront]struct{}{}}
		t.groups[f.owner.group] = g
	}
	g.busy[f] = struct{}{}
	f.sessions[s.key] = s
	s.at = f.order.PushFront(s)
	g.note(f)
	t.count.open.Add(1)
	t.count.opened.Add(1)
}

// end ends a session.
func (t *udpTable) end(s *udpSession) {
	f := s.front
	if s.socket != nil {
		s.socket.close()
	}
	t.budget.Give(&f.share, 1)
	t.count.open.Add(-1)
	delete(f.sessions, s.key)
	f.order.Remove(s.at)
	if len(f.sessions) > 0 {
		return
	}
	g := t.groups[f.owner.group]
	delete(g.busy, f)
	if g.most == f {
		g.most = nil
	}
	if len(g.busy) == 0 {
		delete(t.groups, f.owner.group)
	}
}

// use records that a session was used.
func (t *udpTable) use(s *udpSession, now time.Time) {
	s.used = now
	s.front.order.MoveToFront(s.at)
}

// oldest returns the least recently used session, or nil.
func (f *udpFront) oldest() *udpSession {
	if last := f.order.Back(); last != nil {
		return last.Value.(*udpSession)
	}
	return nil
}

// answered records a reply of the backend, and reports whether to pass it on. If the backend no
// longer serves, its address may have another owner, so the session ends (SV-25).
func (t *udpTable) answered(s *udpSession, now time.Time) bool {
	if !s.front.owner.balancer().Serves(s.backend) {
		t.end(s)
		return false
	}
	t.use(s, now)
	s.lost = false
	if !s.answered {
		s.answered = true
		s.dialled(nil)
	}
	return true
}

// refused records that a backend cannot be reached. Any host may claim that: the Balancer gets a
// report only if the backend or this node says so, and all sessions of the backend move only if the
// backend itself says that its port is closed.
func (t *udpTable) refused(s *udpSession, err error, byBackend, byNode bool) {
	s.lost = true
	if byBackend || byNode {
		s.dialled(err)
	}
	if !byBackend || !errors.Is(err, syscall.ECONNREFUSED) {
		return
	}
	t.each(func(o *udpSession) {
		if o.backend == s.backend {
			o.lost = true
		}
	})
}

// each calls fn, which may end it, with each session.
func (t *udpTable) each(fn func(*udpSession)) {
	for _, g := range t.groups {
		for f := range g.busy {
			for _, s := range f.sessions {
				fn(s)
			}
		}
	}
}

// granule is the precision of the idle time: a session may last that much longer.
func (t *udpTable) granule() time.Duration { return max(t.idle/8, time.Millisecond) }

// expire ends idle sessions.
func (t *udpTable) expire(now time.Time) {
	for _, g := range t.groups {
		for f := range g.busy {
			for s := f.oldest(); s != nil && now.Sub(s.used) >= t.idle; s = f.oldest() {
				t.count.expired.Add(1)
				t.end(s)
			}
		}
	}
}

// close ends all sessions of a listener.
func (t *udpTable) close(f *udpFront) {
	for _, s := range f.sessions {
		t.end(s)
	}
}
