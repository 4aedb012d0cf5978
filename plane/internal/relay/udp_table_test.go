package relay

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"
)

// table is a udpTable with as many sockets as it asks for, and clocks and addresses that are easy to read.
type table struct {
	*udpTable
	total, totalSockets atomic.Int64
	now                 time.Duration
	group               *Group
}

func newTable(limits udpLimits) *table {
	t := &table{group: NewGroup()}
	t.udpTable = newUDPTable(limits, &t.total, &t.totalSockets, &udpCounters{})
	return t
}

var roomy = udpLimits{sessions: 1 << 17, share: 1 << 16, sockets: 4096, socketsShare: 2048, idle: 250 * time.Millisecond}

func clientKey(listener uint32, client int) *udpKey {
	return &udpKey{client: udpAddr{ip: [16]byte{10: 0xff, 11: 0xff, 12: 10, 13: byte(client >> 16), 14: byte(client >> 8), 15: byte(client)}, port: 5000}, listener: listener}
}

func backendAt(n int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{100, 64, byte(n >> 8), byte(n)}), 53)
}

// begin opens a session as udpSessions does.
func (t *table) begin(listener uint32, client, backend int) uint32 {
	for {
		id, how := t.open(clientKey(listener, client), backendAt(backend), t.now)
		switch how {
		case opened:
			return id
		case noSocket:
			return 0
		}
		t.addSocket(false)
	}
}

func (t *table) has(listener uint32, client int) bool {
	return t.clients[*clientKey(listener, client)] != 0
}

// check fails the test if what the table remembers of one thing in several places differs.
func (t *table) check(tb testing.TB) {
	tb.Helper()
	walk := func(l udpList, which int) (ids []uint32) {
		prev := uint32(0)
		for id := l.first; id != 0; id = t.at(id).links[which].next {
			if t.at(id).links[which].prev != prev {
				tb.Fatalf("session %d: the one before is %d, not %d", id, t.at(id).links[which].prev, prev)
			}
			prev = id
			ids = append(ids, id)
		}
		if l.last != prev {
			tb.Fatalf("the last of a list is %d, not %d", prev, l.last)
		}
		if !slices.IsSortedFunc(ids, func(a, b uint32) int { return int(t.at(a).at - t.at(b).at) }) {
			tb.Fatal("a list is not in the order of use")
		}
		return ids
	}
	live, ended := walk(t.live, byAge), walk(t.ended, byAge)
	if int64(len(live)) != int64(t.all.count) || int64(len(live)) != t.total.Load() || len(live) != len(t.clients) || int64(len(ended)) != t.endedCount {
		tb.Fatalf("%d live, counted as %d, %d in all, %d by client; %d ended, counted as %d",
			len(live), int64(t.all.count), t.total.Load(), len(t.clients), len(ended), t.endedCount)
	}
	if len(live)+len(ended) != len(t.replies) || len(live)+len(ended)+len(t.free)+1 != int(t.made) {
		tb.Fatalf("%d live, %d ended, %d by reply, %d free of %d", len(live), len(ended), len(t.replies), len(t.free), t.made)
	}
	used := map[uint32]uint32{}
	sockets := make([]uint32, len(t.pools[0].sockets))
	for _, id := range slices.Concat(live, ended) {
		s := t.at(id)
		used[s.backend]++
		sockets[s.socket]++
		if t.replies[replyKey{s.backend, s.socket}] != id {
			tb.Fatalf("session %d is not the one of its socket and backend", id)
		}
		if !s.ended && t.clients[s.key] != id {
			tb.Fatalf("session %d is not the one of its client", id)
		}
	}
	if !slices.Equal(sockets, t.pools[0].sockets) {
		tb.Fatalf("sessions by socket %v, counted as %v", sockets, t.pools[0].sockets)
	}
	for addr, id := range t.backendIDs {
		if b := t.backends[id]; b.addr != addr || b.used != used[id] || b.used == 0 {
			tb.Fatalf("backend %v has %d sessions, counted as %d", addr.addrPort(), used[id], b.used)
		}
	}
	if len(t.backendIDs) != len(used) || len(t.backendIDs)+len(t.freeBackends)+1 != len(t.backends) {
		tb.Fatalf("%d backends of %d used, %d free of %d", len(used), len(t.backendIDs), len(t.freeBackends), len(t.backends))
	}
	count, members := 0, 0
	leaves := 0
	var visit func(h *udpHolder) int
	visit = func(h *udpHolder) (sum int) {
		for i, b := range h.below {
			if b.above != h || b.place != i || i > 0 && h.below[(i-1)/2].count < b.count {
				tb.Fatalf("a holder of %d sessions is at place %d of the heap", b.count, i)
			}
			sum += visit(b)
		}
		if len(h.below) == 0 && h != &t.all {
			leaves++
			sum = len(walk(h.sessions, byListener))
		}
		if sum != h.count {
			tb.Fatalf("a holder has %d sessions, counted as %d", sum, h.count)
		}
		return sum
	}
	count = visit(&t.all)
	for key, first := range t.members {
		for id := first; id != 0; id = t.at(id).links[byMember].next {
			if s := t.at(id); s.key.listener != key.listener || s.backend != key.backend || s.ended {
				tb.Fatalf("session %d is not one of %v", id, key)
			}
			members++
		}
	}
	if count != len(live) || members != len(live) || leaves != len(t.listeners) {
		tb.Fatalf("%d sessions, %d of listeners, %d of members; %d listeners, %d in the tree", len(live), count, members, len(t.listeners), leaves)
	}
}

