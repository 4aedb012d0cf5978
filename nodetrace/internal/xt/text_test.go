//go:build linux

package xt

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/trace"
)

// oneSet is one ipset, named ours: of destinations, with a mark.
type oneSet struct {
	has netip.AddrPort
	err error
}

func (oneSet) Knows(set string) bool                     { return set == "ours" }
func (oneSet) Marks(set string) bool                     { return set == "ours" }
func (s oneSet) Has(_, _ string, p Packet) (bool, error) { return p.To == s.has, s.err }
func (s oneSet) MarkOf(_, _ string, p Packet) (uint32, uint32, error) {
	if p.To != s.has {
		return 0, 0, s.err
	}
	return 0x700, 0xff00, s.err
}

// passed returns the result of a packet to 10.0.0.1:80 with mark 0x4001 in the chain INPUT of
// mangle with these rules.
func passed(t *testing.T, sets oneSet, rules ...string) (p Packet, v trace.Verdict, lines []string) {
	t.Helper()
	all := []xtables.ChainRule{{Table: "mangle", Chain: "THERE", Rule: "-j RETURN"}, {Table: "mangle", Chain: "MARKS",
		Rule: "-j MARK --set-xmark 0x8/0x8"}, {Table: "nat", Chain: "INPUT", Rule: "-j DROP"}}
	for _, r := range rules {
		all = append(all, xtables.ChainRule{Table: "mangle", Chain: "INPUT", Rule: r})
	}
	p = Packet{From: netip.MustParseAddrPort("10.1.0.1:1000"), To: netip.MustParseAddrPort("10.0.0.1:80"),
		Proto: lb.TCP, In: "veth1", Mark: 0x4001, ToHere: true}
	v, err := NewChains(all, sets, func(line string) { lines = append(lines, line) }).Pass(t.Context(), "mangle",
		"INPUT", &p)
	if err != nil {
		t.Fatal(err)
	}
	return p, v, lines
}

// Each word of a rule matches the packets that it selects, negated or not, and no others.
func TestTextIsMet(t *testing.T) {
	set := oneSet{has: netip.MustParseAddrPort("10.0.0.1:80")}
	for when, met := range map[string]bool{
		"": true, "-p tcp": true, "-p udp": false, "! -p udp": true, "-p 6": true, "-s 10.1.0.0/16": true,
		"! -s 10.1.0.0/16": false, "-d 10.0.0.2/32": false,
		"-i veth+": true, "-i veth": false, "-i veth1": true, "! -o lo": true, "-o lo": false,
		"-m conntrack --ctstate NEW": true, "-m conntrack ! --ctstate RELATED,ESTABLISHED": true,
		"-m conntrack --ctstate SNAT":  false,
		"-m mark --mark 0x4000/0x4000": true, "-m mark --mark 0x4000": false, "-m mark ! --mark 0x4001": false,
		"-m addrtype --dst-type LOCAL": true, "-m addrtype ! --dst-type LOCAL": false,
		"-m addrtype --src-type LOCAL":    false,
		"-m set --match-set ours dst,dst": true, "-m set ! --match-set ours dst,dst": false,
		"-m set --match-set ours dst,dst -m set ! --match-set ours src": false,
		`-m comment --comment "-p udp \"-d 1.1.1.1\" "`:                 true,
	} {
		rule := strings.TrimSpace(when + " -j DROP")
		_, v, lines := passed(t, set, rule)
		if (v == trace.Drop) != met || len(lines) > 0 != met {
			t.Errorf("%q: %s, %q", rule, v, lines)
		}
		if met && lines[0] != "-t mangle -A INPUT "+rule {
			t.Errorf("%q is reported as %q", rule, lines[0])
		}
	}
}

