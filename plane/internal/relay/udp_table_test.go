package relay

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"syscall"
	"testing"
	"time"
)

// fakeSession is a session's socket that accepts every datagram.
type fakeSession struct{ table *tableTest }

func (s fakeSession) send([]byte, int) error { return nil }
func (s fakeSession) close()                 { s.table.sockets-- }

// tableTest is a table with fake sockets and numbered clients.
type tableTest struct {
	*udpTable
	now     time.Time
	sockets int
}

func newTableTest(most int64) *tableTest {
	t := &tableTest{now: time.Now()}
	t.udpTable = newUDPTable(time.Minute, &Budget{max: most}, &udpCounters{}, func(s *udpSession) error {
		s.socket = fakeSession{t}
		t.sockets++
		return nil
	})
	return t
}

func frontOf(group *Group, b Balancer) *udpFront {
	l := &Listener{group: group}
	l.SetBalancer(b)
	return newUDPFront(l, netip.MustParseAddrPort("10.96.0.10:53"))
}

func clientKey(n int) udpKey {
	return udpKey{netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}), 1000),
		netip.MustParseAddr("10.96.0.10")}
}

func (t *tableTest) send(f *udpFront, client int) {
	t.forward(f, clientKey(client), []byte("x"), 0, t.now)
}

func hasSession(f *udpFront, client int) bool { return f.sessions[clientKey(client)] != nil }

// check compares all data structures that hold a session.
func (t *tableTest) check(tb testing.TB) {
	tb.Helper()
	listed, mapped := 0, 0
	for group, g := range t.groups {
		sum := 0
		for f := range g.busy {
			n := 0
			for at := f.order.Front(); at != nil; at = at.Next() {
				s := at.Value.(*udpSession)
				n++
				if f.sessions[s.key] != s || s.at != at || at.Next() != nil && at.Next().Value.(*udpSession).
					used.After(s.used) {
					tb.Fatalf("session %v is at a wrong place", s.key)
				}
			}
			if n == 0 || int64(n) != f.share.Used() {
				tb.Fatalf("a listener with %d sessions has taken %d", n, f.share.Used())
			}
			listed, mapped, sum = listed+n, mapped+len(f.sessions), sum+n
		}
		if group.sessions.Used() != int64(sum) {
			tb.Fatalf("a group with %d sessions has taken %d", sum, group.sessions.Used())
		}
	}
	if open := int(t.count.open.Load()); listed != open || mapped != open || t.budget.Used() != int64(open) ||
		t.sockets > open {
		tb.Fatalf("%d sessions: %d in lists, %d in maps, %d taken, %d sockets", open, listed, mapped, t.budget.Used(),
			t.sockets)
	}
}

// After random operations, all data structures agree.
func TestUDPTableAtRandom(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	tab := newTableTest(60)
	backends := []netip.AddrPort{netip.MustParseAddrPort("10.1.0.1:53"), netip.MustParseAddrPort("10.1.0.2:53")}
	groups := []*Group{NewGroup(), NewGroup()}
	var fronts []*udpFront
	b := to(backends...)
	for i := range 6 {
		fronts = append(fronts, frontOf(groups[i%2], b))
	}
	for range 20_000 {
		f := fronts[rnd.IntN(len(fronts))]
		s := f.sessions[clientKey(rnd.IntN(40))]
		switch what := rnd.IntN(100); {
		case what < 70:
			tab.send(f, rnd.IntN(40))
		case what < 80 && s != nil:
			tab.answered(s, tab.now)
		case what < 85 && s != nil:
			tab.refused(s, syscall.ECONNREFUSED, rnd.IntN(2) == 0, false)
		case what < 95:
			tab.now = tab.now.Add(time.Duration(rnd.IntN(10)) * time.Second)
			tab.expire(tab.now)
		case what < 98:
			b.leave(append(backends, netip.AddrPort{})[rnd.IntN(3)])
		default:
			tab.close(f)
		}
		tab.check(t)
	}
	if did := tab.count.read(); did.Evicted == 0 || did.Expired == 0 || did.Moved == 0 {
		t.Errorf("%+v", did)
	}
	for _, f := range fronts {
		tab.close(f)
	}
	tab.check(t)
	if tab.sockets != 0 || len(tab.groups) != 0 {
		t.Errorf("%d sockets and %d groups are left", tab.sockets, len(tab.groups))
	}
}

// A session lasts while it is used in either direction, and then the idle time, plus at most an
// eighth.
func TestUDPIdleCF45(t *testing.T) {
	tab := newTableTest(1000)
	f := frontOf(NewGroup(), to(netip.MustParseAddrPort("10.1.0.1:53")))
	tab.send(f, 1)
	tab.send(f, 2)
	for range 10 {
		tab.now = tab.now.Add(tab.idle - time.Second)
		tab.send(f, 1)
		tab.answered(f.sessions[clientKey(2)], tab.now)
		tab.expire(tab.now)
		if !hasSession(f, 1) || !hasSession(f, 2) {
			t.Fatal("a session that is used has ended")
		}
	}
	tab.now = tab.now.Add(tab.idle)
	tab.expire(tab.now)
	if hasSession(f, 1) || hasSession(f, 2) {
		t.Error("a session lasts longer than the idle time")
	}
	if tab.granule() != tab.idle/8 {
		t.Errorf("it is looked for every %v", tab.granule())
	}
	tab.check(t)
}

