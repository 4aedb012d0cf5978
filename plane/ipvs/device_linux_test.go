package ipvs

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	nlconn "kube-proxy/internal/netlink"
	"kube-proxy/internal/netlink/route"
	"kube-proxy/lb"
	"kube-proxy/test/kerneltest"
)

// deviceBench is a device in a new network namespace, with another interface beside it.
type deviceBench struct {
	*device
	t     testing.TB
	other netlink.Link
	news  chan struct{}
	net   string // of service addresses
}

// enterForDevice enters a network namespace, and chooses a kind of device that this kernel
// supports.
func enterForDevice(t testing.TB) {
	t.Helper()
	inNamespace(t)
	try := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Name: "try"}, LinkType: "dummy"}
	if err := netlink.LinkAdd(try); errors.Is(err, unix.EOPNOTSUPP) {
		of(t, "bridge")
	} else {
		err = errors.Join(err, netlink.LinkDel(try))
		if err != nil {
			t.Fatal(err)
		}
	}
}

func newDeviceBench(t testing.TB, family lb.Family) *deviceBench {
	t.Helper()
	enterForDevice(t)
	b := &deviceBench{t: t, news: make(chan struct{}, 1), net: "10.96.0.0"}
	if family == lb.IPv6 {
		b.net = "fd00:10:96::"
	}
	b.other = &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}}
	must(b.t, netlink.LinkAdd(b.other))
	must(b.t, netlink.LinkSetUp(b.other))
	var err error
	b.device, err = openDevice(family)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { must(b.t, b.Close()) })
	b.Notify(func() {
		select {
		case b.news <- struct{}{}:
		default:
		}
	})
	return b
}

func eachFamily(t *testing.T, f func(t *testing.T, b *deviceBench)) {
	for _, family := range []lb.Family{lb.IPv4, lb.IPv6} {
		t.Run(family.String(), func(t *testing.T) { f(t, newDeviceBench(t, family)) })
	}
}

// addrs returns n service addresses.
func (b *deviceBench) addrs(n int) []netip.Addr {
	all := make([]netip.Addr, n)
	a := netip.MustParseAddr(b.net)
	for i := range all {
		a = a.Next()
		all[i] = a
	}
	return all
}

// begin creates the device, and lists its addresses.
func (b *deviceBench) begin() {
	b.t.Helper()
	must(b.t, b.Ensure(b.t.Context()))
	_, err := b.Place(b.t.Context())
	must(b.t, err)
	b.News()
}

// has checks that the device has exactly those addresses, and that packets to them are delivered
// here.
func (b *deviceBench) has(want ...netip.Addr) {
	b.t.Helper()
	got, err := b.Addresses(b.t.Context())
	slices.SortFunc(got, netip.Addr.Compare)
	if err != nil || !slices.Equal(got, want) {
		b.t.Errorf("the device has %v, %v; want %v", got, err, want)
	}
	for _, a := range want[:min(len(want), 10)] {
		b.leads(a, true)
	}
}

func (b *deviceBench) leads(a netip.Addr, want bool) {
	b.t.Helper()
	if here, err := route.LeadsHere(b.t.Context(), b.conn, a); err != nil || here != want {
		b.t.Errorf("packets to %s come here: %t, %v; want %t", a, here, err, want)
	}
}

// await waits for news of the expected kinds.
func (b *deviceBench) await(addresses, place bool) {
	b.t.Helper()
	var a, p bool
	for end := time.After(10 * time.Second); a != addresses || p != place; {
		select {
		case <-b.news:
			gotA, gotP := b.News()
			a, p = a || gotA, p || gotP
		case <-end:
			b.t.Fatalf("news of addresses %t, of the place %t; want %t, %t", a, p, addresses, place)
		}
	}
}

// silent checks that no news has arrived; notifications arrive in order.
func (b *deviceBench) silent() {
	b.t.Helper()
	mark := netip.MustParseAddr("203.0.113.9")
	if b.family == lb.IPv6 {
		mark = netip.MustParseAddr("2001:db8:113::9")
	}
	for _, typ := range []uint16{unix.RTM_NEWADDR, unix.RTM_DELADDR} {
		b.foreign(typ, b.other.Attrs().Index, mark, mark.BitLen())
		b.await(false, true)
		b.noted(mark, b.other.Attrs().Index, typ == unix.RTM_NEWADDR)
	}
}

