package ipvsfake_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
	"kube-proxy/internal/netlink/ipvs"
	"kube-proxy/test/ipvsfake"
	"kube-proxy/test/kerneltest"
)

var (
	seed  = flag.Uint64("ipvs.seed", 1, "of the random operations of TestFakeIsLikeTheKernel")
	steps = flag.Int("ipvs.messages", 5000, "how many operations TestFakeIsLikeTheKernel asks for")
)

// expected lists results of operations that must occur at least once; otherwise the operations are
// useless.
var expected = []string{
	"1: <nil>", "1: file exists", "1: no such file or directory", "1: invalid argument", "2: <nil>",
	"2: no such process", "2: no such file or directory",
	"3: <nil>", "3: no such process", "5: <nil>", "5: file exists", "5: no such process", "5: invalid argument",
	"5: numerical result out of range",
	"6: <nil>", "6: no such process", "6: no such file or directory", "7: <nil>", "7: no such process",
	"7: no such file or directory",
	"timeouts: <nil>", "timeouts: invalid argument",
}

// The fake carries out each operation as the kernel does, and lists the same afterwards: random
// operations, usual and unusual.
func TestFakeIsLikeTheKernel(t *testing.T) {
	kerneltest.Every(t)
	netlab.EnterForTest(t)
	loopback, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(loopback)
	}
	must(t, err)
	kernel, err := ipvs.Open()
	if errors.Is(err, ipvs.ErrNoIPVS) {
		t.Skipf("%v; make test-kernels has it", err)
	} else if err != nil {
		t.Fatal(err)
	}
	defer kernel.Close()
	schedulers := loadable(t, kernel)
	t.Logf("the kernel has the schedulers %v", schedulers)
	fake := connect(t, ipvsfake.New(ipvsfake.Config{Schedulers: schedulers}))
	g := &generator{Rand: rand.New(rand.NewPCG(*seed, 0))}
	reported := map[string]int{}
	var last []string
	for n := range *steps {
		what, ask := g.step()
		want, got := errnoOf(ask(kernel)), errnoOf(ask(fake))
		reported[fmt.Sprintf("%s: %v", strings.SplitN(what, " ", 2)[0], want)]++
		last = append(last, what)
		wrong := ""
		if want != got {
			wrong = fmt.Sprintf("%v, and the fake %v", want, got)
		} else if n%100 == 99 || n == *steps-1 {
			if want, got := state(t, kernel), state(t, fake); want != got {
				wrong = fmt.Sprintf("then it has\n%s\nand the fake\n%s", want, got)
			}
		}
		if wrong != "" {
			t.Fatalf("operation %d of seed %d: %s: the kernel: %s\nthe operations before:\n%s", n, *seed, what, wrong,
				strings.Join(last[max(0, len(last)-100):], "\n"))
		}
	}
	for _, want := range expected {
		if reported[want] == 0 {
			t.Errorf("no operation brought %q: %v", want, reported)
		}
	}
}

// loadable returns the schedulers that the kernel has or can load. lblc and lblcr are left out:
// loading them by a message can block the kernel forever (docs/adr/0046).
func loadable(t *testing.T, c *ipvs.Conn) (names []string) {
	t.Helper()
	for _, name := range ipvsfake.Schedulers {
		s := ipvs.Service{ServiceID: ipvs.ByMark(ipvs.IPv4, 1), Scheduler: name, Netmask: 1<<32 - 1}
		if strings.HasPrefix(name, "lblc") {
			continue
		}
		err := c.Do(t.Context(), []ipvs.Op{{Verb: ipvs.NewService, Service: s}, {Verb: ipvs.DelService, Service: s}},
			nil)
		switch {
		case err == nil:
			names = append(names, name)
		case !errors.Is(err, unix.ENOENT):
			t.Fatal(err)
		}
	}
	if len(names) < 5 {
		t.Fatalf("the kernel has only the schedulers %v", names)
	}
	return names
}

// errnoOf returns the kernel's error, or nil.
func errnoOf(err error) error {
	var errno unix.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return err
}

// state returns all listed objects, in the order of names; the destinations of a service are in the
// kernel's order, the newest first.
func state(t *testing.T, c *ipvs.Conn) string {
	t.Helper()
	all := map[ipvs.ServiceID]string{}
	err := c.Services(t.Context(), func(v ipvs.ServiceState) error {
		all[v.ServiceID] = v.String()
		return nil
	})
	var lines []string
	for id, line := range all {
		one, oneErr := c.Service(t.Context(), id)
		line += fmt.Sprintf(" alone %t", one.String() == line)
		destinations, destinationsErr := c.Destinations(t.Context(), id)
		for _, d := range destinations {
			line += fmt.Sprintf("\n  %+v", d)
		}
		err = errors.Join(err, oneErr, destinationsErr)
		lines = append(lines, line)
	}
	timeouts, timeoutsErr := c.Timeouts(t.Context())
	err = errors.Join(err, timeoutsErr)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(lines)
	return fmt.Sprintf("%s\n%+v", strings.Join(lines, "\n"), timeouts)
}

// generator makes operations, mostly on existing services and destinations.
type generator struct {
	*rand.Rand
	made []ipvs.Op
}

