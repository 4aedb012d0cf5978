//go:build linux

package cleanup

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/ipvs"
	"golang.org/x/sys/unix"

	"kube-proxy/internal/kernel"
	"kube-proxy/internal/netlab"
	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane/all"
	leftovers "kube-proxy/plane/ipvs"
	"kube-proxy/test/kerneltest"
	"kube-proxy/test/planetest"
)

// ipvsLook is the time between two checks of the connections of virtual servers.
const ipvsLook = 200 * time.Millisecond

// needsIPVS skips a test on a kernel without ip_vs; make test-kernels runs it in a VM that has it.
func needsIPVS(t *testing.T) {
	t.Helper()
	needsAll(t)
	if err := kernel.LoadIPVS(); err != nil {
		t.Skip(err)
	}
}

func openIPVS(t *testing.T) *ipvs.Handle {
	t.Helper()
	h, err := ipvs.New("")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return h
}

// setSysctls sets those that the process sets in mode ipvs.
func setSysctls(t *testing.T) {
	t.Helper()
	for _, s := range []string{"net.ipv4.vs.conntrack", "net.ipv4.vs.expire_nodest_conn",
		"net.ipv4.vs.expire_quiescent_template"} {
		if _, err := kernel.SetSysctl(s, "1"); err != nil {
			t.Error(err)
		}
	}
}

