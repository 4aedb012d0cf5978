//go:build linux

package iptables

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netns"

	"kube-proxy/internal/netlab"
	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/nodetrace"
	"kube-proxy/test/planetest"
	"kube-proxy/trace"
)

var _ mode.Tracer = (*Plane)(nil)

// asked is the mode iptables as trace describes it.
var asked = trace.Mode{Name: "iptables", PassesUnknown: true, Loopback: true}

// compare follows all packets, and reports those whose treatment differs from the table.
func compare(t testing.TB, p *Plane, table *lb.Table, packets []trace.Packet) {
	t.Helper()
	for _, packet := range packets {
		want := trace.Ask(table, asked, packet)
		got, err := p.TracePacket(t.Context(), packet, nodetrace.Kernel)
		if err != nil {
			t.Fatal(err)
		}
		if found := trace.Compare(want, got); found != nil {
			t.Errorf("%+v: %s\ntable: %+v\nkernel: %s", packet, strings.Join(found, " "), want, show(got))
		}
	}
}

func show(k trace.Kernel) string {
	return fmt.Sprintf("%s %v masquerade %t affine %v\n%s", k.Verdict, k.Backends, k.Masquerade, k.Affine,
		strings.Join(k.Way, "\n"))
}

// Comments make no difference: with many endpoints new rules have none, and old ones keep theirs
// (DP-12).
func TestCommentsAreNoDifference(t *testing.T) {
	eachOnce(t, func(t *testing.T, w planetest.World, cfg Config) {
		p := newPlane(t, cfg)
		table := w.Table(2, 450)
		reset(t, p, table)
		for i := range 4 { // from the second on the cluster is large
			replace(t, p, table)(w.ClusterIP(2+i, 1000+i*400, 400-100*i))
		}
		var comments [2]int
		for i := range 6 {
			for _, rule := range (&vandal{t, w, p}).rules("nat", chainOf(i)) {
				comments[min(1, strings.Count(rule, " -> "))]++
			}
		}
		if comments[0] == 0 || comments[1] == 0 {
			t.Fatalf("%d rules without comments, %d with", comments[0], comments[1])
		}
		for _, d := range planetest.Differences(t, p, table) {
			t.Errorf("differs: %+v", d)
		}
	})
}

// A query while the engine writes sees a state that the kernel held, and finds only differences
// that are being written (-race).
func TestLookWhileWriting(t *testing.T) {
	eachBackend(t, func(t *testing.T, b xtables.Backend) {
		inNetns(t)
		ns, err := netns.Get()
		if err != nil {
			t.Fatal(err)
		}
		defer ns.Close()
		w := planetest.World{Family: lb.IPv4}
		p := newPlane(t, Config{Family: lb.IPv4, Backend: b})
		table, same := w.Table(100, 3), w.Table(100, 3)
		reset(t, p, table)
		packet := trace.Packet{From: netip.AddrPortFrom(w.Addr(100, 999), 0), In: "veth1",
			To: netip.AddrPortFrom(w.Addr(10, 1), 80), Proto: lb.TCP}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		ended := make(chan error, 2)
		beside := func(fn func() error) {
			go func() { ended <- netlab.In(ns, fn) }()
		}
		beside(func() error {
			for ctx.Err() == nil {
				got, err := p.TracePacket(t.Context(), packet, nodetrace.Kernel)
				if err == nil {
					err = balancesOverOneSet(w, got)
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
		beside(func() error {
			for ctx.Err() == nil {
				err := p.Differences(t.Context(), same, func(d trace.Difference) bool {
					if k := d.Key; k.Addr.IsValid() && k.Addr != packet.To.Addr() {
						t.Errorf("differs, though no program wrote it: %+v", d)
					}
					return true
				})
				if err != nil {
					return err
				}
			}
			return nil
		})
		for i := range 30 {
			replace(t, p, table)(w.ClusterIP(0, 1000*i, 1+i%4))
		}
		stop()
		if err := errors.Join(<-ended, <-ended); err != nil {
			t.Error(err)
		}
	})
}

// balancesOverOneSet returns an error if the answer's backends are not from one set, or have
// different shares.
func balancesOverOneSet(w planetest.World, k trace.Kernel) error {
	if k.Verdict != trace.Balance {
		return fmt.Errorf("not balanced: %s", show(k))
	}
	for i, b := range k.Backends {
		if b.Share < 1/float64(len(k.Backends))-0.01 || i > 0 && b.Address.Addr() != k.Backends[i-1].Address.Addr().
			Next() {
			return fmt.Errorf("of several states: %s", show(k))
		}
	}
	return nil
}
