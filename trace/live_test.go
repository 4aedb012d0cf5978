package trace_test

import (
	"net/netip"
	"strings"
	"testing"

	"kube-proxy/lb"
	"kube-proxy/trace"
)

// Only what stops packets and is not the proxy's own is harmful, and a connection that stays with a
// former backend.
func TestHarmful(t *testing.T) {
	for _, c := range []struct {
		node *trace.Node
		want bool
	}{
		{nil, false}, {&trace.Node{}, false}, {&trace.Node{Own: true}, false},
		{&trace.Node{By: "a rule", Own: true}, false}, {&trace.Node{By: "a rule"}, true},
		{&trace.Node{Pinned: make([]trace.Pinned, 1)}, true},
	} {
		if got := c.node.Harmful(); got != c.want {
			t.Errorf("%+v: %t", c.node, got)
		}
	}
}

// A packet that arrived contradicts a prediction that none does, not one that some do not.
func TestCompareLive(t *testing.T) {
	const by = "table ip fw, chain in"
	seen := trace.Live{Seen: true, Verdict: trace.Delivered, Answered: true,
		Backend: netip.MustParseAddrPort("10.1.1.11:80")}
	for _, c := range []struct {
		name string
		live trace.Live
		node *trace.Node
		want string
	}{
		{"no prediction", seen, nil, ""},
		{"as predicted", seen, &trace.Node{Verdict: trace.Delivered}, ""},
		{"all were to be dropped", seen, &trace.Node{Verdict: trace.Dropped, By: by, Share: 1},
			"predicted dropped by " + by + ", but it was delivered to 10.1.1.11:80"},
		{"some were to be dropped", seen, &trace.Node{Verdict: trace.Dropped, By: by, Share: 0.5}, ""},
		{"without an answer", trace.Live{Seen: true, Verdict: trace.Delivered}, &trace.Node{Verdict: trace.Dropped,
			By: by, Share: 1}, ""},
		{"not seen", trace.Live{Verdict: trace.Delivered, Answered: true}, &trace.Node{By: by, Share: 1}, ""},
		{"dropped by the same", trace.Live{Seen: true, Verdict: trace.Dropped, By: "table ip fw"},
			&trace.Node{Verdict: trace.Dropped, By: by, Share: 1}, ""},
		{"lost, as predicted", trace.Live{Seen: true, Verdict: trace.Dropped, Lost: "behind forward"},
			&trace.Node{Verdict: trace.Dropped, By: by, Share: 1}, ""},
		{"dropped by another", trace.Live{Seen: true, Verdict: trace.Dropped, By: "table ip x", Handle: 7},
			&trace.Node{Verdict: trace.Dropped, By: by, Share: 1},
			"predicted dropped by " + by + ", but it was dropped by table ip x, rule with handle 7"},
		{"dropped unexpectedly", trace.Live{Seen: true, Verdict: trace.Dropped, By: "table ip x"},
			&trace.Node{Verdict: trace.Delivered}, "predicted delivered, but it was dropped by table ip x, policy"},
	} {
		c.live.Compare(c.node)
		if c.live.Differs != c.want {
			t.Errorf("%s: %q, want %q", c.name, c.live.Differs, c.want)
		}
	}
}

// The traffic policy is explained where it could have applied: at an address from outside, for
// clients to which it does not. An answer without backends has no list of them.
func TestSentences(t *testing.T) {
	const rows = `node nodeports 172.18.0.2/32 pods 10.1.0.0/16 services 10.96.0.0/12
10.96.0.10:80/tcp shop/web:http clusterip
  pods     balance shop/web:http/tcp/cluster
  anywhere balance shop/web:http/tcp/cluster masquerade
192.0.2.7:80/tcp shop/web:http loadbalancer
  pods     balance shop/web:http/tcp/cluster
  anywhere drop
set shop/web:http/tcp/cluster
  10.1.1.11:8080 local
`
	for _, c := range []struct {
		from, to       string
		local, backend bool
	}{
		{"10.1.1.9:0", "10.96.0.10:80", false, true}, {"192.0.2.99:0", "10.96.0.10:80", false, true},
		{"10.1.1.9:0", "192.0.2.7:80", true, true}, {"192.0.2.99:0", "192.0.2.7:80", false, false},
	} {
		p := trace.Packet{From: ap(c.from), To: ap(c.to), Proto: lb.TCP}
		a := trace.Ask(table(t, rows), trace.Mode{}, p)
		text := a.Text(p)
		local, backend := strings.Contains(text, "the traffic policy Local does not apply"), strings.Contains(text,
			"\nbackends\n")
		if local != c.local || backend != c.backend {
			t.Errorf("from %s to %s: policy Local %t, backends %t:\n%s", c.from, c.to, local, backend, text)
		}
	}
}
