package inspect

import (
	"slices"
	"testing"

	"kube-proxy/trace"
)

// TestSourceByOthers has rules of other programs decide which source backends see (NT-12).
func TestSourceByOthers(t *testing.T) {
	for _, c := range []struct {
		sees  trace.Sees
		masq  bool
		want  bool
		wants string // what the answer says; "" for what it said
	}{
		{"", true, true, ""},
		{"", false, false, ""},
		{trace.SeesClient, true, false, "The backend sees the client's own address, because of rules of " +
			"other programs on this node."},
		{trace.SeesAnother, false, true, "The backend does not see the client's address: a rule of another program " +
			"gives the packet another source."},
	} {
		said := unchanged
		if c.masq {
			said = masqueraded + ": the backend sees an address of this node."
		}
		a := &TraceAnswer{Rest: &trace.Node{Sees: c.sees}}
		a.Answer = trace.Answer{Verdict: trace.Balance, Masquerade: c.masq, Why: []string{said},
			Kernel: &trace.Kernel{Masquerade: c.masq}}
		a.atBackends()
		if c.wants == "" {
			c.wants = said
		}
		if a.Masquerade != c.want || a.Kernel.Masquerade != c.want || !slices.Equal(a.Why, []string{c.wants}) {
			t.Errorf("%q, masqueraded %t: %t, %t, %q", c.sees, c.masq, a.Masquerade, a.Kernel.Masquerade, a.Why)
		}
	}
}
