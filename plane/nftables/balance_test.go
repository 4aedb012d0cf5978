//go:build linux

package nftables

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"kube-proxy/internal/kernel"
	"kube-proxy/lb"
	"kube-proxy/test/kerneltest"
	"kube-proxy/test/planetest"
	"kube-proxy/test/seedtest"
)

func TestRoundSize(t *testing.T) {
	sizes := map[uint32]bool{}
	for n := uint32(1); n <= 1<<20; n++ {
		size := roundSize(n)
		sizes[size] = true
		if whole := wholeSize(size); size < n || whole > n || size-whole > n/8 || n <= exactSizes && size != n ||
			roundSize(size) != size {
			t.Fatalf("%d slots: size %d, of these %d certainly exist", n, size, whole)
		}
	}
	if n := len(sizes); n != exactSizes+8*16 {
		t.Errorf("%d sizes", n)
	}
}

// When a balancer is larger than the set, each connection still finds a backend, and all backends
// get the same share; with affinity too, where each client stays with its backend, also when the
// affinity map is full.
func TestBalancerLargerThanItsSet(t *testing.T) {
	kerneltest.Later(t)
	eachFamily(t, func(t *testing.T, w planetest.World) {
		for name, c := range map[string]struct {
			affinity time.Duration
			room     uint32
		}{"plain": {}, "affinity": {time.Hour, affinityLimit}, "affinity without memory": {time.Hour, 1}} {
			t.Run(name, func(t *testing.T) {
				inNetns(t)
				p := newPlane(t, w.Family)
				p.rules.places, p.rules.sets[sAffinity].Size = 1<<20, c.room
				tab := &lb.Table{Node: w.Node()}
				const n, share = 17, 150
				_, f := w.ClusterIP(1, 100, n)
				f[0].Key.Proto, f[0].Set(lb.Cluster).ID.Proto, f[0].Affinity = lb.UDP, lb.UDP, c.affinity
				tab.Replace(lb.Owner{Name: "ns/svc-1"}, f)
				reset(t, p, tab)
				got, home := map[netip.Addr]int{}, map[netip.Addr]netip.Addr{}
				flows(t, f[0].Key, 2*share*n, func(i int) net.IP { return client(w.Family, i/2) },
					func(client, backend netip.Addr) {
						switch was, again := home[client]; {
						case !again:
							home[client] = backend
							got[backend]++
						case was != backend && c.affinity > 0:
							t.Errorf("%s came to %s and to %s", client, was, backend)
						}
					})
				if len(home) != share*n {
					t.Errorf("%d of %d clients found a backend", len(home), share*n)
				}
				even(t, got, f[0].Set(lb.Cluster), share)
			})
		}
	})
}

// client returns the address of a client in the networks that flows adds.
func client(f lb.Family, i int) net.IP {
	if f == lb.IPv6 {
		return net.IP(netip.MustParseAddr(fmt.Sprintf("2001:db8:7::%x", 1+i)).AsSlice())
	}
	return net.IPv4(100, 99, byte(i>>8), byte(i))
}

// even checks that each backend of the set got its share, within six times the standard deviation,
// and no other backend got any.
func even(t *testing.T, got map[netip.Addr]int, set *lb.BackendSet, share int) {
	t.Helper()
	for b := range set.Backends.All() {
		if is := got[b.Addr.Addr()]; math.Abs(float64(is-share)) > 6*math.Sqrt(float64(share)) {
			t.Errorf("%s got %d, want about %d", b.Addr, is, share)
		}
		delete(got, b.Addr.Addr())
	}
	if len(got) > 0 {
		t.Errorf("some went to %v", got)
	}
}

