package capture

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"kube-proxy/internal/netlab"
	rtnl "kube-proxy/internal/netlink/route"
	"kube-proxy/lb"
	"kube-proxy/plane"
)

// eachFamily runs a test of the capture by addresses.
func eachFamily(t *testing.T, run func(t *testing.T, b *bench)) {
	for _, w := range worlds() {
		t.Run(w.Family.String(), func(t *testing.T) {
			b := &bench{TestLab: netlab.ForTest(t, netlab.Options{NoNode2: true}), t: t, world: w,
				kind: kind{name: "addresses", make: func(c Config) (Capture, error) { return NewAddresses(c) }}}
			b.start(Config{Family: w.Family})
			run(t, b)
		})
	}
}

// host is an address as ip prints it, with its length.
func host(a netip.Addr) string { return netip.PrefixFrom(a, a.BitLen()).String() }

// has reports whether an interface of the node has the address.
func (b *bench) has(a netip.Addr) bool {
	return strings.Contains(b.output("ip", "-o", "addr")+" ", " "+host(a)+" ") || b.Family == lb.IPv4 && strings.Contains(b.output("ip", "-o", "addr"), " "+a.String()+" ")
}

// TestAddresses (DP-40): without a packet filter the node itself has the service addresses while a row needs them; the kernel
// refuses their other ports (SV-62).
func TestAddresses(t *testing.T) {
	eachFamily(t, func(t *testing.T, b *bench) {
		b.Serve(netlab.TCP, 80, netlab.Node1)
		b.Serve(netlab.UDP, 53, netlab.Node1)
		tcp, udp := b.key(b.vip, 80, lb.TCP), b.key(b.vip, 53, lb.UDP)
		b.reset(cluster(tcp, to(80)), cluster(udp, to(53)), Lead{Key: b.key(netip.Addr{}, 30080, lb.TCP), Kind: lb.NodePort, Routes: to(30080)})
		for _, from := range everybody {
			b.arrives(from, netlab.TCP, b.vip, 80)
			b.arrives(from, netlab.UDP, b.vip, 53)
			b.fails(from, netlab.TCP, b.vip, 81, netlab.ErrRefused)
			b.fails(from, netlab.TCP, b.other, 80, netlab.ErrTimeout)
		}
		b.apply(nil, cluster(b.key(b.other, 80, lb.TCP), to(80)))
		b.arrives("pod1", netlab.TCP, b.other, 80)
		b.apply([]lb.Key{tcp, b.key(b.other, 80, lb.TCP)})
		b.arrives("pod1", netlab.TCP, b.vip, 80) // the other row needs the address
		b.fails("pod1", netlab.TCP, b.other, 80, netlab.ErrTimeout)
		b.apply([]lb.Key{udp, udp})
		b.fails("pod1", netlab.TCP, b.vip, 80, netlab.ErrTimeout)
	})
}

// TestAddressesLeadAtOnce: when the capture says that it leads, it does, though the kernel begins to lead to an address of IPv6 only a
// moment after it has taken it.
func TestAddressesLeadAtOnce(t *testing.T) {
	eachFamily(t, func(t *testing.T, b *bench) {
		b.reset()
		var asks *addressing
		b.do(func(context.Context) (err error) {
			asks, err = openRtnl(familyOf(b.Family), func(event) {})
			return err
		})
		defer asks.close()
		for i, a := 0, b.other; i < 200; i, a = i+1, a.Next() {
			b.do(func(ctx context.Context) error {
				if err := b.Apply(ctx, []Lead{cluster(b.key(a, 80, lb.TCP), to(80))}, nil); err != nil {
					return err
				}
				if leads, err := rtnl.LeadsHere(ctx, asks.conn, a); err != nil || !leads {
					return fmt.Errorf("packets to %s, the %dth address, still go elsewhere (%v)", a, i, err)
				}
				return nil
			})
		}
	})
}

