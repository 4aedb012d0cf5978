//go:build linux

package xtables

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"kube-proxy/lb"
)

// Rule is a rule as the kernel holds it, whoever wrote it.
type Rule struct {
	// Text is the rule as iptables -S prints it, without "-A CHAIN ".
	Text string
	// when are the conditions, all of which a packet must meet. What none of them stands for is met by every packet.
	when []condition
	// recalls is the list of clients that the rule looks in, "" for none, and within is how many seconds are remembered, 0 for any.
	recalls string
	within  uint32
	do      verdict
	// handle is nf_tables' number of the rule in its chain, 0 where there is none.
	handle uint64
	// Strange names what in it is not understood: such a rule is told of, and nobody knows who meets it.
	Strange []string
}

// condition says how likely a packet is to meet one match: 0 to 1, or untold.
type condition func(w *walk, f flow) float64

// untold is the answer of a condition where it is not known.
const untold = -1

func yesOrNo(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// unless turns an answer round.
func unless(not bool, odds float64) float64 {
	if not && odds != untold {
		return 1 - odds
	}
	return odds
}

// odds is how likely a packet is to meet the whole rule, but for the list of clients.
func (r *Rule) odds(w *walk, f flow) float64 {
	all, known := 1.0, len(r.Strange) == 0
	for _, c := range r.when {
		switch p := c(w, f); p {
		case 0:
			return 0
		case untold:
			known = false
		default:
			all *= p
		}
	}
	if !known {
		return untold
	}
	return all
}

// action is what a rule does.
type action uint8

const (
	goOn action = iota // with the next rule: a target that only looks, or none
	jumpTo
	accept
	drop
	reject
	back // RETURN
	translate
	setMark
	masquerade
	unreadable
)

// verdict is an action and what it needs.
type verdict struct {
	do         action
	text       string
	chain      string // of a jump
	final      bool   // it is a goto
	to         netip.AddrPort
	mark, mask uint32
	// markOf, if it is not nil, says mark and mask for a flow.
	markOf func(w *walk, f flow) (mark, mask uint32)
}

// ruleBuilder puts a rule together in the order in which iptables prints it, whatever the order in which the kernel has it.
type ruleBuilder struct {
	Rule
	src, dst, in, out, proto string
	number                   uint8 // of the protocol, 0 for any
	matches                  []match
}

// match is a match with its name, as iptables prints it.
type match struct{ name, text string }

func (b *ruleBuilder) done() Rule {
	parts := []string{b.src, b.dst, b.in, b.out, b.proto}
	for _, m := range b.matches {
		parts = append(parts, "-m "+m.name+m.text)
	}
	parts = append(parts, b.do.text)
	return b.said(strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), " "))
}

// said is the rule, of which that is the text.
func (b *ruleBuilder) said(text string) Rule {
	if b.Text = text; len(b.Strange) > 0 {
		b.Text = strings.TrimPrefix(b.Text+" (not judged: "+strings.Join(b.Strange, ", ")+")", " ")
	}
	if b.do.do == unreadable { // who meets it may end there, or not
		b.Strange = append(b.Strange, b.do.text)
	}
	return b.Rule
}

func (b *ruleBuilder) cannot(what string) { b.Strange = append(b.Strange, what) }

func not(n bool) string {
	if n {
		return "! "
	}
	return ""
}

// source and destination have packets from or to a prefix, or not from there.
func (b *ruleBuilder) source(p netip.Prefix, no bool) {
	b.src = not(no) + "-s " + p.String()
	b.when = append(b.when, func(w *walk, _ flow) float64 { return yesOrNo(p.Contains(w.from()) != no) })
}

func (b *ruleBuilder) destination(p netip.Prefix, no bool) {
	b.dst = not(no) + "-d " + p.String()
	b.when = append(b.when, func(_ *walk, f flow) float64 { return yesOrNo(p.Contains(f.to.Addr()) != no) })
}

// through has packets that come in, or leave, by an interface, or by any whose name begins so.
func (b *ruleBuilder) through(in bool, name string, begins, no bool) {
	text := name
	if begins {
		text += "+"
	}
	is := func(have string, known bool) float64 {
		if !known {
			return untold
		}
		return yesOrNo((have == name || begins && strings.HasPrefix(have, name)) != no)
	}
	if in {
		b.in = not(no) + "-i " + text
		b.when = append(b.when, func(w *walk, _ flow) float64 { return is(w.place.comesIn(w)) })
		return
	}
	b.out = not(no) + "-o " + text
	b.when = append(b.when, func(w *walk, f flow) float64 { return is(w.place.leaves(w, f)) })
}

