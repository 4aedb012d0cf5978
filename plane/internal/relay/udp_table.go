package relay

import (
	"cmp"
	"math/rand/v2"
	"net/netip"
	"strconv"
	"sync/atomic"
	"time"
)

// udpAddr is an address and a port without a pointer, so that a garbage collector need not look into tables of them. An IPv4
// address is mapped into IPv6.
type udpAddr struct {
	ip   [16]byte
	zone uint32 // index of the interface of a link-local IPv6 address
	port uint32
}

func packAddr(a netip.AddrPort) udpAddr {
	zone, _ := strconv.ParseUint(a.Addr().Zone(), 10, 32)
	return udpAddr{ip: a.Addr().As16(), zone: uint32(zone), port: uint32(a.Port())}
}

func (a udpAddr) addrPort() netip.AddrPort {
	ip := netip.AddrFrom16(a.ip).Unmap()
	if a.zone != 0 {
		ip = ip.WithZone(strconv.FormatUint(uint64(a.zone), 10))
	}
	return netip.AddrPortFrom(ip, uint16(a.port))
}

// udpKey is what makes datagrams one session: who sends them, to which address, of which listener.
type udpKey struct {
	client   udpAddr
	local    [16]byte
	listener uint32
}

// replyKey tells the session of a reply: no two on one socket have the same backend.
type replyKey struct{ backend, socket uint32 }

// memberKey is the list of a listener's sessions to a backend.
type memberKey struct{ listener, backend uint32 }

// udpSession leads what one client sends through one socket to one backend. It has no pointers, and is known by its number;
// 0 is none.
//
// A session that is over stays for a while with ended set: a late reply must not reach the next client with the same
// socket and backend.
type udpSession struct {
	key             udpKey
	backend, socket uint32
	refusals        uint32 // of the backend, as many as there were when it last seemed to serve
	answered, ended bool
	moved           bool          // the backend cannot be reached: pick another for the next datagram
	at              time.Duration // when it was last used, or ended
	links           [3]udpLink
}

// The lists that a session is in.
const (
	byAge      = iota // all sessions, or all that have ended: the one that was used longest ago first
	byListener        // those of a listener, in the same order
	byMember          // those of a listener and a backend
)

type udpLink struct{ prev, next uint32 }

type udpList struct{ first, last uint32 }

// udpBackend is somebody whom sessions lead to.
type udpBackend struct {
	addr     udpAddr
	six      bool
	used     uint32 // sessions, those that have ended included
	refusals uint32 // how often it said that its port is closed
}

// udpHolder has sessions: a listener, the listeners of a group, or at the root all of a table. Holders are a tree of
// heaps, so that the listener which has to give one up is found at once: of the group with most, the one with most.
type udpHolder struct {
	above    *udpHolder
	below    []*udpHolder // a heap: most sessions first
	place    int          // in above.below
	count    int
	sessions udpList // of a listener
	group    *Group  // of a group
}

// udpPool is the sockets of one IP family.
type udpPool struct {
	sockets []uint32      // how many sessions each has, those that have ended included
	open    int           // the first so many take new sessions, the others end theirs
	peak    uint32        // most sessions of one backend since the last look
	stuck   time.Duration // no attempt to make another before
}

// udpLimits bound a table, and those that share them.
type udpLimits struct {
	sessions, share       int64 // of all tables; of one, whatever the others have
	sockets, socketsShare int64
	idle                  time.Duration
}

const (
	// quarantine is how long a socket is not used again for a backend, as far as there are others.
	quarantine = time.Second
	// stuckFor is how long a table asks for no socket after there was none.
	stuckFor = time.Second
	// poolProbes is how many sockets are looked at for one that a backend does not use.
	poolProbes = 64
	// fewSockets are never given back.
	fewSockets = 64
	chunkBits  = 10
)