// act does what two bytes say to a table of three listeners, two of them in a group, few clients and few backends.
func (t *table) act(what, arg byte) {
	for len(t.listeners) < 3 {
		group := t.group
		if len(t.groups) > 0 && len(t.groups[group].below) == 2 {
			group = nil
		}
		t.addListener(group)
	}
	ids := slices.Sorted(maps.Keys(t.listeners))
	listener := ids[int(arg)%3]
	switch what % 8 {
	case 0, 1, 2:
		k := clientKey(listener, int(arg/2))
		if t.find(k, t.now) == 0 {
			t.begin(listener, int(arg/2), int(what/8)%5)
		}
	case 3:
		t.now += time.Duration(arg) * time.Millisecond
		t.expire(t.now)
	case 4:
		t.leave(listener, []netip.AddrPort{backendAt(int(arg) % 5)}, t.now)
	case 5:
		b := packAddr(backendAt(int(what/8) % 5))
		t.reply(uint32(arg)%8, &b, t.now)
	case 6:
		b := packAddr(backendAt(int(what/8) % 5))
		t.refused(uint32(arg)%8, &b, arg%2 == 0)
	case 7:
		switch arg % 8 {
		case 0:
			t.removeListener(listener, t.now)
		case 1:
			if n := t.shrink(false); n > 0 {
				t.dropSockets(false, n)
			}
		case 2:
			t.stick(false, t.now)
		}
	}
}

// Whatever happens, all places agree, and no bound is exceeded.
func FuzzUDPTable(f *testing.F) {
	f.Add([]byte{0, 1, 0, 2, 3, 255, 4, 1, 3, 255, 3, 255, 3, 255, 3, 255})
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		b := make([]byte, 600)
		for i := range b {
			b[i] = byte(rnd.Uint32())
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, ops []byte) {
		limits := udpLimits{sessions: 12, share: 6, sockets: 6, socketsShare: 3, idle: 250 * time.Millisecond}
		tab := newTable(limits)
		for ; len(ops) > 1; ops = ops[2:] {
			tab.act(ops[0], ops[1])
			tab.check(t)
			if n := tab.total.Load(); n > limits.sessions {
				t.Fatalf("%d sessions of %d", n, limits.sessions)
			}
			if n := tab.totalSockets.Load(); n > limits.sockets {
				t.Fatalf("%d sockets of %d", n, limits.sockets)
			}
		}
		for id := range tab.listeners {
			tab.removeListener(id, tab.now)
		}
		tab.expire(tab.now + time.Hour)
		tab.check(t)
		if tab.total.Load() != 0 || len(tab.replies)+len(tab.groups)+len(tab.all.below) != 0 {
			t.Fatal("sessions are left")
		}
	})
}

