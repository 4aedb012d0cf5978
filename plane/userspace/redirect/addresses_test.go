package redirect

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"kube-proxy/lb"
	"kube-proxy/plane"
)

// machine is a Windows machine's IP helper and registry, as strict as in Microsoft's documents: an
// address is at an interface once, and a missing one cannot be removed.
type machine struct {
	interfaceNow uint64
	has          map[netip.Addr]unicast
	volatile     map[netip.Addr]uint64
	// fail may return an error for a call, by its name.
	fail  func(call string) error
	calls []string
}

func newMachine(has ...unicast) *machine {
	m := &machine{interfaceNow: 1, has: map[netip.Addr]unicast{}, volatile: map[netip.Addr]uint64{},
		fail: func(string) error {
			return nil
		}}
	for _, u := range has {
		m.has[u.addr] = u
	}
	return m
}

func (m *machine) call(name string, what any) error {
	m.calls = append(m.calls, fmt.Sprint(name, " ", what))
	return m.fail(name)
}

func (m *machine) target() (uint64, error) { return m.interfaceNow, m.call("target", "") }
func (m *machine) close() error            { return nil }

func (m *machine) list() (all []unicast, err error) {
	if err := m.call("list", ""); err != nil {
		return nil, err
	}
	for _, u := range m.has {
		all = append(all, u)
	}
	slices.SortFunc(all, func(a, b unicast) int { return a.addr.Compare(b.addr) })
	return all, nil
}

func (m *machine) create(u unicast) error {
	if err := m.call("create", u.addr); err != nil {
		return err
	}
	if _, there := m.has[u.addr]; there {
		return errAddressExists
	}
	if u.luid != m.interfaceNow {
		return errNoInterface
	}
	m.has[u.addr] = u
	return nil
}

func (m *machine) delete(u unicast) error {
	if err := m.call("delete", u.addr); err != nil {
		return err
	}
	if had, there := m.has[u.addr]; !there || had.luid != u.luid {
		return errNoAddress
	}
	delete(m.has, u.addr)
	return nil
}

func (m *machine) read() (map[netip.Addr]uint64, error) {
	all := map[netip.Addr]uint64{}
	for a, luid := range m.volatile {
		all[a] = luid
	}
	return all, m.call("read", "")
}

func (m *machine) write(a netip.Addr, luid uint64) error {
	if err := m.call("write", a); err != nil {
		return err
	}
	m.volatile[a] = luid
	return nil
}

func (m *machine) strike(a netip.Addr) error {
	if err := m.call("strike", a); err != nil {
		return err
	}
	delete(m.volatile, a)
	return nil
}

// process starts a proxy on the machine.
func (m *machine) process() *Addresses {
	return newAddresses(lb.IPv4, m, m)
}

// ours returns the addresses on the machine that a proxy added.
func (m *machine) ours() (all []string) {
	for a, u := range m.has {
		if u.skip {
			all = append(all, a.String())
		}
	}
	slices.Sort(all)
	return all
}

func leads(addrs ...string) (all []Entry) {
	for _, a := range addrs {
		all = append(all, Entry{Key: lb.Key{Addr: netip.MustParseAddr(a), Proto: lb.TCP, Port: 80},
			Routes: []Route{{From: lb.Anywhere, Port: 80}}})
	}
	return all
}

