package redirect

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/plane"
)

// world has the addresses of a family.
type world struct {
	lb.Family
	vip, node      netip.Addr
	services, pods netip.Prefix
}

func worlds() []world {
	ip, p := netip.MustParseAddr, netip.MustParsePrefix
	return []world{
		{lb.IPv4, ip("10.96.0.10"), ip("172.18.0.2"), p("10.96.0.0/16"), p("10.1.0.0/16")},
		{lb.IPv6, ip("fd00:10:96::10"), ip("fd00:18::2"), p("fd00:10:96::/112"), p("fd00:10:1::/48")},
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
func cluster(k lb.Key, r []Route) Entry { return Entry{Key: k, Kind: lb.ClusterIP, Routes: r} }

// bench is a node with a redirector, and servers on ports of the node in place of the proxy.
type bench struct {
	*netlab.TestLab
	t *testing.T
	world
	way
	Redirector
}

// each runs a test for each way to redirect and family, in its own lab.
func each(t *testing.T, run func(t *testing.T, b *bench)) {
	for _, k := range ways {
		for _, w := range worlds() {
			t.Run(k.name+"/"+w.Family.String(), func(t *testing.T) {
				b := &bench{TestLab: netlab.ForTest(t, netlab.Options{NoNode2: true}), t: t, world: w, way: k}
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

// serve starts a responder on the node with a socket like the proxy's.
func (b *bench) serve(p netlab.Proto, port uint16) {
	b.t.Helper()
	if _, err := b.ListenTransparent(netlab.Node1, p, port); err != nil {
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

// refuses expects that a packet is refused.
func (b *bench) refuses(from string, p netlab.Proto, at netip.Addr, port uint16) {
	b.t.Helper()
	r, err := b.Dial(from, p, netip.AddrPortFrom(at, port), netlab.DialOptions{})
	if !errors.Is(err, netlab.ErrRefused) {
		b.t.Errorf("%s %s to %s:%d: %v %v, want a refusal", p, from, at, port, r, err)
	}
}

var everybody = []string{"pod1", netlab.Node1, netlab.Client}

// TestGuard: only redirected clients reach the port of a listener, also on a kernel that does not
// match sockets; to others it looks closed. The node's other ports answer as before, and so do
// NodePorts on 127.0.0.1 (SV-64).
func TestGuard(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		b.serve(netlab.TCP, 40001)
		b.serve(netlab.UDP, 40001)
		b.serve(netlab.TCP, 22)
		if err := b.Unguarded(); err != nil {
			t.Error(err)
		}
		for range 2 {
			b.reset(cluster(b.key(b.vip, 80, lb.TCP), to(40001)), cluster(b.key(b.vip, 80, lb.UDP), to(40001)),
				Entry{Key: b.key(netip.Addr{}, 30080, lb.TCP), Kind: lb.NodePort, Routes: to(40001)})
			for _, from := range everybody {
				b.refuses(from, netlab.TCP, b.node, 40001)
				b.refuses(from, netlab.UDP, b.node, 40001)
				b.arrives(from, netlab.TCP, b.node, 22)
				b.arrives(from, netlab.TCP, b.vip, 80)
				b.arrives(from, netlab.UDP, b.vip, 80)
			}
			if b.Family == lb.IPv4 {
				b.refuses(netlab.Node1, netlab.TCP, netip.MustParseAddr("127.0.0.1"), 40001)
				b.arrives(netlab.Node1, netlab.TCP, netip.MustParseAddr("127.0.0.1"), 30080)
			} else {
				b.refuses(netlab.Node1, netlab.TCP, netip.IPv6Loopback(), 40001)
				b.refuses(netlab.Node1, netlab.TCP, netip.IPv6Loopback(), 30080)
			}
			switch c := b.Redirector.(type) { // a kernel that does not match sockets
			case *NFTables:
				c.rules.sockets = false
			case *IPTables:
				c.unguarded = plane.ErrUnsupported
			}
		}
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

// output runs a program in the node and returns what it prints.
func (b *bench) output(name string, args ...string) string {
	b.t.Helper()
	var out []byte
	b.do(func(context.Context) (err error) {
		out, err = exec.Command(name, args...).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
		}
		return err
	})
	return strings.TrimSpace(string(out))
}
