package ipvs_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
	"kube-proxy/internal/netlink/ipvs"
	"kube-proxy/test/kerneltest"
)

// openKernel enters a new network namespace and connects to its IPVS.
func openKernel(t testing.TB) *ipvs.Conn {
	t.Helper()
	netlab.EnterForTest(t)
	loopback, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(loopback) // without a routing table packets can reach no address
	}
	must(t, err)
	c, err := ipvs.Open()
	if errors.Is(err, ipvs.ErrNoIPVS) {
		t.Skipf("%v; make test-kernels has it", err)
	}
	must(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// state is what a kernel has.
type state = map[ipvs.Service][]ipvs.Destination

var (
	byAddr = ipvs.Service{ServiceID: ipvs.ByAddr(netip.MustParseAddrPort("10.96.0.10:53"), unix.IPPROTO_UDP),
		Scheduler: "rr", Netmask: 0xffffffff}
	sticky = ipvs.Service{ServiceID: ipvs.ByAddr(netip.MustParseAddrPort("10.96.0.10:80"), unix.IPPROTO_TCP),
		Scheduler: "sh", Flags: ipvs.Persistent | ipvs.Sched1 | ipvs.Sched2, Timeout: 10800, Netmask: 0xffffff00}
	stream = ipvs.Service{ServiceID: ipvs.ByAddr(netip.MustParseAddrPort("10.96.0.10:80"), unix.IPPROTO_SCTP),
		Scheduler: "wlc", Netmask: 0xffffffff}
	six = ipvs.Service{ServiceID: ipvs.ByAddr(netip.MustParseAddrPort("[fd00:96::10]:443"), unix.IPPROTO_TCP),
		Scheduler: "wrr", Netmask: 128}
	mark = ipvs.Service{ServiceID: ipvs.ByMark(ipvs.IPv4, 0x4007), Scheduler: "mh", Flags: ipvs.Sched2, Timeout: 7,
		Netmask: 0xffffffff}
	mark6 = ipvs.Service{ServiceID: ipvs.ByMark(ipvs.IPv6, 0x4007), Scheduler: "rr", Flags: ipvs.Persistent |
		ipvs.OnePacket, Timeout: 60, Netmask: 64}

	samples = state{
		byAddr: {},
		sticky: {
			{Addr: netip.MustParseAddrPort("10.1.0.1:8080"), Weight: 1},
			{Addr: netip.MustParseAddrPort("10.1.0.1:8081"), Weight: 0, Upper: 20, Lower: 10},
			{Addr: netip.MustParseAddrPort("10.1.0.2:80"), Weight: 1<<31 - 1, Forwarding: ipvs.Route},
		},
		stream: {{Addr: netip.MustParseAddrPort("10.1.0.3:9"), Weight: 65536}},
		six: {
			{Addr: netip.MustParseAddrPort("[fd00:1::1]:8443"), Weight: 1},
			{Addr: netip.MustParseAddrPort("10.1.0.4:443"), Weight: 2, Forwarding: ipvs.Tunnel},
		},
		mark:  {{Addr: netip.MustParseAddrPort("10.1.0.5:8080"), Weight: 1}},
		mark6: {{Addr: netip.MustParseAddrPort("[fd00:1::5]:8080"), Weight: 1}},
	}
)

// ops returns the operations that create the services of a map.
func ops(all state) (ops []ipvs.Op) {
	for s, ds := range all {
		ops = append(ops, ipvs.Op{Verb: ipvs.NewService, Service: s})
		for _, d := range ds {
			ops = append(ops, ipvs.Op{Verb: ipvs.NewDestination, Service: s, Destination: d})
		}
	}
	return ops
}

func do(t testing.TB, c *ipvs.Conn, ops ...ipvs.Op) {
	t.Helper()
	must(t, c.Do(t.Context(), ops, nil))
}

// empty removes all services.
func empty(t testing.TB, c *ipvs.Conn) {
	t.Helper()
	for s := range list(t, c) {
		do(t, c, ipvs.Op{Verb: ipvs.DelService, Service: s})
	}
	expect(t, c, nil)
}

// list lists everything. Destinations are sorted by address.
func list(t testing.TB, c *ipvs.Conn) state {
	t.Helper()
	all := state{}
	err := c.Services(t.Context(), func(s ipvs.ServiceState) error {
		if _, twice := all[s.Service]; twice {
			t.Errorf("%v is listed twice", s.Service)
		}
		all[s.Service] = []ipvs.Destination{}
		return nil
	})
	must(t, err)
	for s := range all {
		all[s] = destinations(t, c, s.ServiceID)
	}
	return all
}

// destinations lists the destinations of a service, sorted by address.
func destinations(t testing.TB, c *ipvs.Conn, id ipvs.ServiceID) (all []ipvs.Destination) {
	t.Helper()
	listed, err := c.Destinations(t.Context(), id)
	must(t, err)
	for _, d := range listed {
		all = append(all, d.Destination)
	}
	slices.SortFunc(all, byAddress)
	return all
}

func byAddress(a, b ipvs.Destination) int { return a.Addr.Compare(b.Addr) }

func expect(t testing.TB, c *ipvs.Conn, want state) {
	t.Helper()
	text := func(all state) string {
		var lines []string
		for s, ds := range all {
			ds = slices.SortedFunc(slices.Values(ds), byAddress)
			lines = append(lines, fmt.Sprintf("%v\n   %+v", s, ds))
		}
		slices.Sort(lines)
		return strings.Join(lines, "\n")
	}
	if got := list(t, c); text(got) != text(want) {
		t.Errorf("there is\n%s\nwant\n%s", text(got), text(want))
	}
}

// The kernel lists the requested services, to this package and to the program ipvsadm (DP-30), and
// this package reads what that program creates.
func TestKernelHoldsWhatIsAsked(t *testing.T) {
	kerneltest.Every(t)
	c := openKernel(t)
	ipvsadm := func(stdin string, args ...string) string {
		t.Helper()
		cmd := exec.Command("ipvsadm", args...)
		cmd.Stdin = strings.NewReader(stdin)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("ipvsadm %v: %v: %s", args, err, out)
		}
		return string(out)
	}
	sorted := func(text string) string { return strings.Join(slices.Sorted(strings.Lines(text)), "") }
	save := func(all state) string {
		var b strings.Builder
		for s, destinations := range all {
			b.WriteString(ipvs.SaveService(s))
			for _, d := range destinations {
				b.WriteString(ipvs.SaveDestination(s.ServiceID, d))
			}
		}
		return sorted(b.String())
	}
	do(t, c, ops(samples)...)
	expect(t, c, samples)
	saved := strings.ReplaceAll(ipvsadm("", "-S", "-n"), " --tun-type ipip", "") // the default
	if got, want := sorted(saved), save(samples); got != want {
		t.Errorf("ipvsadm saves\n%swant\n%s", got, want)
	}
	empty(t, c)
	ipvsadm(save(samples), "--restore")
	if got, want := save(list(t, c)), save(samples); got != want {
		t.Errorf("what ipvsadm created is listed as\n%swant\n%s", got, want)
	}
}