// A session lasts while it is used, in either direction, and the idle time longer; at most an eighth more.
func TestUDPIdleCF45(t *testing.T) {
	tab := newTable(roomy)
	l := tab.addListener(nil)
	tab.begin(l, 1, 1) // is not used again
	tab.begin(l, 2, 1)
	answered := tab.begin(l, 3, 1)
	backend, socket := packAddr(backendAt(1)), tab.at(answered).socket
	for range 20 {
		tab.now += 100 * time.Millisecond
		tab.find(clientKey(l, 2), tab.now)
		if _, _, w := tab.reply(socket, &backend, tab.now); w != ofSession {
			t.Fatal("the session that is answered has ended")
		}
		tab.expire(tab.now)
		if got, want := tab.has(l, 1), tab.now < 250*time.Millisecond; got != want {
			t.Fatalf("after %v: the session that nobody uses is there: %v", tab.now, got)
		}
	}
	if !tab.has(l, 2) || !tab.has(l, 3) {
		t.Fatal("a session that is used has ended")
	}
	last := tab.now
	for next := tab.expire(tab.now); tab.has(l, 2); next = tab.expire(tab.now) {
		tab.now = next
	}
	if idle := tab.now - last; idle < roomy.idle || idle > roomy.idle+roomy.idle/8 {
		t.Fatalf("ended after %v", idle)
	}
	if tab.count.expired.Load() != 3 {
		t.Fatalf("%d expired", tab.count.expired.Load())
	}
}

// Nobody gets the late reply to another client: as long as there are other sockets, the one of a session that has ended is
// not used for the backend.
func TestUDPQuarantine(t *testing.T) {
	tab := newTable(roomy)
	l := tab.addListener(nil)
	first := tab.begin(l, 1, 1)
	socket, backend := tab.at(first).socket, packAddr(backendAt(1))
	tab.end(first, tab.now)
	for client := range 200 {
		if id := tab.begin(l, client, 1); tab.at(id).socket == socket {
			t.Fatal("another client has the socket already")
		}
	}
	if _, _, w := tab.reply(socket, &backend, tab.now); w != tooLate {
		t.Fatalf("a late reply is %v", w)
	}
	stranger := packAddr(backendAt(2))
	if _, _, w := tab.reply(socket, &stranger, tab.now); w != ofNobody {
		t.Fatalf("a stranger's datagram is %v", w)
	}
	tab.expire(quarantine)
	if _, _, w := tab.reply(socket, &backend, quarantine); w != ofNobody {
		t.Fatalf("after the quarantine a late reply is %v", w)
	}
	tab.check(t)
}

// A flood at one listener takes what nobody uses, and its own sessions, and none of the others'.
func TestUDPFloodEvictsItsOwn(t *testing.T) {
	limits := udpLimits{sessions: 1000, share: 500, sockets: 4096, socketsShare: 2048, idle: time.Minute}
	tab := newTable(limits)
	polite, flooded := tab.addListener(nil), tab.addListener(nil)
	for client := range 100 {
		tab.begin(polite, client, client%10)
	}
	for client := range 50000 {
		tab.begin(flooded, client, client%10)
		if tab.total.Load() > limits.sessions {
			t.Fatalf("%d sessions", tab.total.Load())
		}
	}
	for client := range 100 {
		if !tab.has(polite, client) {
			t.Fatalf("client %d of the listener beside has lost its session", client)
		}
	}
	for client := range 50000 {
		if got, want := tab.has(flooded, client), client >= 50000-900; got != want {
			t.Fatalf("client %d of the flooded listener has a session: %v", client, got)
		}
	}
	// What another loop holds does not take the share of this one.
	other := newUDPTable(limits, &tab.total, &tab.totalSockets, &udpCounters{})
	third := &table{udpTable: other}
	l := other.addListener(nil)
	for client := range 600 {
		third.begin(l, client, client%10)
	}
	if other.all.count != 500 || tab.all.count != 1000 {
		t.Fatalf("%d sessions beside %d", other.all.count, tab.all.count)
	}
	tab.evict(tab.live.first, 0)
	tab.total.Store(int64(tab.all.count))
	tab.check(t)
}

