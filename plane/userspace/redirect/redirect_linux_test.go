package redirect

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/plane"
)

// kind is a redirector with a packet filter.
type kind struct {
	name string
	make func(Config) (Redirector, error)
	// unknown: it refuses ports and addresses without a Service (SV-62, SV-63).
	unknown bool
}

func kinds() []kind {
	return []kind{
		{"nftables", func(c Config) (Redirector, error) { return NewNFTables(c) }, true},
		{"iptables", func(c Config) (Redirector, error) { return NewIPTables(c) }, false},
	}
}

// world has the addresses of a family.
type world struct {
	lb.Family
	proto                 netlab.Proto
	vip, other, lonely    netip.Addr // service addresses; the last without a Service
	node, client, pod     netip.Addr
	services, pods, nodes netip.Prefix
}

func worlds() []world {
	ip, p := netip.MustParseAddr, netip.MustParsePrefix
	return []world{
		{lb.IPv4, netlab.TCP, ip("10.96.0.10"), ip("10.96.0.11"), ip("10.96.7.7"), ip("172.18.0.2"), ip("172.18.0.100"),
			ip("10.1.1.11"),
			p("10.96.0.0/16"), p("10.1.0.0/16"), p("172.18.0.0/24")},
		{lb.IPv6, netlab.TCP, ip("fd00:10:96::10"), ip("fd00:10:96::11"), ip("fd00:10:96::77"), ip("fd00:18::2"),
			ip("fd00:18::100"), ip("fd00:10:1:1::11"),
			p("fd00:10:96::/112"), p("fd00:10:1::/48"), p("fd00:18::/64")},
	}
}

func (w world) n() lb.Node {
	return lb.Node{NodePorts: []netip.Prefix{w.Family.Everywhere()}, ServiceCIDRs: []netip.Prefix{w.services},
		Pods: lb.Detector{Prefixes: []netip.Prefix{w.pods}}}
}

func (w world) key(a netip.Addr, port uint16, p lb.Proto) lb.Key {
	return lb.Key{Addr: a, Port: port, Proto: p}
}

func to(port uint16) []Route            { return []Route{{From: lb.Anywhere, Port: port}} }
func do(a lb.Action) []Route            { return []Route{{From: lb.Anywhere, Do: a}} }
func cluster(k lb.Key, r []Route) Entry { return Entry{Key: k, Kind: lb.ClusterIP, Routes: r} }

// bench is a node with a redirector, and servers on ports of the node in place of the proxy.
type bench struct {
	*netlab.TestLab
	t *testing.T
	world
	kind
	Redirector
}

// each runs a test for each kind of redirector and family, in its own lab.
func each(t *testing.T, run func(t *testing.T, b *bench)) {
	for _, k := range kinds() {
		for _, w := range worlds() {
			t.Run(k.name+"/"+w.Family.String(), func(t *testing.T) {
				b := &bench{TestLab: netlab.ForTest(t, netlab.Options{NoNode2: true}), t: t, world: w, kind: k}
				b.start(Config{Family: w.Family, Mark: 0x4000, LocalhostNodePorts: true})
				run(t, b)
			})
		}
	}
}

func (b *bench) start(cfg Config) {
	b.t.Helper()
	b.On(netlab.Node1, func() {
		c, err := b.make(cfg)
		if err != nil {
			b.t.Fatal(err)
		}
		b.Redirector = c
		b.t.Cleanup(func() { c.Close() })
	})
}

// do runs a verb in the namespace of the node.
func (b *bench) do(f func(context.Context) error) {
	b.t.Helper()
	b.On(netlab.Node1, func() {
		if err := f(b.t.Context()); err != nil {
			b.t.Fatal(err)
		}
	})
}

func (b *bench) reset(want ...Entry) {
	b.t.Helper()
	b.do(func(ctx context.Context) error { _, err := b.Reset(ctx, b.n(), want); return err })
}

func (b *bench) apply(remove []lb.Key, set ...Entry) {
	b.t.Helper()
	b.do(func(ctx context.Context) error { return b.Apply(ctx, set, remove) })
}

func (b *bench) audit(full bool) (n int) {
	b.t.Helper()
	b.do(func(ctx context.Context) (err error) { n, err = b.Audit(ctx, full); return err })
	return n
}

