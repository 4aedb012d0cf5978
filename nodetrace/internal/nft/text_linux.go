package nft

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	nlconn "kube-proxy/internal/netlink"
)

// Text returns the rule approximately as nft prints it. It names expressions for which nft has no
// word.
func (r *Rule) Text() string {
	t := ruleText{regs: map[int]operand{}}
	for _, s := range r.Steps {
		t.ports = t.ports || s.name == "payload" && s.key == unix.NFT_PAYLOAD_TRANSPORT_HEADER
	}
	for _, s := range r.Steps {
		t.add(s)
	}
	if !slices.ContainsFunc(t.words, func(w string) bool {
		return strings.HasPrefix(w, "ip ") || strings.HasPrefix(w, "ip6 ")
	}) {
		t.words = append(t.implied, t.words...)
	}
	if r.Comment != "" {
		t.say("comment " + strconv.Quote(r.Comment))
	}
	return strings.Join(t.words, " ")
}

// ruleText builds the text of a rule.
type ruleText struct {
	words []string
	regs  map[int]operand // loaded values, by register
	proto string          // of the transport layer, after the rule has compared it
	// ports: the rule reads the header of the transport layer, so its protocol is implied. implied
	// are comparisons of the family, which nft prints only if nothing follows from them.
	ports   bool
	implied []string
}

// operand is the content of a register, and the format of its values.
type operand struct {
	text string
	kind valueKind
	bits int    // of a prefix; 0 for the whole value
	mask string // of states
}

type valueKind uint8

const (
	bytesValue valueKind = iota
	addressValue
	portValue
	protoValue
	markValue
	nameValue
	stateValue
	familyValue
)

func (t *ruleText) say(words ...string) { t.words = append(t.words, words...) }

func (t *ruleText) add(s Step) {
	from := t.regs[s.from]
	switch s.name {
	case "payload":
		t.regs[s.to] = t.payload(s)
	case "meta", "ct":
		o := loaded(s)
		if s.from != 0 {
			t.say(o.text, "set", from.text)
			return
		}
		t.regs[s.to] = o
	case "bitwise":
		switch {
		case from.kind == addressValue:
			ones, total := net.IPMask(s.mask).Size()
			if from.bits = ones; total == 0 && len(s.mask) > 0 { // not a prefix
				from.text += " & " + from.value(s.mask)
			}
		case from.kind == stateValue:
			from.mask = s.mask
		case len(s.mask) > 0:
			from.text += " & 0x" + hex.EncodeToString([]byte(s.mask))
		}
		t.regs[s.to] = from
	case "cmp":
		t.compare(s, from)
	case "range":
		t.say(from.text)
		if s.key == unix.NFT_RANGE_NEQ {
			t.say("!=")
		}
		t.say(from.value(s.mask) + "-" + from.value(s.xor))
	case "lookup":
		t.lookup(s, from)
	case "immediate":
		if s.to == 0 {
			t.say(s.verdict.String())
		}
		t.regs[s.to] = operand{text: "0x" + hex.EncodeToString([]byte(s.value)), kind: bytesValue}
	case "nat", "redir", "masq":
		t.translate(s)
	case "dynset":
		t.say("update", "@"+s.set, "{", from.text, s.value, "}")
	case "fib", "numgen", "hash", "socket", "exthdr", "osf", "rt", "xfrm":
		t.regs[s.to] = operand{text: s.name}
	case "byteorder":
		t.regs[s.to] = from
	case "match", "target":
		t.say("xt " + s.name + " " + nlconn.CStr(nlconn.Attribute([]byte(s.value), unix.NFTA_MATCH_NAME)))
	default:
		t.say(s.name)
	}
}

var compareWords = map[uint32]string{unix.NFT_CMP_NEQ: "!=", unix.NFT_CMP_LT: "<", unix.NFT_CMP_LTE: "<=",
	unix.NFT_CMP_GT: ">", unix.NFT_CMP_GTE: ">="}

func (t *ruleText) compare(s Step, o operand) {
	value, op := o.value(s.value), compareWords[s.key]
	switch {
	case op != "":
	case o.text == "meta nfproto", o.text == "meta protocol":
		t.implied = append(t.implied, o.text+" "+value)
		return
	case o.text == "meta l4proto":
		if t.proto = value; t.ports {
			return
		}
	}
	// Any of these states.
	if o.kind == stateValue && o.mask != "" && strings.Trim(s.value, "\x00") == "" {
		value, op = o.value(o.mask), ""
		if s.key == unix.NFT_CMP_EQ {
			op = "!="
		}
	}
	t.say(o.text)
	if op != "" {
		t.say(op)
	}
	t.say(value)
}

func (t *ruleText) lookup(s Step, from operand) {
	set := "@" + s.set
	if strings.HasPrefix(s.set, "__") { // anonymous: it belongs to the rule
		set = "{ … }"
	}
	switch {
	case s.lookup && s.to == 0:
		t.say(from.text, "vmap", set)
	case s.lookup:
		t.regs[s.to] = operand{text: from.text + " map " + set}
	case s.inverted:
		t.say(from.text, "!=", set)
	default:
		t.say(from.text, set)
	}
}

func (t *ruleText) translate(s Step) {
	name := map[string]string{"nat": "dnat to", "redir": "redirect", "masq": "masquerade"}[s.name]
	if s.name == "nat" && s.key != unix.NFT_NAT_DNAT {
		name = "snat to"
	}
	t.say(name)
	for _, reg := range []int{s.from, s.second} {
		if o, ok := t.regs[reg]; ok && reg != 0 {
			t.say(o.text)
		}
	}
}

