package redirect

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netns"

	"kube-proxy/internal/netlab"
	"kube-proxy/internal/nft/rule"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/plane/selfwrites"
	"kube-proxy/test/kerneltest"
)

// many returns entries of n Services.
func (w world) many(n int) []Entry {
	leads := make([]Entry, 0, n)
	for i := range n {
		a := w.vip.As16()
		a[13], a[14], a[15] = byte(20+i>>16), byte(i>>8), byte(i)
		addr := netip.AddrFrom16(a)
		if w.Family == lb.IPv4 {
			addr = addr.Unmap()
		}
		leads = append(leads, cluster(w.key(addr, 80, lb.TCP), to(40001)))
	}
	return leads
}

// TestCostOfChange: the messages of a change do not depend on the number of entries. With iptables
// they are the chains of the tree on the path to an entry, of a few dozen rules each (ADR 0011).
func TestCostOfChange(t *testing.T) {
	kerneltest.Later(t)
	each(t, func(t *testing.T, b *bench) {
		sent := func() uint64 {
			if c, is := b.Redirector.(*NFTables); is {
				return c.sent
			}
			return b.Redirector.(*IPTables).keep.Stats().Chains
		}
		var cost []uint64
		for _, n := range []int{100, 10_000} {
			b.reset(b.many(n)...)
			before := sent()
			b.apply(nil, cluster(b.key(b.vip, 80, lb.TCP), to(40001)))
			b.apply(nil, cluster(b.key(b.vip, 80, lb.TCP), to(40002)))
			b.apply([]lb.Key{b.key(b.vip, 80, lb.TCP)})
			cost = append(cost, sent()-before)
		}
		if few, many := cost[0], cost[1]; few == 0 || b.Name() == "nftables" && few != many || many > 3*4 {
			t.Errorf("three changes send %d with 100 rows and %d with 10,000", few, many)
		}
		t.Logf("three changes: %v", cost)
	})
}

// awaitDrift waits until the redirector reports a foreign change.
func (b *bench) awaitDrift() {
	b.t.Helper()
	select {
	case <-b.Drift():
	case <-time.After(10 * time.Second):
		b.t.Fatal("no drift reported")
	}
}

// TestTableLost: without its table every write asks for a Reset, which serves again.
func TestTableLost(t *testing.T) {
	for _, w := range worlds() {
		t.Run(w.Family.String(), func(t *testing.T) {
			b := &bench{TestLab: netlab.ForTest(t, netlab.Options{NoNode2: true}), t: t, world: w, way: ways[0]}
			b.start(Config{Family: w.Family})
			b.serve(netlab.TCP, 40001)
			key := b.key(b.vip, 80, lb.TCP)
			b.reset(cluster(key, to(40001)))
			fam := map[lb.Family]string{lb.IPv4: "ip", lb.IPv6: "ip6"}[w.Family]
			b.output("nft", "delete", "table", fam, TableName)
			b.awaitDrift()
			b.On(netlab.Node1, func() {
				if err := b.Probe(t.Context()); !errors.Is(err, plane.ErrStateLost) {
					t.Errorf("a probe: %v", err)
				}
				if err := b.Apply(t.Context(), nil, []lb.Key{key}); !errors.Is(err, plane.ErrStateLost) {
					t.Errorf("a change: %v", err)
				}
			})
			b.reset(cluster(key, to(40001)))
			b.arrives(netlab.Client, netlab.TCP, w.vip, 80)
		})
	}
}

// TestReaddress: if the node loses the address to which packets are redirected, they are redirected
// to another.
func TestReaddress(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		if b.Family == lb.IPv6 {
			b.output("ip", "-6", "addr", "add", "fd00:18::22/64", "dev", "eth0", "nodad")
		} else {
			b.output("ip", "addr", "add", "172.18.0.22/24", "dev", "eth0")
		}
		b.serve(netlab.TCP, 40001)
		b.reset(cluster(b.key(b.vip, 80, lb.TCP), to(40001)))
		first := b.arrives("pod1", netlab.TCP, b.vip, 80).At.Addr()
		for len(b.Drift()) > 0 {
			<-b.Drift()
		}
		b.output("ip", "addr", "add", "203.0.113.9/32", "dev", "vethpod1") // irrelevant to us
		b.output("sysctl", "-qw", "net.ipv4.conf.eth0.promote_secondaries=1")
		bits := map[lb.Family]string{lb.IPv4: "/24", lb.IPv6: "/64"}[b.Family]
		b.output("ip", "addr", "del", first.String()+bits, "dev", "eth0")
		b.awaitDrift()
		if n := b.audit(false); n != 0 {
			t.Errorf("after another address of the node, an audit repaired %d", n)
		}
		// Right after an IPv6 address is removed, the kernel may look for the remaining one on
		// the link. TCP does not repeat a packet that waits for a neighbour, so such a connection
		// fails after 3 s.
		left := map[lb.Family]string{lb.IPv4: "172.18.0.22", lb.IPv6: "fd00:18::22"}[b.Family]
		for deadline := time.Now().Add(10 * time.Second); ; {
			to := b.output("ip", "route", "get", left)
			if strings.HasPrefix(to, "local ") {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("the node's own address is routed to %s", to)
			}
		}
		b.arrives(netlab.Node1, netlab.TCP, b.vip, 80)
		if n := b.audit(true); n != 0 {
			t.Errorf("%d things differ", n)
		}
	})
}

// TestBusyNeighbour: a program that changes its own tables all the time prevents neither the start
// nor audits.
func TestBusyNeighbour(t *testing.T) {
	kerneltest.Later(t)
	netlab.EnterForTest(t)
	w := worlds()[0]
	c, err := NewNFTables(Config{Family: w.Family})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	stop, stopped := make(chan struct{}), make(chan int)
	own, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	go func() {
		writes := 0
		err := netlab.In(own, func() error {
			s, err := wire.Open()
			if err != nil {
				return err
			}
			defer s.Close()
			for ; ; writes++ {
				select {
				case <-stop:
					return nil
				default:
				}
				tr := wire.NewTransaction(rule.IPOf(w.Family).Proto, fmt.Sprint("neighbour-", writes%2), nil)
				tr.AddTable()
				tr.DeleteTable()
				if _, err := s.Commit(context.Background(), &selfwrites.Ledger{}, tr); err != nil {
					return err
				}
			}
		})
		if err != nil {
			t.Error(err)
		}
		stopped <- writes
	}()
	want := w.many(5000)
	for i := range 5 {
		if _, err := c.Reset(t.Context(), lb.Node{}, want[:len(want)-i]); err != nil {
			t.Errorf("a Reset beside a busy neighbour: %v", err)
		}
		if n, err := c.Audit(t.Context(), true); n != 0 || err != nil {
			t.Errorf("an audit beside a busy neighbour: repaired %d, %v", n, err)
		}
		if known, err := c.Known(t.Context()); len(known) != len(want)-i || err != nil {
			t.Errorf("%d are known, want %d, %v", len(known), len(want)-i, err)
		}
	}
	close(stop)
	if writes := <-stopped; writes < 20 {
		t.Errorf("the neighbour wrote %d times only", writes)
	}
}
