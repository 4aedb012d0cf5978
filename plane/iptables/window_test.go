//go:build linux

package iptables

import (
	"fmt"
	"testing"
	"time"

	"kube-proxy/internal/xtables"
	"kube-proxy/test/planetest"
)

// An audit of many chains reads a limited number in each call, and no program lists them. Our own
// writes in between are no drift; every kind of foreign change is found and repaired (TN-73).
func TestAuditsInWindows(t *testing.T) {
	eachFamily(t, xtables.NFT, func(t *testing.T, w planetest.World, cfg Config) {
		p := newPlane(t, cfg)
		tab := w.Table(40, 3)
		for i := range 5 {
			tab.Replace(w.Full(100+i, 1000+10*i, 3, i%2, 0))
		}
		reset(t, p, tab)
		p.window = 100
		windows := (len(p.st.Digests) + p.st.Rules[xtables.NAT] + p.st.Rules[xtables.Filter]) / p.window
		// all makes the plane audit until no window is left.
		all := func(what string, drifted bool) {
			t.Helper()
			saves, repaired := p.Stats().Saves, 0
			p.ListedAt = p.ListedAt.Add(-2 * time.Hour)
			for calls := 1; ; calls++ {
				n, err := p.Audit(t.Context(), calls == 1)
				if err != nil {
					t.Fatalf("%s: %v", what, err)
				}
				repaired += n
				select {
				case <-p.Drift():
					// Added and removed again.
					replace(t, p, tab)(w.ClusterIP(200+calls%3, 3000+10*calls, calls%5))
					continue
				default:
				}
				if calls > windows+4 || !drifted && calls < windows-2 {
					t.Errorf("%s: %d calls, want about %d", what, calls, windows)
				}
				break
			}
			if listed := p.Stats().Saves - saves; (repaired > 0) != drifted || (listed > 0) != drifted {
				t.Errorf("%s: repaired %d, %d lists", what, repaired, listed)
			}
		}
		all("nothing", false)
		svc, program := chainOf(1), p.Tool.Program
		for _, c := range [][]string{
			{"-t", "nat", "-F", svc},
			{"-t", "nat", "-A", svc, "-j", "RETURN"},
			{"-t", "nat", "-D", "PREROUTING", "1"},
			{"-t", "filter", "-F", xtables.Forward},
			{"-t", "mangle", "-X", xtables.Canary},
			{"-t", "nat", "-N", xtables.ClusterChain + "ABCDEFGHIJKLMNOP"},
		} {
			run(t, "", program, c...)
			all(fmt.Sprint(c), true)
		}
		if got, want := dump(t, p), fresh(t, cfg, tab); got != want {
			t.Errorf("got:\n%s\nwant:\n%s", got, want)
		}
	})
}