// flows sends one packet of each of n flows to a destination without a receiver, and calls reported
// for each flow that has a backend. from returns the source address of flow i.
func flows(t *testing.T, key lb.Key, n int, from func(i int) net.IP, reported func(client, backend netip.Addr)) {
	t.Helper()
	to := netip.AddrPortFrom(key.Addr, key.Port)
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "veth0"}, PeerName: "veth1"}
	own, any, clients := "192.0.2.1/24", "0.0.0.0/0", "100.99.0.0/16"
	family := netlink.InetFamily(unix.AF_INET)
	if to.Addr().Is6() {
		own, any, clients, family = "2001:db8::1/64", "::/0", "2001:db8:7::/64", unix.AF_INET6
	}
	addr, err := netlink.ParseAddr(own)
	if err != nil {
		t.Fatal(err)
	}
	addr.Flags = unix.IFA_F_NODAD
	_, all, _ := net.ParseCIDR(any)
	for _, step := range []func() error{
		func() error { return netlink.LinkAdd(link) },
		func() error { return netlink.LinkSetUp(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "veth1"}}) },
		func() error { return netlink.LinkSetUp(link) },
		func() error { return netlink.LinkSetUp(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: "lo"}}) },
		func() error { return netlink.AddrAdd(link, addr) },
		func() error { return netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: all}) },
		func() error {
			_, mine, _ := net.ParseCIDR(clients)
			return netlink.RouteAdd(&netlink.Route{LinkIndex: 1, Dst: mine, Type: unix.RTN_LOCAL,
				Scope: unix.RT_SCOPE_HOST, Table: unix.RT_TABLE_LOCAL})
		},
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	// The first flow is still in conntrack when the last one is sent, even on a slow machine.
	if _, err := kernel.SetSysctl("net.netfilter.nf_conntrack_udp_timeout", "3600"); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		d := net.Dialer{LocalAddr: &net.UDPAddr{IP: from(i), Port: 20000 + i}, Control: freely}
		c, err := d.Dial("udp", to.String())
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Write([]byte{1})
		c.Close()
		if err != nil {
			t.Fatal(err)
		}
	}
	tracked, err := netlink.ConntrackTableList(netlink.ConntrackTable, family)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range tracked {
		if dst, _ := netip.AddrFromSlice(f.Forward.DstIP); dst.Unmap() == to.Addr() {
			client, _ := netip.AddrFromSlice(f.Forward.SrcIP)
			backend, _ := netip.AddrFromSlice(f.Reverse.SrcIP)
			reported(client.Unmap(), backend.Unmap())
		}
	}
}

// The number of chains never exceeds the sizes plus the rounded timeouts, whatever session affinity
// timeouts and sizes tenants choose.
func TestChainsOfSessionAffinity(t *testing.T) {
	kerneltest.Later(t)
	const services, most, day, maxSeconds = 100, 200, 86_400, 129_600
	times := map[uint32]bool{}
	for n := uint32(1); n <= maxSeconds; n++ {
		got := roundSeconds(n)
		if got < n || 16*(got-n) >= n || roundSeconds(got) != got || got > maxSeconds {
			t.Fatalf("%d s become %d", n, got)
		}
		if n <= day {
			times[got] = true
		}
	}
	if n := len(times); n != 312 {
		t.Errorf("%d times", n)
	}
	for _, n := range []uint32{1, 59, 80, 90, 100, 120, 300, 600, 900, 1800, 3600, 5400, 7200, 10800, 21600, 43200,
		day} {
		if got := roundSeconds(n); got != n {
			t.Errorf("%d s become %d", n, got)
		}
	}
	few := map[uint32]bool{}
	for n := uint32(1); n <= maxStickySlots; n++ {
		few[roundSize(n)] = true
	}
	if n := len(few); n != 95 {
		t.Errorf("%d sizes", n)
	}
	if n := (shape{lb.Local, roundSize(maxStickySlots), true, roundSeconds(maxSeconds)}); parseShape(lb.Local,
		n.number()) != n {
		t.Errorf("%+v becomes %+v", n, parseShape(lb.Local, n.number()))
	}

	w := planetest.World{Family: lb.IPv4}
	tab := w.Table(3, 2)
	p := started(t, w, tab)
	before, sizes := len(p.st.chains), map[uint32]bool{}
	seed := seedtest.Of(t)
	rnd := rand.New(rand.NewPCG(seed, 1))
	times = map[uint32]bool{}
	for i := range services {
		o, f := w.ClusterIP(50+i, 1000, 1+rnd.IntN(most))
		f[0].Affinity = time.Duration(1+rnd.IntN(day)) * time.Second
		sizes[roundSize(uint32(f[0].Set(lb.Cluster).Backends.Len()))] = true
		times[roundSeconds(seconds(f[0].Affinity))] = true
		apply(t, p, planetest.Changes(tab.Replace(o, f)))
	}
	if got, want := len(p.st.chains)-before, len(sizes)+len(times); got != want || want > exactSizes+8*4+312 {
		t.Errorf("%d chains more than before, want %d", got, want)
	}
	isFresh(t, p, tab)
	for i := range services {
		o, _ := w.ClusterIP(50+i, 1000, 1)
		apply(t, p, planetest.Changes(tab.Replace(o, nil)))
	}
	sent := p.Stats().Batches
	if n, err := p.Audit(t.Context(), true); n != 0 || err != nil || p.Stats().Batches == sent {
		t.Errorf("an audit that removes unused chains repaired %d, %v", n, err)
	}
	if got := len(p.st.chains); got != before {
		t.Errorf("%d chains are left, %d were there", got, before)
	}
}

// freely lets a socket bind an address that no interface has.
func freely(_, _ string, c syscall.RawConn) error {
	var failed error
	err := c.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1) })
	return errors.Join(err, failed)
}