func has(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// A process adopts the addresses of the previous one, and writes only the differences.
func TestWindowsAddressesAdopted(t *testing.T) {
	m := newMachine()
	if _, err := m.process().Reset(t.Context(), lb.Node{}, leads("10.96.0.2", "10.96.0.3")); err != nil {
		t.Fatal(err)
	}
	m.calls = nil
	c := m.process()
	if _, err := c.Reset(t.Context(), lb.Node{}, leads("10.96.0.3", "10.96.0.4")); err != nil {
		t.Fatal(err)
	}
	has(t, "writes", slices.DeleteFunc(m.calls, func(s string) bool {
		return s == "target " || s == "list " || s == "read "
	}), "write 10.96.0.4", "create 10.96.0.4", "delete 10.96.0.2", "strike 10.96.0.2")
	if n, err := c.Audit(t.Context(), true); n != 0 || err != nil {
		t.Errorf("an audit repaired %d, %v", n, err)
	}
}

// A clean-up removes exactly the addresses that previous processes added, and counts them.
func TestWindowsAddressesRemoved(t *testing.T) {
	admins := unicast{netip.MustParseAddr("10.96.0.9"), 7, 24, false}
	m := newMachine(admins)
	if _, err := m.process().Reset(t.Context(), lb.Node{}, leads("10.96.0.1", "10.96.0.2", "10.96.0.3",
		"10.96.0.9")); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	m.fail = func(call string) error {
		if call == "delete" && slices.Contains(m.calls, "delete 10.96.0.2") &&
			m.calls[len(m.calls)-1] == "delete 10.96.0.2" {
			return broken
		}
		return nil
	}
	n := m.process()
	if removed, err := n.removeAll(); removed != 2 || !errors.Is(err, broken) {
		t.Errorf("%d, %v", removed, err)
	}
	m.fail = func(string) error { return nil }
	n = m.process()
	if removed, err := n.removeAll(); removed != 1 || err != nil {
		t.Errorf("%d, %v", removed, err)
	}
	if len(m.has) != 1 || m.has[admins.addr] != admins || len(m.volatile) != 0 {
		t.Errorf("the machine has %v, written down is %v", m.has, m.volatile)
	}
}

// One change makes two calls, whatever the number of addresses.
func TestWindowsAddressesOfOneChange(t *testing.T) {
	for _, n := range []int{100, 10_000} {
		m := newMachine()
		c := m.process()
		var want []Entry
		for i := range n {
			want = append(want, leads(netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}).String())...)
		}
		if _, err := c.Reset(t.Context(), lb.Node{}, want); err != nil {
			t.Fatal(err)
		}
		m.calls = nil
		if err := c.Apply(t.Context(), leads("10.97.0.1"), nil); err != nil {
			t.Fatal(err)
		}
		has(t, fmt.Sprintf("with %d addresses", n), m.calls, "write 10.97.0.1", "create 10.97.0.1")
	}
}

// An address in our form without an entry in the book is not ours, nor is one that differs from its
// entry.
func TestWindowsAddressesOfOthers(t *testing.T) {
	like := unicast{netip.MustParseAddr("10.96.0.1"), 1, 32, true}
	wider := unicast{netip.MustParseAddr("10.96.0.2"), 1, 24, true}
	source := unicast{netip.MustParseAddr("10.96.0.3"), 1, 32, false}
	elsewhere := unicast{netip.MustParseAddr("10.96.0.4"), 5, 32, true}
	m := newMachine(like, wider, source, elsewhere)
	for _, u := range []unicast{wider, source, elsewhere} {
		m.volatile[u.addr] = 1
	}
	c := m.process()
	if _, err := c.Reset(t.Context(), lb.Node{}, leads("10.96.0.1")); err != nil {
		t.Fatal(err)
	}
	if err := c.Apply(t.Context(), nil, []lb.Key{leads("10.96.0.1")[0].Key}); err != nil {
		t.Fatal(err)
	}
	if len(m.has) != 4 || len(m.volatile) != 0 {
		t.Errorf("the machine has %v, and written down is %v", m.has, m.volatile)
	}
}

