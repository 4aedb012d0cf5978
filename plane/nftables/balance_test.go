package nftables

import (
	"fmt"
	"math"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"kube-proxy/lb"
	"kube-proxy/plane/planetest"
)

// A Service that grows from one endpoint to many, and shrinks again, leaves few chains behind, and most steps write an
// element and nothing else: what numbers of endpoints a tenant's Services had costs others nothing.
func TestScaleUpAndDown(t *testing.T) {
	const most = 700
	w := planetest.World{Family: lb.IPv4}
	inNetns(t)
	p := newPlane(t, w.Family)
	tab := w.Table(3, 2)
	reset(t, p, tab)
	chains, before := len(p.st.chains), p.Stats()
	steps := 0
	for n := 1; n <= 2*most; n++ {
		o, f := w.ClusterIP(50, 1000, min(n, 2*most-n))
		if n == 2*most {
			f = nil
		}
		apply2(t, p, tab, o, f)
		steps++
	}
	if c := len(p.st.chains) - chains; c > exactSizes+8*6 {
		t.Errorf("%d chains more than before", c)
	}
	if m := p.Stats().minus(before).Messages; m > uint64(2*steps) {
		t.Errorf("%d steps took %d messages", steps, m)
	}
	if got, want := dump(t, p), fresh(t, w.Family, tab); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

func TestRoundSize(t *testing.T) {
	sizes := map[uint32]bool{}
	for n := uint32(1); n <= 1<<20; n++ {
		size := roundSize(n)
		sizes[size] = true
		if whole := wholeSize(size); size < n || whole > n || size-whole > n/8 || n <= exactSizes && size != n || roundSize(size) != size {
			t.Fatalf("%d slots: size %d, of which %d are there for certain", n, size, whole)
		}
	}
	if n := len(sizes); n != exactSizes+8*16 {
		t.Errorf("%d sizes", n)
	}
}

// Where a balancer is larger than the set, each connection still finds a backend, and all backends get as many.
func TestBalancerLargerThanItsSet(t *testing.T) {
	eachFamily(t, func(t *testing.T, w planetest.World) {
		for _, n := range []int{17, 27, 33} {
			t.Run(fmt.Sprint(n), func(t *testing.T) {
				inNetns(t)
				p := newPlane(t, w.Family)
				tab := &lb.Table{Node: w.Node()}
				_, f := w.ClusterIP(1, 100, n)
				f[0].Key.Proto = lb.UDP
				tab.Replace(lb.Owner{Name: "ns/svc-1"}, f)
				reset(t, p, tab)
				const share = 300
				got := spread(t, netip.AddrPortFrom(f[0].Key.Addr, f[0].Key.Port), share*n)
				all := 0
				for _, is := range got {
					all += is
				}
				if all != share*n {
					t.Errorf("%d of %d connections found a backend", all, share*n)
				}
				for _, b := range f[0].Set(lb.Cluster).Backends {
					// Six times the standard deviation.
					if is := got[b.Addr.Addr()]; math.Abs(float64(is-share)) > 6*math.Sqrt(share) {
						t.Errorf("%s got %d connections, want about %d", b.Addr, is, share)
					}
					delete(got, b.Addr.Addr())
				}
				if len(got) > 0 {
					t.Errorf("connections went to %v", got)
				}
			})
		}
	})
}

// spread sends a packet of each of n flows into nothing, and returns how many went to which address.
func spread(t *testing.T, to netip.AddrPort, n int) map[netip.Addr]int {
	t.Helper()
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "veth0"}, PeerName: "veth1"}
	own, any := "192.0.2.1/24", "0.0.0.0/0"
	family := netlink.InetFamily(unix.AF_INET)
	if to.Addr().Is6() {
		own, any, family = "2001:db8::1/64", "::/0", unix.AF_INET6
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
		func() error { return netlink.AddrAdd(link, addr) },
		func() error { return netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: all}) },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	for i := range n {
		c, err := net.DialUDP("udp", &net.UDPAddr{Port: 20000 + i}, net.UDPAddrFromAddrPort(to))
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Write([]byte{1})
		c.Close()
		if err != nil {
			t.Fatal(err)
		}
	}
	flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, family)
	if err != nil {
		t.Fatal(err)
	}
	got := map[netip.Addr]int{}
	for _, f := range flows {
		if dst, _ := netip.AddrFromSlice(f.Forward.DstIP); dst.Unmap() == to.Addr() {
			backend, _ := netip.AddrFromSlice(f.Reverse.SrcIP)
			got[backend.Unmap()]++
		}
	}
	return got
}
