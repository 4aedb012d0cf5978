//go:build linux

package ebpf

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	cilium "github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
	"kube-proxy/plane/ebpf/bpf"
	"kube-proxy/test/kerneltest"
)

// sticky is shop with affinity, and n more Services of a tenant, by UDP at ports from 1000 on.
func sticky(n int) string {
	var b strings.Builder
	b.WriteString(strings.NewReplacer("shop/web:http clusterip", "shop/web:http clusterip affinity 3h",
		"shop/web:http nodeport", "shop/web:http nodeport affinity 3h",
		"set shop/web:http/tcp/cluster\n", "set shop/web:http/tcp/cluster\n  pod2:8080 local\n").Replace(shop))
	for i := range n {
		fmt.Fprintf(&b, "set evil/s%[1]d:p/udp/cluster\n  pod1:8080 local\n  pod2:8080 local\n", i)
	}
	rows := ""
	for i := range n {
		rows += fmt.Sprintf("OTHER:%d/udp evil/s%[2]d:p clusterip affinity 3h\n"+
			"  anywhere balance evil/s%[2]d:p/udp/cluster\n", 1000+i, i)
	}
	return strings.Replace(b.String(), "set shop/web:http", rows+"set shop/web:http", 1)
}

// port is that address with another port.
func (b *bench) port(name string, port int) netip.AddrPort {
	return netip.AddrPortFrom(b.to(name+":1").Addr(), uint16(port))
}

// server returns which endpoint answers a new connection of a host.
func (b *bench) server(from, to string) string {
	b.t.Helper()
	r, err := b.Dial(from, netlab.TCP, b.to(to), netlab.DialOptions{})
	if err != nil {
		b.t.Fatalf("%s → %s: %v", from, to, err)
	}
	return r.Server
}

// TestAffinityAcrossSwitch: a client with affinity meets the same endpoint when the packet path
// takes over, whatever the reason, and when the programs serve again; a client without room for
// more sockets too. Affinity is handed over when programs stop serving sockets, and not again with
// each configuration or audit, because what the packet path remembers since is newer (EB-26).
func TestAffinityAcrossSwitch(t *testing.T) {
	kerneltest.Later(t)
	eachFamily(t, func(b *bench) {
		b.change(sticky(0))
		clients, first := []string{"pod3", "pod2", "pod1", netlab.Node1}, map[string]string{}
		stays := func(when string) {
			b.t.Helper()
			for _, client := range clients {
				for range 4 {
					switch got := b.server(client, "VIP:80"); first[client] {
					case "":
						first[client] = got
					case got:
					default:
						b.t.Errorf("%s, %s: %s, and %s before", client, when, got, first[client])
					}
				}
			}
		}
		pod3 := b.link("pod3", b.t.TempDir())
		stays("at first")
		off, most := b.plane.balance, b.plane.setMost
		restart := func(sockets string) error {
			b.restart(func(c *Config) { c.Sockets = sockets })
			return nil
		}
		fail := func(because error) (err error) {
			if because != nil {
				b.plane.settle(because)
				return nil
			}
			b.On(netlab.Node1, func() { _, err = b.plane.audit() })
			b.plane.settle(err)
			return err
		}
		for name, way := range map[string][2]func() error{
			"no room for sockets":     {func() error { return most(0) }, func() error { return most(10_000) }},
			"switched off":            {func() error { return off("off") }, func() error { return off("all") }},
			"only the node's sockets": {func() error { return off("host") }, func() error { return off("all") }},
			"a pod is exempt":         {func() error { return off("all", pod3) }, func() error { return off("all") }},
			"a failure":               {func() error { return fail(unix.ENOMEM) }, func() error { return fail(nil) }},
			"another process":         {func() error { return restart("off") }, func() error { return restart("all") }},
		} {
			b.nft("flush map", "affinity")
			b.must(b.plane.damage("the switch"))
			for _, client := range clients {
				b.server(client, "VIP:80") // which the packet path remembers, perhaps at another endpoint
			}
			b.must(fail(nil))
			for when, change := range way {
				b.must(change())
				stays(fmt.Sprint(name, []string{"", ", and back"}[when]))
				if when == 0 && (name == "only the node's sockets" || name == "a pod is exempt") {
					b.nft("flush map", "affinity")
					b.must(errors.Join(change(), fail(nil)))
					if strings.Contains(b.nft("list map", "affinity"), "elements") {
						b.t.Errorf("%s: affinity was handed over again", name)
					}
				}
			}
		}
	})
}