// Serve starts a responder with a socket like the proxy's.
func (b *bench) Serve(p netlab.Proto, port uint16, host string) {
	b.t.Helper()
	if _, err := b.ListenTransparent(host, p, port); err != nil {
		b.t.Fatal(err)
	}
}

// arrives checks that a packet arrives at the proxy's port.
func (b *bench) arrives(from string, p netlab.Proto, at netip.Addr, port uint16) netlab.Reply {
	b.t.Helper()
	r, err := b.Dial(from, p, netip.AddrPortFrom(at, port), netlab.DialOptions{})
	if err != nil {
		b.t.Errorf("%s %s to %s:%d: %v", p, from, at, port, err)
	} else if r.Server != netlab.Node1 {
		b.t.Errorf("%s %s to %s:%d was answered by %s", p, from, at, port, r.Server)
	}
	return r
}

// fails expects an error.
func (b *bench) fails(from string, p netlab.Proto, at netip.Addr, port uint16, want error) {
	b.t.Helper()
	opts := netlab.DialOptions{}
	if errors.Is(want, netlab.ErrTimeout) {
		opts.Timeout = 300 * time.Millisecond
	}
	r, err := b.Dial(from, p, netip.AddrPortFrom(at, port), opts)
	if !errors.Is(err, want) {
		b.t.Errorf("%s %s to %s:%d: %v %v, want %v", p, from, at, port, r, err, want)
	}
}

var everybody = []string{"pod1", netlab.Node1, netlab.Client}

// TestLeads (DP-40): packets of all clients to service addresses arrive at the port of the proxy;
// pods' interfaces have no address in this lab.
func TestLeads(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		b.Serve(netlab.TCP, 40001, netlab.Node1)
		b.Serve(netlab.UDP, 40002, netlab.Node1)
		b.reset(cluster(b.key(b.vip, 80, lb.TCP), to(40001)), cluster(b.key(b.vip, 53, lb.UDP), to(40002)),
			Entry{Key: b.key(netip.Addr{}, 30080, lb.TCP), Kind: lb.NodePort, Routes: to(40001)},
			Entry{Key: b.key(netip.Addr{}, 30053, lb.UDP), Kind: lb.NodePort, Routes: to(40002)})
		for _, from := range everybody {
			b.arrives(from, netlab.TCP, b.vip, 80)
			b.arrives(from, netlab.UDP, b.vip, 53)
			if r := b.arrives(from, netlab.TCP, b.node, 30080); r.At.Addr() != b.node {
				t.Errorf("a NodePort's packet came to %s, not to the address that was asked", r.At)
			}
			b.arrives(from, netlab.UDP, b.node, 30053)
		}
		if r := b.arrives(netlab.Client, netlab.TCP, b.vip, 80); r.Seen.Addr() != b.client {
			t.Errorf("the proxy sees the client as %s", r.Seen)
		}
		// Localhost: SV-64.
		if b.Family == lb.IPv4 {
			b.arrives(netlab.Node1, netlab.TCP, netip.MustParseAddr("127.0.0.1"), 30080)
		} else {
			b.fails(netlab.Node1, netlab.TCP, netip.IPv6Loopback(), 30080, netlab.ErrRefused)
		}
		// A change moves the key, and a removal deletes it.
		b.Serve(netlab.TCP, 40003, netlab.Node1)
		b.apply([]lb.Key{b.key(netip.Addr{}, 30080, lb.TCP)}, cluster(b.key(b.vip, 80, lb.TCP), to(40003)))
		if r := b.arrives("pod1", netlab.TCP, b.vip, 80); r.At.Port() != 40003 {
			t.Errorf("after the change it came to %s", r.At)
		}
		b.fails(netlab.Client, netlab.TCP, b.node, 30080, netlab.ErrRefused)
	})
}

