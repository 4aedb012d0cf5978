//go:build linux

package ebpf

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/test/tables"
)

// change makes the table another one by changes, as the engine does.
func (b *bench) change(text string) {
	b.t.Helper()
	want := b.parse(text)
	var changes []lb.Change
	for f := range b.table.All() {
		if want.Get(f.Key) == nil {
			changes = append(changes, lb.Change{Key: f.Key, Old: f})
		}
	}
	for f := range want.All() {
		changes = append(changes, lb.Change{Key: f.Key, Old: b.table.Get(f.Key), New: f})
	}
	b.On(netlab.Node1, func() {
		if _, err := (checked{b.plane}).Apply(context.Background(), changes); err != nil {
			b.t.Fatal(err)
		}
	})
	b.table = want
}

// connected opens a socket in a host that is connected, and asks once.
func (b *bench) connected(host string, kind int, to netip.AddrPort, mapped bool) (fd int) {
	b.t.Helper()
	fd = b.socket(host, kind, mapped)
	if mapped {
		to = netip.AddrPortFrom(netip.AddrFrom16(to.Addr().As16()), to.Port())
	}
	if err := unix.Connect(fd, sockaddr(to)); err != nil {
		b.t.Fatalf("connect to %s: %v", to, err)
	}
	if err := b.ask(fd); err != nil {
		b.t.Fatalf("ask %s: %v", to, err)
	}
	return fd
}

func (b *bench) ask(fd int) error {
	if _, err := unix.Write(fd, []byte("hello\n")); err != nil {
		return err
	}
	_, _, err := receive(fd, make([]byte, 1500))
	return err
}

// ended waits until the kernel has ended a socket: its next call fails, once.
func ended(fd int) bool {
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR); err == nil &&
			unix.Errno(n) == unix.ECONNABORTED {
			return true
		}
	}
	return false
}

// reaps skips a test on a kernel that refuses programs that read its memory, as in lockdown.
// test/vm/suites runs it on others.
func (b *bench) reaps() {
	b.t.Helper()
	switch err := b.plane.unreaped; {
	case errors.Is(err, unix.EPERM):
		b.t.Skipf("stale sockets do not end here, see test/vm/suites: %v", err)
	case err != nil:
		b.t.Fatal(err)
	}
}