// Each verb has its effect, and an error names its object.
func TestKernelVerbs(t *testing.T) {
	kerneltest.Every(t)
	verbs(t, openKernel(t))
}

// verbs tests the kernel and the fake.
func verbs(t *testing.T, c *ipvs.Conn) {
	t.Helper()
	d := ipvs.Destination{Addr: netip.MustParseAddrPort("10.1.0.1:8080"), Weight: 1}
	changed, changedD := byAddr, d
	changed.Scheduler, changed.Flags, changed.Timeout, changed.Netmask = "wrr", ipvs.Persistent, 300, 0xffff0000
	changedD.Weight, changedD.Upper, changedD.Lower = 0, 5, 4
	bad := six
	bad.Netmask = 0
	none := byAddr
	none.Scheduler = "nothing"
	of := func(verb ipvs.Verb, d ipvs.Destination) ipvs.Op {
		return ipvs.Op{Verb: verb, Service: byAddr, Destination: d}
	}
	for _, step := range []struct {
		op     ipvs.Op
		errno  error
		says   string
		result state
	}{
		{ipvs.Op{Verb: ipvs.SetService, Service: byAddr}, unix.ESRCH, "change virtual server UDP 10.96.0.10:53", nil},
		{ipvs.Op{Verb: ipvs.DelService, Service: byAddr}, unix.ESRCH, "remove virtual server UDP 10.96.0.10:53", nil},
		{of(ipvs.NewDestination, d), unix.ESRCH, "add real server 10.1.0.1:8080 of virtual server UDP 10.96.0.10:53",
			nil},
		{ipvs.Op{Verb: ipvs.NewService, Service: none}, unix.ENOENT, "with scheduler nothing", nil},
		{ipvs.Op{Verb: ipvs.NewService, Service: bad}, unix.EINVAL, "[fd00:96::10]:443", nil},
		{ipvs.Op{Verb: ipvs.NewService, Service: byAddr}, nil, "", state{byAddr: {}}},
		{ipvs.Op{Verb: ipvs.NewService, Service: changed}, unix.EEXIST, "add virtual server", state{byAddr: {}}},
		{of(ipvs.SetDestination, d), unix.ENOENT, "change real server", state{byAddr: {}}},
		{of(ipvs.NewDestination, d), nil, "", state{byAddr: {d}}},
		{of(ipvs.NewDestination, d), unix.EEXIST, "add real server", state{byAddr: {d}}},
		{of(ipvs.SetDestination, changedD), nil, "", state{byAddr: {changedD}}},
		{ipvs.Op{Verb: ipvs.SetService, Service: none}, unix.ENOENT, "nothing", state{byAddr: {changedD}}},
		{ipvs.Op{Verb: ipvs.SetService, Service: changed}, nil, "", state{changed: {changedD}}},
		{of(ipvs.DelDestination, d), nil, "", state{changed: {}}},
		{of(ipvs.DelDestination, d), unix.ENOENT, "remove real server", state{changed: {}}},
		{of(ipvs.NewDestination, d), nil, "", state{changed: {d}}},
		{ipvs.Op{Verb: ipvs.DelService, Service: byAddr}, nil, "", nil},
	} {
		err := c.Do(t.Context(), []ipvs.Op{step.op}, nil)
		if !errors.Is(err, step.errno) || err != nil && !strings.Contains(err.Error(), step.says) {
			t.Errorf("%v: %v, want %v", step.op, err, step.errno)
		}
		expect(t, c, step.result)
	}
	// A single operation, and one on a missing object.
	do(t, c, ipvs.Op{Verb: ipvs.NewService, Service: mark})
	if s, err := c.Service(t.Context(), mark.ServiceID); err != nil || s.Service != mark {
		t.Errorf("%+v, %v; want %+v", s, err, mark)
	}
	if _, err := c.Service(t.Context(), byAddr.ServiceID); !errors.Is(err, unix.ESRCH) ||
		!strings.Contains(err.Error(), "UDP 10.96.0.10:53") {
		t.Errorf("a service that is not there: %v", err)
	}
	if all := destinations(t, c, byAddr.ServiceID); len(all) > 0 {
		t.Errorf("destinations of a service that is not there: %v", all)
	}
	// The timeouts of connections; 0 keeps one.
	want := ipvs.Timeouts{TCP: 10 * time.Minute, TCPFin: 30 * time.Second, UDP: 50 * time.Second}
	if err := c.SetTimeouts(t.Context(), want); err != nil {
		t.Error(err)
	}
	want.UDP = 7 * time.Second
	if err := c.SetTimeouts(t.Context(), ipvs.Timeouts{UDP: want.UDP}); err != nil {
		t.Error(err)
	}
	if got, err := c.Timeouts(t.Context()); err != nil || got != want {
		t.Errorf("timeouts %+v, %v; want %+v", got, err, want)
	}
}

