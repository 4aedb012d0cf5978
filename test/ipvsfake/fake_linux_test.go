package ipvsfake_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink/ipvs"
	"kube-proxy/test/ipvsfake"
)

func connect(t *testing.T, k *ipvsfake.Kernel) *ipvs.Conn {
	t.Helper()
	c, err := ipvs.New(t.Context(), k.Connect())
	must(t, err)
	return c
}

var (
	web = ipvs.Service{ServiceID: ipvs.ByAddr(netip.MustParseAddrPort("10.96.0.10:80"), unix.IPPROTO_TCP),
		Scheduler: "sh",
		Flags:     ipvs.Persistent | ipvs.Sched1 | ipvs.Sched2, Timeout: 10800, Netmask: 0xffffff00}
	dns = ipvs.Service{ServiceID: ipvs.ByAddr(netip.MustParseAddrPort("[fd00::a]:53"), unix.IPPROTO_UDP),
		Scheduler: "rr", Flags: ipvs.OnePacket, Netmask: 128}
	mark = ipvs.Service{ServiceID: ipvs.ByMark(ipvs.IPv6, 7), Scheduler: "wrr", Flags: ipvs.Persistent, Timeout: 60,
		Netmask: 64}
	one = ipvs.Destination{Addr: netip.MustParseAddrPort("10.1.0.1:8080"), Weight: 1}
	two = ipvs.Destination{Addr: netip.MustParseAddrPort("10.1.0.2:8080"), Weight: 0, Forwarding: ipvs.Route}
	six = ipvs.Destination{Addr: netip.MustParseAddrPort("[fd00:1::1]:8443"), Weight: 2}
)

func filled(t *testing.T) (*ipvsfake.Kernel, *ipvs.Conn) {
	t.Helper()
	k := ipvsfake.New(ipvsfake.Config{})
	c := connect(t, k)
	if err := c.Do(t.Context(), []ipvs.Op{{Verb: ipvs.NewService, Service: web}, {Verb: ipvs.NewService, Service: dns},
		{Verb: ipvs.NewService, Service: mark},
		{Verb: ipvs.NewDestination, Service: web, Destination: two}, {Verb: ipvs.NewDestination, Service: web,
			Destination: one}, {Verb: ipvs.NewDestination, Service: mark, Destination: six}}, nil); err != nil {
		t.Fatal(err)
	}
	return k, c
}

// counted returns the counters of a service.
func counted(t *testing.T, c *ipvs.Conn, id ipvs.ServiceID) ipvs.Stats {
	t.Helper()
	s, err := c.Service(t.Context(), id)
	must(t, err)
	return s.Stats
}

// Connections are listed, and outlive their destination, as TestKernelCountsConnections of
// netlink/ipvs shows of the kernel.
func TestConnections(t *testing.T) {
	k, c := filled(t)
	stats := ipvs.Stats{Conns: 5, InPackets: 1 << 33, OutPackets: 3, InBytes: 1 << 40, OutBytes: 4}
	conns := ipvsfake.Conns{Active: 1, Inactive: 2, Persistent: 3}
	must(t, errors.Join(k.SetConns(web.ServiceID, one.Addr, conns), k.SetStats(web.ServiceID, one.Addr, stats),
		k.SetServiceStats(web.ServiceID, stats)))
	if err := k.SetConns(web.ServiceID, six.Addr, conns); err == nil ||
		!strings.Contains(err.Error(), "[fd00:1::1]:8443") {
		t.Errorf("a destination that is not there: %v", err)
	}
	look := func() (got ipvs.DestinationState) {
		all, err := c.Destinations(t.Context(), web.ServiceID)
		for _, d := range all {
			if d.Addr == one.Addr {
				got = d
			}
		}
		must(t, err)
		return got
	}
	want := ipvs.DestinationState{Destination: one, Active: 1, Inactive: 2, Persistent: 3, Stats: stats}
	if got := look(); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	remove := ipvs.Op{Verb: ipvs.DelDestination, Service: web, Destination: one}
	add := ipvs.Op{Verb: ipvs.NewDestination, Service: web, Destination: one}
	must(t, c.Do(t.Context(), []ipvs.Op{remove, add}, nil))
	if got := look(); got != want {
		t.Errorf("removed and back: %+v, want %+v", got, want)
	}
	other := web
	other.Scheduler, other.Flags = "wrr", 0
	must(t, c.Do(t.Context(), []ipvs.Op{{Verb: ipvs.SetService, Service: other}}, nil))
	if got := counted(t, c, web.ServiceID); got != stats {
		t.Errorf("with another scheduler, and a destination that was removed meanwhile, the service counts %+v, want "+
			"%+v", got, stats)
	}
	if err := k.SetServiceStats(ipvs.ByMark(ipvs.IPv4, 99), stats); err == nil {
		t.Error("a service that is not there has counters")
	}
	must(t, c.Do(t.Context(), []ipvs.Op{{Verb: ipvs.DelService, Service: web}, {Verb: ipvs.NewService, Service: web},
		add}, nil))
	if got := counted(t, c, web.ServiceID); got != (ipvs.Stats{}) {
		t.Errorf("removed and back the service counts %+v", got)
	}
	want.Stats = ipvs.Stats{} // a new service now
	if got := look(); got != want {
		t.Errorf("removed with its service, and both back: %+v, want %+v", got, want)
	}
}

// Before receives each message with its subject, and changes made in it come first.
func TestBefore(t *testing.T) {
	k, c := filled(t)
	other := connect(t, k)
	var noticed []ipvsfake.Request
	k.Before = func(r ipvsfake.Request) error {
		r.N--
		if len(noticed) == 0 {
			noticed = append(noticed, r)
			return other.Do(t.Context(), []ipvs.Op{{Verb: ipvs.DelDestination, Service: web, Destination: one}}, nil)
		}
		noticed = append(noticed, r)
		return nil
	}
	err := c.Do(t.Context(), []ipvs.Op{{Verb: ipvs.DelDestination, Service: web, Destination: one}}, nil)
	if !errors.Is(err, unix.ENOENT) || len(noticed) != 2 || noticed[0].Command != ipvsfake.DelDest ||
		!noticed[0].Command.Writes() || noticed[0].Service != web.ServiceID || noticed[0].Destination != one.Addr ||
		noticed[1].N != noticed[0].N+1 {
		t.Errorf("%v; noticed %+v", err, noticed)
	}
}

// must ends the test if there is an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