func (t *ruleText) payload(s Step) operand {
	at := [3]uint32{s.key, s.offset, s.length}
	if o, ok := payloadWords[at]; ok {
		if o.kind == portValue && t.proto != "" {
			o.text = t.proto + o.text[2:]
		}
		return o
	}
	base := map[uint32]string{0: "ll", 1: "nh", 2: "th"}[s.key]
	return operand{text: fmt.Sprintf("@%s,%d,%d", base, 8*s.offset, 8*s.length)}
}

// payloadWords name parts of a packet, by base, offset and length.
var payloadWords = map[[3]uint32]operand{
	{0, 12, 2}: {text: "ether type"},
	{1, 9, 1}:  {text: "ip protocol", kind: protoValue}, {1, 12, 4}: {text: "ip saddr",
		kind: addressValue}, {1, 16, 4}: {text: "ip daddr", kind: addressValue},
	{1, 6, 1}: {text: "ip6 nexthdr", kind: protoValue}, {1, 8, 16}: {text: "ip6 saddr",
		kind: addressValue}, {1, 24, 16}: {text: "ip6 daddr", kind: addressValue},
	{2, 0, 2}: {text: "th sport", kind: portValue}, {2, 2, 2}: {text: "th dport", kind: portValue}, {2, 13,
		1}: {text: "tcp flags"},
}

// loaded returns the operand that an expression meta or ct loads.
func loaded(s Step) operand {
	words := metaWords
	if s.name == "ct" {
		words = ctWords
	}
	if o, ok := words[s.key]; ok {
		return o
	}
	return operand{text: fmt.Sprintf("%s key %d", s.name, s.key)}
}

var metaWords = map[uint32]operand{
	unix.NFT_META_MARK: {text: "meta mark", kind: markValue}, unix.NFT_META_L4PROTO: {text: "meta l4proto",
		kind: protoValue},
	unix.NFT_META_NFPROTO: {text: "meta nfproto", kind: familyValue}, unix.NFT_META_PROTOCOL: {text: "meta protocol"},
	unix.NFT_META_IIF: {text: "iif", kind: markValue},
	unix.NFT_META_OIF: {text: "oif", kind: markValue}, unix.NFT_META_IIFNAME: {text: "iifname", kind: nameValue},
	unix.NFT_META_OIFNAME: {text: "oifname",
		kind: nameValue}, unix.NFT_META_IIFTYPE: {text: "iiftype"}, unix.NFT_META_OIFTYPE: {text: "oiftype"},
	unix.NFT_META_SKUID:   {text: "meta skuid", kind: markValue},
	unix.NFT_META_PKTTYPE: {text: "meta pkttype"}, unix.NFT_META_NFTRACE: {text: "meta nftrace"},
	unix.NFT_META_CGROUP: {text: "meta cgroup", kind: markValue},
}

var ctWords = map[uint32]operand{
	unix.NFT_CT_STATE: {text: "ct state", kind: stateValue}, unix.NFT_CT_STATUS: {text: "ct status",
		kind: markValue}, unix.NFT_CT_MARK: {text: "ct mark", kind: markValue},
	unix.NFT_CT_DIRECTION: {text: "ct direction"}, unix.NFT_CT_SRC_IP: {text: "ct original ip saddr",
		kind: addressValue},
	unix.NFT_CT_DST_IP: {text: "ct original ip daddr",
		kind: addressValue}, unix.NFT_CT_PROTO_DST: {text: "ct original proto-dst", kind: portValue},
}

var protoWords = map[byte]string{unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp", unix.IPPROTO_SCTP: "sctp",
	unix.IPPROTO_ICMP: "icmp", unix.IPPROTO_ICMPV6: "ipv6-icmp"}

// stateWords are the bits of ct state.
var stateWords = [...]string{"invalid", "established", "related", "new", "", "", "untracked"}

// value formats a value of the operand.
func (o operand) value(v string) string {
	b := []byte(v)
	switch {
	case o.kind == addressValue && (len(b) == 4 || len(b) == 16):
		a, _ := netip.AddrFromSlice(b)
		if o.bits > 0 && o.bits < 8*len(b) {
			return fmt.Sprintf("%s/%d", a, o.bits)
		}
		return a.String()
	case o.kind == portValue && len(b) == 2:
		return strconv.Itoa(int(binary.BigEndian.Uint16(b)))
	case o.kind == protoValue && len(b) == 1 && protoWords[b[0]] != "":
		return protoWords[b[0]]
	case o.kind == markValue && len(b) == 4:
		return fmt.Sprintf("0x%x", nlconn.Order.Uint32(b))
	case o.kind == familyValue && len(b) == 1:
		return map[byte]string{unix.NFPROTO_IPV4: "ipv4", unix.NFPROTO_IPV6: "ipv6"}[b[0]]
	case o.kind == nameValue:
		name := nlconn.CStr(b)
		if len(b) < unix.IFNAMSIZ {
			name += "*"
		}
		return strconv.Quote(name)
	case o.kind == stateValue && len(b) == 4:
		var names []string
		for i, name := range stateWords {
			if nlconn.Order.Uint32(b)>>i&1 != 0 && name != "" {
				names = append(names, name)
			}
		}
		return strings.Join(names, ",")
	}
	return "0x" + hex.EncodeToString(b)
}