// Thousands of operations need few system calls, and each gets an answer, wherever the refused ones
// are; lists of thousands are complete.
func TestKernelMany(t *testing.T) {
	kerneltest.Every(t)
	many(t, openKernel(t), 3000)
}

func many(t *testing.T, c *ipvs.Conn, n int) {
	t.Helper()
	want := state{sticky: {}}
	batch := []ipvs.Op{{Verb: ipvs.NewService, Service: sticky}}
	refused := map[int]error{}
	for i := range n {
		s, d := byAddr,
			ipvs.Destination{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{100, 64, byte(i >> 8), byte(i)}), 8080),
				Weight: 1}
		s.ServiceID = ipvs.ByAddr(netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 97, byte(i >> 8), byte(i)}), 80),
			unix.IPPROTO_TCP)
		want[s], want[sticky] = []ipvs.Destination{}, append(want[sticky], d)
		if i%100 == 7 {
			refused[len(batch)] = unix.ENOENT
			batch = append(batch, ipvs.Op{Verb: ipvs.DelDestination, Service: sticky, Destination: d})
		}
		batch = append(batch, ipvs.Op{Verb: ipvs.NewService, Service: s}, ipvs.Op{Verb: ipvs.NewDestination,
			Service: sticky, Destination: d})
	}
	before := c.Counters()
	got := map[int]error{}
	err := c.Do(t.Context(), batch, func(i int, err error) { got[i] = err })
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("and %d more of %d failed", len(refused)-1,
		len(batch))) {
		t.Errorf("the batch: %v", err)
	}
	if len(got) != len(refused) {
		t.Errorf("%d operations failed, want %d", len(got), len(refused))
	}
	for i, want := range refused {
		if !errors.Is(got[i], want) {
			t.Errorf("%v: %v, want %v", batch[i], got[i], want)
		}
	}
	after := c.Counters()
	if m, s := after.Messages-before.Messages, after.Sends-before.Sends; m != uint64(len(batch)) || s > m/150+1 {
		t.Errorf("%d operations took %d messages in %d system calls", len(batch), m, s)
	}
	seen := 0
	if err := c.Services(t.Context(), func(s ipvs.ServiceState) error {
		if _, ok := want[s.Service]; !ok {
			t.Errorf("%+v is listed", s)
		}
		seen++
		return nil
	}); err != nil || seen != len(want) {
		t.Errorf("%d services are listed, %v; want %d", seen, err, len(want))
	}
	if ds := destinations(t, c, sticky.ServiceID); !slices.Equal(ds, want[sticky]) {
		t.Errorf("%d destinations are listed, or others; want %d", len(ds), len(want[sticky]))
	}
	// An error of the callback ends the list, and the connection stays usable.
	stop, calls := errors.New("enough"), 0
	if err := c.Services(t.Context(), func(ipvs.ServiceState) error { calls++; return stop }); !errors.Is(err, stop) ||
		calls != 1 {
		t.Errorf("%v after %d calls", err, calls)
	}
	if _, err := c.Timeouts(t.Context()); err != nil {
		t.Error(err)
	}
}