// A process may end between any two calls, and any call may fail: the next process ends with
// exactly its addresses, and removes none of other programs.
func TestWindowsAddressesAfterAnyFailure(t *testing.T) {
	broken := errors.New("broken")
	admins := unicast{netip.MustParseAddr("10.96.0.2"), 7, 24, false}
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		m := newMachine(admins)
		some := func() (all []string) {
			for i := range 5 {
				if rnd.IntN(2) == 0 {
					all = append(all, fmt.Sprintf("10.96.0.%d", i))
				}
			}
			return all
		}
		for range 6 {
			c := m.process()
			left := rnd.IntN(12)
			m.fail = func(string) error {
				left--
				if left < 0 {
					return broken
				}
				return nil
			}
			_, _ = c.Reset(t.Context(), lb.Node{}, leads(some()...))
			for range 3 {
				var remove []lb.Key
				for _, l := range leads(some()...) {
					remove = append(remove, l.Key)
				}
				_ = c.Apply(t.Context(), leads(some()...), remove)
			}
		}
		m.fail = func(string) error { return nil }
		want := some()
		if _, err := m.process().Reset(t.Context(), lb.Node{}, leads(want...)); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		want = slices.DeleteFunc(want, func(a string) bool { return a == admins.addr.String() })
		if got := m.ours(); !slices.Equal(got, want) || m.has[admins.addr] != admins || len(m.volatile) != len(want) {
			t.Fatalf("seed %d: the machine has %v and %d written down, want %v; of the administrator %v", seed, got,
				len(m.volatile), want, m.has[admins.addr])
		}
	}
}

// An address that the machine refuses only affects its own entry.
func TestWindowsAddressesLater(t *testing.T) {
	m := newMachine()
	c := m.process()
	creates := 0
	m.fail = func(call string) error {
		if call == "create" {
			creates++
			if creates == 1 {
				return errors.New("refused")
			}
		}
		return nil
	}
	all := leads("10.96.0.1", "10.96.0.2")
	if later, err := c.Reset(t.Context(), lb.Node{}, all); err != nil || len(later) != 1 || later[0] != all[0].Key {
		t.Errorf("a Reset with an address that is refused: %v, %v", later, err)
	}
	has(t, "the others", m.ours(), "10.96.0.2")
}

// The probe never changes anything, whatever addresses exist; a missing interface requires a Reset.
func TestWindowsAddressesProbe(t *testing.T) {
	m := newMachine(unicast{netip.MustParseAddr("192.0.2.0"), 1, 24, false}, unicast{netip.MustParseAddr("192.0.2.1"),
		1, 24, false})
	c := m.process()
	if _, err := c.Reset(t.Context(), lb.Node{}, nil); err != nil {
		t.Fatal(err)
	}
	if err := c.Probe(t.Context()); err != nil || len(m.has) != 2 {
		t.Errorf("%v, %v", m.has, err)
	}
	m.fail = func(call string) error {
		if call == "delete" {
			return errNoInterface
		}
		return nil
	}
	if err := c.Probe(t.Context()); !errors.Is(err, plane.ErrStateLost) {
		t.Errorf("with the interface gone: %v", err)
	}
}

// Changes of other programs are noticed: an address of ours that was removed, and one of theirs
// that was added and that we then do not add.
func TestWindowsAddressesNoticed(t *testing.T) {
	c := newMachine().process()
	a, b := netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("10.96.0.2")
	if _, err := c.Reset(t.Context(), lb.Node{}, leads(a.String())); err != nil {
		t.Fatal(err)
	}
	drifts := func(what string, u unicast, present, want bool) {
		t.Helper()
		c.noticed(u, present)
		if got := len(c.drift) > 0; got != want {
			t.Errorf("%s: drift %t", what, got)
		}
		for len(c.drift) > 0 {
			<-c.drift
		}
	}
	gives := func(what string, a netip.Addr, want bool) {
		t.Helper()
		if added, err := c.add(a); added != want || err != nil {
			t.Errorf("%s: added %t, %v", what, added, err)
		}
	}
	drifts("our own write", unicast{addr: a, luid: 1}, true, false)
	drifts("another's", unicast{addr: b, luid: 9}, true, true)
	gives("an address of another's", b, false)
	drifts("another's went", unicast{addr: b, luid: 9}, false, false)
	gives("an address that another had", b, true)
	drifts("ours went", unicast{addr: a, luid: 1}, false, true)
	if others, err := c.NodeAddresses(); err != nil || len(others) != 0 {
		t.Errorf("others: %v, %v", others, err)
	}
}
