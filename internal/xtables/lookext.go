//go:build linux

package xtables

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"kube-proxy/lb"
)

var native, network = binary.NativeEndian, binary.BigEndian

// readMatch adds a match of x_tables to a rule, from the structure that the kernel has it in, of linux/netfilter/xt_*.h. Both back ends have
// those: the legacy one all of them, and nf_tables those for which it has no words of its own.
func (b *ruleBuilder) readMatch(f lb.Family, name string, revision uint8, info []byte) {
	read := matchReaders[extensionRevision{name, revision}]
	if read.size == 0 || len(info) < read.size || !read.read(b, f, info) {
		b.has(name, "…", nil)
		b.cannot("match " + name)
	}
}

type extensionRevision struct {
	name     string
	revision uint8
}

// matchReaders have, for each match that is understood, the least size of its structure, and what reads it; false if that has something in it
// which is not understood.
var matchReaders = map[extensionRevision]struct {
	size int
	read func(b *ruleBuilder, f lb.Family, info []byte) bool
}{
	{"comment", 0}: {1, func(b *ruleBuilder, _ lb.Family, info []byte) bool {
		b.has("comment", "--comment "+quoted(cstr(info)), nil)
		return true
	}},
	{"nfacct", 0}:    {32, readCounter},
	{"nfacct", 1}:    {32, readCounter},
	{"tcp", 0}:       {12, readTCP},
	{"udp", 0}:       {9, readUDP},
	{"sctp", 0}:      {292, readSCTP},
	{"mark", 1}:      {9, readMark},
	{"statistic", 0}: {8, readStatistic},
	{"addrtype", 0}:  {12, readAddrtype0},
	{"addrtype", 1}:  {8, readAddrtype1},
	{"conntrack", 1}: {152, readConntrack},
	{"conntrack", 2}: {154, readConntrack},
	{"conntrack", 3}: {154, readConntrack},
	{"socket", 2}:    {1, readSocket},
	{"socket", 3}:    {1, readSocket},
	{"recent", 0}:    {211, readRecent},
	{"recent", 1}:    {228, readRecent},
}

// ports adds the two ranges that matches of protocols begin with, where they are not all ports.
func (b *ruleBuilder) ports(proto string, src, dst []byte, noSrc, noDst bool) {
	for i, r := range [][]byte{src, dst} {
		low, high, no := native.Uint16(r), native.Uint16(r[2:]), noSrc
		if i == 1 {
			no = noDst
		}
		if low != 0 || high != 0xffff || no {
			b.port(proto, i == 1, low, high, no)
		}
	}
	if n := len(b.matches); n == 0 || b.matches[n-1].name != proto {
		b.has(proto, "", nil)
	}
}

func readTCP(b *ruleBuilder, _ lb.Family, info []byte) bool {
	option, mask, inverted := info[8], info[9], info[11]
	if option != 0 || mask != 0 || inverted&^3 != 0 { // of flags and options
		return false
	}
	b.ports("tcp", info, info[4:], inverted&1 != 0, inverted&2 != 0)
	return true
}

func readUDP(b *ruleBuilder, _ lb.Family, info []byte) bool {
	b.ports("udp", info, info[4:], info[8]&1 != 0, info[8]&2 != 0)
	return true
}

func readCounter(b *ruleBuilder, _ lb.Family, info []byte) bool {
	b.has("nfacct", "--nfacct-name  "+cstr(info[:32]), nil) // iptables prints two spaces
	return true
}

// readSCTP reads struct xt_sctp_info, whose ranges come the other way round, and count only if its flags say so.
func readSCTP(b *ruleBuilder, _ lb.Family, info []byte) bool {
	flags, inverted := native.Uint32(info[284:]), native.Uint32(info[288:])
	if flags&^3 != 0 { // of chunks
		return false
	}
	all := []byte{0, 0, 0xff, 0xff}
	src, dst := all, all
	if flags&1 != 0 {
		src = info[4:]
	}
	if flags&2 != 0 {
		dst = info
	}
	b.ports("sctp", src, dst, inverted&1 != 0, inverted&2 != 0)
	return true
}

func readMark(b *ruleBuilder, _ lb.Family, info []byte) bool {
	b.marked(native.Uint32(info), native.Uint32(info[4:]), info[8] != 0)
	return true
}

func readStatistic(b *ruleBuilder, _ lb.Family, info []byte) bool {
	if native.Uint16(info) != 0 { // nth
		return false
	}
	no := native.Uint16(info[2:])&1 != 0
	p := float64(native.Uint32(info[4:])) / (1 << 31)
	b.has("statistic", fmt.Sprintf("--mode random %s--probability %.11f", not(no), p), func(*walk, flow) float64 { return unless(no, p) })
	return true
}

func readAddrtype0(b *ruleBuilder, _ lb.Family, info []byte) bool {
	return b.addrtype(native.Uint16(info), native.Uint16(info[2:]), native.Uint32(info[4:]) != 0, native.Uint32(info[8:]) != 0)
}