// TestAddressesOfOthers: an address that the node has already is served and stays whose it is, also on lo, whatever comes and goes;
// and a process knows those of the one before.
func TestAddressesOfOthers(t *testing.T) {
	eachFamily(t, func(t *testing.T, b *bench) {
		b.Serve(netlab.TCP, 80, netlab.Node1)
		third := b.other.Next()
		b.output("ip", "addr", "add", host(b.vip), "dev", "eth0")
		b.output("ip", "addr", "add", host(b.other), "dev", "lo")
		all := []Lead{cluster(b.key(b.vip, 80, lb.TCP), to(80)), cluster(b.key(b.other, 80, lb.TCP), to(80)), cluster(b.key(third, 80, lb.TCP), to(80))}
		b.reset(all...)
		if out := b.output("ip", "-o", "addr"); strings.Count(out, b.vip.String()+"/") != 1 && strings.Count(out, b.vip.String()+" ") != 1 {
			t.Errorf("the address of others is there again:\n%s", out)
		}
		for _, a := range []netip.Addr{b.vip, b.other, third} {
			b.arrives("pod1", netlab.TCP, a, 80)
		}
		if n := b.audit(true); n != 0 {
			t.Errorf("%d things differ", n)
		}
		b.Close()
		b.start(Config{Family: b.Family})
		b.reset(all[:1]...)
		if b.has(third) {
			t.Error("what the process before gave stays, though no row needs it")
		}
		b.reset()
		b.apply([]lb.Key{all[0].Key})
		for _, a := range []netip.Addr{b.vip, b.other} {
			if !b.has(a) {
				t.Errorf("%s was another's, and is gone", a)
			}
		}
		// Where the other's goes while a row needs it, ours comes.
		b.apply(nil, all...)
		for len(b.Drift()) > 0 {
			<-b.Drift()
		}
		b.output("ip", "addr", "del", host(b.vip), "dev", "eth0")
		b.awaitDrift()
		if n := b.audit(false); n != 1 {
			t.Errorf("%d things were mended, want 1", n)
		}
		b.arrives("pod1", netlab.TCP, b.vip, 80)
	})
}

// TestAddressDrift: what others do to our addresses is noticed and mended.
func TestAddressDrift(t *testing.T) {
	eachFamily(t, func(t *testing.T, b *bench) {
		b.Serve(netlab.TCP, 80, netlab.Node1)
		b.reset(cluster(b.key(b.vip, 80, lb.TCP), to(80)))
		b.apply(nil, cluster(b.key(b.other, 80, lb.TCP), to(80)))
		b.apply([]lb.Key{b.key(b.other, 80, lb.TCP)})
		b.output("ip", "addr", "add", host(b.other), "dev", "eth0")
		b.do(b.Probe)
		dev := "lo"
		if strings.Contains(b.output("ip", "link"), DeviceName) { // where the kernel has dummy devices
			dev = DeviceName
		}
		b.output("ip", "addr", "del", host(b.vip), "dev", dev)
		b.awaitDrift()
		if n := b.audit(false); n != 1 {
			t.Errorf("%d things were mended, want 1", n)
		}
		b.arrives(netlab.Client, netlab.TCP, b.vip, 80)
		if n := b.audit(true); n != 0 {
			t.Errorf("%d things differ afterwards", n)
		}
		if dev == "lo" {
			return
		}
		b.output("ip", "link", "del", dev)
		b.awaitDrift()
		if n := b.audit(false); n == 0 {
			t.Error("nothing was mended when the device was gone")
		}
		b.arrives(netlab.Client, netlab.TCP, b.vip, 80)
	})
}