// TestRefuses: SV-50, SV-51, SV-61, SV-62, SV-63, and the routes of an entry in their order.
func TestRefuses(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		b.Serve(netlab.TCP, 40001, netlab.Node1)
		vip := func(port uint16) lb.Key { return b.key(b.vip, port, lb.TCP) }
		restricted := Entry{Key: b.key(b.other, 80, lb.TCP), Kind: lb.LoadBalancer, Routes: to(40001),
			Sources: []netip.Prefix{netip.PrefixFrom(b.client, b.client.BitLen()-1).Masked()}}
		b.reset(cluster(vip(80), to(40001)), cluster(vip(81), do(lb.Reject)), cluster(vip(82), do(lb.Drop)),
			cluster(b.key(b.vip, 81, lb.UDP), do(lb.Reject)),
			cluster(vip(83), []Route{{From: lb.Pods, Port: 40001}, {From: lb.Anywhere, Do: lb.Drop}}),
			cluster(vip(84), []Route{{From: lb.Pods, Do: lb.Reject}, {From: lb.Host, Port: 40001},
				{From: lb.Anywhere, Do: lb.Drop}}),
			Entry{Key: b.key(netip.Addr{}, 30081, lb.TCP), Kind: lb.NodePort, Routes: do(lb.Reject)},
			Entry{Key: b.key(netip.Addr{}, 30082, lb.TCP), Kind: lb.NodePort,
				Routes: []Route{{From: lb.Host, Port: 40001}, {From: lb.Anywhere, Do: lb.Drop}}},
			restricted)
		for _, from := range everybody {
			b.arrives(from, netlab.TCP, b.vip, 80)
			b.fails(from, netlab.TCP, b.vip, 81, netlab.ErrRefused)
			b.fails(from, netlab.UDP, b.vip, 81, netlab.ErrRefused)
			b.fails(from, netlab.TCP, b.vip, 82, netlab.ErrTimeout)
			b.fails(from, netlab.TCP, b.node, 30081, netlab.ErrRefused)
			if b.unknown {
				b.fails(from, netlab.TCP, b.vip, 9999, netlab.ErrRefused)
				b.fails(from, netlab.UDP, b.vip, 9999, netlab.ErrRefused)
				b.fails(from, netlab.TCP, b.lonely, 80, netlab.ErrTimeout)
			}
		}
		b.arrives("pod1", netlab.TCP, b.vip, 83)
		b.fails(netlab.Client, netlab.TCP, b.vip, 83, netlab.ErrTimeout)
		b.fails(netlab.Node1, netlab.TCP, b.vip, 83, netlab.ErrTimeout)
		b.fails("pod1", netlab.TCP, b.vip, 84, netlab.ErrRefused)
		b.arrives(netlab.Node1, netlab.TCP, b.vip, 84)
		b.fails(netlab.Client, netlab.TCP, b.vip, 84, netlab.ErrTimeout)
		b.arrives(netlab.Node1, netlab.TCP, b.node, 30082)
		b.fails(netlab.Client, netlab.TCP, b.node, 30082, netlab.ErrTimeout)

		b.arrives(netlab.Client, netlab.TCP, b.other, 80)
		b.fails("pod1", netlab.TCP, b.other, 80, netlab.ErrTimeout)
		restricted.Sources = []netip.Prefix{b.pods}
		b.apply(nil, restricted)
		b.arrives("pod1", netlab.TCP, b.other, 80)
		b.fails(netlab.Client, netlab.TCP, b.other, 80, netlab.ErrTimeout)
		restricted.Sources = nil
		b.apply(nil, restricted)
		b.arrives(netlab.Client, netlab.TCP, b.other, 80)
	})
}

// A socket that is not transparent is not a listener of the proxy, and clients that are redirected
// there are refused (TN-76). A kernel without the match lets them pass.
func TestIntruder(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		for _, p := range []netlab.Proto{netlab.TCP, netlab.UDP} {
			if _, err := b.Listen(netlab.Node1, p, 40001); err != nil {
				t.Fatal(err)
			}
		}
		want := []Entry{cluster(b.key(b.vip, 80, lb.TCP), to(40001)), cluster(b.key(b.vip, 80, lb.UDP), to(40001))}
		b.reset(want...)
		for _, from := range everybody {
			b.fails(from, netlab.TCP, b.vip, 80, netlab.ErrRefused)
			b.fails(from, netlab.UDP, b.vip, 80, netlab.ErrRefused)
		}
		if err := b.Unguarded(); err != nil {
			t.Error(err)
		}
		switch c := b.Redirector.(type) {
		case *NFTables:
			c.rules.sockets = false
		case *IPTables:
			c.unguarded = plane.ErrUnsupported
		}
		b.reset(want...)
		for _, from := range everybody {
			b.arrives(from, netlab.TCP, b.vip, 80)
			b.arrives(from, netlab.UDP, b.vip, 80)
			b.fails(from, netlab.TCP, b.node, 40001, netlab.ErrRefused)
		}
	})
}

