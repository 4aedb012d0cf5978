//go:build linux

package xtables

import (
	"fmt"
	"net/netip"
	"strings"

	"kube-proxy/internal/netlink"
	"kube-proxy/lb"
)

// Matches and targets that nf_tables lacks are stored in the structures of linux/netfilter/xt_*.h.

// revised is one revision of an extension. Each revision has its own structure.
type revised struct {
	name     string
	revision uint8
}

// matchTexts has the minimum size of each known match's structure, and its reader. A reader returns
// false for a structure with unknown content.
var matchTexts = map[revised]struct {
	size int
	read func(r *ruleText, info []byte) bool
}{
	{"comment", 0}: {1, func(r *ruleText, info []byte) bool {
		r.has("comment", "--comment "+quoted(netlink.CStr(info)))
		return true
	}},
	{"nfacct", 0}:    {32, readCounter},
	{"nfacct", 1}:    {32, readCounter},
	{"tcp", 0}:       {12, readTCP},
	{"udp", 0}:       {9, readUDP},
	{"sctp", 0}:      {292, readSCTP},
	{"mark", 1}:      {9, readMark},
	{"statistic", 0}: {8, readStatistic},
	{"addrtype", 1}:  {8, readAddrtype},
	{"conntrack", 3}: {154, readConntrack},
	{"socket", 3}:    {1, readSocket},
	{"recent", 1}:    {228, readRecent},
}

// match adds a match of x_tables.
func (r *ruleText) match(name string, revision uint8, info []byte) {
	read := matchTexts[revised{name, revision}]
	if read.size == 0 || len(info) < read.size || !read.read(r, info) {
		r.has(name, "…")
		r.short = true
	}
}

// ports adds the two port ranges at the start of a protocol match, unless they contain all ports.
func (r *ruleText) ports(proto string, src, dst []byte, noSrc, noDst bool) {
	for i, b := range [][]byte{src, dst} {
		low, high, no := netlink.Native16(b), netlink.Native16(b[2:]), noSrc
		if i == 1 {
			no = noDst
		}
		if low != 0 || high != 0xffff || no {
			r.port(proto, i == 1, low, high, no)
		}
	}
	if n := len(r.matches); n == 0 || r.matches[n-1].name != proto {
		r.has(proto, "")
	}
}

func readTCP(r *ruleText, info []byte) bool {
	option, mask, inverted := info[8], info[9], info[11]
	if option != 0 || mask != 0 || inverted&^3 != 0 { // flags and options
		return false
	}
	r.ports("tcp", info, info[4:], inverted&1 != 0, inverted&2 != 0)
	return true
}

func readUDP(r *ruleText, info []byte) bool {
	r.ports("udp", info, info[4:], info[8]&1 != 0, info[8]&2 != 0)
	return true
}