// Targets have their effect, and chains return except after a goto.
func TestTextIsDone(t *testing.T) {
	set := oneSet{has: netip.MustParseAddrPort("10.0.0.1:80")}
	for _, c := range []struct {
		rules   string
		verdict trace.Verdict
		mark    uint32
		masq    bool
	}{
		{"-j ACCEPT; -j DROP", trace.Pass, 0x4001, false},
		{"-j RETURN; -j DROP", trace.Pass, 0x4001, false},
		{"-j REJECT --reject-with icmp-port-unreachable", trace.Reject, 0x4001, false},
		{"-j THERE; -j DROP", trace.Drop, 0x4001, false},
		{"-g THERE; -j DROP", trace.Pass, 0x4001, false},
		{"-j MARKS; -m mark --mark 0x8/0x8 -j DROP", trace.Drop, 0x4001, false},
		{"-j MARK --set-xmark 0x0/0xffffbfff", trace.Pass, 0x4000, false},
		{"-j MARK --set-xmark 0x4000/0x0", trace.Pass, 0x1, false},
		{"-j SET --map-set ours dst,dst --map-mark; -m mark --mark 0x701 -j RETURN; -j DROP", trace.Pass, 0x701, false},
		{"-j MASQUERADE --random-fully; -j DROP", trace.Pass, 0x4001, true},
	} {
		p, v, lines := passed(t, set, strings.Split(c.rules, "; ")...)
		if v != c.verdict || v == trace.Pass && p.Mark != c.mark || p.Masqueraded != c.masq {
			t.Errorf("%s: %s, mark %#x, masqueraded %t; by way of %q", c.rules, v, p.Mark, p.Masqueraded, lines)
		}
	}
}

// A rule with an unknown part matches no packet and is reported, and the rules after it count; an
// error of a set ends the walk.
func TestTextNotUnderstood(t *testing.T) {
	for _, rule := range []string{"-p tcp -m multiport --dports 80 -j ACCEPT", "-m connmark --mark 0x4001 -j ACCEPT",
		"-p tcp -m tcp --tcp-flags SYN SYN -j ACCEPT", "-j TPROXY --on-port 80",
		"-j ACCEPT (not read: ct of nf_tables)", "-m set --match-set others dst -j ACCEPT",
		"-m addrtype --dst-type BROADCAST -j ACCEPT",
		"-j SET --map-set others dst,dst --map-mark", "-p nonsense -j ACCEPT", "-d nonsense -j ACCEPT",
		"-m mark --mark nonsense -j ACCEPT", "-m conntrack --ctstate NONE -j ACCEPT", "-j"} {
		_, v, lines := passed(t, oneSet{}, rule, "-j DROP")
		if v != trace.Drop || len(lines) != 2 || !strings.HasPrefix(lines[0], "-t mangle -A INPUT "+rule) ||
			!strings.Contains(lines[0], "not judged") {
			t.Errorf("%q: %s, %q", rule, v, lines)
		}
	}
	broken := errors.New("broken")
	chains := NewChains([]xtables.ChainRule{{Table: "mangle", Chain: "INPUT",
		Rule: "-m set --match-set ours dst -j DROP"}}, oneSet{err: broken}, func(string) {})
	if v, err := chains.Pass(t.Context(), "mangle", "INPUT", &Packet{}); !errors.Is(err, broken) {
		t.Errorf("%s, %v", v, err)
	}
}

// FuzzText: with any rules, a packet has a verdict.
func FuzzText(f *testing.F) {
	f.Add(`! -p udp -m comment --comment "a \" b" -d 10.0.0.0/8 -j INPUT`,
		"-m mark ! --mark 1/0x2 -j SET --map-set ours dst --map-mark")
	f.Add("-i + -g INPUT", "-m set ! --match-set ours -j")
	f.Fuzz(func(t *testing.T, one, two string) {
		p := Packet{From: netip.MustParseAddrPort("10.1.0.1:1000"), To: netip.MustParseAddrPort("10.0.0.1:80"),
			Proto: lb.TCP}
		chains := NewChains([]xtables.ChainRule{{Table: "mangle", Chain: "INPUT", Rule: one},
			{Table: "mangle", Chain: "INPUT", Rule: two}}, oneSet{has: p.To}, func(string) {})
		if v, err := chains.Pass(t.Context(), "mangle", "INPUT", &p); err == nil && v == "" {
			t.Errorf("%q, %q: no verdict", one, two)
		}
	})
}