// TestAddressesLater: an address that the kernel does not take costs its own row only.
func TestAddressesLater(t *testing.T) {
	eachFamily(t, func(t *testing.T, b *bench) {
		if b.Family == lb.IPv4 {
			return // the kernel takes every address there is
		}
		odd := b.key(netip.MustParseAddr("ff02::1"), 80, lb.TCP)
		b.Serve(netlab.TCP, 80, netlab.Node1)
		b.On(netlab.Node1, func() {
			err := b.Reset(t.Context(), b.n(), []Lead{cluster(odd, to(80)), cluster(b.key(b.vip, 80, lb.TCP), to(80))})
			var later *Later
			if !errors.As(err, &later) || len(later.Keys) != 1 || later.Keys[0] != odd {
				t.Fatalf("a Reset with an odd address: %v", err)
			}
			if err := b.Apply(t.Context(), []Lead{cluster(odd, to(80))}, nil); err == nil || !strings.Contains(err.Error(), odd.Addr.String()) {
				t.Errorf("a change with it: %v", err)
			}
		})
		b.arrives("pod1", netlab.TCP, b.vip, 80)
		if n := b.audit(true); n != 0 {
			t.Errorf("%d things differ", n)
		}
	})
}

// TestAddressesCost: a change of an address is one write, whatever there is.
func TestAddressesCost(t *testing.T) {
	eachFamily(t, func(t *testing.T, b *bench) {
		c := b.Capture.(*Addresses)
		for _, n := range []int{100, 2000} {
			b.reset(b.many(n)...)
			before := c.Sent()
			b.apply(nil, cluster(b.key(b.vip, 80, lb.TCP), to(80)))
			b.apply(nil, cluster(b.key(b.vip, 80, lb.TCP), to(80)))
			b.apply([]lb.Key{b.key(b.vip, 80, lb.TCP)})
			if sent := c.Sent() - before; sent != 2 {
				t.Errorf("three changes beside %d rows are %d writes, want 2", n, sent)
			}
		}
	})
}

// TestRemove: nothing of any capture is left, and what is of others is.
func TestRemove(t *testing.T) {
	for _, w := range worlds() {
		t.Run(w.Family.String(), func(t *testing.T) {
			netlab.EnterForTest(t)
			b := &bench{t: t, world: w}
			ctx := t.Context()
			for _, way := range ways {
				c, err := way.make(Config{Family: w.Family})
				if err != nil {
					t.Fatal(err)
				}
				if err := c.Reset(ctx, b.n(), []Lead{cluster(b.key(b.vip, 80, lb.TCP), to(80))}); err != nil {
					t.Fatal(err)
				}
				kept, err := Remove(ctx, []lb.Family{w.Family}, c.Name())
				if err != nil || len(kept.Removed) != 0 {
					t.Errorf("beside it: removed %v, %v", kept.Removed, err)
				}
				if n, err := c.Audit(ctx, true); n != 0 || err != nil {
					t.Errorf("%d things of %s were removed beside it, %v", n, c.Name(), err)
				}
				c.Close()
				gone, err := Remove(ctx, []lb.Family{w.Family}, "")
				if err != nil || len(gone.Removed) == 0 {
					t.Errorf("%s: removed %v, %v", c.Name(), gone.Removed, err)
				}
				again, err := Remove(ctx, []lb.Family{w.Family}, "")
				if err != nil || len(again.Removed) != 0 {
					t.Errorf("%s, again: removed %v, %v", c.Name(), again.Removed, err)
				}
				t.Log(gone.Removed)
			}
		})
	}
}

// TestAddressesNotSetUp: no verb works before the first Reset.
func TestAddressesNotSetUp(t *testing.T) {
	netlab.EnterForTest(t)
	c, err := NewAddresses(Config{Family: lb.IPv4})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, audit := c.Audit(t.Context(), true)
	for i, err := range []error{c.Apply(t.Context(), nil, nil), c.SetNode(t.Context(), lb.Node{}), c.Probe(t.Context()), audit} {
		if !errors.Is(err, plane.ErrNotSetUp) {
			t.Error(fmt.Sprint(i), err)
		}
	}
}
