package balance

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"kube-proxy/lb"
	"kube-proxy/plane/internal/relay"
	"kube-proxy/test/clocktest"
)

func backend(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 8080)
}

// setOf is a set of backends by their numbers.
func setOf(service string, numbers ...int) *lb.BackendSet {
	var all []lb.Backend
	for _, n := range numbers {
		all = append(all, lb.Backend{Addr: backend(n)})
	}
	return &lb.BackendSet{ID: lb.SetID{Service: service, Proto: lb.TCP, Scope: lb.Cluster},
		Backends: lb.BackendsOf(all...)}
}

func client(i int) relay.Client {
	return relay.Client{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{172, byte(i >> 16), byte(i >> 8), byte(i)}),
		40000)}
}

// chooser is a Set or a Frontend.
type chooser interface {
	Pick(c relay.Client, tried []netip.AddrPort) netip.AddrPort
}

func pick(t testing.TB, b chooser, c int, tried ...netip.AddrPort) netip.AddrPort {
	t.Helper()
	a := b.Pick(client(c), tried)
	if !a.IsValid() {
		t.Fatalf("client %d, tried %v: refused", c, tried)
	}
	return a
}

func count(t testing.TB, b chooser, n int) map[netip.AddrPort]int {
	t.Helper()
	got := map[netip.AddrPort]int{}
	for i := range n {
		got[pick(t, b, i)]++
	}
	return got
}

var refused = &os.SyscallError{Syscall: "connect", Err: syscall.ECONNREFUSED}

// Each backend gets its turn, exactly (DP-40).
func TestTurnsDP40(t *testing.T) {
	s := New(Config{}).Set(setOf("ns/a", 1, 2, 3), 0)
	for a, n := range count(t, s, 300) {
		if n != 100 {
			t.Errorf("%s got %d of 300", a, n)
		}
	}
}

// The first clients of many Services do not all meet the first endpoint.
func TestTurnsBeginAnywhere(t *testing.T) {
	b := New(Config{})
	got := map[netip.AddrPort]int{}
	for i := range 300 {
		got[pick(t, b.Set(setOf(fmt.Sprint("ns/", i), 1, 2, 3), 0), 0)]++
	}
	for _, n := range []int{1, 2, 3} {
		if got[backend(n)] < 50 {
			t.Errorf("of 300 Services %d begin with backend %d", got[backend(n)], n)
		}
	}
}

// A set that changes after each client is fair to those that stay: none is passed over, none
// favoured.
func TestTurnsWhileOthersComeAndGo(t *testing.T) {
	b := New(Config{})
	got := map[netip.AddrPort]int{}
	const rounds = 6000
	for i := range rounds {
		// 1, 2 and 3 stay; one of 10 to 19 is there beside them.
		got[pick(t, b.Set(setOf("ns/a", 1, 2, 3, 10+i%10), 0), i)]++
	}
	for _, n := range []int{1, 2, 3} {
		if n := got[backend(n)]; n < rounds/4-300 || n > rounds/4+300 {
			t.Errorf("backend %d of those that stay got %d of %d", n, n, rounds)
		}
	}
}

// A client stays with its backend for as long as the affinity lasts after its last connection
// (SV-18).
func TestAffinitySV18(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(Config{})
		s := b.Set(setOf("ns/a", 1, 2, 3), 10*time.Second)
		for c := range 20 {
			first := pick(t, s, c)
			for range 5 {
				time.Sleep(9 * time.Second)
				if a := pick(t, s, c); a != first {
					t.Fatalf("client %d met %s, then %s", c, first, a)
				}
			}
		}
		met := map[netip.AddrPort]bool{}
		for range 30 {
			time.Sleep(10 * time.Second)
			met[pick(t, s, 0)] = true
		}
		if len(met) != 3 {
			t.Errorf("after its affinity is over each time, a client met %d backends", len(met))
		}
	})
}

// Affinity outlasts changes of other backends, and ends with its own; it does not come back with
// it.
func TestAffinityAndChanges(t *testing.T) {
	b := New(Config{})
	s := b.Set(setOf("ns/a", 1, 2, 3), time.Hour)
	first := map[int]netip.AddrPort{}
	for c := range 60 {
		first[c] = pick(t, s, c)
	}
	s = b.Set(setOf("ns/a", 2, 3, 4, 5), time.Hour)
	moved := map[int]netip.AddrPort{}
	for c, was := range first {
		a := pick(t, s, c)
		switch {
		case was != backend(1) && a != was:
			t.Errorf("client %d met %s, which is still there, and then %s", c, was, a)
		case a == backend(1):
			t.Errorf("client %d stays with a backend that left", c)
		case was == backend(1):
			moved[c] = a
		}
	}
	s = b.Set(setOf("ns/a", 1, 2, 3, 4, 5), time.Hour)
	for c, was := range moved {
		if a := pick(t, s, c); a != was {
			t.Errorf("client %d met %s, and then %s", c, was, a)
		}
	}
	b.Set(setOf("ns/a", 1, 2, 3, 4, 5), 0)
	if b.Stats().Places != 0 {
		t.Errorf("without affinity there are %d places", b.Stats().Places)
	}
}