// udpTable knows the sessions of one loop. It does no I/O and has no lock; times are since some fixed moment. Each
// verb costs the same however many sessions there are, but for what it ends.
//
// A session has about 190 bytes: a record of 96, and its places in two maps. The records of those that have ended are
// bounded too.
type udpTable struct {
	limits              udpLimits
	total, totalSockets *atomic.Int64 // of all tables
	granule             time.Duration // a session that is used moves in the lists once in that time
	chunks              [][]udpSession
	free                []uint32
	made                uint32
	clients             map[udpKey]uint32
	replies             map[replyKey]uint32
	members             map[memberKey]uint32 // the first of each list byMember
	live, ended         udpList
	endedCount          int64
	listeners           map[uint32]*udpHolder
	groups              map[*Group]*udpHolder
	all                 udpHolder // of all live sessions
	nextListener        uint32
	backends            []udpBackend
	freeBackends        []uint32
	backendIDs          map[udpAddr]uint32
	pools               [2]udpPool // IPv4, IPv6
	count               *udpCounters
}

func newUDPTable(limits udpLimits, total, totalSockets *atomic.Int64, count *udpCounters) *udpTable {
	t := &udpTable{
		limits: limits, total: total, totalSockets: totalSockets, count: count, granule: limits.idle / 8,
		listeners: map[uint32]*udpHolder{}, groups: map[*Group]*udpHolder{}, backendIDs: map[udpAddr]uint32{}, backends: make([]udpBackend, 1),
	}
	t.forgetAll()
	return t
}

// forgetAll gives the memory of sessions back. There are none.
func (t *udpTable) forgetAll() {
	t.chunks, t.free, t.made = nil, nil, 1
	t.clients, t.replies, t.members = map[udpKey]uint32{}, map[replyKey]uint32{}, map[memberKey]uint32{}
}

func (t *udpTable) at(id uint32) *udpSession {
	return &t.chunks[id>>chunkBits][id&(1<<chunkBits-1)]
}

// addListener adds a listener of a group; nil for none.
func (t *udpTable) addListener(group *Group) uint32 {
	for { // the number comes round after 2^32 listeners
		t.nextListener++
		if _, used := t.listeners[t.nextListener]; !used && t.nextListener != 0 {
			break
		}
	}
	above := &t.all
	if group != nil {
		if above = t.groups[group]; above == nil {
			above = t.all.add(&udpHolder{group: group})
			t.groups[group] = above
		}
	}
	t.listeners[t.nextListener] = above.add(&udpHolder{})
	return t.nextListener
}

// removeListener ends the sessions of a listener, and forgets it.
func (t *udpTable) removeListener(id uint32, now time.Duration) {
	l := t.listeners[id]
	if l == nil {
		return
	}
	for l.sessions.first != 0 {
		t.end(l.sessions.first, now)
	}
	delete(t.listeners, id)
	l.remove()
	if g := l.above; g.group != nil && len(g.below) == 0 {
		delete(t.groups, g.group)
		g.remove()
	}
}

// find returns the session of a datagram from a client, and that it is used now.
func (t *udpTable) find(k *udpKey, now time.Duration) uint32 {
	id := t.clients[*k]
	if id != 0 {
		t.touch(t.at(id), id, now)
	}
	return id
}

func (t *udpTable) touch(s *udpSession, id uint32, now time.Duration) {
	if now-s.at < t.granule {
		return
	}
	s.at = now
	t.unlink(&t.live, byAge, id)
	t.push(&t.live, byAge, id)
	l := t.listeners[s.key.listener]
	t.unlink(&l.sessions, byListener, id)
	t.push(&l.sessions, byListener, id)
}

// lost reports whether a session's backend is known not to serve it any more.
func (t *udpTable) lost(s *udpSession) bool {
	return s.moved || s.refusals != t.backends[s.backend].refusals
}

// whose is what a reply turns out to be.
type whose uint8

const (
	ofSession whose = iota
	ofNobody        // from somebody whom no session of the socket leads to
	tooLate         // of a session that is over
)

// reply returns the session that a datagram from a backend belongs to, and that it is used now. first says that none has
// come before.
func (t *udpTable) reply(socket uint32, from *udpAddr, now time.Duration) (id uint32, first bool, w whose) {
	id, s := t.byReply(socket, from)
	switch {
	case s == nil:
		return 0, false, ofNobody
	case s.ended:
		return 0, false, tooLate
	}
	first = !s.answered
	s.answered, s.moved, s.refusals = true, false, t.backends[s.backend].refusals
	t.touch(s, id, now)
	return id, first, ofSession
}