// TestTenantFillsAffinity: a client that uses more Services with affinity than it has room for is
// served by the packet path for those without room. Other clients find their room, for each has its
// own (EB-23).
func TestTenantFillsAffinity(t *testing.T) {
	kerneltest.Later(t)
	const n = 300
	eachFamily(t, func(b *bench) {
		b.change(sticky(n))
		first := b.server("pod1", "VIP:80") // a client from before
		direct := 0
		for i := range n {
			fd := b.connectOnly("pod3", b.port("OTHER", 1000+i))
			if err := b.ask(fd); err != nil {
				b.t.Fatalf("Service %d of the tenant: %v", i, err)
			}
			if b.connectedInKernel(fd) {
				direct++
			}
		}
		if direct != len(bpf.LBChoices{}.Of) {
			b.t.Errorf("the programs connected %d sockets of the tenant, want %d: the room of a client", direct,
				len(bpf.LBChoices{}.Of))
		}
		b.noRules()
		latecomer := b.server("pod2", "VIP:80")
		for range 8 {
			if got := b.server("pod1", "VIP:80"); got != first {
				b.t.Errorf("a client from before: %s, and %s after the flood", first, got)
			}
			if got := b.server("pod2", "VIP:80"); got != latecomer {
				b.t.Errorf("a client that came later: %s, then %s", latecomer, got)
			}
		}
	})
}

// TestFullAffinity: where no client more finds room, the packet path serves it; those that have
// room go on (EB-23).
func TestFullAffinity(t *testing.T) {
	kerneltest.Later(t)
	eachFamily(t, func(b *bench) {
		b.change(sticky(0))
		first := b.server("pod1", "VIP:80")
		b.must(b.plane.fillAffinity())
		latecomer := b.server("pod3", "VIP:80")
		for range 8 {
			if got := b.server("pod1", "VIP:80"); got != first {
				b.t.Errorf("a client from before: %s, and %s where all is full", first, got)
			}
			if got := b.server("pod3", "VIP:80"); got != latecomer {
				b.t.Errorf("the packet path served a client by %s, then by %s", latecomer, got)
			}
		}
		b.noRules()
		if r, err := b.Dial("pod3", netlab.TCP, b.to("VIP:80"), netlab.DialOptions{Timeout: 300e6}); err == nil {
			b.t.Errorf("a client without room: %s answered without the packet path", r.Server)
		}
		if got := b.server("pod1", "VIP:80"); got != first {
			b.t.Errorf("a client from before: %s, and %s without the packet path", first, got)
		}
	})
}

// TestFloods: while a tenant opens sockets, sends to many destinations from one socket, binds the
// port of a NodePort and calls Services that refuse, no call of another client fails, and the
// programs serve all of them (EB-23).
func TestFloods(t *testing.T) {
	kerneltest.Later(t)
	const n = 600
	eachFamilyWith(t, func(c *Config) { c.Guard = true }, func(b *bench) {
		b.change(sticky(100) + "VIP:81/tcp shop/none:http clusterip\n  anywhere reject\n")
		b.noRules()
		traffic := b.Traffic(netlab.Way{From: "pod2", To: b.to("VIP:80")},
			netlab.Way{From: netlab.Node1, To: b.to("NODE:30080")})
		other := b.socket("pod2", unix.SOCK_DGRAM, false)
		for i := range n {
			b.connectOnly("pod3", b.to("VIP:53"))
			flood := b.socket("pod3", unix.SOCK_DGRAM, false)
			for port := range 12 { // more than a socket has places
				to := b.port("OTHER", 1000+(12*i+port)%100)
				_ = unix.Sendto(flood, []byte("x"), unix.MSG_DONTWAIT, sockaddr(to))
			}
			nodePort := netip.AddrPortFrom(b.f.Everywhere().Addr(), 30080)
			_ = unix.Bind(b.socket("pod3", unix.SOCK_STREAM, false), sockaddr(nodePort))
			// Before Linux 5.18 the rules would refuse it, and without them nothing does.
			_ = unix.Connect(b.socket("pod3", unix.SOCK_STREAM|unix.SOCK_NONBLOCK, false), sockaddr(b.to("VIP:81")))
			if i%200 == 0 {
				b.asks(fmt.Sprintf("another client, after %d sockets of the tenant", i), other, b.to("VIP:53"), "pod1")
			}
		}
		traffic.More()
		traffic.Stop()
		b.reaches("pod2", netlab.TCP, "VIP:80", b.server("pod2", "VIP:80"))
		b.reaches("pod1", netlab.UDP, "VIP:53", "pod1") // a client that came later
	})
}

// connectedInKernel reports whether the programs have connected a socket: they keep its peer.
func (b *bench) connectedInKernel(fd int) bool {
	b.t.Helper()
	var p bpf.LBPeer
	err := b.plane.kernel.obj.Connected.Lookup(uint32(fd), &p)
	if !errors.Is(err, cilium.ErrKeyNotExist) {
		b.must(err)
	}
	return p.Backend != 0
}
