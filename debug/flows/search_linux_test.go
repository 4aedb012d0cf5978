package flows

import (
	"net/netip"
	"testing"

	"kube-proxy/lb"
)

// A search keeps the open connections first, then closing ones, and says if there are others.
func TestSearchKeepsTheFirst(t *testing.T) {
	const open, closes, over = "ESTABLISHED", "FIN_WAIT", "TIME_WAIT"
	for _, c := range []struct {
		name   string
		states []string
		want   []string
		ended  int
		more   bool
	}{
		{"few", []string{closes, over, open}, []string{open, closes}, 1, false},
		{"open ones alone", []string{open, open}, []string{open, open}, 0, false},
		{"too many open ones", []string{open, open, open}, []string{open, open}, 0, true},
		{"too many closing ones", []string{closes, closes, closes}, []string{closes, closes}, 0, true},
		{"as many closing ones", []string{closes, closes}, []string{closes, closes}, 0, false},
		{"too many of both", []string{closes, open, closes}, []string{open, closes}, 0, true},
	} {
		s := search{query: Query{Proto: lb.TCP, From: netip.MustParseAddrPort("10.1.1.9:0"), Most: 2}}
		for _, state := range c.states {
			s.add(Flow{State: state})
		}
		got := s.found()
		same := len(got.Flows) == len(c.want)
		for i := range got.Flows {
			same = same && got.Flows[i].State == c.want[i]
		}
		if !same || got.Ended != c.ended || got.More != c.more {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
	s := search{query: Query{From: netip.MustParseAddrPort("10.1.1.9:4000"), Most: 2}}
	s.add(Flow{State: over})
	if got := s.found(); len(got.Flows) != 1 || got.Ended != 0 {
		t.Errorf("an ended connection from the client's port: %+v", got)
	}
}