// A flood at one listener takes free room and its own sessions, and none of another listener in its
// namespace.
func TestUDPFloodEvictsItsOwn(t *testing.T) {
	tab := newTableTest(1000)
	group, b := NewGroup(), to(netip.MustParseAddrPort("10.1.0.1:53"))
	polite, flooded := frontOf(group, b), frontOf(group, b)
	for client := range 50 {
		tab.send(polite, client)
	}
	for client := range 20_000 {
		tab.send(flooded, client)
	}
	for client := range 50 {
		if !hasSession(polite, client) {
			t.Fatalf("client %d of the listener beside has lost its session", client)
		}
	}
	if n := len(flooded.sessions); n < 700 || n > 800 || !hasSession(flooded, 20_000-1) ||
		hasSession(flooded, 20_000-n-1) {
		t.Errorf("the flooded listener has %d sessions, want the last four fifths", n)
	}
	tab.check(t)
}

// A tenant with many listeners of few sessions each takes no session of another tenant's Service,
// although that one has more than any of these listeners. A tenant that comes later gets room, and
// an equal part if both want everything (TN-54).
func TestUDPManyListenersOfOneTenantTN54(t *testing.T) {
	const most = 2000
	tab := newTableTest(most)
	b := to(netip.MustParseAddrPort("10.1.0.1:53"))
	dns, his := frontOf(NewGroup(), b), NewGroup()
	for client := range 500 {
		tab.send(dns, client)
	}
	var fronts []*udpFront
	for range 1000 {
		fronts = append(fronts, frontOf(his, b))
	}
	for client := range 10 {
		for _, f := range fronts {
			tab.send(f, client)
			if !hasSession(f, client) {
				t.Fatal("a new client gets no session")
			}
		}
	}
	if len(dns.sessions) != 500 {
		t.Errorf("%d of 500 sessions beside the tenant's are left", len(dns.sessions))
	}
	late := NewGroup()
	first := frontOf(late, b)
	tab.send(first, 1)
	if !hasSession(first, 1) {
		t.Error("a Service of another namespace gets no session")
	}
	for client := range 3000 {
		tab.send(frontOf(late, b), client)
		tab.send(fronts[client%len(fronts)], 100+client)
	}
	if l, h := late.sessions.Used(), his.sessions.Used(); l < h*9/10 {
		t.Errorf("the later one has %d sessions, the tenant %d", l, h)
	}
	tab.check(t)
}

// A backend that reports its port closed loses all its sessions, and the Balancer gets the report;
// if only a router reports it, one session moves.
func TestUDPRefused(t *testing.T) {
	for _, of := range []struct {
		byBackend, byNode, reported bool
		err                         error
		lost                        int
	}{
		{true, false, true, syscall.ECONNREFUSED, 10},
		{true, false, true, syscall.EHOSTUNREACH, 1},
		{false, true, true, syscall.EHOSTUNREACH, 1},
		{false, false, false, syscall.ECONNREFUSED, 1},
	} {
		t.Run(fmt.Sprintf("%v by backend %v by node %v", of.err, of.byBackend, of.byNode), func(t *testing.T) {
			tab := newTableTest(1000)
			b := to(netip.MustParseAddrPort("10.1.0.1:53"))
			one, other := frontOf(NewGroup(), b), frontOf(NewGroup(), b)
			for client := range 5 {
				tab.send(one, client)
				tab.send(other, client)
			}
			tab.refused(one.sessions[clientKey(0)], of.err, of.byBackend, of.byNode)
			lost := 0
			tab.each(func(s *udpSession) {
				if s.lost {
					lost++
				}
			})
			if reported := len(b.dialled) == 1 && errors.Is(b.dialled[0], of.err); lost != of.lost ||
				reported != of.reported || len(b.dialled) > 1 {
				t.Errorf("%d sessions are lost, want %d; the Balancer's reports are %v", lost, of.lost, b.dialled)
			}
		})
	}
}

// Sessions take a part of the process's descriptors and the node's ports, and at least one session
// always fits.
func TestUDPLimits(t *testing.T) {
	for _, of := range []struct{ files, ports, want int }{
		{1 << 20, 28232, 7058}, {20_000, 28232, 2500}, {1024, 28232, 128}, {1 << 20, 100, 25}, {4, 2, 1},
	} {
		if got := newUDPBudget(of.files, of.ports).Max(); got != int64(of.want) {
			t.Errorf("%d descriptors and %d ports: %d sessions, want %d", of.files, of.ports, got, of.want)
		}
	}
}