// Two listeners that lead to the same backend have its sockets between them: the one with more sessions yields.
func TestUDPFloodOfOneBackend(t *testing.T) {
	limits := udpLimits{sessions: 100000, share: 100000, sockets: 64, socketsShare: 64, idle: time.Minute}
	tab := newTable(limits)
	polite, flooded := tab.addListener(nil), tab.addListener(nil)
	for client := range 4 {
		tab.begin(polite, client, 1)
	}
	for client := range 5000 {
		if tab.begin(flooded, client, 1) == 0 {
			t.Fatal("a new client gets no session")
		}
	}
	for client := range 4 {
		if !tab.has(polite, client) {
			t.Fatalf("client %d has lost its session", client)
		}
	}
	if n := tab.totalSockets.Load(); n != 64 {
		t.Fatalf("%d sockets", n)
	}
	tab.check(t)
}

// A tenant with many listeners of few sessions each takes no session of another's Service, which alone has more than
// any of his (TN-54): neither where sessions are bounded in all, nor where those to one backend are.
func TestUDPManyListenersOfOneTenantTN54(t *testing.T) {
	for name, limits := range map[string]udpLimits{
		"in all":     {sessions: 2000, share: 2000, sockets: 4096, socketsShare: 4096, idle: time.Minute},
		"of backend": {sessions: 100000, share: 100000, sockets: 2000, socketsShare: 2000, idle: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			tab := newTable(limits)
			dns, his := tab.addListener(NewGroup()), NewGroup()
			for client := range 500 {
				tab.begin(dns, client, 1)
			}
			var listeners []uint32
			for range 1000 {
				listeners = append(listeners, tab.addListener(his))
			}
			for client := range 10 {
				for _, l := range listeners {
					if tab.begin(l, client, 1) == 0 {
						t.Fatal("a new client gets no session")
					}
				}
			}
			kept := 0
			for client := range 500 {
				if tab.has(dns, client) {
					kept++
				}
			}
			if kept != 500 {
				t.Errorf("%d of 500 sessions beside the tenant's are left", kept)
			}
			tab.check(t)
		})
	}
}

// The sessions of a listener to a backend that left end, and no others.
func TestUDPLeave(t *testing.T) {
	tab := newTable(roomy)
	a, b := tab.addListener(nil), tab.addListener(nil)
	for client := range 100 {
		tab.begin(a, client, client%4)
		tab.begin(b, client, client%4)
	}
	tab.leave(a, []netip.AddrPort{backendAt(1), backendAt(2), backendAt(77)}, 0)
	for client := range 100 {
		if gone := client%4 == 1 || client%4 == 2; tab.has(a, client) == gone || !tab.has(b, client) {
			t.Fatalf("client %d: %v %v", client, tab.has(a, client), tab.has(b, client))
		}
	}
	tab.check(t)
}

// A backend that says its port is closed loses all its sessions; a router that says so for it, one.
func TestUDPRefused(t *testing.T) {
	tab := newTable(roomy)
	l := tab.addListener(nil)
	var ids []uint32
	for client := range 10 {
		ids = append(ids, tab.begin(l, client, 1))
	}
	backend := packAddr(backendAt(1))
	lost := func() (n int) {
		for _, id := range ids {
			if tab.lost(tab.at(id)) {
				n++
			}
		}
		return n
	}
	if id := tab.refused(tab.at(ids[3]).socket, &backend, false); id != ids[3] || lost() != 1 {
		t.Fatalf("session %d learns it, %d are lost", id, lost())
	}
	tab.refused(tab.at(ids[4]).socket, &backend, true)
	if lost() != 10 {
		t.Fatalf("%d are lost", lost())
	}
	// One that is answered after all is not.
	tab.reply(tab.at(ids[5]).socket, &backend, 0)
	if lost() != 9 || tab.lost(tab.at(ids[5])) {
		t.Fatalf("%d are lost", lost())
	}
	stranger := packAddr(backendAt(2))
	if tab.refused(tab.at(ids[3]).socket, &stranger, true) != 0 {
		t.Fatal("somebody learns of a backend that is not there")
	}
}

