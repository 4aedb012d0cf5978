//go:build linux

package iptables

import (
	"slices"
	"strings"
	"testing"

	"kube-proxy/lb"
	"kube-proxy/test/planetest"
)

// inPieces makes the plane write frontends that a Reset left for later.
func inPieces(t *testing.T, p *Plane, tab *lb.Table, later []lb.Key) {
	t.Helper()
	for part := range slices.Chunk(later, 30) {
		var piece []lb.Change
		for _, k := range part {
			piece = append(piece, lb.Change{Key: k, New: tab.Get(k)})
		}
		apply(t, p, piece)
	}
}

// A Reset updates the frontends that the kernel serves, removes those that left, and leaves new
// ones for later. Once they are written, the kernel holds the result of a fresh start. The same
// holds for an empty kernel.
func TestResetLeavesRowsForLater(t *testing.T) {
	eachKind(t, func(t *testing.T, w planetest.World, cfg Config) {
		tab := w.Table(20, 3)
		base := newPlane(t, cfg)
		reset(t, base, tab)
		tab.Replace(w.ClusterIP(3, 500, 4))
		tab.Replace(lb.Owner{Name: "ns/svc-4"}, nil)
		small := &lb.Table{Node: tab.Node}
		for f := range tab.All() {
			small.Replace(lb.Owner{Name: f.Service}, []*lb.Frontend{f})
		}
		for i := range 60 {
			tab.Replace(w.Full(100+i, 1000+10*i, 3, i%2, 0))
		}
		p := newPlane(t, cfg)
		p.maxBatchWeight = 10
		res, err := p.Reset(t.Context(), tab)
		later := res.Later
		if err != nil || len(later) < 3*60 { // frontends that drop are written at once
			t.Fatalf("%d rows left for later, error %v", len(later), err)
		}
		got := dump(t, p)
		for f := range small.All() {
			if !strings.Contains(got, "-d "+f.Key.Addr.String()+"/") {
				t.Errorf("%s, which was served, is not", f.Key)
			}
		}
		inPieces(t, p, tab, later)
		repairs(t, p, 0, "all rows are written")
		got = dump(t, p)

		inNetns(t)
		cold := newPlane(t, cfg)
		cold.maxBatchWeight = 10
		res, err = cold.Reset(t.Context(), tab)
		later = res.Later
		if err != nil || len(later) < 3*60+19 {
			t.Fatalf("cold: %d rows left for later, error %v", len(later), err)
		}
		inPieces(t, cold, tab, later)
		repairs(t, cold, 0, "cold")
		fromNothing := dump(t, cold)
		inNetns(t)
		want := fresh(t, cfg, tab)
		if got != want {
			t.Errorf("got:\n%s\nwant:\n%s", got, want)
		}
		if fromNothing != want {
			t.Errorf("cold: got:\n%s\nwant:\n%s", fromNothing, want)
		}
	})
}