// openMode opens a plane of mode ipvs, which notes its back end of iptables.
func openMode(t *testing.T, backends map[lb.Family]xtables.Backend, fam lb.Family) opened {
	t.Helper()
	m, s := leftovers.ModeIn(backends), mode.Settings{Family: fam, MasqueradeBit: 14}
	must(t, m.Able(s))
	p, err := m.New(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// virtual creates a virtual server, such as "tcp 10.96.0.10:80" or "fwmark 7".
func virtual(t *testing.T, h *ipvs.Handle, what string) *ipvs.Service {
	t.Helper()
	s := &ipvs.Service{SchedName: "rr", AddressFamily: unix.AF_INET, Netmask: 0xffffffff}
	proto, addr, _ := strings.Cut(what, " ")
	if proto == "fwmark" {
		must(t, errOf(fmt.Sscan(addr, &s.FWMark)))
	} else {
		at := netip.MustParseAddrPort(addr)
		s.Address, s.Port = net.IP(at.Addr().AsSlice()), at.Port()
		s.Protocol = map[string]uint16{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP,
			"sctp": unix.IPPROTO_SCTP}[proto]
		if at.Addr().Is6() {
			s.AddressFamily, s.Netmask = unix.AF_INET6, 128
		}
	}
	if err := h.NewService(s); err != nil {
		t.Fatalf("virtual server %s: %v", what, err)
	}
	return s
}

// virtuals lists the virtual servers, in the format of virtual.
func virtuals(t *testing.T, h *ipvs.Handle) []string {
	t.Helper()
	all, err := h.GetServices()
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, s := range all {
		if s.FWMark != 0 {
			out = append(out, fmt.Sprintf("fwmark %d", s.FWMark))
			continue
		}
		proto := map[uint16]string{unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp",
			unix.IPPROTO_SCTP: "sctp"}[s.Protocol]
		addr, _ := netip.AddrFromSlice(s.Address)
		out = append(out, fmt.Sprintf("%s %s", proto, netip.AddrPortFrom(addr.Unmap(), s.Port)))
	}
	slices.Sort(out)
	return out
}

// Virtual servers of a kube-proxy are removed, and foreign ones stay (PR-08, DP-31, DP-35,
// --ipvs-exclude-cidrs).
func TestIPVSServers(t *testing.T) {
	kerneltest.Every(t)
	needsIPVS(t)
	inNetns(t)
	oursIPVS(t)
	run(t, "", "ip", "link", "add", "lan0", "type", leftovers.DeviceType)
	for _, a := range []string{"192.0.2.1/24", "2001:db8::1/64"} {
		run(t, "", "ip", "addr", "add", a, "dev", "lan0", "nodad")
	}
	run(t, "", "ip", "addr", "add", "10.97.0.1/32", "dev", leftovers.Device)
	h := openIPVS(t)
	four := []string{
		"tcp 10.96.0.1:443",      // on kube-ipvs0
		"sctp 10.96.0.1:9",       // with any protocol
		"tcp 10.96.0.77:80",      // its address is in an ipset
		"tcp 192.0.2.1:30080",    // a NodePort of an address of this machine
		"sctp 192.0.2.1:30090",   // in the set of another protocol
		"tcp 198.51.100.0:20000", // upstream's probe
	}
	six := []string{"udp [2001:db8::1]:30053", "udp [fd00:10:96::10]:53"}
	excluded := []string{"tcp 10.97.0.1:80"}
	others := []string{
		"fwmark 7",
		"tcp 192.0.2.1:8080",   // no NodePort
		"udp 192.0.2.1:30090",  // of another protocol
		"tcp 192.0.2.9:30080",  // an address of another machine
		"tcp 10.96.0.200:80",   // without any proof
		"udp 198.51.100.0:123", // not the probe
	}
	every := slices.Concat(four, six, excluded, others)
	for _, s := range every {
		virtual(t, h, s)
	}
	same := func(when string, want ...string) {
		t.Helper()
		slices.Sort(want)
		if got := virtuals(t, h); !slices.Equal(got, want) {
			t.Errorf("%s there are\n%q, want\n%q", when, got, want)
		}
	}
	same("at first", every...)

	if r := clean(t, only("iptables", "nftables")); len(r.Left) > 0 {
		t.Errorf("left: %q", r.Left)
	}
	same("after --cleanup --cleanup-ipvs=false", every...)

	ex := []netip.Prefix{netip.MustParsePrefix("10.97.0.0/16")}
	if _, err := (now{mode: "nftables", families: []lb.Family{lb.IPv4}, exclude: ex}).others(t.Context()); err != nil {
		t.Error(err)
	}
	same("after IPv4 of nftables", slices.Concat(six, excluded, others)...)

	r, err := Run(t.Context(), all.Modes(), mode.Removal{Blocks: excluding(ex)})
	if left := strings.Join(r.Left, "\n"); err != nil || !strings.Contains(left, "5 virtual servers of IPv4 stay") ||
		!strings.Contains(left, "device kube-ipvs0 stays: it has 1 other addresses") {
		t.Errorf("left: %s, %v", left, err)
	}
	same("after --cleanup", slices.Concat(excluded, others)...)

	r, err = Run(t.Context(), all.Modes(), mode.Removal{})
	if err != nil || !slices.Contains(r.Removed, "device kube-ipvs0 with 1 service addresses") ||
		!slices.Contains(r.Removed, "1 virtual servers of IPv4") {
		t.Errorf("removed: %q, %v", r.Removed, err)
	}
	same("without exclusion", others...)
}

// shopInIPVS returns a lab in which a shop is served as upstream's mode ipvs does.
func shopInIPVS(t *testing.T) (lab *netlab.TestLab, tab *lb.Table, vip netip.AddrPort) {
	t.Helper()
	needsIPVS(t)
	lab = netlab.ForTest(t, netlab.Options{})
	lab.Serve(netlab.TCP, 8080, "pod1", "pod4")
	tab, vip, _ = planetest.Shop(lb.IPv4)
	lab.On("node1", func() {
		oursIPVS(t)
		setSysctls(t)
		h := openIPVS(t)
		s := virtual(t, h, "tcp "+vip.String())
		for f := range tab.Get(lb.Key{Addr: vip.Addr(), Port: 80, Proto: lb.TCP}).Routes[0].To.Backends.All() {
			err := h.NewDestination(s, &ipvs.Destination{Address: net.IP(f.Addr.Addr().AsSlice()), Port: f.Addr.Port(),
				Weight: 1, AddressFamily: unix.AF_INET})
			if err != nil {
				t.Error(err)
			}
		}
	})
	return lab, tab, vip
}

// A node changes from upstream's ipvs mode to nftables: a loop of requests sees no failure (PR-08).
func TestIPVSSwitchUnderTraffic(t *testing.T) {
	kerneltest.Every(t)
	lab, _, vip := shopInIPVS(t)
	traffic := lab.Traffic(netlab.Way{From: "pod3", To: vip, Seen: "pod3", Requests: true})
	more := func() {
		t.Helper()
		for range 3 {
			traffic.More()
		}
	}
	more()
	lab.On("node1", func() { start(t, []lb.Family{lb.IPv4}, openNFTables) })
	more() // both are in force
	lab.On("node1", func() {
		r, err := now{mode: "nftables", drain: time.Minute}.others(t.Context())
		if err != nil || len(r.Left) > 0 || !slices.Contains(r.Removed, "1 virtual servers of IPv4") {
			t.Errorf("%+v, %v", r, err)
		}
		if got := virtuals(t, openIPVS(t)); len(got) > 0 {
			t.Errorf("virtual servers stay: %q", got)
		}
	})
	more()
	traffic.Stop()
}

// A connection through IPVS continues until it ends, or its time is over; a process that ends
// meanwhile leaves it to the next.
func TestIPVSDrain(t *testing.T) {
	kerneltest.Every(t)
	lab, _, vip := shopInIPVS(t)
	open := func() *netlab.Conn {
		t.Helper()
		c, err := lab.Open("pod3", netlab.TCP, vip, netlab.DialOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	works := func(c *netlab.Conn) {
		t.Helper()
		if _, err := c.Exchange(); err != nil {
			t.Error(err)
		}
	}
	there := func() (n int) {
		lab.On("node1", func() { n = len(virtuals(t, openIPVS(t))) })
		return n
	}
	// The background goroutine uses none of the test's own.
	clean := func(ctx context.Context, drain time.Duration) chan mode.Report {
		done := make(chan mode.Report, 1)
		go func() {
			lab.On("node1", func() {
				r, err := now{mode: "nftables", drain: drain}.others(ctx)
				if err != nil && ctx.Err() == nil {
					t.Error(err)
				}
				done <- r
			})
		}()
		return done
	}
	early, late := open(), open()
	lab.On("node1", func() { start(t, []lb.Family{lb.IPv4}, openNFTables) })

	ctx, cancel := context.WithCancel(t.Context())
	done := clean(ctx, time.Hour)
	time.Sleep(4 * ipvsLook)
	cancel()
	if r := <-done; there() != 1 || strings.Contains(fmt.Sprint(r.Removed), "virtual server") ||
		strings.Contains(fmt.Sprint(r.Removed), leftovers.Device) {
		t.Errorf("the process ended, and %d virtual servers stay; %+v", there(), r)
	}

	done = clean(t.Context(), time.Hour)
	for range 4 {
		time.Sleep(ipvsLook)
		works(early)
		works(late)
		works(open()) // through nftables, which the drain does not wait for
	}
	if there() != 1 {
		t.Error("the virtual server went while connections used it")
	}
	for _, c := range []*netlab.Conn{early, late} {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	if r := <-done; !slices.Contains(r.Removed, "1 virtual servers of IPv4") || strings.Contains(fmt.Sprint(r.Removed),
		"connections") || there() != 0 {
		t.Errorf("%+v", r)
	}
}

// Connections that exceed the time are cut, and reported.
func TestIPVSDrainEnds(t *testing.T) {
	kerneltest.Every(t)
	lab, _, vip := shopInIPVS(t)
	must(t, errOf(lab.Open("pod3", netlab.TCP, vip, netlab.DialOptions{})))
	lab.On("node1", func() {
		start(t, []lb.Family{lb.IPv4}, openNFTables)
		r, err := now{mode: "nftables", drain: 5 * ipvsLook}.others(
			t.Context())
		if err != nil || !slices.Contains(r.Removed, "1 connections through virtual servers of IPv4, which had not "+
			"ended in 1s") || len(virtuals(t, openIPVS(t))) > 0 {
			t.Errorf("%+v, %v", r, err)
		}
	})
}

// G4: a node changes from upstream's ipvs mode to ours. A loop of requests sees no failure, open
// connections continue, upstream's objects of removed Services are deleted, and foreign ones stay
// (DP-31, DP-32, PR-08).
func TestIPVSTakeOver(t *testing.T) {
	kerneltest.Every(t)
	lab, tab, vip := shopInIPVS(t)
	open, err := lab.Open("pod3", netlab.TCP, vip, netlab.DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	traffic := lab.Traffic(netlab.Way{From: "pod3", To: vip, Seen: "pod3", Requests: true})
	traffic.More()
	lab.On("node1", func() {
		run(t, "", "ip", "addr", "add", "10.96.0.200/32", "dev", leftovers.Device)
		h := openIPVS(t)
		for _, stale := range []string{"tcp 10.96.0.200:80", "tcp 198.51.100.0:20000", "tcp 192.0.2.99:80"} {
			virtual(t, h, stale)
		}
		p := openMode(t, map[lb.Family]xtables.Backend{}, lb.IPv4)
		defer p.Close()
		must(t, errOf(p.Reset(t.Context(), tab)))
		if n, err := p.Audit(t.Context(), true); n != 0 || err != nil {
			t.Errorf("after the first write there is something to repair: %d, %v", n, err)
		}
		servers := virtuals(t, h)
		for server, want := range map[string]bool{"tcp " + vip.String(): true, "tcp 10.96.0.200:80": false,
			"tcp 198.51.100.0:20000": false, "tcp 192.0.2.99:80": true} {
			if slices.Contains(servers, server) != want {
				t.Errorf("virtual server %s is there: want %t; there are %q", server, want, servers)
			}
		}
		if addrs := run(t, "", "ip", "addr", "show", leftovers.Device); strings.Contains(addrs, "10.96.0.200") ||
			!strings.Contains(addrs, vip.Addr().String()) {
			t.Errorf("addresses:\n%s", addrs)
		}
		if sets := run(t, "", "ipset", "save"); strings.Contains(sets, "10.96.0.77") ||
			!strings.Contains(sets, "add KUBE-CLUSTER-IP "+vip.Addr().String()+",tcp:80") {
			t.Errorf("sets:\n%s", sets)
		}
	})
	for range 3 {
		traffic.More()
	}
	if _, err := open.Exchange(); err != nil {
		t.Errorf("a connection that was open: %v", err)
	}
	traffic.Stop()
}