func (t *udpTable) byReply(socket uint32, from *udpAddr) (uint32, *udpSession) {
	backend := t.backendIDs[*from]
	if backend == 0 {
		return 0, nil
	}
	id := t.replies[replyKey{backend, socket}]
	if id == 0 {
		return 0, nil
	}
	return id, t.at(id)
}

// refused notes that a backend cannot be reached from a socket, and returns the session that learns it, 0 for none. If the
// backend itself says that its port is closed, all its sessions go elsewhere: such answers are rare, because hosts limit
// them to about one a second.
func (t *udpTable) refused(socket uint32, backend *udpAddr, closed bool) uint32 {
	id, s := t.byReply(socket, backend)
	if s == nil || s.ended {
		return 0
	}
	s.moved = true
	if closed {
		t.backends[s.backend].refusals++
	}
	return id
}

// opening is how an attempt to open a session ended.
type opening uint8

const (
	opened     opening = iota
	wantSocket         // add one to the pool of the backend's family, or say that there is none, and try again
	noSocket
)

// open begins a session. In place of one too many it ends that which was used longest ago of the group and listener
// with most.
func (t *udpTable) open(k *udpKey, to netip.AddrPort, now time.Duration) (uint32, opening) {
	addr, six := packAddr(to), isSix(to.Addr())
	backend := t.backendIDs[addr]
	var used uint32
	if backend != 0 {
		used = t.backends[backend].used
	}
	p := &t.pools[family(six)]
	if need := 2 * (int(used) + 1); p.open < need && now >= p.stuck && t.mayHaveSocket(p) {
		return 0, wantSocket
	}
	if p.open == 0 {
		return 0, noSocket
	}
	if backend == 0 {
		backend = t.addBackend(addr, six)
	}
	t.backends[backend].used++ // from here on it stays, whatever ends
	if t.total.Load() >= t.limits.sessions && int64(t.all.count) >= t.limits.share {
		t.evict(t.all.greediest().sessions.first, now)
	}
	socket := t.freeSocket(backend, p, now)
	p.sockets[socket]++
	id := t.record()
	s := t.at(id)
	*s = udpSession{key: *k, backend: backend, socket: socket, refusals: t.backends[backend].refusals, at: now}
	t.clients[*k] = id
	t.replies[replyKey{backend, socket}] = id
	p.peak = max(p.peak, t.backends[backend].used)
	l := t.listeners[k.listener]
	t.push(&t.live, byAge, id)
	t.push(&l.sessions, byListener, id)
	t.join(id, s)
	l.grow(1)
	t.total.Add(1)
	t.count.opened.Add(1)
	return id, opened
}

func isSix(a netip.Addr) bool { return a.Is6() && !a.Is4In6() }

func family(six bool) int {
	if six {
		return 1
	}
	return 0
}

func (t *udpTable) mayHaveSocket(p *udpPool) bool {
	own := int64(len(t.pools[0].sockets) + len(t.pools[1].sockets))
	return p.open < len(p.sockets) || t.totalSockets.Load() < t.limits.sockets || own < t.limits.socketsShare
}

// addSocket tells that the pool of a family has one more socket that takes sessions.
func (t *udpTable) addSocket(six bool) {
	p := &t.pools[family(six)]
	if p.open == len(p.sockets) {
		p.sockets = append(p.sockets, 0)
		t.totalSockets.Add(1)
	}
	p.open++
}

// reopen reports whether a family has a socket that takes sessions again instead of a new one.
func (t *udpTable) reopen(six bool) bool {
	p := &t.pools[family(six)]
	return p.open < len(p.sockets)
}

// stick tells that no socket can be made.
func (t *udpTable) stick(six bool, now time.Duration) { t.pools[family(six)].stuck = now + stuckFor }

// freeSocket returns a socket that has no session to the backend. They are tried at random: the port is harder to guess, and
// one that was used a moment ago is not likely. If all that are tried have one, it ends the one that is over longest, or
// that of the group and listener with most sessions.
func (t *udpTable) freeSocket(backend uint32, p *udpPool, now time.Duration) uint32 {
	var worst uint32
	for range poolProbes {
		socket := uint32(rand.IntN(p.open))
		id := t.replies[replyKey{backend, socket}]
		if id == 0 {
			return socket
		}
		if worst == 0 || t.rather(t.at(id), t.at(worst)) {
			worst = id
		}
	}
	s := t.at(worst)
	socket := s.socket
	if !s.ended {
		t.evict(worst, now)
	}
	t.forget(worst)
	return socket
}

