package relay

import (
	"net/netip"
	"sync/atomic"
	"time"
)

// Sessions counts what became of datagrams. A session is what one client sends to one address of one listener, and the
// replies.
type Sessions struct {
	// Open is how many sessions there are, Sockets how many sockets they share to reach backends.
	Open, Sockets int64
	// Opened is how many have begun. Expired were idle, Evicted were one too many, Moved had a backend that cannot be reached.
	Opened, Expired, Evicted, Moved uint64
	// ToBackends and ToClients were passed on.
	ToBackends, ToClients Datagrams
	// Dropped were not.
	Dropped Dropped
}

// Datagrams counts datagrams, and the bytes in them without headers.
type Datagrams struct{ Datagrams, Bytes uint64 }

// Dropped counts datagrams that were not passed on, by the reason.
type Dropped struct {
	// NoBackend: the Balancer refuses or drops the client.
	NoBackend uint64
	// NoSocket: no socket to backends can be made, and there is none.
	NoSocket uint64
	// Malformed: cut short by the kernel, or sent to a multicast or broadcast address.
	Malformed uint64
	// Stranger: came to a socket for backends from somebody to whom no session of it leads.
	Stranger uint64
	// Late: a reply to a session that has ended.
	Late uint64
	// SendFailed: the kernel did not take it.
	SendFailed uint64
}

func (c *Sessions) add(d Sessions) {
	c.Open += d.Open
	c.Sockets += d.Sockets
	c.Opened += d.Opened
	c.Expired += d.Expired
	c.Evicted += d.Evicted
	c.Moved += d.Moved
	c.ToBackends.add(d.ToBackends)
	c.ToClients.add(d.ToClients)
	c.Dropped.NoBackend += d.Dropped.NoBackend
	c.Dropped.NoSocket += d.Dropped.NoSocket
	c.Dropped.Malformed += d.Dropped.Malformed
	c.Dropped.Stranger += d.Dropped.Stranger
	c.Dropped.Late += d.Dropped.Late
	c.Dropped.SendFailed += d.Dropped.SendFailed
}

func (c *Datagrams) add(d Datagrams) {
	c.Datagrams += d.Datagrams
	c.Bytes += d.Bytes
}

// udpCounters are Sessions that one loop counts while others read.
type udpCounters struct {
	opened, expired, evicted, moved                            atomic.Uint64
	toBackends, toBackendBytes, toClients, toClientBytes       atomic.Uint64
	noBackend, noSocket, malformed, stranger, late, sendFailed atomic.Uint64
	// messages were given to the kernel by calls that succeeded: with trains fewer than datagrams.
	messages, calls atomic.Uint64
}

func (c *udpCounters) read() Sessions {
	return Sessions{
		Opened: c.opened.Load(), Expired: c.expired.Load(), Evicted: c.evicted.Load(), Moved: c.moved.Load(),
		ToBackends: Datagrams{c.toBackends.Load(), c.toBackendBytes.Load()},
		ToClients:  Datagrams{c.toClients.Load(), c.toClientBytes.Load()},
		Dropped: Dropped{
			NoBackend: c.noBackend.Load(), NoSocket: c.noSocket.Load(), Malformed: c.malformed.Load(),
			Stranger: c.stranger.Load(), Late: c.late.Load(), SendFailed: c.sendFailed.Load(),
		},
	}
}

// udpShared is what the loops of a relay share: the limits, and how much of them is used.
type udpShared struct {
	limits            udpLimits
	sessions, sockets atomic.Int64
}

const (
	// maxSessions bounds the sessions of a relay. A loop may have its share of them whatever the other loops have, so
	// that there are less than twice as many in the end.
	maxSessions = 1 << 17
	// maxUDPSockets bounds the sockets to backends in the same way, if the process and the node have many descriptors and ports.
	maxUDPSockets = 1 << 12
	// messageSize holds the longest datagram there is, and the longest train of them that a kernel joins.
	messageSize = 1 << 16
	// udpBuffer is how many bytes a socket may hold back in either direction, what the kernel adds to each datagram included:
	// a few hundred short datagrams at least.
	udpBuffer = 1 << 20
)