func readAddrtype1(b *ruleBuilder, _ lb.Family, info []byte) bool {
	flags := native.Uint32(info[4:])
	if flags&^3 != 0 { // which look at one interface
		return false
	}
	return b.addrtype(native.Uint16(info), native.Uint16(info[2:]), flags&1 != 0, flags&2 != 0)
}

// typeLocal is the bit of RTN_LOCAL in xt_addrtype_info.
const typeLocal = 1 << 2

// addrtype adds whether addresses are this node's own; other types are not understood.
func (b *ruleBuilder) addrtype(src, dst uint16, noSrc, noDst bool) bool {
	if src&^typeLocal != 0 || dst&^typeLocal != 0 {
		return false
	}
	var text []string
	if src != 0 {
		text = append(text, not(noSrc)+"--src-type LOCAL")
	}
	if dst != 0 {
		text = append(text, not(noDst)+"--dst-type LOCAL")
	}
	b.has("addrtype", strings.Join(text, " "), func(w *walk, f flow) float64 {
		return yesOrNo((src == 0 || w.place.sourceHere(w) != noSrc) && (dst == 0 || w.place.here(w, f.to.Addr()) != noDst))
	})
	return true
}

// States of connections in struct xt_conntrack_mtinfo, in the order in which iptables prints them.
var ctStates = []ctState{{1 << 0, "INVALID"}, {ctNew, "NEW"}, {1 << 2, "RELATED"}, {1 << 1, "ESTABLISHED"}, {1 << 8, "UNTRACKED"}, {1 << 6, "SNAT"}, {ctTranslated, "DNAT"}}

type ctState struct {
	bit  uint16
	name string
}

// ctDirection is XT_CONNTRACK_DIRECTION.
const ctDirection = 1 << 12

const (
	ctNew        = 1 << 3
	ctTranslated = 1 << 7
)

// readConntrack reads the states alone, or the direction alone. The packet opens a connection.
func readConntrack(b *ruleBuilder, _ lb.Family, info []byte) bool {
	flags, inverted := native.Uint16(info[146:]), native.Uint16(info[148:])
	if flags == ctDirection {
		reply := inverted&ctDirection != 0
		b.has("conntrack", "--ctdir "+map[bool]string{false: "ORIGINAL", true: "REPLY"}[reply], func(*walk, flow) float64 { return yesOrNo(!reply) })
		return true
	}
	if flags != 1 { // XT_CONNTRACK_STATE
		return false
	}
	states, no := uint16(info[150]), inverted&1 != 0
	if len(info) >= 154 { // since revision 2
		states = native.Uint16(info[150:])
	}
	b.states(states, no)
	return true
}

// states adds the match of states of connections.
func (b *ruleBuilder) states(states uint16, no bool) {
	var names []string
	for _, s := range ctStates {
		if states&s.bit != 0 {
			names = append(names, s.name)
		}
	}
	b.has("conntrack", not(no)+"--ctstate "+strings.Join(names, ","), func(_ *walk, f flow) float64 {
		is := states&ctNew != 0 || f.translated && states&ctTranslated != 0
		return yesOrNo(is != no)
	})
}

// readSocket reads the match of a transparent socket, bound to any address or not: such are the listeners of mode userspace,
// and what is translated to this node's ports is taken to reach one.
func readSocket(b *ruleBuilder, _ lb.Family, info []byte) bool {
	const transparent, noWildcard = 1, 2
	if info[0] != transparent|noWildcard {
		return false
	}
	b.has("socket", "--transparent --nowildcard", func(_ *walk, f flow) float64 { return yesOrNo(f.translated) })
	return true
}

// readRecent reads what xt_recent remembers, or is to remember, of clients.
func readRecent(b *ruleBuilder, f lb.Family, info []byte) bool {
	const check, set, update, reap = 1, 2, 4, 32
	seconds, hits, what, inverted, side := native.Uint32(info), native.Uint32(info[4:]), info[8], info[9], info[210]
	if inverted != 0 || hits != 0 || side != 0 || what&^(check|set|update|reap) != 0 {
		return false
	}
	name := cstr(info[10:210])
	text := map[byte]string{check: "--rcheck ", set: "--set ", update: "--update "}[what&^reap]
	if text == "" {
		return false
	}
	if seconds != 0 {
		text += fmt.Sprintf("--seconds %d ", seconds)
	}
	if what&reap != 0 {
		text += "--reap "
	}
	text += "--name " + quoted(name) + " "
	if len(info) >= 228 {
		text += "--mask " + nfAddr(f, info[212:]).String() + " "
	}
	b.has("recent", text+"--rsource", nil)
	if what&set == 0 {
		b.recalls, b.within = name, seconds
	}
	return true
}