// Sockets that are not needed are given back, once nobody uses them.
func TestUDPPoolShrinks(t *testing.T) {
	tab := newTable(roomy)
	l := tab.addListener(nil)
	for client := range 500 {
		tab.begin(l, client, 1)
	}
	if n := tab.totalSockets.Load(); n < 999 || n > 1001 {
		t.Fatalf("%d sockets for 500 sessions to one backend", n)
	}
	if n := tab.shrink(false); n != 0 {
		t.Fatalf("%d can be closed while they are needed", n)
	}
	tab.now = time.Minute
	tab.expire(tab.now)
	tab.expire(tab.now + quarantine)
	for range 10 {
		tab.dropSockets(false, tab.shrink(false))
	}
	if n := tab.totalSockets.Load(); n != fewSockets {
		t.Fatalf("%d sockets are left", n)
	}
	tab.now += time.Minute
	for client := range 500 {
		tab.begin(l, client, 1)
	}
	tab.check(t)
}

// 100,000 sessions take the memory that docs/adr/0038 states, and give it back.
func TestUDPTableMemory(t *testing.T) {
	const sessions, most = 100_000, 320
	heap := func() int64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	tab := newTable(roomy)
	l := tab.addListener(nil)
	for client := range sessions {
		tab.begin(l, client, client%100)
	}
	if tab.all.count != sessions || tab.count.evicted.Load() != 0 {
		t.Fatalf("%d sessions, %d evicted", tab.all.count, tab.count.evicted.Load())
	}
	each := (heap() - before) / sessions
	t.Logf("%d bytes of heap for each of %d sessions, over %d sockets to 100 backends", each, sessions, tab.totalSockets.Load())
	if each > most {
		t.Errorf("%d bytes for a session, want at most %d", each, most)
	}
	tab.now = time.Minute
	for tab.expire(tab.now) != 0 {
		tab.now += quarantine
	}
	if left := heap() - before; left > 1<<20 {
		t.Errorf("%d bytes are left", left)
	}
	runtime.KeepAlive(tab)
}

// What a datagram costs does not depend on how many sessions there are, and allocates nothing.
func TestUDPTableAllocs(t *testing.T) {
	tab := newTable(roomy)
	l := tab.addListener(nil)
	id := tab.begin(l, 1, 1)
	k, backend, socket := clientKey(l, 1), packAddr(backendAt(1)), tab.at(id).socket
	if n := testing.AllocsPerRun(1000, func() {
		tab.now += 40 * time.Millisecond
		tab.find(k, tab.now)
		tab.reply(socket, &backend, tab.now)
		tab.expire(tab.now)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// The sockets to backends are a part of what the process and the node have, and each loop has some however few there are.
func TestUDPLimits(t *testing.T) {
	for _, c := range []struct {
		loops, files, ports int
		sockets, share      int64
	}{
		{1, 1 << 20, 28232, 3529, 3529},
		{2, 20000, 28232, 2500, 1250},
		{4, 1 << 20, 60000, 4096, 1024},
		{4, 1024, 28232, 128, 32},
		{4, 16, 28232, 4, 1},
		{2, 1 << 20, 1, 2, 1},
	} {
		l := newUDPShared(time.Second, c.loops, c.files, c.ports).limits
		if l.sockets != c.sockets || l.socketsShare != c.share || l.sessions != maxSessions || l.share != int64(maxSessions/c.loops) {
			t.Errorf("%+v: %+v", c, l)
		}
	}
}

// Each table may have its share of the sockets, whatever the others have, and no table more than all.
func TestUDPSocketsOfTwoTables(t *testing.T) {
	limits := udpLimits{sessions: 1000, share: 500, sockets: 20, socketsShare: 10, idle: time.Minute}
	first := newTable(limits)
	second := &table{udpTable: newUDPTable(limits, &first.total, &first.totalSockets, &udpCounters{})}
	for _, tab := range []*table{first, second} {
		l := tab.addListener(nil)
		for client := range 100 {
			if tab.begin(l, client, 1) == 0 {
				t.Fatal("no session")
			}
		}
	}
	if a, b := len(first.pools[0].sockets), len(second.pools[0].sockets); a != 20 || b != 10 || first.totalSockets.Load() != 30 {
		t.Errorf("%d and %d sockets, counted as %d", a, b, first.totalSockets.Load())
	}
}
