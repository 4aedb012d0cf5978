//go:build linux

package iptables

import (
	"slices"
	"strings"
	"testing"

	"kube-proxy/lb"
	"kube-proxy/test/planetest"
)

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
		served := slices.Collect(tab.All())
		for i := range 60 {
			tab.Replace(w.Full(100+i, 1000+10*i, 3, i%2, 0))
		}
		p := newPlane(t, cfg)
		p.maxBatchWeight = 10
		res, err := p.Reset(t.Context(), tab)
		if err != nil || len(res.Later) < 3*60 { // frontends that drop are written at once
			t.Fatalf("%d rows left for later, error %v", len(res.Later), err)
		}
		got := dump(t, p)
		for _, f := range served {
			if !strings.Contains(got, "-d "+f.Key.Addr.String()+"/") {
				t.Errorf("%s, which was served, is not", f.Key)
			}
		}
		halving(t, p, tab, res.Later)
		repairs(t, p, 0, "all rows are written")
		got = dump(t, p)

		inNetns(t)
		cold := newPlane(t, cfg)
		cold.maxBatchWeight = 10
		if later := reset(t, cold, tab).Later; len(later) < 3*60+19 {
			t.Fatalf("cold: %d rows left for later", len(later))
		}
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