// A flood of one Service's clients takes no place from those of another: they stay with their
// backends, and new ones too.
func TestFloodOfClients(t *testing.T) {
	b := New(Config{})
	victim := b.Set(setOf("ns/victim", 1, 2, 3), time.Hour)
	first := map[int]netip.AddrPort{}
	for c := range 100 {
		first[c] = pick(t, victim, c)
	}
	flooded := b.Set(setOf("evil/a", 1, 2), time.Hour)
	for c := range 100_000 {
		pick(t, flooded, c)
	}
	if n := len(flooded.places); n > setPlaces {
		t.Errorf("the flooded set has %d places", n)
	}
	for c := range 200 {
		was, a := first[c], pick(t, victim, c)
		if c < 100 && a != was || pick(t, victim, c) != a {
			t.Fatalf("client %d of the other Service does not stay with %s", c, was)
		}
	}
	if st := b.Stats(); st.Places > 100+100+setPlaces {
		t.Errorf("%+v", st)
	}
}

// When all places are taken, clients without a place still stay with their backend, and those with
// a place keep it.
func TestNoPlaceLeft(t *testing.T) {
	b := New(Config{Places: 50})
	s := b.Set(setOf("ns/a", 1, 2, 3), time.Hour)
	first := map[int]netip.AddrPort{}
	for c := range 1000 {
		first[c] = pick(t, s, c)
	}
	for c, was := range first {
		if a := pick(t, s, c); a != was {
			t.Fatalf("client %d met %s, then %s", c, was, a)
		}
	}
	if st := b.Stats(); st.Places != 50 {
		t.Errorf("%+v", st)
	}
	for a, n := range count(t, s, 1000) {
		if n < 200 {
			t.Errorf("%s got %d of 1000", a, n)
		}
	}
}

// Expired places are released, also those of Services without further clients, when other Services
// need places.
func TestPlacesAreGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(Config{Places: 2000})
		for i := range 100 {
			s := b.Set(setOf(fmt.Sprint("ns/", i), 1, 2), time.Minute)
			for c := range 20 {
				pick(t, s, c)
			}
		}
		time.Sleep(time.Hour)
		s := b.Set(setOf("ns/other", 1, 2), time.Minute)
		for c := range 400 {
			pick(t, s, c)
		}
		if st := b.Stats(); st.Places > 2000 || len(s.places) < 300 {
			t.Errorf("400 clients of a Service have %d places: %+v", len(s.places), st)
		}
	})
}

// Another attempt goes to another backend, until all were tried.
func TestRetry(t *testing.T) {
	for _, affinity := range []time.Duration{0, time.Hour} {
		b := New(Config{})
		s := b.Set(setOf("ns/a", 1, 2, 3), affinity)
		var tried []netip.AddrPort
		for range 3 {
			a := pick(t, s, 0, tried...)
			if slices.Contains(tried, a) {
				t.Fatalf("%s again, after %v", a, tried)
			}
			tried = append(tried, a)
		}
		if a := s.Pick(client(0), tried); a.IsValid() {
			t.Errorf("after all were tried: %s", a)
		}
		// The client stays with its most recent backend.
		if a := pick(t, s, 0); affinity > 0 && a != tried[2] {
			t.Errorf("connected to %s, and then led to %s", tried[2], a)
		}
		if st := b.Stats(); st.Places > 1 {
			t.Errorf("%+v", st)
		}
	}
}