// noted waits for the notification that another interface has an address, or lost it.
func (b *deviceBench) noted(a netip.Addr, index int, there bool) {
	b.t.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		b.mu.Lock()
		on := slices.Clone(b.others[a])
		b.mu.Unlock()
		if slices.Contains(on, int32(index)) == there {
			return
		}
		if time.Now().After(end) {
			b.t.Fatalf("%s is known at the interfaces %v; of %d want %t", a, on, index, there)
		}
	}
}

// foreign changes an address as another program would.
func (b *deviceBench) foreign(typ uint16, index int, a netip.Addr, bits int) {
	b.t.Helper()
	conn, err := nlconn.Open(nlconn.Config{Protocol: unix.NETLINK_ROUTE})
	must(b.t, err)
	defer conn.Close()
	var e nlconn.Encoder
	flags := uint16(unix.NLM_F_ACK)
	if typ == unix.RTM_NEWADDR {
		flags |= unix.NLM_F_CREATE | unix.NLM_F_EXCL
	}
	route.AppendAddress(&e, typ, flags, route.Address{Addr: a, Bits: bits, Index: int32(index),
		Flags: unix.IFA_F_NODAD})
	must(b.t, conn.Do(b.t.Context(), e.B, nil))
}

func (b *deviceBench) indexOf(name string) int {
	l, err := netlink.LinkByName(name)
	must(b.t, err)
	return l.Attrs().Index
}

// Addresses are added and removed, many in one system call. Repetitions are harmless, and our own
// writes do not count as foreign.
func TestDevice(t *testing.T) {
	kerneltest.Every(t)
	eachFamily(t, func(t *testing.T, b *deviceBench) {
		ctx := t.Context()
		if _, err := b.Addresses(ctx); !errors.Is(err, ErrNoDevice) {
			t.Errorf("before there is a device: %v", err)
		}
		b.begin()
		b.has()
		all := b.addrs(600)
		must(b.t, b.Add(ctx, all, nil))
		if b.bulk.Sends != 3 || b.bulk.Messages != 600 {
			t.Errorf("600 addresses took %d system calls, %d messages", b.bulk.Sends, b.bulk.Messages)
		}
		b.has(all...)
		must(b.t, b.Add(ctx, all[:5], nil))
		must(b.t, b.Remove(ctx, all[5:], nil))
		must(b.t, b.Remove(ctx, all[5:10], nil))
		b.has(all[:5]...)
		for range 50 { // a late notification does not count as foreign
			must(b.t, b.Remove(ctx, all[:1], nil))
			must(b.t, b.Add(ctx, all[:1], nil))
		}
		b.silent()
		must(b.t, b.Ensure(ctx))
		b.has(all[:5]...)
		link, err := netlink.LinkByName(Device)
		must(b.t, err)
		if link.Type() != DeviceType || link.Attrs().RawFlags&unix.IFF_NOARP == 0 ||
			link.Attrs().RawFlags&unix.IFF_UP != 0 {
			t.Errorf("the device is of type %s, with flags %#x", link.Type(), link.Attrs().RawFlags)
		}
		listed, err := route.Addresses(ctx, b.conn, b.device.number())
		must(b.t, err)
		for _, a := range listed {
			want := uint32(unix.IFA_F_NOPREFIXROUTE | unix.IFA_F_PERMANENT)
			scope := byte(unix.RT_SCOPE_HOST)
			if b.family == lb.IPv6 {
				want, scope = want|unix.IFA_F_NODAD|unix.IFA_F_DEPRECATED, unix.RT_SCOPE_UNIVERSE
			}
			if !linkLocal(a.Addr) && (a.Bits != a.Addr.BitLen() || a.Flags != want || a.Scope != scope) {
				t.Errorf("%+v; want flags %#x, scope %d", a, want, scope)
			}
		}
	})
}