// readTarget gives a rule a target of x_tables.
func (b *ruleBuilder) readTarget(f lb.Family, name string, revision uint8, info []byte) {
	if read := targetReaders[extensionRevision{name, revision}]; read != nil {
		if v, ok := read(f, info); ok {
			b.do = v
			return
		}
	}
	b.do = verdict{do: unreadable, text: "-j " + name + " …"}
	if onlyLooks[name] {
		b.do.do = goOn
	}
}

// onlyLooks are targets after which a packet goes on with the next rule, and as before.
var onlyLooks = map[string]bool{"LOG": true, "NFLOG": true, "TRACE": true, "TCPMSS": true, "CHECKSUM": true, "AUDIT": true, "CLASSIFY": true}

var targetReaders = map[extensionRevision]func(f lb.Family, info []byte) (verdict, bool){
	{"MARK", 2}: func(_ lb.Family, info []byte) (verdict, bool) {
		if len(info) < 8 {
			return verdict{}, false
		}
		mark, mask := native.Uint32(info), native.Uint32(info[4:])
		return verdict{do: setMark, mark: mark, mask: mask, text: fmt.Sprintf("-j MARK --set-xmark %#x/%#x", mark, mask)}, true
	},
	{"REJECT", 0}: func(f lb.Family, info []byte) (verdict, bool) {
		names := rejectNames[f]
		if len(info) < 4 || int(native.Uint32(info)) >= len(names) {
			return verdict{}, false
		}
		return verdict{do: reject, text: "-j REJECT --reject-with " + names[native.Uint32(info)]}, true
	},
	{"DNAT", 0}: func(f lb.Family, info []byte) (verdict, bool) {
		if f == lb.IPv6 || len(info) < 4 {
			return verdict{}, false
		}
		return translation(f, info[4:], 4)
	},
	{"DNAT", 1}:       func(f lb.Family, info []byte) (verdict, bool) { return translation(f, info, 16) },
	{"DNAT", 2}:       func(f lb.Family, info []byte) (verdict, bool) { return translation(f, info, 16) },
	{"MASQUERADE", 0}: masquerading,
	{"SNAT", 0}:       func(lb.Family, []byte) (verdict, bool) { return verdict{do: masquerade, text: "-j SNAT …"}, true },
	{"SNAT", 1}:       func(lb.Family, []byte) (verdict, bool) { return verdict{do: masquerade, text: "-j SNAT …"}, true },
	{"SNAT", 2}:       func(lb.Family, []byte) (verdict, bool) { return verdict{do: masquerade, text: "-j SNAT …"}, true },
}

// rejectNames are those of enum ipt_reject_with, and of ip6t_reject_with.
var rejectNames = map[lb.Family][]string{
	lb.IPv4: {"icmp-net-unreachable", "icmp-host-unreachable", "icmp-proto-unreachable", "icmp-port-unreachable", "echo-reply",
		"icmp-net-prohibited", "icmp-host-prohibited", "tcp-reset", "icmp-admin-prohibited"},
	lb.IPv6: {"icmp6-no-route", "icmp6-adm-prohibited", "icmp6-not-neighbour", "icmp6-addr-unreachable", "icmp6-port-unreachable",
		"echo-reply", "tcp-reset", "icmp6-policy-fail", "icmp6-reject-route"},
}

// What struct nf_nat_range and its forebears say.
const (
	natAddress     = 1
	natPort        = 2
	natRandomFully = 16
)

// translation reads a DNAT to one address and port, or to one port alone; size is that of an address.
func translation(f lb.Family, info []byte, size int) (verdict, bool) {
	if len(info) < 4+2*size+4 {
		return verdict{}, false
	}
	low, high := nfAddr(f, info[4:]), nfAddr(f, info[4+size:])
	ports := info[4+2*size:]
	port, last := network.Uint16(ports), network.Uint16(ports[2:])
	if native.Uint32(info) == natPort && port == last { // the address stays
		return verdict{do: translate, to: netip.AddrPortFrom(netip.Addr{}, port), text: fmt.Sprintf("-j DNAT --to-destination :%d", port)}, true
	}
	if native.Uint32(info) != natAddress|natPort || low != high || port != last {
		return verdict{}, false
	}
	to := netip.AddrPortFrom(low, port)
	return verdict{do: translate, to: to, text: "-j DNAT --to-destination " + to.String()}, true
}

// masquerading reads struct nf_nat_ipv4_multi_range_compat, or nf_nat_range of IPv6.
func masquerading(f lb.Family, info []byte) (verdict, bool) {
	if f == lb.IPv4 && len(info) >= 8 {
		info = info[4:]
	}
	if len(info) < 4 {
		return verdict{}, false
	}
	v := verdict{do: masquerade, text: "-j MASQUERADE"}
	switch native.Uint32(info) {
	case 0:
	case natRandomFully:
		v.text += " --random-fully"
	default: // of ports and the like, which change nothing of that it masquerades
		v.text += " …"
	}
	return v, true
}