// A backend that fails is tried last, for all Services that have it, for twice as long each time,
// up to a minute and a quarter.
func TestBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(Config{})
		one, two := b.Set(setOf("ns/a", 1, 2), 0), b.Set(setOf("ns/b", 1, 2, 3), 0)
		for i, most := range []time.Duration{1250 * time.Millisecond, 2500 * time.Millisecond, 5 * time.Second,
			10 * time.Second,
			20 * time.Second, 40 * time.Second, 75 * time.Second, 75 * time.Second} {
			one.Dialled(client(0), backend(1), refused)
			one.Dialled(client(1), backend(1), refused) // was under way at the same time
			begin := time.Now()
			for range 50 {
				if a := pick(t, two, 0); a == backend(1) {
					t.Fatal("a backend that failed has its turn")
				}
			}
			if a := pick(t, two, 0, backend(2), backend(3)); a != backend(1) {
				t.Fatalf("the one that is left is %s", a)
			}
			for count(t, two, 3)[backend(1)] == 0 {
				time.Sleep(50 * time.Millisecond)
			}
			if lasted := time.Since(begin); lasted < most/2 || lasted > most+50*time.Millisecond {
				t.Errorf("failure %d: tried last for %v, want between %v and %v", i+1, lasted, most/2, most)
			}
		}
		if n := b.Stats().Failing; n != 1 {
			t.Errorf("%d backends fail", n)
		}
		two.Dialled(client(0), backend(1), nil)
		if n := count(t, one, 100)[backend(1)]; n != 50 {
			t.Errorf("after it succeeded it got %d of 100", n)
		}
		if n := b.Stats().Failing; n != 0 {
			t.Errorf("%d backends fail", n)
		}
	})
}

// A client that was sent to a backend and gave up changes nothing for others: the backend that has
// recovered keeps its turns (TN-41).
func TestClientsThatGiveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{}).Set(setOf("ns/a", 1, 2), 0)
		s.Dialled(client(0), backend(1), refused)
		time.Sleep(2 * time.Second)
		for range 10 {
			pick(t, s, 0)
		}
		if n := count(t, s, 10)[backend(1)]; n != 5 {
			t.Errorf("after clients that gave up it got %d of 10", n)
		}
	})
}

// A sticky client is led past its backend while that fails, and stays with the one that it met
// instead.
func TestAffinityToOneThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{}).Set(setOf("ns/a", 1, 2), time.Hour)
		was := pick(t, s, 0)
		s.Dialled(client(0), was, refused)
		now := pick(t, s, 0)
		if now == was {
			t.Fatal("led to the one that failed")
		}
		time.Sleep(time.Minute)
		if a := pick(t, s, 0); a != now {
			t.Errorf("led back to %s", a)
		}
	})
}

// A lack of resources on this node, or a failure in another protocol, does not demote a backend.
// The state of a backend ends when no Service has it.
func TestWhoIsToBlame(t *testing.T) {
	for _, c := range []struct {
		err  error
		does bool
	}{
		{refused, true}, {syscall.ETIMEDOUT, true}, {syscall.EHOSTUNREACH, true}, {syscall.ECONNRESET, true},
		{context.DeadlineExceeded, true},
		{fmt.Errorf("dial: %w", os.ErrDeadlineExceeded), true},
		{syscall.EADDRNOTAVAIL, false}, {syscall.EMFILE, false}, {syscall.ENFILE, false}, {syscall.ENOBUFS, false},
		{syscall.ENOMEM, false},
		{syscall.EPERM, false}, {context.Canceled, false}, {syscall.EAGAIN, false},
	} {
		b := New(Config{})
		tenant, victim := b.Set(setOf("evil/a", 1), 0), b.Set(setOf("ns/b", 1, 2), 0)
		tenant.Dialled(client(0), backend(1), c.err)
		if got := count(t, victim, 10)[backend(1)] == 0; got != c.does {
			t.Errorf("%v puts the backend behind: %t", c.err, got)
		}
	}
	b := New(Config{})
	sctp := setOf("evil/a", 1)
	sctp.ID.Proto = lb.SCTP
	other, victim := b.Set(sctp, 0), b.Set(setOf("ns/b", 1, 2), 0)
	other.Dialled(client(0), backend(1), refused)
	if n := count(t, victim, 10)[backend(1)]; n != 5 {
		t.Errorf("after a refusal of SCTP, it got %d of 10 connections of TCP", n)
	}
	victim.Dialled(client(0), backend(1), refused)
	b.Set(setOf("ns/b", 2), 0)
	victim = b.Set(setOf("ns/b", 1, 2), 0)
	if n := count(t, victim, 10)[backend(1)]; n != 5 {
		t.Errorf("after it left and came again it got %d of 10", n)
	}
	b.Remove(victim.id)
	b.Remove(other.id)
	if len(b.health) != 0 || len(b.sets) != 0 || b.Stats().Failing != 0 {
		t.Errorf("of what is gone there is left: %v, %+v", b.health, b.Stats())
	}
}