// rather reports whether a should end rather than b.
func (t *udpTable) rather(a, b *udpSession) bool {
	if a.ended != b.ended {
		return a.ended
	}
	if !a.ended {
		if d := t.listeners[a.key.listener].compare(t.listeners[b.key.listener]); d != 0 {
			return d > 0
		}
	}
	return a.at < b.at
}

func (t *udpTable) evict(id uint32, now time.Duration) {
	t.end(id, now)
	t.count.evicted.Add(1)
}

// end ends a session. Its record stays for the quarantine.
func (t *udpTable) end(id uint32, now time.Duration) {
	s := t.at(id)
	l := t.listeners[s.key.listener]
	delete(t.clients, s.key)
	t.unlink(&t.live, byAge, id)
	t.unlink(&l.sessions, byListener, id)
	t.part(id, s)
	l.grow(-1)
	t.total.Add(-1)
	s.ended, s.at = true, now
	t.push(&t.ended, byAge, id)
	t.endedCount++
	if t.endedCount > t.limits.share {
		t.forget(t.ended.first)
	}
}

// forget frees the record of a session that has ended.
func (t *udpTable) forget(id uint32) {
	s := t.at(id)
	t.unlink(&t.ended, byAge, id)
	t.endedCount--
	delete(t.replies, replyKey{s.backend, s.socket})
	b := &t.backends[s.backend]
	t.pools[family(b.six)].sockets[s.socket]--
	if b.used--; b.used == 0 {
		delete(t.backendIDs, b.addr)
		t.freeBackends = append(t.freeBackends, s.backend)
	}
	t.free = append(t.free, id)
}

// expire ends what nobody has used for the idle time, frees what ended long ago, and returns when it wants to be
// called again; 0 is never. It does no more than a bounded number at once.
func (t *udpTable) expire(now time.Duration) (next time.Duration) {
	const most = 4096
	for range most {
		id := t.live.first
		if id == 0 || now < t.at(id).at+t.limits.idle+t.granule {
			break
		}
		t.end(id, now)
		t.count.expired.Add(1)
	}
	for range most {
		id := t.ended.first
		if id == 0 || now < t.at(id).at+quarantine {
			break
		}
		t.forget(id)
	}
	if id := t.ended.first; id != 0 {
		next = t.at(id).at + quarantine
	}
	if id := t.live.first; id != 0 {
		if at := t.at(id).at + t.limits.idle + t.granule; next == 0 || at < next {
			next = at
		}
	}
	if next == 0 && t.made > 1<<chunkBits {
		t.forgetAll()
	}
	return next
}

// shrink takes half of the sockets that no backend needs out of use, and returns how many of a family may be closed: the
// last ones. It is to be called now and then, and dropSockets told what was closed.
func (t *udpTable) shrink(six bool) (closable int) {
	p := &t.pools[family(six)]
	if p.open > fewSockets && int(p.peak)*4 < p.open {
		p.open = max(fewSockets, p.open/2)
	}
	p.peak = 0
	n := len(p.sockets)
	for n > p.open && p.sockets[n-1] == 0 {
		n--
	}
	return len(p.sockets) - n
}

// dropSockets tells that the last n sockets of a family are closed.
func (t *udpTable) dropSockets(six bool, n int) {
	p := &t.pools[family(six)]
	p.sockets = p.sockets[:len(p.sockets)-n]
	t.totalSockets.Add(-int64(n))
}

// leave ends the sessions of a listener to backends.
func (t *udpTable) leave(listener uint32, gone []netip.AddrPort, now time.Duration) {
	for _, a := range gone {
		member := memberKey{listener, t.backendIDs[packAddr(a)]}
		for t.members[member] != 0 {
			t.end(t.members[member], now)
		}
	}
}