// TestGuard: only redirected clients reach the port of a listener; to others it looks closed. The
// node's other ports answer as before.
func TestGuard(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		b.Serve(netlab.TCP, 40001, netlab.Node1)
		b.Serve(netlab.UDP, 40001, netlab.Node1)
		b.Serve(netlab.TCP, 22, netlab.Node1)
		b.reset(cluster(b.key(b.vip, 80, lb.TCP), to(40001)), cluster(b.key(b.vip, 80, lb.UDP), to(40001)))
		for _, from := range everybody {
			b.fails(from, netlab.TCP, b.node, 40001, netlab.ErrRefused)
			b.fails(from, netlab.UDP, b.node, 40001, netlab.ErrRefused)
			b.arrives(from, netlab.TCP, b.node, 22)
			b.arrives(from, netlab.TCP, b.vip, 80)
		}
		loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
		if b.Family == lb.IPv6 {
			loopback = netip.IPv6Loopback()
		}
		b.fails(netlab.Node1, netlab.TCP, loopback, 40001, netlab.ErrRefused)
	})
}

// TestKnown: a process finds the ports of the previous one, and writes nothing if the state is
// right.
func TestKnown(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		want := []Entry{cluster(b.key(b.vip, 80, lb.TCP), to(40001)),
			cluster(b.key(b.vip, 84, lb.TCP), []Route{{From: lb.Pods, Do: lb.Reject}, {From: lb.Host, Port: 40002},
				{From: lb.Anywhere, Do: lb.Drop}}),
			{Key: b.key(netip.Addr{}, 30080, lb.TCP), Kind: lb.NodePort, Routes: to(40003)}}
		b.reset(want...)
		b.Close()
		b.start(Config{Family: b.Family, Mark: 0x4000, LocalhostNodePorts: true})
		var known []Entry
		b.do(func(ctx context.Context) (err error) { known, err = b.Known(ctx); return err })
		got := map[lb.Key]string{}
		for _, l := range known {
			got[l.Key] = fmt.Sprint(led(l))
		}
		for _, l := range want {
			if got[l.Key] != fmt.Sprint(led(l)) {
				t.Errorf("%s: known as %s, want %v", l.Key, got[l.Key], led(l))
			}
		}
		if len(known) != len(want) {
			t.Errorf("%d are known, want %d", len(known), len(want))
		}
		b.reset(want...)
		if n := b.audit(true); n != 0 {
			t.Errorf("%d things differ after a Reset", n)
		}
	})
}

// led returns the routes of an entry that go to a port.
func led(l Entry) []Route {
	return slices.DeleteFunc(slices.Clone(l.Routes), func(r Route) bool { return r.Port == 0 })
}

// TestOwnPackets: packets with the proxy's mark are not redirected.
func TestOwnPackets(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		b.Serve(netlab.TCP, 40001, netlab.Node1)
		b.reset(Entry{Key: b.key(b.pod, 80, lb.TCP), Kind: lb.ExternalIP, Routes: to(40001)})
		b.Serve(netlab.TCP, 80, "pod1")
		b.arrives(netlab.Node1, netlab.TCP, b.pod, 80)
		b.On(netlab.Node1, func() {
			if err := dialMarked(netip.AddrPortFrom(b.pod, 80), 0x4000); err != nil {
				t.Error(err)
			}
		})
	})
}

// output runs a program in the node and returns what it prints.
func (b *bench) output(name string, args ...string) string {
	b.t.Helper()
	var out []byte
	b.do(func(context.Context) (err error) {
		if out, err = exec.Command(name, args...).CombinedOutput(); err != nil {
			err = fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
		}
		return err
	})
	return strings.TrimSpace(string(out))
}

// dialMarked connects with a mark, and expects that the server is not this host.
func dialMarked(to netip.AddrPort, mark int) error {
	d := net.Dialer{Timeout: 20 * time.Second, Control: func(_, _ string, c syscall.RawConn) (err error) {
		c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, mark) })
		return err
	}}
	c, err := d.Dial("tcp", to.String())
	if err != nil {
		return err
	}
	defer c.Close()
	fmt.Fprintln(c, "who")
	c.SetDeadline(time.Now().Add(20 * time.Second))
	line, err := bufio.NewReader(c).ReadString('\n')
	if err == nil && !strings.Contains(line, "pod1") {
		err = fmt.Errorf("answered by %q", line)
	}
	return err
}