// TestStaleSockets: when an endpoint leaves, UDP sockets connected to it by the programs end,
// in all network namespaces and of both kinds, and can connect again. Sockets of another
// Service, those that connected to the endpoint itself, those whose endpoint another set still
// has, and TCP connections go on (EB-13; kubernetes resolvers that stay at CoreDNS pods long
// gone, cilium/cilium#27300). A pass finds each of many (cilium/cilium#44835).
func TestStaleSockets(t *testing.T) {
	eachFamily(t, func(b *bench) {
		b.reaps()
		dns := b.to("VIP:53")
		stale := []int{
			b.connected("pod3", unix.SOCK_DGRAM, dns, false),
			b.connected(netlab.Node1, unix.SOCK_DGRAM, dns, false),
			b.connected("pod2", unix.SOCK_DGRAM, dns, false),
		}
		if b.f == lb.IPv4 {
			stale = append(stale, b.connected("pod3", unix.SOCK_DGRAM, dns, true))
		}
		var many, others []int
		for range 400 {
			many = append(many, b.connectOnly("pod3", dns))
			others = append(others, b.connectOnly("pod3", b.to("OTHER:53")))
		}
		lives := map[string]int{
			"another Service":        b.connected("pod3", unix.SOCK_DGRAM, b.to("OTHER:53"), false),
			"the endpoint itself":    b.connected("pod3", unix.SOCK_DGRAM, b.to("pod1:8080"), false),
			"TCP to the same server": b.connected("pod3", unix.SOCK_STREAM, b.to("VIP:80"), false),
		}
		left := strings.Replace(shop, "set shop/dns:dns/udp/cluster\n  pod1:8080 local",
			"set shop/dns:dns/udp/cluster\n  pod2:8080 local", 1)
		b.change(left)
		for i, fd := range stale {
			if !ended(fd) {
				b.t.Errorf("socket %d to an endpoint that left is still connected", i)
				continue
			}
			if _, err := unix.Write(fd, []byte("hello\n")); err != unix.EDESTADDRREQ {
				b.t.Errorf("socket %d has no endpoint, and a write returns %v", i, err)
			}
			to := dns
			if i == 3 {
				to = netip.AddrPortFrom(netip.AddrFrom16(dns.Addr().As16()), dns.Port())
			}
			if err := errors.Join(unix.Connect(fd, sockaddr(to)), b.ask(fd)); err != nil {
				b.t.Errorf("socket %d connects again: %v", i, err)
			}
		}
		for i, fd := range many {
			if !ended(fd) {
				b.t.Fatalf("socket %d of %d is still connected", i, len(many))
			}
			b.hasPeer("another Service", others[i], b.to("OTHER:53"))
		}
		for name, fd := range lives {
			if err := b.ask(fd); err != nil {
				b.t.Errorf("%s: %v", name, err)
			}
		}
		// The endpoint comes under another number: a local set takes the place of the
		// cluster's.
		moved := strings.NewReplacer("shop/dns:dns/udp/cluster", "shop/dns:dns/udp/local").Replace(left)
		b.change(moved)
		if err := b.plane.kernel.reaper.pass(t.Context()); err != nil {
			b.t.Error(err)
		}
		for i, fd := range stale {
			if err := b.ask(fd); err != nil {
				b.t.Errorf("socket %d, whose endpoint has another number: %v", i, err)
			}
		}
	})
}

// TestDrainingEndpoint: sockets keep an endpoint that drains, also after a restart of the proxy,
// and its replies come from the Service, until it serves no longer (DP-50, EB-06, EB-13).
func TestDrainingEndpoint(t *testing.T) {
	eachFamily(t, func(b *bench) {
		b.reaps()
		dns := b.to("VIP:53")
		fd, free := b.connected("pod3", unix.SOCK_DGRAM, dns, false), b.socket("pod3", unix.SOCK_DGRAM, false)
		b.asks("at first", free, dns, "pod1")
		gone := strings.Replace(shop, "set shop/dns:dns/udp/cluster\n  pod1:8080 local",
			"set shop/dns:dns/udp/cluster\n  pod2:8080 local", 1)
		to := "anywhere balance shop/dns:dns/udp/cluster\n"
		drains := strings.Replace(gone, to, to+"  serving  shop/dns:dns/udp/serving\n", 1) +
			"set shop/dns:dns/udp/serving\n  pod1:8080\n  pod2:8080\n"
		b.change(drains)
		stay := func(when string) {
			b.must(b.plane.kernel.reaper.pass(b.t.Context()))
			b.asks(when, free, dns, "pod1")
			if err := b.ask(fd); err != nil {
				b.t.Errorf("%s: a connected socket: %v", when, err)
			}
			_, err := unix.Write(fd, []byte("hello\n"))
			b.must(err)
			if _, from, err := receive(fd, make([]byte, 1500)); err != nil || addrPort(from) != dns {
				b.t.Errorf("%s: a reply comes from %s, %v, want %s", when, addrPort(from), err, dns)
			}
			b.asks(when+", another client", b.socket("pod3", unix.SOCK_DGRAM, false), dns, "pod2")
		}
		stay("the endpoint drains")
		b.restart(nil)
		stay("after a restart")
		b.change(shop)
		b.asks("the endpoint is back", b.socket("pod3", unix.SOCK_DGRAM, false), dns, "pod1")
		b.asks("the endpoint is back, a client from before", free, dns, "pod1")
		b.change(drains)
		b.change(gone)
		if !ended(fd) {
			b.t.Error("a socket is connected to an endpoint that drained and left")
		}
		b.asks("the endpoint left", free, dns, "pod2")
		if fixed, err := b.plane.audit(); fixed != 0 || err != nil {
			b.t.Errorf("a comparison repairs %d elements, %v", fixed, err)
		}
	})
}