// The device notices foreign changes, and can undo them.
func TestDeviceOthersWrite(t *testing.T) {
	kerneltest.Every(t)
	eachFamily(t, func(t *testing.T, b *deviceBench) {
		ctx, all := t.Context(), b.addrs(4)
		b.begin()
		must(b.t, b.Add(ctx, all[:3], nil))
		index := b.indexOf(Device)
		b.foreign(unix.RTM_DELADDR, index, all[1], all[1].BitLen())
		b.await(true, false)
		b.has(all[0], all[2])
		must(b.t, b.Add(ctx, all[1:2], nil))
		b.has(all[:3]...)
		b.foreign(unix.RTM_NEWADDR, index, all[3], all[3].BitLen()-8)
		b.await(true, false)
		b.has(all...)
		must(b.t, b.Remove(ctx, all[3:], nil))
		b.has(all[:3]...)
		b.leads(all[3], false)
		b.silent()

		link, err := netlink.LinkByName(Device)
		must(b.t, err)
		must(b.t, netlink.LinkSetUp(link)) // which gives it an IPv6 address
		b.silent()
		b.has(all[:3]...)
		must(b.t, netlink.LinkSetDown(link)) // which removes its IPv6 addresses
		if b.family == lb.IPv6 {
			b.foreign(unix.RTM_NEWADDR, b.other.Attrs().Index, all[3], all[3].BitLen())
			b.noted(all[3], b.other.Attrs().Index, true) // and so all earlier notifications have arrived
			b.await(true, true)
			b.foreign(unix.RTM_DELADDR, b.other.Attrs().Index, all[3], all[3].BitLen())
			b.await(false, true)
			b.has()
			must(b.t, b.Add(ctx, all[:3], nil))
		}
		b.silent()
		b.has(all[:3]...)

		must(b.t, netlink.LinkDel(link))
		b.await(true, false)
		if _, err := b.Addresses(ctx); !errors.Is(err, ErrNoDevice) {
			t.Errorf("addresses of a device that is gone: %v", err)
		}
		failed := 0
		if err := b.Add(ctx, all[:2], func(_ int, err error) {
			failed++
			if !errors.Is(err, ErrNoDevice) {
				t.Error(err)
			}
		}); !errors.Is(err, ErrNoDevice) || failed != 2 {
			t.Errorf("to add to a device that is gone: %v, %d times", err, failed)
		}
		b.begin()
		must(b.t, b.Add(ctx, all[:1], nil))
		b.has(all[0])
		must(b.t, netlink.LinkSetAlias(b.other, "whatever is done to other interfaces"))
		b.silent()
	})
}

// A list that is ahead of the notifications counts as news of the place, unless only link-local
// addresses differ: those come and go with devices.
func TestDeviceListIsAhead(t *testing.T) {
	kerneltest.Every(t)
	b := newDeviceBench(t, lb.IPv6)
	b.begin()
	const global, local = "2001:db8:113::9", "fe80::9"
	for _, c := range []struct {
		typ  uint16
		addr string
		news bool
	}{{unix.RTM_NEWADDR, local, false}, {unix.RTM_NEWADDR, global, true}, {unix.RTM_DELADDR, local, false},
		{unix.RTM_DELADDR, global, true}} {
		b.News()
		b.mu.Lock() // so the notification waits
		b.foreign(c.typ, b.other.Attrs().Index, netip.MustParseAddr(c.addr), 128)
		_, err := b.list(t.Context())
		place := b.place
		b.mu.Unlock()
		must(b.t, err)
		if place != c.news {
			t.Errorf("%s is news of the place: %t, want %t", c.addr, place, c.news)
		}
	}
}

// The device was just deleted, and the notification has not arrived.
func TestDeviceGoneUnnoticed(t *testing.T) {
	kerneltest.Every(t)
	eachFamily(t, func(t *testing.T, b *deviceBench) {
		b.begin()
		b.mu.Lock() // so that notifications wait
		link, err := netlink.LinkByName(Device)
		must(b.t, err)
		must(b.t, netlink.LinkDel(link))
		c := &change{device: b.device, index: b.index, typ: unix.RTM_NEWADDR, addrs: b.addrs(1)}
		b.mu.Unlock()
		b.bulk.Do(t.Context(), b.conn, 1, c)
		if err := c.failures.Err(1); !errors.Is(err, ErrNoDevice) {
			t.Error(err)
		}
	})
}