func pick[T any](g *generator, from ...T) T { return from[g.IntN(len(from))] }

// step returns an operation and its description, which begins with its number.
func (g *generator) step() (what string, ask func(*ipvs.Conn) error) {
	if g.IntN(30) == 0 {
		seconds := func() time.Duration {
			return time.Duration(pick(g, 0, 1, 60, 900, 86400, 8589934, 8589935, 1<<31-1)) * time.Second
		}
		to := ipvs.Timeouts{TCP: seconds(), TCPFin: seconds(), UDP: seconds()}
		return fmt.Sprintf("timeouts %+v", to), func(c *ipvs.Conn) error {
			return c.SetTimeouts(context.Background(), to)
		}
	}
	op := ipvs.Op{Verb: pick(g, ipvs.NewService, ipvs.NewService, ipvs.SetService, ipvs.DelService, ipvs.NewDestination,
		ipvs.NewDestination, ipvs.NewDestination, ipvs.SetDestination, ipvs.DelDestination), Service: g.service(),
		Destination: g.destination()}
	if g.IntN(4) > 0 && len(g.made) > 0 && (op.Verb != ipvs.NewService || g.IntN(8) == 0) {
		was := g.made[g.IntN(len(g.made))]
		op.Service.ServiceID = was.Service.ServiceID
		if was.Destination.Addr.IsValid() && (op.Verb != ipvs.NewDestination || g.IntN(4) == 0) {
			op.Destination.Addr = was.Destination.Addr
		}
	}
	switch op.Verb {
	case ipvs.NewService:
		g.made = append(g.made, ipvs.Op{Service: op.Service})
	case ipvs.NewDestination:
		g.made = append(g.made, op)
	}
	g.made = g.made[max(0, len(g.made)-30):]
	return fmt.Sprintf("%d %v %+v", op.Verb, op.Service, op.Destination), func(c *ipvs.Conn) error {
		return c.Do(context.Background(), []ipvs.Op{op}, nil)
	}
}

func (g *generator) service() ipvs.Service {
	six := g.IntN(3) == 0
	s := ipvs.Service{Scheduler: pick(g, "rr", "rr", "rr", "wrr", "sh", "mh"),
		Flags:   ipvs.Flags(pick(g, 0, 1, 5, 0x38, g.Uint32())) &^ 2,
		Timeout: pick(g, 0, 300, 10800, 86400, 17179869, 17179870, 1<<31, g.Uint32())}
	switch family := ipvs.IPv4; {
	case g.IntN(3) == 0:
		if six {
			family = ipvs.IPv6
		}
		s.ServiceID = ipvs.ByMark(family, pick[uint32](g, 1, 2, 0x4000, 1<<32-1, 257))
	default:
		a := netip.AddrFrom4([4]byte{10, 96, 0, byte(g.IntN(3))})
		if six {
			a = netip.AddrFrom16([16]byte{0xfd, 15: byte(g.IntN(3))})
		}
		if g.IntN(20) == 0 {
			a = pick(g, netip.IPv4Unspecified(), netip.MustParseAddr("224.0.0.1"), netip.IPv6Unspecified(),
				netip.MustParseAddr("ff02::1"))
		}
		s.ServiceID = ipvs.ByAddr(netip.AddrPortFrom(a, pick[uint16](g, 80, 80, 0, 21, 65535)),
			pick[uint8](g, 6, 6, 6, 17, 132, 0))
	}
	switch g.IntN(60) {
	case 0:
		// lblc and lblcr may not be loaded by this: docs/adr/0046
		s.Scheduler = pick(g, "none", "lc", "wlc", "dh", "sed", "nq", "fo", "ovf", "twos")
	case 1:
		s.Scheduler = pick(g, "sip", "no-scheduler-15", "ftp")
	}
	s.Netmask = pick[uint32](g, 1<<32-1, 0xffffff00, 0, 0x01020304)
	if s.Family == ipvs.IPv6 {
		s.Netmask = pick[uint32](g, 128, 128, 128, 64, 1, 0, 129, 1<<32-1)
	}
	return s
}

func (g *generator) destination() ipvs.Destination {
	d := ipvs.Destination{Forwarding: pick(g, ipvs.Masq, ipvs.Masq, ipvs.Local, ipvs.Tunnel, ipvs.Tunnel, ipvs.Route,
		ipvs.Bypass),
		Weight: pick[int32](g, 1, 1, 0, 100, 65536, 1<<31-1, -1), Upper: pick[uint32](g, 0, 0, 10, 65535),
		Lower: pick[uint32](g, 0, 0, 9, 11)}
	a := netip.AddrFrom4([4]byte{10, 1, 0, byte(g.IntN(4))})
	if g.IntN(3) == 0 {
		a = netip.AddrFrom16([16]byte{0: 0xfd, 3: 1, 15: byte(g.IntN(4))})
	}
	if g.IntN(10) == 0 {
		a = netip.MustParseAddr(pick(g, "0.0.0.0", "0.0.0.1", "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255",
			"127.0.0.1", "127.255.255.255", "::", "::1",
			"fe80::", "ff02::", "::10.1.0.1", "fec0::"))
	}
	d.Addr = netip.AddrPortFrom(a, pick[uint16](g, 8080, 8080, 0, 65535))
	return d
}