// A backend at one of the proxy's own listeners would have it connect to itself.
func TestLoops(t *testing.T) {
	b := New(Config{Loops: func(a netip.AddrPort) bool { return a == backend(1) }})
	if n := count(t, b.Set(setOf("ns/a", 1, 2), 0), 10)[backend(1)]; n > 0 {
		t.Errorf("%d clients were led to the proxy itself", n)
	}
	if a := b.Set(setOf("ns/b", 1), time.Hour).Pick(client(0), nil); a.IsValid() || b.Stats().Places != 0 {
		t.Errorf("where there is no other: %s, %d places", a, b.Stats().Places)
	}
}

// Sets change while many ask.
func TestManyAsk(t *testing.T) {
	b := New(Config{Places: 100})
	sets := []*Set{b.Set(setOf("ns/a", 1, 2), 0), b.Set(setOf("ns/b", 1, 2), time.Hour),
		b.Set(setOf("ns/c", 1, 2), time.Nanosecond)}
	var all sync.WaitGroup
	for g := range 4 {
		all.Go(func() {
			for i := range 3000 {
				s := sets[i%len(sets)]
				a := s.Pick(client(i), nil)
				if a.IsValid() && i%7 == g {
					s.Dialled(client(i), a, refused)
				} else if a.IsValid() {
					s.Dialled(client(i), a, nil)
				}
			}
		})
	}
	for i := range 500 {
		b.Set(setOf("ns/a", 1, 2, i), 0)
		b.Set(setOf("ns/b", 2, i), time.Duration(i%2)*time.Hour)
		b.Stats()
	}
	all.Wait()
	for _, s := range sets {
		b.Remove(s.id)
	}
	if st := b.Stats(); st.Places != 0 || st.Failing != 0 {
		t.Errorf("when all is gone: %+v", st)
	}
}

// A step of the wall clock, in either direction, changes neither the turns nor the clients of a
// backend.
func TestSteppedClock(t *testing.T) {
	for _, by := range []time.Duration{-time.Hour, time.Hour} {
		b := New(Config{})
		s := b.Set(setOf("ns/a", 1, 2, 3), time.Minute)
		now := time.Now()
		stepped := clocktest.Step(t, now, by)
		at := func(now time.Time) netip.AddrPort {
			m, _ := s.pick(client(1).Addr.Addr(), nil, now)
			return m.addr
		}
		first := at(now)
		for range 3 {
			if a := at(stepped.Add(time.Second)); a != first {
				t.Errorf("after a step by %v the client of %s met %s", by, first, a)
			}
		}
		h := &health{failing: new(atomic.Int64)}
		h.failed(now)
		if h.good(stepped.Add(leastBackoff / 2)) {
			t.Errorf("a step by %v ended the pause of a backend that failed", by)
		}
		if !h.good(stepped.Add(2 * leastBackoff)) {
			t.Errorf("a step by %v prolonged the pause of a backend that failed", by)
		}
	}
}

// A query of a set shows what its next clients get, and changes nothing.
func TestState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(Config{})
		s := b.Set(setOf("ns/a", 3, 1, 2), time.Hour)
		if got := s.Backends(); !slices.Equal(got, []netip.AddrPort{backend(1), backend(2), backend(3)}) {
			t.Errorf("the backends are %v", got)
		}
		addr := client(0).Addr.Addr()
		if st := s.State(addr); st.Affinity != time.Hour || st.Stays.IsValid() || len(st.Turns) != 3 ||
			st.Turns[0].Addr != backend(1) || st.Turns[2].Addr != backend(3) || st.Turns[0].Share != 1.0/3 ||
			st.Turns[0].Failing != 0 {
			t.Errorf("a new client: %+v", st)
		}
		kept := pick(t, s, 0)
		if st := s.State(addr); st.Stays != kept {
			t.Errorf("the client stays with %s, not %s", st.Stays, kept)
		}
		s.Dialled(client(1), backend(2), refused)
		for range 2 {
			for _, turn := range s.State(addr).Turns {
				failing := turn.Addr == backend(2)
				if (turn.Failing > 0) != failing || turn.Failing > 75*time.Second || turn.Share != 1.0/3 {
					t.Errorf("after a failure of %s: %+v", backend(2), turn)
				}
			}
		}
		other := b.Set(setOf("ns/b", 1), 0)
		if st := other.State(addr); st.Affinity != 0 || st.Stays.IsValid() || st.Turns[0].Share != 1 {
			t.Errorf("without affinity: %+v", st)
		}
		if st := b.Set(setOf("ns/c"), 0).State(addr); len(st.Turns) != 0 {
			t.Errorf("without backends: %+v", st)
		}
	})
}
