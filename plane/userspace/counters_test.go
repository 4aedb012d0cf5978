package userspace

import (
	"fmt"
	"net/netip"
	"testing"

	"kube-proxy/lb"
	"kube-proxy/plane/internal/relay"
	"kube-proxy/test/planetest"
)

// ask sends clients to all listeners of the machine.
func (m *machine) ask(n int) {
	for _, l := range m.socks {
		for i := range n {
			c := relay.Client{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{172, 18, 1, byte(i)}), 1)}
			if to := l.b.Pick(c, nil); to.IsValid() {
				l.b.Pick(c, []netip.AddrPort{to}) // which does not answer
				c.Again = true
				l.b.Pick(c, nil) // as relay does for a session of UDP
			}
		}
	}
}

// A connection counts once for its service port, however many endpoints are tried; a refused one
// does not count. Counts are still reported after their Service is deleted or has no endpoints.
func TestCounters(t *testing.T) {
	for _, own := range []bool{false, true} {
		m := newMachine()
		m.own = own
		tab := world.Table(2, 3)
		p := begin(t, m, Config{CountServices: true}, tab)
		if !p.Counts() {
			t.Fatal("it does not count")
		}
		planetest.WantCounted(t, p, "at first", map[string]uint64{})
		_, first := world.ClusterIP(0, 0, 3)
		one, two := first[0].Service, ""
		for f := range tab.All() {
			if f.Service != one {
				two = f.Service
			}
		}
		m.ask(5)
		planetest.WantCounted(t, p, "both", map[string]uint64{one: 5, two: 5})

		apply1 := func(changes []lb.Change, _ []lb.Conflict) { apply(t, p, changes, nil) }
		_, other := world.ClusterIP(0, 1, 9)
		apply1(tab.Replace(lb.Owner{Name: lb.OwnerOf(one)}, other))
		m.ask(1)
		planetest.WantCounted(t, p, "with other endpoints", map[string]uint64{one: 6, two: 6})

		rejects := *other[0]
		rejects.Routes = []lb.Route{{From: lb.Anywhere, Do: lb.Reject}}
		m.ask(1)
		apply1(tab.Replace(lb.Owner{Name: lb.OwnerOf(one)}, []*lb.Frontend{&rejects}))
		m.ask(1)
		planetest.WantCounted(t, p, "one has no endpoints", map[string]uint64{one: 7, two: 8})
		planetest.WantCounted(t, p, "after that report", map[string]uint64{two: 8})
		apply1(tab.Replace(lb.Owner{Name: lb.OwnerOf(one)}, other))
		m.ask(2)
		planetest.WantCounted(t, p, "it has some again", map[string]uint64{one: 2, two: 10})
		m.ask(1)
		apply1(tab.Replace(lb.Owner{Name: lb.OwnerOf(two)}, nil))
		planetest.WantCounted(t, p, "the other goes", map[string]uint64{one: 3, two: 11})
		planetest.WantCounted(t, p, "after that report", map[string]uint64{one: 3})
	}
}

// The number of unread counters is bounded, and their sum stays right.
func TestUnreadCounters(t *testing.T) {
	c := counters{of: map[*counter]struct{}{}}
	kept := c.open("shop/kept")
	kept.led.Add(1)
	const n = maxGone + 1000
	for i := range n {
		one := c.open(fmt.Sprintf("shop/%d", i))
		one.led.Add(2)
		if i == n-1 {
			c.read()
			one.led.Add(3)
		}
		c.close(one)
	}
	if len(c.of) != 1 || len(c.gone) != 1 {
		t.Errorf("%d counters, %d that are gone", len(c.of), len(c.gone))
	}
	var sum uint64
	for _, one := range c.read() {
		sum += one.Connections
	}
	if want := uint64(1 + 1000*2 - 2 + 5); sum != want {
		t.Errorf("%d connections, want %d", sum, want)
	}
}
