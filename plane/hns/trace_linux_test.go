package hns_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane/hns"
	"kube-proxy/test/hnsfake"
	"kube-proxy/test/planetest"
	"kube-proxy/trace"
)

var _ mode.Tracer = (*hns.Plane)(nil)

// follow compares traces of packets from a pod, the node and outside to each frontend with the
// fake's resolver.
func (n *windowsNode) follow(t *testing.T, p testPlane, table *lb.Table, w planetest.World) (balanced int) {
	t.Helper()
	state, node := n.State(), w.Addr(192, 1)
	pod := w.Addr(100, 999)
	if !n.has(pod) {
		n.AddPod(n.network, "client", pod)
	}
	for row := range table.All() {
		for from, source := range map[hnsfake.Source]netip.Addr{hnsfake.Pod: pod, hnsfake.Host: node,
			hnsfake.Outside: w.Addr(172, 1)} {
			packet := trace.Packet{From: netip.AddrPortFrom(source, 0), Host: from == hnsfake.Host,
				Proto: row.Key.Proto,
				To:    netip.AddrPortFrom(row.Key.Addr, row.Key.Port)}
			if row.Key.IsNodePort() {
				packet.To, packet.Here = netip.AddrPortFrom(node, row.Key.Port), true
			}
			got, err := p.TracePacket(t.Context(), packet, nil)
			if err != nil {
				t.Fatal(err)
			}
			want := state.Resolve(hnsfake.Packet{From: from, To: packet.To, Proto: uint32(packet.Proto),
				ToNode: packet.Here})
			verdict := trace.Pass
			if want.LoadBalancer != "" {
				verdict = trace.Drop
				if len(want.Backends) > 0 {
					verdict = trace.Balance
					balanced++
				}
			}
			var backends []netip.AddrPort
			for _, b := range got.Backends {
				backends = append(backends, b.Address)
			}
			slices.SortFunc(want.Backends, netip.AddrPort.Compare)
			if got.Verdict != verdict || !slices.Equal(backends, want.Backends) || verdict == trace.Balance &&
				got.Masquerade == want.Kept {
				t.Errorf("%v, %+v: %+v, the fake says %+v", packet, packet, got, want)
			}
			if want.LoadBalancer != "" && !strings.Contains(got.Way[0], want.LoadBalancer) {
				t.Errorf("%v: way %q, want load balancer %s", packet, got.Way, want.LoadBalancer)
			}
		}
	}
	return balanced
}

// Traces equal the fake's resolver, also after damage. After a Reset and changes there are no
// differences, and each damage is reported.
func TestLook(t *testing.T) {
	for name, kind := range map[string]hns.NetworkType{"l2bridge": hns.L2Bridge, "overlay": hns.Overlay} {
		for _, f := range []lb.Family{lb.IPv4, lb.IPv6} {
			for _, dsr := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%s/DSR %t", name, f, dsr), func(t *testing.T) { testLook(t, kind, f, dsr) })
			}
		}
	}
}

func testLook(t *testing.T, kind hns.NetworkType, f lb.Family, dsr bool) {
	w, rnd := planetest.World{Family: f}, rand.New(rand.NewPCG(1, 2))
	n := newNode(kind, hnsfake.Everything)
	cfg := n.config(f)
	cfg.DSR = dsr
	if kind == hns.Overlay {
		cfg.SourceVIP = w.Addr(100, 1<<20)
	}
	p := newPlane(t, cfg)
	table := &lb.Table{Node: w.Node()}
	change := func() (all []lb.Change) {
		for range 10 {
			i := rnd.IntN(30)
			o, fronts := w.Full(i, 3*rnd.IntN(9), rnd.IntN(5), rnd.IntN(3), time.Duration(rnd.IntN(2))*time.Hour)
			if rnd.IntN(4) == 0 {
				fronts = nil
			}
			more, _ := table.Replace(o, fronts)
			all = append(all, more...)
		}
		return all
	}
	change()
	reset(t, p, table)
	kernel := kernel(n)
	for range 5 {
		if d := planetest.Differences(t, p, table); len(d) > 0 {
			t.Fatalf("no program changed anything: %+v", d)
		}
		if n.follow(t, p, table, w) == 0 {
			t.Fatal("nothing is balanced")
		}
		before := n.Own()
		err := error(nil)
		if balancers, endpoints := n.own(f); kind == hns.L2Bridge {
			err = kernel.Damage(f, rnd)
		} else if one := slices.Concat(balancers, endpoints); rnd.IntN(2) == 0 {
			n.Damage(one[rnd.IntN(len(one))])
		} else {
			err = n.mislead(balancers[rnd.IntN(len(balancers))])
		}
		if err != nil {
			t.Fatal(err)
		}
		if d := planetest.Differences(t, p, table); n.Own() != before && len(d) == 0 {
			t.Errorf("nothing differs:\n%s\nbefore:\n%s", n.Own(), before)
		}
		n.follow(t, p, table, w)
		if _, err := p.Audit(context.Background(), true); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Apply(t.Context(), change()); err != nil {
			t.Fatal(err)
		}
	}
}

// Traces and writes do not disturb each other.
func TestLookWhileWriting(t *testing.T) {
	w := planetest.World{Family: lb.IPv4}
	n := newNode(hns.L2Bridge, hnsfake.Everything)
	p := n.plane(t, lb.IPv4)
	table, other := w.Table(10, 3), w.Table(10, 3)
	reset(t, p, table)
	ctx, done := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		for ctx.Err() == nil {
			packet := trace.Packet{From: netip.AddrPortFrom(w.Addr(100, 1), 0), To: netip.AddrPortFrom(w.Addr(10, 1),
				80), Proto: lb.TCP}
			if _, err := p.TracePacket(t.Context(), packet, nil); err != nil {
				ended <- err
				return
			}
			if err := p.Differences(t.Context(), other, func(trace.Difference) bool { return true }); err != nil {
				ended <- err
				return
			}
		}
		ended <- nil
	}()
	for i := range 50 {
		changes, _ := table.Replace(w.ClusterIP(i%10, i%20, 3))
		if _, err := p.Apply(t.Context(), changes); err != nil {
			t.Fatal(err)
		}
	}
	done()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
