//go:build linux

package nftables

import (
	"testing"
	"time"

	"kube-proxy/test/kerneltest"
	"kube-proxy/test/planetest"
)

// A set with more backends than MaxBatchWeight is added, changed and removed in calls of bounded
// size, from any state to any other. A fresh plane would hold the same (TN-30).
func TestLargeSetsInStages(t *testing.T) {
	kerneltest.Later(t)
	eachFamily(t, func(t *testing.T, w planetest.World) {
		tab := w.Table(3, 2)
		p := started(t, w, tab)
		p.maxBatchWeight = 100
		for _, step := range []struct {
			what     string
			first, n int
			affinity time.Duration
			calls    int
		}{
			{"comes", 100, 1000, 0, 10},
			{"one more", 100, 1001, 0, 1},
			{"all others", 2000, 1000, 0, 11},
			{"few are left", 2000, 3, 0, 10},
			{"many again", 2000, 700, 0, 7},
			{"with affinity", 2000, 700, time.Hour, 7},
			{"without affinity", 2000, 700, 0, 7},
			{"goes", 0, 0, 0, 7},
		} {
			o, fronts := w.Full(9, step.first, step.n, 0, step.affinity)
			changes, _ := tab.Replace(o, fronts)
			// 100 rewritten slots, and with affinity the members of all.
			most := uint64(100*300 + 20_000)
			if step.affinity > 0 || step.what == "without affinity" {
				most += uint64(step.n * 400)
			}
			calls := planetest.Staged(t, p, changes, func() uint64 { return p.Stats().Bytes }, most)
			if calls < step.calls || calls > 2*step.calls {
				t.Errorf("%s: %d calls, want about %d", step.what, calls, step.calls)
			}
			if n, err := p.Audit(t.Context(), true); n != 0 || err != nil {
				t.Errorf("%s: the audit repaired %d, %v", step.what, n, err)
			}
			isFresh(t, p, tab, "%s", step.what)
		}
	})
}
