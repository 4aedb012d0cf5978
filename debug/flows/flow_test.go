package flows

import (
	"net/netip"
	"testing"

	"kube-proxy/internal/netlink/conntrack"
	"kube-proxy/lb"
)

// States have the kernel's names, and one that a newer kernel adds has its number.
func TestStateName(t *testing.T) {
	for _, c := range []struct {
		proto lb.Proto
		state uint8
		want  string
	}{
		{lb.TCP, 3, "ESTABLISHED"}, {lb.TCP, 9, "SYN_SENT2"}, {lb.TCP, 10, "state 10"},
		{lb.SCTP, 4, "ESTABLISHED"}, {lb.SCTP, 9, "HEARTBEAT_ACKED"}, {lb.UDP, 3, ""},
	} {
		if got := stateName(c.proto, c.state); got != c.want {
			t.Errorf("state %d of %s is %q, want %q", c.state, c.proto, got, c.want)
		}
	}
}

// An entry matches a query if protocol, destination and client are those asked for, from any port
// of the client or from one.
func TestQueryMatches(t *testing.T) {
	at := netip.MustParseAddrPort
	e := conntrack.Entry{Orig: conntrack.Tuple{From: at("10.1.1.9:4000"), To: at("10.96.0.1:80"), Proto: uint8(lb.TCP)}}
	for _, c := range []struct {
		q    Query
		want bool
	}{
		{Query{Proto: lb.TCP, From: at("10.1.1.9:0"), To: at("10.96.0.1:80")}, true},
		{Query{Proto: lb.TCP, From: at("10.1.1.9:4000"), To: at("10.96.0.1:80")}, true},
		{Query{Proto: lb.TCP, From: at("10.1.1.9:4001"), To: at("10.96.0.1:80")}, false},
		{Query{Proto: lb.TCP, From: at("10.1.1.8:0"), To: at("10.96.0.1:80")}, false},
		{Query{Proto: lb.TCP, From: at("10.1.1.9:0"), To: at("10.96.0.1:81")}, false},
		{Query{Proto: lb.UDP, From: at("10.1.1.9:0"), To: at("10.96.0.1:80")}, false},
	} {
		if got := c.q.is(&e); got != c.want {
			t.Errorf("%+v matches: %t", c.q, got)
		}
	}
}

// Counters go on only while the frontends are the same.
func TestSameFrontends(t *testing.T) {
	rows := []*lb.Frontend{{}, {}}
	equal := []*lb.Frontend{rows[0], rows[1]}
	for _, c := range []struct {
		name string
		a, b Table
		want bool
	}{
		{"none", Table{Family: lb.IPv4}, Table{Family: lb.IPv4}, true},
		{"of two families", Table{Family: lb.IPv4}, Table{Family: lb.IPv6}, false},
		{"one list", Table{Frontends: rows}, Table{Frontends: rows}, true},
		{"a part", Table{Frontends: rows}, Table{Frontends: rows[:1]}, false},
		{"another list", Table{Frontends: rows}, Table{Frontends: equal}, false},
	} {
		if got := sameFrontends(c.a, c.b); got != c.want {
			t.Errorf("%s: %t", c.name, got)
		}
	}
}