var protoNames = map[uint8]string{1: "icmp", 6: "tcp", 17: "udp", 33: "dccp", 50: "esp", 51: "ah", 58: "ipv6-icmp", 132: "sctp", 136: "udplite"}

func (b *ruleBuilder) protocol(n uint8, no bool) {
	name := protoNames[n]
	if name == "" {
		name = fmt.Sprint(n)
	}
	b.proto, b.number = not(no)+"-p "+name, n
	b.when = append(b.when, func(w *walk, _ flow) float64 { return yesOrNo((uint8(w.packet.Proto) == n) != no) })
}

// has adds a match. when is nil if every packet meets it.
func (b *ruleBuilder) has(name, text string, when condition) {
	if text != "" {
		text = " " + text
	}
	b.matches = append(b.matches, match{name, text})
	if when != nil {
		b.when = append(b.when, when)
	}
}

// port adds a range of ports, of the source or of the destination, to the match of a protocol.
func (b *ruleBuilder) port(proto string, destination bool, low, high uint16, no bool) {
	option := "--sport"
	if destination {
		option = "--dport"
	}
	text := fmt.Sprintf(" %s%s %d", not(no), option, low)
	if low != high {
		text += fmt.Sprintf(":%d", high)
	}
	if n := len(b.matches); n > 0 && b.matches[n-1].name == proto {
		b.matches[n-1].text += text
	} else {
		b.matches = append(b.matches, match{proto, text})
	}
	b.when = append(b.when, func(w *walk, f flow) float64 {
		port := f.to.Port()
		if !destination {
			if port = w.packet.From.Port(); port == 0 { // any
				return untold
			}
		}
		return yesOrNo((low <= port && port <= high) != no)
	})
}

// marked adds the match of a packet's mark.
func (b *ruleBuilder) marked(mark, mask uint32, no bool) {
	text := fmt.Sprintf("%s--mark %#x", not(no), mark)
	if mask != 1<<32-1 {
		text += fmt.Sprintf("/%#x", mask)
	}
	b.has("mark", text, func(_ *walk, f flow) float64 { return yesOrNo((f.mark&mask == mark) != no) })
}

// leads makes the rule lead to a chain.
func (b *ruleBuilder) leads(chain string, final bool) {
	b.do = verdict{do: jumpTo, chain: chain, final: final, text: "-j " + chain}
	if final {
		b.do.text = "-g " + chain
	}
}

// ends makes the rule end the packet's way: NF_ACCEPT or NF_DROP.
func (b *ruleBuilder) ends(accepted bool) {
	b.do = verdict{do: drop, text: "-j DROP"}
	if accepted {
		b.do = verdict{do: accept, text: "-j ACCEPT"}
	}
}

func (b *ruleBuilder) returns() { b.do = verdict{do: back, text: "-j RETURN"} }

// quoted is a text as iptables prints it.
func quoted(s string) string {
	plain := func(r rune) bool {
		return r == '_' || r == '-' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z'
	}
	if s != "" && !strings.ContainsFunc(s, func(r rune) bool { return !plain(r) }) {
		return s
	}
	return `"` + escaped.Replace(s) + `"`
}

var escaped = strings.NewReplacer(`"`, `\"`, `\`, `\\`, `'`, `\'`)

// prefixOf returns the prefix of an address and a mask, false if the mask is none of a prefix.
func prefixOf(addr, mask []byte) (netip.Prefix, bool) {
	bits, ended := 0, false
	for _, b := range mask {
		for i := 7; i >= 0; i-- {
			switch one := b>>i&1 == 1; {
			case one && ended:
				return netip.Prefix{}, false
			case one:
				bits++
			default:
				ended = true
			}
		}
	}
	a, ok := netip.AddrFromSlice(addr)
	return netip.PrefixFrom(a, bits), ok
}

// nfAddr reads a union nf_inet_addr of a family.
func nfAddr(f lb.Family, b []byte) netip.Addr {
	if f == lb.IPv6 {
		a, _ := netip.AddrFromSlice(b[:16])
		return a
	}
	a, _ := netip.AddrFromSlice(b[:4])
	return a
}

// cstr is the text of an array of characters.
func cstr(b []byte) string { return unix.ByteSliceToString(b) }
