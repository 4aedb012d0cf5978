//go:build linux

package xt

import (
	"net/netip"
	"testing"

	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/trace"
)

// anyRules has the same rules in each chain.
type anyRules []xtables.Rule

func (r anyRules) Chain(id xtables.ChainID) (*xtables.ChainState, error) {
	return &xtables.ChainState{Rules: r, Hooked: xtables.IsBuiltIn(id.Name)}, nil
}

// FuzzWalk follows a packet through arbitrary rules: the result is an error or an answer.
func FuzzWalk(f *testing.F) {
	around, err := inspectAround()
	if err != nil {
		f.Fatal(err)
	}
	defer around.close()
	f.Add("-p tcp -m tcp --dport 80:90 -j DNAT --to-destination :7", "-m recent --rcheck --seconds 7 --name A -j THERE")
	f.Add("-g INPUT", "-m statistic --mode random ! --probability 0.3 -j MARK --set-xmark 0x1/0x1")
	f.Fuzz(func(t *testing.T, one, two string) {
		to := netip.MustParseAddrPort("192.0.2.1:80")
		w := newWalker(t.Context(), trace.Packet{From: to, To: to, Host: true, Here: true, Proto: lb.TCP},
			anyRules{{Text: one}, {Text: two}}, around)
		if err := w.all(); err == nil && w.answer().Verdict == "" {
			t.Errorf("no verdict: %+v", w.ends)
		}
	})
}
