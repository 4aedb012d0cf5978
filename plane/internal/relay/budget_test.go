package relay

import (
	"fmt"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// Greedy listeners each get the same share, and the last still gets some.
func TestBudgetIsShared(t *testing.T) {
	for _, tc := range []struct {
		listeners int
		each      int64 // at least
	}{{1, 790}, {2, 430}, {10, 94}, {50, 18}} {
		b := NewBudget(1000)
		shares := make([]Share, tc.listeners)
		for range 1000 {
			for i := range shares {
				b.Take(&shares[i], 2)
			}
		}
		for i := range shares {
			if got := shares[i].used.Load(); got < tc.each || got > tc.each+20 {
				t.Errorf("%d listeners: number %d has %d, want %d or some more", tc.listeners, i, got, tc.each)
			}
		}
		var late Share
		if !b.Take(&late, 2) {
			t.Errorf("%d listeners: nothing is left for another", tc.listeners)
		}
	}
}

// A Service whose clients open as many connections as they can leaves room for the clients of
// others. Its own further clients wait until some of its connections end.
func TestTCPShare(t *testing.T) {
	eachEngine(t, func(t *testing.T, cfg Config, start func(Config) *Relay) {
		cfg.Descriptors = NewBudget(100)
		r := start(cfg)
		backend := serve(t, echo)
		greedy, other := listen(t, r, to(backend)), listen(t, r, to(backend))
		var conns []*net.TCPConn
		for range 60 {
			conns = append(conns, dial(t, greedy.Addr()))
		}
		eventually(t, "the greedy one waits", func() bool { return r.Stats().TCP.OutOfDescriptors > 0 })
		// A loop holds the descriptors of clients that it hands to another loop, before that one
		// counts them.
		eventually(t, "some four fifths of 50 are open", func() bool { return r.Stats().TCP.Open >= 30 })
		if n := r.Stats().TCP.Open; n > 41 {
			t.Errorf("%d are open, want some four fifths of 50", n)
		}
		roundTrip(t, dial(t, other.Addr()))
		for _, c := range conns[:30] {
			c.Close()
		}
		for _, c := range conns[30:] {
			roundTrip(t, c)
		}
	})
}

// However much the members of a group take, each by its own share, other groups and a late member
// still get some.
func TestBudgetOfGroups(t *testing.T) {
	b := NewBudget(10_000)
	group := &NewGroup().descriptors
	members := make([]Share, 500)
	for i := range members {
		members[i].group = group
	}
	for range 10_000 {
		for i := range members {
			b.Take(&members[i], 2)
		}
	}
	if n := group.Used(); n < 8_800 || n > 8_900 {
		t.Errorf("a group of 500 has %d of 10,000, want eight ninths", n)
	}
	other := Share{group: &NewGroup().descriptors}
	n := int64(0)
	for ; b.Take(&other, 2); n += 2 {
	}
	if n < 800 {
		t.Errorf("another found %d", n)
	}
	b = NewBudget(10_000)
	group = &NewGroup().descriptors
	greedy, late := Share{group: group}, Share{group: group}
	for b.Take(&greedy, 2) {
	}
	n = 0
	for ; b.Take(&late, 2); n += 2 {
	}
	if n < 800 || group.Used() != greedy.Used()+n || b.Used() != group.Used() {
		t.Errorf("beside a greedy one of its group another found %d; the group has %d, all have %d", n, group.Used(),
			b.Used())
	}
	for range n / 2 {
		b.Give(&late, 2)
	}
	if late.Used() != 0 || group.Used() != greedy.Used() {
		t.Errorf("given back, the other has %d and the group %d", late.Used(), group.Used())
	}
}

// One client that holds as many connections as it can leaves source ports towards the endpoint to
// others, whichever listeners it uses (TN-44). Nothing is kept about it when its connections end.
func TestTCPShareOfSourcePorts(t *testing.T) {
	const path = "/proc/sys/net/ipv4/ip_local_port_range"
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.WriteFile(path, before, 0) })
	first := 40000
	eachEngine(t, func(t *testing.T, cfg Config, start func(Config) *Relay) {
		// Each engine has its own range: connections of the previous one keep their ports for a
		// minute.
		if err := os.WriteFile(path, fmt.Appendf(nil, "%d %d", first, first+199), 0); err != nil {
			t.Fatal(err)
		}
		first += 200
		r := start(cfg)
		backend := serve(t, echo)
		one, two := listen(t, r, to(backend)), listen(t, r, to(backend))
		var held []net.Conn
		served := 0
		for range 150 {
			for _, l := range []*Listener{one, two} {
				c, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(l.Addr()))
				if err != nil {
					continue
				}
				defer c.Close()
				held = append(held, c)
				c.SetDeadline(time.Now().Add(timeout))
				c.Write([]byte("x"))
				if _, err := io.ReadFull(c, make([]byte, 1)); err == nil {
					served++
				}
			}
		}
		if served < 100 || served > 161 {
			t.Errorf("one client holds %d connections, want some four fifths of 200", served)
		}
		from := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 9)}
		for range 10 {
			c, err := net.DialTCP("tcp", from, net.TCPAddrFromAddrPort(one.Addr()))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			c.SetDeadline(time.Now().Add(timeout))
			roundTrip(t, c)
			held = append(held, c)
		}
		for _, c := range held {
			c.Close()
		}
		eventually(t, "no client is remembered", func() bool {
			r.ports.mu.Lock()
			defer r.ports.mu.Unlock()
			return len(r.ports.to) == 0
		})
	})
}