func (t *udpTable) addBackend(addr udpAddr, six bool) uint32 {
	b := udpBackend{addr: addr, six: six}
	id := uint32(len(t.backends))
	if n := len(t.freeBackends); n > 0 {
		id = t.freeBackends[n-1]
		t.freeBackends = t.freeBackends[:n-1]
		t.backends[id] = b
	} else {
		t.backends = append(t.backends, b)
	}
	t.backendIDs[addr] = id
	return id
}

// record returns the number of a free record.
func (t *udpTable) record() uint32 {
	if n := len(t.free); n > 0 {
		id := t.free[n-1]
		t.free = t.free[:n-1]
		return id
	}
	id := t.made
	if int(id>>chunkBits) == len(t.chunks) {
		t.chunks = append(t.chunks, make([]udpSession, 1<<chunkBits))
	}
	t.made++
	return id
}

// join and part keep the list of the sessions of a listener and a backend.
func (t *udpTable) join(id uint32, s *udpSession) {
	key := memberKey{s.key.listener, s.backend}
	first := t.members[key]
	s.links[byMember] = udpLink{next: first}
	if first != 0 {
		t.at(first).links[byMember].prev = id
	}
	t.members[key] = id
}

func (t *udpTable) part(id uint32, s *udpSession) {
	link := s.links[byMember]
	if link.next != 0 {
		t.at(link.next).links[byMember].prev = link.prev
	}
	key := memberKey{s.key.listener, s.backend}
	switch {
	case link.prev != 0:
		t.at(link.prev).links[byMember].next = link.next
	case link.next != 0:
		t.members[key] = link.next
	default:
		delete(t.members, key)
	}
}

// push puts a session at the end of a list.
func (t *udpTable) push(l *udpList, which int, id uint32) {
	t.at(id).links[which] = udpLink{prev: l.last}
	if l.last != 0 {
		t.at(l.last).links[which].next = id
	} else {
		l.first = id
	}
	l.last = id
}

func (t *udpTable) unlink(l *udpList, which int, id uint32) {
	link := t.at(id).links[which]
	if link.prev != 0 {
		t.at(link.prev).links[which].next = link.next
	} else {
		l.first = link.next
	}
	if link.next != 0 {
		t.at(link.next).links[which].prev = link.prev
	} else {
		l.last = link.prev
	}
}

// add puts a holder below h, and returns it.
func (h *udpHolder) add(o *udpHolder) *udpHolder {
	o.above, o.place = h, len(h.below)
	h.below = append(h.below, o)
	return o
}

// remove takes a holder without sessions out of the tree.
func (h *udpHolder) remove() {
	heap := &h.above.below
	last := (*heap)[len(*heap)-1]
	h.above.swap(h, last)
	*heap = (*heap)[:len(*heap)-1]
	if last != h {
		last.sift()
	}
}

// grow adds n to the sessions of a listener, and of all above it.
func (h *udpHolder) grow(n int) {
	for ; h.above != nil; h = h.above {
		h.count += n
		h.sift()
	}
	h.count += n
}

// greediest returns the listener that has to give up a session.
func (h *udpHolder) greediest() *udpHolder {
	for len(h.below) > 0 {
		h = h.below[0]
	}
	return h
}

// compare says which of two listeners has to give up a session: h for more than 0.
func (h *udpHolder) compare(o *udpHolder) int {
	return cmp.Or(cmp.Compare(h.top().count, o.top().count), cmp.Compare(h.count, o.count))
}

// top returns the group of a listener, or the listener if it has none.
func (h *udpHolder) top() *udpHolder {
	for h.above.above != nil {
		h = h.above
	}
	return h
}

// sift puts a holder where its count belongs in the heap.
func (h *udpHolder) sift() {
	heap := h.above.below
	for h.place > 0 && heap[(h.place-1)/2].count < h.count {
		h.above.swap(h, heap[(h.place-1)/2])
	}
	for {
		child := 2*h.place + 1
		if child+1 < len(heap) && heap[child+1].count > heap[child].count {
			child++
		}
		if child >= len(heap) || heap[child].count <= h.count {
			return
		}
		h.above.swap(h, heap[child])
	}
}

func (h *udpHolder) swap(a, b *udpHolder) {
	h.below[a.place], h.below[b.place] = b, a
	a.place, b.place = b.place, a.place
}