// The addresses that other interfaces have, and those of the node that answer NodePorts (SV-64,
// DP-31).
func TestDevicePlace(t *testing.T) {
	kerneltest.Every(t)
	eachFamily(t, func(t *testing.T, b *deviceBench) {
		ctx, all := t.Context(), b.addrs(3)
		node, loopback, linkLocal, nodes := "172.18.0.2", "127.0.0.1", "", "172.16.0.0/12"
		if b.family == lb.IPv6 {
			node, loopback, linkLocal, nodes = "fd00:18::2", "::1", "fe80::1", "fd00:18::/64"
		}
		lo, err := netlink.LinkByName("lo")
		must(b.t, err)
		must(b.t, netlink.LinkSetUp(lo))
		b.begin()
		must(b.t, b.Add(ctx, all[:2], nil))
		expect := func(prefix string, nodePorts []string, own []string, elsewhere ...string) {
			t.Helper()
			p, err := b.Place(ctx)
			must(b.t, err)
			l := newLedger(layout{family: b.family})
			l.place(p, lb.Node{NodePorts: []netip.Prefix{netip.MustParsePrefix(prefix)}})
			has := []string{}
			for a := range p.Elsewhere {
				// The kernel adds these to every interface.
				if s := a.String(); !strings.HasPrefix(s, "fe80::") || s == linkLocal {
					has = append(has, s)
				}
			}
			slices.Sort(has)
			slices.Sort(elsewhere)
			if !slices.Equal(strs(l.nodePorts), nodePorts) || !slices.Equal(strs(p.Own), own) ||
				!slices.Equal(has, elsewhere) {
				t.Errorf("NodePorts at %v, own %v, elsewhere %v; want %v, %v, %v", strs(l.nodePorts), strs(p.Own), has,
					nodePorts, own, elsewhere)
			}
		}
		every := b.family.Everywhere().String()
		expect(every, nil, nil, loopback)
		b.foreign(unix.RTM_NEWADDR, b.other.Attrs().Index, netip.MustParseAddr(node), 16)
		b.await(false, true)
		expect(every, []string{node}, []string{node}, loopback, node)
		expect(nodes, []string{node}, []string{node}, loopback, node)
		expect("192.0.2.0/24", nil, []string{node}, loopback, node)
		// Another interface gets an address of the device. The device may lose it, and packets to
		// it still arrive here.
		vip := all[0].String()
		b.foreign(unix.RTM_NEWADDR, b.other.Attrs().Index, all[0], all[0].BitLen())
		b.await(false, true)
		both := []string{vip, node}
		slices.SortFunc(both, func(x, y string) int { return netip.MustParseAddr(x).Compare(netip.MustParseAddr(y)) })
		expect(every, both, both, loopback, node, vip)
		must(b.t, b.Remove(ctx, all[:1], nil))
		b.has(all[1])
		b.leads(all[0], true)
		// A second interface gets it, and the first loses it: no news.
		second := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "eth1"}}
		must(b.t, netlink.LinkAdd(second))
		b.foreign(unix.RTM_NEWADDR, second.Attrs().Index, all[0], all[0].BitLen())
		// IPv6 needs a moment before the address is the node's.
		b.noted(all[0], second.Attrs().Index, true)
		b.foreign(unix.RTM_DELADDR, b.other.Attrs().Index, all[0], all[0].BitLen())
		b.silent()
		expect(every, both, both, loopback, node, vip)
		// The last interface with it is removed.
		must(b.t, netlink.LinkDel(second))
		b.await(false, true)
		expect(every, []string{node}, []string{node}, loopback, node)
		b.leads(all[0], false)
		must(b.t, b.Add(ctx, all[:1], nil))
		b.has(all[:2]...)
		if linkLocal != "" {
			b.foreign(unix.RTM_NEWADDR, b.other.Attrs().Index, netip.MustParseAddr(linkLocal), 64)
			b.silent()
			expect(every, []string{node}, []string{node}, loopback, node, linkLocal)
		}
		// Notifications gave the same state as a listing.
		before := maps.Clone(b.others)
		b.mu.Lock()
		_, err = b.list(ctx)
		b.mu.Unlock()
		must(b.t, err)
		if lacks(before, b.others) || lacks(b.others, before) {
			t.Errorf("notified of %v, listed %v", before, b.others)
		}
	})
}