// newUDPShared divides the limits between loops. files is how many descriptors the process may open, ports how many the
// node has to give.
func newUDPShared(idle time.Duration, loops, files, ports int) *udpShared {
	sockets := int64(max(loops, min(maxUDPSockets, files/8, ports/8)))
	return &udpShared{limits: udpLimits{
		sessions: maxSessions, share: int64(maxSessions / loops),
		sockets: sockets, socketsShare: sockets / int64(loops),
		idle: idle,
	}}
}

// anyPort asks for a port of all addresses of a family.
func anyPort(six bool) netip.AddrPort {
	if six {
		return netip.AddrPortFrom(netip.IPv6Unspecified(), 0)
	}
	return netip.AddrPortFrom(netip.IPv4Unspecified(), 0)
}

// udpFront is the client side of sessions: a listener, by its number in the table.
type udpFront struct {
	owner *Listener
	id    uint32
	at    netip.AddrPort
}

func (f *udpFront) client(k *udpKey) Client {
	return Client{Addr: k.client.addrPort(), Local: netip.AddrPortFrom(netip.AddrFrom16(k.local).Unmap(), f.at.Port())}
}

// udpSessions are the sessions of a table with the backends that Balancers choose. It is used by one goroutine at a time.
type udpSessions struct {
	*udpTable
	count *udpCounters
	// makeSocket makes another socket to backends of a family.
	makeSocket func(six bool) error
}

func newUDPSessions(shared *udpShared, makeSocket func(six bool) error) *udpSessions {
	count := &udpCounters{}
	return &udpSessions{newUDPTable(shared.limits, &shared.sessions, &shared.sockets, count), count, makeSocket}
}

// session returns that of a datagram from a client, a new one if there is none, or its backend is lost. 0: the datagram
// is to be dropped, and has been counted.
func (u *udpSessions) session(f *udpFront, k *udpKey, now time.Duration) uint32 {
	id := u.find(k, now)
	if id == 0 {
		return u.begin(f, k, nil, now)
	}
	if s := u.at(id); u.lost(s) {
		return u.elsewhere(f, id, []netip.AddrPort{u.backendOf(s)}, now)
	}
	return id
}

func (u *udpSessions) backendOf(s *udpSession) netip.AddrPort {
	return u.backends[s.backend].addr.addrPort()
}

// elsewhere leads the client of a session to a backend that it has not tried.
func (u *udpSessions) elsewhere(f *udpFront, id uint32, tried []netip.AddrPort, now time.Duration) uint32 {
	k := u.at(id).key
	u.end(id, now)
	u.count.moved.Add(1)
	return u.begin(f, &k, tried, now)
}

func (u *udpSessions) begin(f *udpFront, k *udpKey, tried []netip.AddrPort, now time.Duration) uint32 {
	c := f.client(k)
	c.Again = len(tried) > 0
	to, answer := f.owner.pick(c, tried)
	if answer != Forward && len(tried) > 0 {
		// None is left. The datagram costs nothing, and what refused the last one may have returned.
		to, answer = f.owner.pick(c, nil)
	}
	if answer != Forward || !to.IsValid() {
		u.count.noBackend.Add(1)
		return 0
	}
	for {
		id, how := u.open(k, to, now)
		switch how {
		case opened:
			return id
		case noSocket:
			u.count.noSocket.Add(1)
			return 0
		}
		six := isSix(to.Addr())
		if u.reopen(six) || u.makeSocket(six) == nil {
			u.addSocket(six)
		} else {
			u.stick(six, now)
		}
	}
}

// fromBackend returns the session of a datagram from a backend, 0 if it is to be dropped, and has been counted.
func (u *udpSessions) fromBackend(fronts func(id uint32) *udpFront, socket uint32, from *udpAddr, now time.Duration) uint32 {
	id, first, w := u.reply(socket, from, now)
	switch {
	case w == ofNobody:
		u.count.stranger.Add(1)
	case w == tooLate:
		u.count.late.Add(1)
	case first:
		s := u.at(id)
		f := fronts(s.key.listener)
		f.owner.dialled(f.client(&s.key), u.backendOf(s), nil)
	}
	return id
}

// failed tells a Balancer that the backend of a session cannot be reached.
func (u *udpSessions) failed(f *udpFront, id uint32, err error) {
	s := u.at(id)
	f.owner.dialled(f.client(&s.key), u.backendOf(s), err)
}
