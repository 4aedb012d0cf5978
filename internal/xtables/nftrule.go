//go:build linux

package xtables

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink"
	"kube-proxy/lb"
)

// ruleText collects the text of a rule in the order in which iptables prints it.
type ruleText struct {
	family                   lb.Family
	src, dst, in, out, proto string
	number                   uint8 // of the protocol, 0 for any
	matches                  []match
	target                   string
	unread                   []string // expressions without iptables syntax
	short                    bool     // only the name of a match or target is known
	loaded                   nftValue // the content of nf_tables' register; iptables uses one
}

// match is a match with its name, as iptables prints it.
type match struct{ name, text string }

// nftValue is a part of a packet, or of its metadata.
type nftValue struct {
	meta         bool
	key          uint32 // of meta
	base         uint32 // of a payload
	offset, size uint32
	mask         []byte // nil for all of it
}

// ReadNFT translates the expressions of a rule of nf_tables back into the arguments of iptables.
// body is the body of a netlink message about the rule.
func ReadNFT(f lb.Family, body []byte) Rule {
	r := &ruleText{family: f}
	netlink.Attributes(netlink.Attribute(body, unix.NFTA_RULE_EXPRESSIONS), func(_ uint16, e []byte) bool {
		r.expression(netlink.CStr(netlink.Attribute(e, unix.NFTA_EXPR_NAME)), netlink.Attribute(e, unix.NFTA_EXPR_DATA))
		return true
	})
	return Rule{Text: r.text(), Unread: r.short || len(r.unread) > 0,
		Handle: netlink.BE64(netlink.Attribute(body, unix.NFTA_RULE_HANDLE))}
}

func (r *ruleText) text() string {
	parts := []string{r.src, r.dst, r.in, r.out, r.proto}
	for _, m := range r.matches {
		parts = append(parts, strings.TrimSpace("-m "+m.name+" "+m.text))
	}
	parts = append(parts, r.target)
	if len(r.unread) > 0 {
		parts = append(parts, "(not read: "+strings.Join(r.unread, ", ")+")")
	}
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), " ")
}

// has adds a match.
func (r *ruleText) has(name, text string) { r.matches = append(r.matches, match{name, text}) }

// to appends to the match of that name if it is the last one, else it begins the match.
func (r *ruleText) to(name, text string) {
	if n := len(r.matches); n > 0 && r.matches[n-1].name == name {
		r.matches[n-1].text += " " + text
		return
	}
	r.has(name, text)
}

func not(n bool) string {
	if n {
		return "! "
	}
	return ""
}

// expression reads one expression. It names unknown ones at the rule's end.
func (r *ruleText) expression(name string, data []byte) {
	attr := func(n uint16) []byte { return netlink.Attribute(data, n) }
	num := func(n uint16) uint32 { return netlink.BE32(attr(n)) }
	value := func(n uint16) []byte { return netlink.Attribute(attr(n), unix.NFTA_DATA_VALUE) }
	ok := true
	switch name {
	case "counter":
	case "meta":
		ok = attr(unix.NFTA_META_SREG) == nil
		r.loaded = nftValue{meta: true, key: num(unix.NFTA_META_KEY)}
	case "payload":
		ok = attr(unix.NFTA_PAYLOAD_SREG) == nil
		r.loaded = nftValue{base: num(unix.NFTA_PAYLOAD_BASE), offset: num(unix.NFTA_PAYLOAD_OFFSET),
			size: num(unix.NFTA_PAYLOAD_LEN)}
	case "bitwise":
		r.loaded.mask = value(unix.NFTA_BITWISE_MASK)
		ok = len(bytes.Trim(value(unix.NFTA_BITWISE_XOR), "\x00")) == 0 && r.loaded.mask != nil
	case "cmp":
		op, to := num(unix.NFTA_CMP_OP), value(unix.NFTA_CMP_DATA)
		ok = op <= unix.NFT_CMP_NEQ && r.between(to, to, op == unix.NFT_CMP_NEQ)
	case "range":
		ok = r.loaded.mask == nil && r.between(value(unix.NFTA_RANGE_FROM_DATA), value(unix.NFTA_RANGE_TO_DATA),
			num(unix.NFTA_RANGE_OP) == unix.NFT_RANGE_NEQ)
	case "immediate":
		ok = r.verdict(netlink.Attribute(attr(unix.NFTA_IMMEDIATE_DATA), unix.NFTA_DATA_VERDICT))
	case "match": // NFTA_MATCH_* and NFTA_TARGET_* are the same
		r.match(netlink.CStr(attr(unix.NFTA_MATCH_NAME)), uint8(num(unix.NFTA_MATCH_REV)), attr(unix.NFTA_MATCH_INFO))
	case "target":
		r.extension(netlink.CStr(attr(unix.NFTA_MATCH_NAME)), uint8(num(unix.NFTA_MATCH_REV)),
			attr(unix.NFTA_MATCH_INFO))
	default:
		ok = false
	}
	if !ok {
		r.unread = append(r.unread, name+" of nf_tables")
	}
}