func strs(addrs []netip.Addr) (s []string) {
	for _, a := range addrs {
		s = append(s, a.String())
	}
	return s
}

// More notifications are sent than the buffer holds.
func TestDeviceLost(t *testing.T) {
	kerneltest.Every(t)
	eachFamily(t, func(t *testing.T, b *deviceBench) {
		ctx, all := t.Context(), b.addrs(400)
		b.begin()
		must(b.t, b.events.SetReceiveBuffer(1))
		b.mu.Lock()
		index := b.index
		b.mu.Unlock()
		for _, a := range all[:200] {
			b.foreign(unix.RTM_NEWADDR, int(index), a, a.BitLen())
		}
		for i := range 10 { // while they listen normally
			b.mu.Lock()
			for _, a := range all[200+i*20:][:20] {
				b.foreign(unix.RTM_NEWADDR, b.other.Attrs().Index, a, a.BitLen())
			}
			b.mu.Unlock()
		}
		b.await(true, true)
		b.has(all[:200]...)
		if p, err := b.Place(ctx); err != nil || len(p.Own) != 200 {
			t.Errorf("the node has %d addresses, %v; want 200", len(p.Own), err)
		}
	})
}

// A device of that name and another type is not ours, and stays unchanged.
func TestDeviceOfOthers(t *testing.T) {
	kerneltest.Every(t)
	eachFamily(t, func(t *testing.T, b *deviceBench) {
		ctx, all := t.Context(), b.addrs(2)
		veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: Device}, PeerName: "peer"}
		must(b.t, netlink.LinkAdd(veth))
		if err := b.Ensure(ctx); err == nil || !strings.Contains(err.Error(), `of type "veth"`) {
			t.Errorf("a device of another type: %v", err)
		}
		b.foreign(unix.RTM_NEWADDR, b.indexOf(Device), all[0], all[0].BitLen())
		if err := b.Add(ctx, all, nil); !errors.Is(err, ErrNoDevice) {
			t.Errorf("add addresses to a device of another type: %v", err)
		}
		if p, err := b.Place(ctx); err != nil || !p.Elsewhere[all[0]] || p.Elsewhere[all[1]] {
			t.Errorf("%+v, %v", p, err)
		}
		must(b.t, netlink.LinkDel(veth))
		must(b.t, b.Ensure(ctx))
		must(b.t, b.Add(ctx, all, nil))
		b.has(all...)
	})
}

// The node never uses a service address as source, not even on an interface without an address.
func TestDeviceAddressIsNoSource(t *testing.T) {
	kerneltest.Every(t)
	eachFamily(t, func(t *testing.T, b *deviceBench) {
		own, far := "172.18.0.2", "198.18.0.0/15"
		if b.family == lb.IPv6 {
			own, far = "fd00:18::2", "2001:db8:18::/64"
		}
		b.begin() // so that it is listed before the interface with the node's address
		must(b.t, b.Add(t.Context(), b.addrs(3), nil))
		host := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "eth1"}}
		must(b.t, netlink.LinkAdd(host))
		must(b.t, netlink.LinkSetUp(host))
		b.foreign(unix.RTM_NEWADDR, host.Attrs().Index, netip.MustParseAddr(own), 16)
		for _, args := range []string{"route add " + far + " dev eth0", "route get " + netip.MustParsePrefix(far).
			Addr().Next().String()} {
			out, err := exec.Command("ip", append([]string{fmt.Sprintf("-%d", b.family)}, strings.Fields(args)...)...).
				CombinedOutput()
			if err != nil || strings.Contains(args, "get") && !strings.Contains(string(out), "src "+own+" ") {
				t.Errorf("ip %s: %v\n%swant it from %s", args, err, out, own)
			}
		}
	})
}