// readSCTP reads struct xt_sctp_info. Its ranges are in reverse order, and valid only if its flags
// say so.
func readSCTP(r *ruleText, info []byte) bool {
	flags, inverted := netlink.Native32(info[284:]), netlink.Native32(info[288:])
	if flags&^3 != 0 { // chunk matches
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
	r.ports("sctp", src, dst, inverted&1 != 0, inverted&2 != 0)
	return true
}

func readCounter(r *ruleText, info []byte) bool {
	r.has("nfacct", "--nfacct-name  "+netlink.CStr(info[:32])) // iptables prints two spaces
	return true
}

func readMark(r *ruleText, info []byte) bool {
	r.marked(netlink.Native32(info), netlink.Native32(info[4:]), info[8] != 0)
	return true
}

func readStatistic(r *ruleText, info []byte) bool {
	no := netlink.Native16(info[2:])&1 != 0
	r.has("statistic", fmt.Sprintf("--mode random %s--probability %.11f", not(no),
		float64(netlink.Native32(info[4:]))/(1<<31)))
	return netlink.Native16(info) == 0 // not nth
}

// readAddrtype reads a match of the node's own addresses. Other types, and flags that limit the
// match to an interface, are unknown.
func readAddrtype(r *ruleText, info []byte) bool {
	const local = 1 << 2 // of RTN_LOCAL
	src, dst, inverted := netlink.Native16(info), netlink.Native16(info[2:]), netlink.Native32(info[4:])
	var text []string
	if src != 0 {
		text = append(text, not(inverted&1 != 0)+"--src-type LOCAL")
	}
	if dst != 0 {
		text = append(text, not(inverted&2 != 0)+"--dst-type LOCAL")
	}
	if (src|dst)&^local != 0 || inverted&^3 != 0 {
		return false
	}
	r.has("addrtype", strings.Join(text, " "))
	return true
}

// ctStates are the connection states of struct xt_conntrack_mtinfo, in the order in which iptables
// prints them.
var ctStates = []struct {
	bit  uint16
	name string
}{{1 << 0, "INVALID"}, {1 << 3, "NEW"}, {1 << 2, "RELATED"}, {1 << 1, "ESTABLISHED"}, {1 << 8, "UNTRACKED"},
	{1 << 6, "SNAT"}, {1 << 7, "DNAT"}}

// readConntrack reads a match of only the states, or only the direction.
func readConntrack(r *ruleText, info []byte) bool {
	const state, direction = 1, 1 << 12 // XT_CONNTRACK_*
	switch flags, inverted := netlink.Native16(info[146:]), netlink.Native16(info[148:]); flags {
	case direction:
		r.has("conntrack", "--ctdir "+map[bool]string{false: "ORIGINAL", true: "REPLY"}[inverted&direction != 0])
		return true
	case state:
		states := netlink.Native16(info[150:])
		var names []string
		for _, s := range ctStates {
			if states&s.bit != 0 {
				names = append(names, s.name)
			}
		}
		r.has("conntrack", not(inverted&state != 0)+"--ctstate "+strings.Join(names, ","))
		return true
	}
	return false
}

// readSocket reads the match of a transparent socket, which may be bound to any address.
func readSocket(r *ruleText, info []byte) bool {
	const transparent, noWildcard = 1, 2
	if info[0] != transparent|noWildcard {
		return false
	}
	r.has("socket", "--transparent --nowildcard")
	return true
}

// readRecent reads a match that looks up or adds clients in xt_recent.
func readRecent(r *ruleText, info []byte) bool {
	const check, set, update, reap = 1, 2, 4, 32
	seconds, hits := netlink.Native32(info), netlink.Native32(info[4:])
	what, inverted, side := info[8], info[9], info[210]
	text := map[byte]string{check: "--rcheck ", set: "--set ", update: "--update "}[what&^reap]
	if inverted != 0 || hits != 0 || side != 0 || text == "" {
		return false
	}
	if seconds != 0 {
		text += fmt.Sprintf("--seconds %d ", seconds)
	}
	if what&reap != 0 {
		text += "--reap "
	}
	text += "--name " + quoted(netlink.CStr(info[10:210])) + " --mask " + nfAddr(r.family, info[212:]).String()
	r.has("recent", text+" --rsource")
	return true
}

// extension adds a target of x_tables to the rule.
func (r *ruleText) extension(name string, revision uint8, info []byte) {
	if read := targetTexts[revised{name, revision}]; read != nil {
		if options, ok := read(r.family, info); ok {
			r.target = "-j " + name + options
			return
		}
	}
	r.target, r.short = "-j "+name+" …", true
}

// targetTexts has the readers of known targets, which return the options.
var targetTexts = map[revised]func(f lb.Family, info []byte) (options string, ok bool){
	{"MARK", 2}: func(_ lb.Family, info []byte) (string, bool) {
		if len(info) < 8 {
			return "", false
		}
		return fmt.Sprintf(" --set-xmark %#x/%#x", netlink.Native32(info), netlink.Native32(info[4:])), true
	},
	{"REJECT", 0}: func(f lb.Family, info []byte) (string, bool) {
		names := rejectNames[f]
		if len(info) < 4 || int(netlink.Native32(info)) >= len(names) {
			return "", false
		}
		return " --reject-with " + names[netlink.Native32(info)], true
	},
	{"DNAT", 0}: func(f lb.Family, info []byte) (string, bool) {
		if f == lb.IPv6 || len(info) < 4 {
			return "", false
		}
		return translation(f, info[4:], 4)
	},
	{"DNAT", 1}:       func(f lb.Family, info []byte) (string, bool) { return translation(f, info, 16) },
	{"DNAT", 2}:       func(f lb.Family, info []byte) (string, bool) { return translation(f, info, 16) },
	{"MASQUERADE", 0}: masquerading,
}

// rejectNames are the names of enum ipt_reject_with and ip6t_reject_with.
var rejectNames = map[lb.Family][]string{
	lb.IPv4: {"icmp-net-unreachable", "icmp-host-unreachable", "icmp-proto-unreachable", "icmp-port-unreachable",
		"echo-reply", "icmp-net-prohibited", "icmp-host-prohibited", "tcp-reset", "icmp-admin-prohibited"},
	lb.IPv6: {"icmp6-no-route", "icmp6-adm-prohibited", "icmp6-not-neighbour", "icmp6-addr-unreachable",
		"icmp6-port-unreachable", "echo-reply", "tcp-reset", "icmp6-policy-fail", "icmp6-reject-route"},
}

// Flags of struct nf_nat_range and its predecessors.
const (
	natAddress     = 1
	natPort        = 2
	natRandomFully = 16
)

// translation reads a DNAT to one address and port, or to one port; size is that of an address.
func translation(f lb.Family, info []byte, size int) (options string, ok bool) {
	if len(info) < 4+2*size+4 {
		return "", false
	}
	low, high := nfAddr(f, info[4:]), nfAddr(f, info[4+size:])
	port, last := netlink.BE16(info[4+2*size:][:2]), netlink.BE16(info[6+2*size:][:2])
	switch what := netlink.Native32(info); {
	case what == natPort && port == last: // the address stays
		return fmt.Sprintf(" --to-destination :%d", port), true
	case what == natAddress|natPort && low == high && port == last:
		return " --to-destination " + netip.AddrPortFrom(low, port).String(), true
	}
	return "", false
}

// masquerading reads struct nf_nat_ipv4_multi_range_compat, or nf_nat_range of IPv6.
func masquerading(f lb.Family, info []byte) (options string, ok bool) {
	if f == lb.IPv4 && len(info) >= 8 {
		info = info[4:]
	}
	if len(info) < 4 {
		return "", false
	}
	switch netlink.Native32(info) {
	case 0:
		return "", true
	case natRandomFully:
		return " --random-fully", true
	}
	return "", false // port ranges and other flags
}

// nfAddr reads a union nf_inet_addr for a family.
func nfAddr(f lb.Family, b []byte) netip.Addr {
	size := 4
	if f == lb.IPv6 {
		size = 16
	}
	a, _ := netip.AddrFromSlice(b[:size])
	return a
}