func (r *ruleText) verdict(v []byte) bool {
	code, chain := netlink.Attribute(v, unix.NFTA_VERDICT_CODE),
		netlink.CStr(netlink.Attribute(v, unix.NFTA_VERDICT_CHAIN))
	switch int32(netlink.BE32(code)) {
	case unix.NFT_JUMP:
		r.target = "-j " + chain
	case unix.NFT_GOTO:
		r.target = "-g " + chain
	case unix.NFT_RETURN:
		r.target = "-j RETURN"
	case 0: // NF_DROP
		r.target = "-j DROP"
	case 1: // NF_ACCEPT
		r.target = "-j ACCEPT"
	default:
		return false
	}
	return code != nil
}

// between adds the condition that the loaded value is between two values, which may be equal.
func (r *ruleText) between(low, high []byte, no bool) bool {
	v := r.loaded
	if len(low) == 0 || len(low) != len(high) {
		return false
	}
	same := bytes.Equal(low, high)
	switch {
	case v.meta:
		return same && r.meta(v, low, no)
	case v.base == unix.NFT_PAYLOAD_NETWORK_HEADER:
		return same && r.address(v, low, no)
	case v.base == unix.NFT_PAYLOAD_TRANSPORT_HEADER && v.size == 2 && len(low) == 2 && v.mask == nil && v.offset <= 2:
		name := ProtocolNames[r.number]
		if name != "tcp" && name != "udp" && name != "sctp" {
			return false
		}
		r.port(name, v.offset == 2, netlink.BE16(low), netlink.BE16(high), no)
		return true
	}
	return false
}

func (r *ruleText) meta(v nftValue, value []byte, no bool) bool {
	switch v.key {
	case unix.NFT_META_IIFNAME, unix.NFT_META_OIFNAME:
		name := netlink.CStr(value)
		if len(name) == len(value) && len(value) < unix.IFNAMSIZ {
			name += "+"
		}
		if v.key == unix.NFT_META_IIFNAME {
			r.in = not(no) + "-i " + name
		} else {
			r.out = not(no) + "-o " + name
		}
		return v.mask == nil
	case unix.NFT_META_L4PROTO:
		r.number = value[0]
		name := ProtocolNames[r.number]
		if name == "" {
			name = fmt.Sprint(r.number)
		}
		r.proto = not(no) + "-p " + name
		return v.mask == nil
	case unix.NFT_META_MARK:
		if len(value) != 4 || v.mask != nil && len(v.mask) != 4 {
			return false
		}
		mask := uint32(1<<32 - 1)
		if v.mask != nil {
			mask = netlink.Native32(v.mask)
		}
		r.marked(netlink.Native32(value), mask, no)
		return true
	}
	return false
}

// ProtocolNames are the names of protocols as iptables prints them, by number.
var ProtocolNames = map[uint8]string{1: "icmp", 6: "tcp", 17: "udp", 33: "dccp", 50: "esp", 51: "ah", 58: "ipv6-icmp",
	132: "sctp", 136: "udplite"}

// address reads a comparison with the first octets of an address.
func (r *ruleText) address(v nftValue, value []byte, no bool) bool {
	src, dst, size := uint32(12), uint32(16), 4
	if r.family == lb.IPv6 {
		src, dst, size = 8, 24, 16
	}
	if v.offset != src && v.offset != dst || int(v.size) != len(value) || len(value) > size {
		return false
	}
	mask := v.mask
	if mask == nil {
		mask = bytes.Repeat([]byte{0xff}, len(value))
	}
	whole := func(b []byte) []byte { return append(bytes.Clone(b), make([]byte, max(0, size-len(b)))...) }
	ones, bits := net.IPMask(whole(mask)).Size()
	p := netip.PrefixFrom(nfAddr(r.family, whole(value)), ones).String()
	if v.offset == src {
		r.src = not(no) + "-s " + p
	} else {
		r.dst = not(no) + "-d " + p
	}
	return bits > 0 // the mask is contiguous
}

// port adds a range of ports, of the source or of the destination, to the match of a protocol.
func (r *ruleText) port(proto string, destination bool, low, high uint16, no bool) {
	option := "--sport"
	if destination {
		option = "--dport"
	}
	text := fmt.Sprintf("%s%s %d", not(no), option, low)
	if low != high {
		text += fmt.Sprintf(":%d", high)
	}
	r.to(proto, text)
}

// marked adds the match of a packet's mark.
func (r *ruleText) marked(mark, mask uint32, no bool) {
	text := fmt.Sprintf("%s--mark %#x", not(no), mark)
	if mask != 1<<32-1 {
		text += fmt.Sprintf("/%#x", mask)
	}
	r.has("mark", text)
}

// quoted returns a text as iptables prints it.
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