// TestConnectsAgainAtOnce: a socket whose program connects it again as soon as it ended, to another
// endpoint, does not end a second time (EB-13).
func TestConnectsAgainAtOnce(t *testing.T) {
	eachFamily(t, func(b *bench) {
		b.reaps()
		dns := b.to("VIP:53")
		var fds []int
		for range 400 {
			fds = append(fds, b.connectOnly("pod3", dns))
		}
		b.change(strings.Replace(shop, "set shop/dns:dns/udp/cluster\n  pod1:8080 local",
			"set shop/dns:dns/udp/cluster\n  pod2:8080 local", 1))
		ends := make([]int, len(fds))
		look := func() {
			for i, fd := range fds {
				n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
				b.must(err)
				if unix.Errno(n) == unix.ECONNABORTED {
					ends[i]++
					b.must(unix.Connect(fd, sockaddr(dns)))
				}
			}
		}
		for b.plane.kernel.reaper.ended.Load() < uint64(len(fds)) {
			look()
		}
		look()
		for i, n := range ends {
			if n != 1 {
				b.t.Errorf("socket %d ended %d times", i, n)
			}
		}
	})
}

// TestStaleAfterRestart: a new process ends sockets whose endpoint left while none ran, TCP
// sockets too with Stale "all" (EB-13).
func TestStaleAfterRestart(t *testing.T) {
	eachFamily(t, func(b *bench) {
		b.reaps()
		udp := b.connected("pod3", unix.SOCK_DGRAM, b.to("VIP:53"), false)
		tcp := b.connected("pod3", unix.SOCK_STREAM, b.to("VIP:80"), false)
		b.table = b.parse(strings.Replace(shop, "pod1:8080 local", "pod2:8080 local", 2))
		b.restart(nil)
		if !ended(udp) {
			b.t.Error("a UDP socket to an endpoint that left while no process ran is still connected")
		}
		if err := b.ask(tcp); err != nil {
			b.t.Errorf("TCP: %v", err)
		}
		b.restart(func(cfg *Config) { cfg.Stale = "all" })
		if !ended(tcp) {
			b.t.Error("a TCP socket to an endpoint that left is still connected, though all stale sockets were to end")
		}
	})
}

func (b *bench) connectOnly(host string, to netip.AddrPort) (fd int) {
	b.t.Helper()
	fd = b.socket(host, unix.SOCK_DGRAM, false)
	b.must(unix.Connect(fd, sockaddr(to)))
	return fd
}

// BenchmarkReap is a pass over sockets whose endpoints stay, divided by their number.
func BenchmarkReap(b *testing.B) {
	const n = 10_000
	lab := netlab.ForTest(b, netlab.Options{Cgroup: true, NoNode2: true, NoClient: true})
	all := &planes{bpffs: bpffs(b)}
	var p *Plane
	lab.On(netlab.Node1, func() {
		var err error
		if p, err = all.at(lb.IPv4, lab.Cgroup(netlab.Node1)); err != nil {
			b.Fatal(err)
		}
		table, err := tables.Parse(names4.Replace(strings.ReplaceAll(shop, "ALL", lb.IPv4.Everywhere().String())))
		if err != nil {
			b.Fatal(err)
		}
		if _, err := p.Reset(b.Context(), table); err != nil {
			b.Fatal(err)
		}
		if err := p.unreaped; err != nil {
			b.Fatal(err)
		}
	})
	defer p.Close()
	lab.On("pod3", func() {
		for range n {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err == nil {
				err = unix.Connect(fd, sockaddr(netip.MustParseAddrPort("10.96.0.10:53")))
			}
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { unix.Close(fd) })
		}
	})
	for b.Loop() {
		if err := p.kernel.reaper.pass(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/socket")
}