// Connections are counted. A destination that was removed with connections has them again after it
// is added again, as in package ipvsfake, together with its packet counters.
func TestKernelCountsConnections(t *testing.T) {
	kerneltest.Every(t)
	c := openKernel(t)
	loopback, err := netlink.LinkByName("lo")
	for _, a := range []string{"10.96.0.10/32", "10.1.0.1/32"} {
		if err == nil {
			var addr *netlink.Addr
			addr, err = netlink.ParseAddr(a)
			if err == nil {
				err = netlink.AddrAdd(loopback, addr)
			}
		}
	}
	must(t, err)
	listener, err := net.Listen("tcp", "10.1.0.1:8080")
	must(t, err)
	defer listener.Close()
	service, d := sticky, ipvs.Destination{Addr: netip.MustParseAddrPort("10.1.0.1:8080"), Weight: 1}
	service.Scheduler, service.Flags = "rr", ipvs.Persistent
	do(t, c, ipvs.Op{Verb: ipvs.NewService, Service: service}, ipvs.Op{Verb: ipvs.NewDestination, Service: service,
		Destination: d})
	conn, err := net.DialTimeout("tcp", service.Addr.String(), 10*time.Second)
	must(t, err)
	defer conn.Close()
	look := func() ipvs.DestinationState {
		t.Helper()
		all, err := c.Destinations(t.Context(), service.ServiceID)
		if err != nil || len(all) != 1 {
			t.Fatal(all, err)
		}
		return all[0]
	}
	before := look()
	for end := time.Now().Add(30 * time.Second); before.Stats.Conns == 0 && time.Now().Before(end); before = look() {
		// The kernel sums counters every two seconds; it counts connections at once.
		<-time.After(100 * time.Millisecond)
	}
	if before.Active != 1 || before.Inactive != 0 || before.Persistent != 1 || before.Stats.Conns != 1 ||
		before.Stats.InPackets < 2 || before.Stats.OutPackets < 1 || before.Stats.InBytes < 80 {
		t.Errorf("with a connection: %+v", before)
	}
	whole := func() (got ipvs.ServiceState) {
		t.Helper()
		must(t, c.Services(t.Context(), func(s ipvs.ServiceState) error { got = s; return nil }))
		return got
	}
	summed := whole()
	for end := time.Now().Add(30 * time.Second); summed.Stats.Conns == 0 && time.Now().Before(end); summed = whole() {
		<-time.After(100 * time.Millisecond)
	}
	if summed.Stats.Conns != 1 || summed.Stats.InPackets < 2 {
		t.Errorf("the virtual server counts %+v: a persistent connection once", summed.Stats)
	}
	remove := ipvs.Op{Verb: ipvs.DelDestination, Service: service, Destination: d}
	do(t, c, remove)
	d.Weight = 3
	if got := whole(); got.Stats.Conns != 1 {
		t.Errorf("without its real server the virtual server counts %+v", got.Stats)
	}
	service.Scheduler = "wrr"
	do(t, c, ipvs.Op{Verb: ipvs.SetService, Service: service})
	if got := whole(); got.Scheduler != "wrr" || got.Stats.Conns != 1 {
		t.Errorf("with another scheduler it counts %+v", got)
	}
	do(t, c, ipvs.Op{Verb: ipvs.NewDestination, Service: service, Destination: d})
	if after := look(); after.Active != before.Active || after.Persistent != before.Persistent || after.Weight != 3 ||
		after.Stats.Conns != 1 {
		t.Errorf("removed and back: %+v, before %+v", after, before)
	}
	do(t, c, remove, ipvs.Op{Verb: ipvs.DelService, Service: service}, ipvs.Op{Verb: ipvs.NewService, Service: service},
		ipvs.Op{Verb: ipvs.NewDestination, Service: service, Destination: d})
	if after := look(); after.Active != before.Active || after.Stats.Conns != 0 {
		t.Errorf("removed with its service, and both back: %+v, before %+v", after, before)
	}
	if got := whole(); got.Stats.Conns != 0 {
		t.Errorf("removed and back the virtual server counts %+v", got.Stats)
	}
}

// Without CAP_NET_ADMIN, Open fails at once.
func TestKernelRefusesTheUnprivileged(t *testing.T) {
	kerneltest.Every(t)
	openKernel(t)
	caps := [2]unix.CapUserData{}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	must(t, unix.Capget(&header, &caps[0]))
	kept := caps
	caps[0].Effective &^= 1 << unix.CAP_NET_ADMIN
	must(t, unix.Capset(&header, &caps[0])) // of this thread
	defer unix.Capset(&header, &kept[0])
	if _, err := ipvs.Open(); !errors.Is(err, unix.EPERM) {
		t.Errorf("without CAP_NET_ADMIN: %v", err)
	}
}

// must ends the test if there is an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
