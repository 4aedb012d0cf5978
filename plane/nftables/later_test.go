//go:build linux

package nftables

import (
	"testing"

	"kube-proxy/lb"
	"kube-proxy/test/planetest"
)

// A Reset on a table of ours updates the frontends that the kernel serves, removes those that left,
// and leaves new ones for later. Once they are written, the table equals the result of a fresh
// start.
func TestResetLeavesRowsForLater(t *testing.T) {
	eachFamily(t, func(t *testing.T, w planetest.World) {
		tab := w.Table(20, 3)
		started(t, w, tab)
		tab.Replace(w.ClusterIP(3, 500, 4))
		tab.Replace(lb.Owner{Name: "ns/svc-4"}, nil)
		before := fresh(t, w.Family, tab)
		for i := range 30 {
			tab.Replace(w.Full(100+i, 1000+10*i, 3, i%2, 0))
		}
		p := newPlane(t, w.Family)
		p.maxBatchWeight = 10
		res, err := p.Reset(t.Context(), tab)
		later := res.Later
		if err != nil || len(later) != 4*30 {
			t.Fatalf("%d rows left for later, error %v", len(later), err)
		}
		isDump(t, p, before, "without what is new")
		if gone := res.Dropped; len(gone) != 1 || gone[0].Addr != w.Addr(10, 5) {
			t.Errorf("dropped %v, want the address of svc-4", gone)
		}
		for len(later) > 0 {
			var piece []lb.Change
			for _, k := range later[:min(7, len(later))] {
				piece = append(piece, lb.Change{Key: k, New: tab.Get(k)})
			}
			later = later[len(piece):]
			if _, err := p.Apply(t.Context(), piece); err != nil {
				t.Fatal(err)
			}
		}
		isFresh(t, p, tab)
	})
	t.Run("cold", func(t *testing.T) {
		inNetns(t)
		p := newPlane(t, lb.IPv4)
		p.maxBatchWeight = 10
		if res, err := p.Reset(t.Context(), planetest.World{Family: lb.IPv4}.Table(20, 3)); err != nil ||
			len(res.Later) > 0 {
			t.Errorf("%d rows left for later, error %v: other modes may serve them", len(res.Later), err)
		}
	})
}
