package nft

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/bits"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	nlconn "kube-proxy/internal/netlink"
	"kube-proxy/internal/nft/rule"
	"kube-proxy/internal/nft/wire"
)

// text returns a rule as nft prints it, so that nft takes it again. It names expressions for which
// nft has no words.
func (w *walk) text(r *Rule) string {
	t := ruleText{w: w, regs: map[rule.Register]operand{}, inet: w.table.Family != unix.NFPROTO_IPV4 &&
		w.table.Family != unix.NFPROTO_IPV6, v6: w.table.Family == unix.NFPROTO_IPV6}
	for _, x := range r.all {
		p, is := x.(rule.Payload)
		t.ports = t.ports || is && p.Base == unix.NFT_PAYLOAD_TRANSPORT_HEADER
	}
	for _, x := range r.all {
		t.add(x)
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
	w     *walk
	words []string
	regs  map[rule.Register]operand // loaded values
	proto string                    // of the transport layer, after the rule has compared it
	// inet: the table is of more than one family. v6: what the rule matches is IPv6.
	inet, v6 bool
	// ports: the rule reads the header of the transport layer, so its protocol is implied. implied
	// are comparisons of the family, which nft prints only if nothing follows from them.
	ports   bool
	implied []string
}

// operand is the content of a register, and the format of its values.
type operand struct {
	text string
	kind valueKind
	size int // of the value, in bytes; 0 is unknown
	// value is a value of a rule, nil for one of the packet.
	raw []byte
	// mask and xor are those of a bitwise expression.
	mask, xor []byte
	of        rule.Payload // of a part of the packet
}

type valueKind uint8

const (
	bytesValue valueKind = iota
	addressValue
	portValue
	protoValue
	markValue
	decimalValue
	nameValue
	linkValue
	stateValue
	statusValue
	familyValue
	etherValue
	packetTypeValue
	directionValue
	addressTypeValue
	linkTypeValue
	octetValue
	bigValue // a number, big endian
	presentValue
)

func (t *ruleText) say(words ...string) { t.words = append(t.words, words...) }

func (t *ruleText) add(x rule.Expression) {
	switch x := x.(type) {
	case rule.Payload:
		t.regs[x.To] = t.payload(x)
	case rule.PayloadSet:
		t.say(t.rewrite(x))
	case rule.Meta:
		t.regs[x.To] = named(metaWords, x.Key, "meta")
	case rule.MetaSet:
		o := named(metaWords, x.Key, "meta")
		t.say(o.text, "set", t.regs[x.From].assigned(t, o.kind))
	case rule.Ct:
		t.regs[x.To] = directed(named(ctWords, x.Key, "ct"), x.Direction)
	case rule.CtSet:
		o := directed(named(ctWords, x.Key, "ct"), x.Direction)
		t.say(o.text, "set", t.regs[x.From].assigned(t, o.kind))
	case rule.Fib:
		t.regs[x.To] = fibWord(x)
	case rule.Socket:
		key := map[uint32]string{0: "transparent", 1: "mark", 2: "wildcard"}[x.Key]
		t.regs[x.To] = operand{text: "socket " + key, kind: octetValue}
	case rule.Hash:
		from := ""
		if x.Type == rule.HashJenkins {
			from = " " + t.joined(x.From, int(x.Len))
		}
		t.regs[x.To] = operand{kind: decimalValue, text: fmt.Sprintf("%s%s mod %d seed 0x%x",
			map[bool]string{true: "jhash", false: "symhash"}[x.Type == rule.HashJenkins], from, x.Modulus, x.Seed)}
	case rule.Numgen:
		t.regs[x.To] = operand{kind: decimalValue, text: fmt.Sprintf("numgen %s mod %d%s",
			map[bool]string{true: "random", false: "inc"}[x.Type == 1], x.Modulus,
			map[bool]string{true: fmt.Sprintf(" offset %d", x.Offset)}[x.Offset != 0])}
	case rule.Exthdr:
		t.exthdr(x)
	case rule.Load:
		t.regs[x.To] = operand{text: x.Name + " " + map[uint32]string{0: "classid", 1: "nexthop", 3: "mtu"}[x.Key]}
	case rule.Bitwise:
		o := t.regs[x.From]
		if o.mask != nil || x.Op != rule.BitwiseMask {
			o = operand{text: o.expression()}
		}
		o.mask, o.xor = []byte(x.Mask), []byte(x.Xor)
		t.regs[x.To] = o
	case rule.Byteorder:
		o := t.regs[x.From]
		if o.kind == decimalValue || o.kind == markValue {
			o.kind = bigValue
		}
		t.regs[x.To] = o
	case rule.Immediate:
		t.regs[x.To] = operand{raw: []byte(x.Value), size: len(x.Value),
			text: "0x" + hex.EncodeToString([]byte(x.Value))}
	case rule.Cmp:
		t.compare(x)
	case rule.Range:
		o := t.regs[x.From].field()
		op := map[bool]string{true: "!= "}[x.Op == unix.NFT_RANGE_NEQ]
		t.say(o.text, op+o.value(t, []byte(x.Low))+"-"+o.value(t, []byte(x.High)))
	case rule.Lookup:
		t.lookup(x)
	case rule.Ends:
		t.say(x.Verdict.String())
	default:
		t.statement(x)
	}
}

// statement adds an expression that acts or counts.
func (t *ruleText) statement(x rule.Expression) {
	over := func(yes bool) string { return map[bool]string{true: "over "}[yes] }
	switch x := x.(type) {
	case rule.NAT:
		what := map[bool]string{true: "dnat", false: "snat"}[x.Type == unix.NFT_NAT_DNAT]
		if t.inet {
			what += map[bool]string{true: " ip6", false: " ip"}[x.Family == unix.NFPROTO_IPV6]
		}
		t.say(what + t.target(x.AddrMin, x.AddrMax, x.PortMin, x.PortMax) + natFlags(x.Flags))
	case rule.Redirect:
		t.say("redirect" + t.target(0, 0, x.PortMin, x.PortMax) + natFlags(x.Flags))
	case rule.Masquerading:
		t.say("masquerade" + t.target(0, 0, x.PortMin, x.PortMax) + natFlags(x.Flags))
	case rule.Refuse:
		t.say(t.refuse(x))
	case rule.Dynset:
		name := map[uint32]string{0: "add", 1: "update", 2: "delete"}[x.Op]
		element := t.joined(x.Key, t.w.width(x.Set))
		if x.Timeout != 0 {
			element += fmt.Sprintf(" timeout %dms", x.Timeout)
		}
		if x.Limit != "" {
			element += " " + x.Limit
		}
		if x.Data != 0 {
			element += " : " + t.regs[x.Data].expression()
		}
		t.say(name, "@"+x.Set, "{", element, "}")
	case rule.Limit:
		unit := map[uint64]string{1: "second", 60: "minute", 3600: "hour", 86400: "day", 604800: "week"}[x.Unit]
		words := fmt.Sprintf("limit rate %s%d/%s burst %d packets", over(x.Flag&1 != 0), x.Rate, unit, x.Burst)
		if x.Type == 1 {
			words = fmt.Sprintf("limit rate %s%d bytes/%s", over(x.Flag&1 != 0), x.Rate, unit)
			if x.Burst != 0 {
				words += fmt.Sprintf(" burst %d bytes", x.Burst)
			}
		}
		t.say(words)
	case rule.Quota:
		t.say(fmt.Sprintf("quota %s%d bytes", over(x.Flags&1 != 0), x.Bytes))
	case rule.Connlimit:
		t.say(fmt.Sprintf("ct count %s%d", over(x.Flags&1 != 0), x.Count))
	case rule.Object:
		kind := map[uint32]string{1: "counter", 2: "quota", 3: "ct helper", 4: "limit", 7: "ct timeout",
			9: "ct expectation", 10: "synproxy"}[x.Type]
		if x.Set != "" {
			t.say(cmp.Or(kind, "counter"), "name", t.joined(x.From, t.w.width(x.Set)), "map",
				t.w.setText(t, x.Set, operand{}))
			return
		}
		t.say(kind, map[bool]string{true: "name ", false: "set "}[kind != "ct helper" && kind != "ct timeout" &&
			kind != "ct expectation"]+strconv.Quote(x.Name))
	case rule.Offload:
		t.say("flow add @" + x.Table)
	case rule.Untrack:
		t.say("notrack")
	case rule.Count:
		t.say("counter")
	case rule.Last:
		t.say("last")
	case rule.Log:
		t.say("log")
		if x.Prefix != "" {
			t.say("prefix " + strconv.Quote(x.Prefix))
		}
		if x.Group >= 0 {
			t.say(fmt.Sprintf("group %d", x.Group))
		}
	case rule.Takes:
		t.say(x.Name)
	case rule.Copy:
		t.say("dup")
	case rule.Xtables:
		t.say("xt " + map[bool]string{true: "target", false: "match"}[x.Target] + " " + strconv.Quote(x.Name))
	case rule.Unknown:
		t.say(x.Name)
	}
}

// refuse is the text of a reject.
func (t *ruleText) refuse(x rule.Refuse) string {
	icmp := map[uint8]string{0: "net-unreachable", 1: "host-unreachable", 2: "prot-unreachable", 3: "port-unreachable",
		9: "net-prohibited", 10: "host-prohibited", 13: "admin-prohibited"}
	icmpx := map[uint8]string{0: "no-route", 1: "port-unreachable", 2: "host-unreachable", 3: "admin-prohibited"}
	icmp6 := map[uint8]string{0: "no-route", 1: "admin-prohibited", 3: "addr-unreachable", 4: "port-unreachable"}
	switch x.Type {
	case unix.NFT_REJECT_TCP_RST:
		if t.proto == "" {
			return "meta l4proto tcp reject with tcp reset"
		}
		return "reject with tcp reset"
	case unix.NFT_REJECT_ICMPX_UNREACH:
		if x.Code == 1 {
			return "reject"
		}
		return "reject with icmpx " + icmpx[x.Code]
	}
	if t.v6 {
		if x.Code == 4 && !t.inet {
			return "reject"
		}
		return "reject with icmpv6 " + icmp6[x.Code]
	}
	if x.Code == 3 && !t.inet {
		return "reject"
	}
	return "reject with icmp " + icmp[x.Code]
}

// target is the text of the address and the ports of a translation.
func (t *ruleText) target(addr, last, port, lastPort rule.Register) string {
	text := ""
	if addr != 0 {
		o := t.regs[addr]
		text = o.assigned(t, addressValue)
		if port != 0 && o.raw != nil && len(o.raw) == 16 {
			text = "[" + text + "]"
		}
		if l, ok := t.regs[last]; ok && last != 0 && last != addr {
			text += "-" + l.assigned(t, addressValue)
		}
	}
	if port != 0 && t.regs[port].text != t.regs[addr].text {
		text += ":" + t.regs[port].assigned(t, portValue)
		if l, ok := t.regs[lastPort]; ok && lastPort != 0 && lastPort != port {
			text += "-" + l.assigned(t, portValue)
		}
	}
	if text == "" {
		return ""
	}
	return " to " + text
}

// natFlags are NF_NAT_RANGE_*.
func natFlags(flags uint32) (text string) {
	for bit, word := range []string{2: " random", 3: " persistent", 4: " fully-random"} {
		if flags>>bit&1 != 0 {
			text += word
		}
	}
	return text
}

func (t *ruleText) exthdr(x rule.Exthdr) {
	name := fmt.Sprintf("exthdr type %d offset %d", x.Type, x.Offset)
	if x.Op == 1 { // NFT_EXTHDR_OP_TCPOPT
		name = fmt.Sprintf("tcp option @%d,%d,%d", x.Type, 8*x.Offset, 8*x.Len)
		if x.Type == 2 && x.Offset == 2 {
			name = "tcp option maxseg size"
		}
	}
	if x.To != 0 {
		t.regs[x.To] = operand{text: name, kind: portValue}
		return
	}
	t.say(name, "set", t.regs[x.From].assigned(t, portValue))
}

var compareWords = map[uint32]string{unix.NFT_CMP_NEQ: "!=", unix.NFT_CMP_LT: "<", unix.NFT_CMP_LTE: "<=",
	unix.NFT_CMP_GT: ">", unix.NFT_CMP_GTE: ">="}

func (t *ruleText) compare(x rule.Cmp) {
	o, v, op := t.regs[x.From], []byte(x.Value), compareWords[x.Op]
	switch o.text {
	case "meta nfproto", "meta protocol":
		t.v6 = t.v6 || len(v) == 1 && v[0] == unix.NFPROTO_IPV6 || len(v) == 2 && nlconn.BE16(v) == unix.ETH_P_IPV6
		if op == "" {
			t.implied = append(t.implied, o.text+" "+o.value(t, v))
			return
		}
	case "meta l4proto", "ip protocol", "ip6 nexthdr":
		if op == "" {
			t.proto = o.value(t, v)
			if t.ports && o.text == "meta l4proto" && slices.Contains(portProtos, t.proto) {
				return
			}
		}
	}
	// Any of these states.
	if (o.kind == stateValue || o.kind == statusValue) && o.mask != nil && len(bytes.Trim(v, "\x00")) == 0 {
		op = map[bool]string{true: "!= "}[x.Op == unix.NFT_CMP_EQ]
		t.say(o.text, op+o.value(t, o.mask))
		return
	}
	o, v = o.masked(v)
	if op == "" && strings.Contains(o.text, " & ") {
		op = "=="
	}
	t.say(o.text)
	if op != "" {
		t.say(op)
	}
	t.say(o.value(t, v))
}

// portProtos are protocols whose ports nft names by them.
var portProtos = []string{"tcp", "udp", "sctp", "dccp", "udplite", "th"}

// masked applies the mask of an operand to a comparison: a prefix of an address, a part of an
// octet, or an expression.
func (o operand) masked(v []byte) (operand, []byte) {
	if o.mask == nil {
		return o, v
	}
	ones, total := net.IPMask(o.mask).Size()
	plain := len(bytes.Trim(o.xor, "\x00")) == 0
	switch {
	case o.kind == addressValue && total > 0 && plain:
		return operand{text: o.text, kind: o.kind, raw: []byte{byte(ones)}}, v
	case plain && o.of.Base == unix.NFT_PAYLOAD_NETWORK_HEADER:
		if name, shift := field(o.of, o.mask); name != "" {
			n := uint64(0)
			for _, b := range v {
				n = n<<8 | uint64(b)
			}
			return operand{text: name, kind: octetValue}, []byte{byte(n >> shift)}
		}
	}
	return operand{text: o.expression(), kind: o.kind}, v
}

// field returns the name of a field of the network header that a mask selects, and by how many bits
// it is shifted.
func field(p rule.Payload, mask []byte) (name string, shift int) {
	n := uint64(0)
	for _, b := range mask {
		n = n<<8 | uint64(b)
	}
	switch [4]uint64{uint64(p.Offset), uint64(p.Len), n, 0} {
	case [4]uint64{1, 1, 0xfc, 0}, [4]uint64{0, 2, 0x00fc, 0}:
		return "ip dscp", 2
	case [4]uint64{1, 1, 0x03, 0}, [4]uint64{0, 2, 0x0003, 0}:
		return "ip ecn", 0
	case [4]uint64{8, 2, 0xff00, 0}:
		return "ip ttl", 8
	case [4]uint64{0, 2, 0x0fc0, 0}:
		return "ip6 dscp", 6
	case [4]uint64{6, 2, 0x00ff, 0}:
		return "ip6 hoplimit", 0
	}
	return "", 0
}

// field is the operand without a mask, for what has no prefix.
func (o operand) field() operand {
	if o.mask != nil {
		return operand{text: o.expression(), kind: o.kind}
	}
	return o
}

// expression is the operand as a part of a larger expression.
func (o operand) expression() string {
	if o.mask == nil {
		return o.text
	}
	number := func(b []byte) string {
		if o.kind == markValue || o.kind == decimalValue || o.kind == stateValue || o.kind == statusValue {
			return fmt.Sprintf("0x%x", nlconn.Native32(b))
		}
		if a, ok := netip.AddrFromSlice(b); ok && o.kind == addressValue {
			return a.String()
		}
		return "0x" + hex.EncodeToString(b)
	}
	flipped := make([]byte, len(o.mask))
	for i := range o.mask {
		flipped[i] = ^o.mask[i]
	}
	switch none := len(bytes.Trim(o.xor, "\x00")) == 0; {
	case none:
		return o.text + " & " + number(o.mask)
	case bytes.Equal(flipped, o.xor):
		return o.text + " | " + number(o.xor)
	case len(bytes.Trim(o.mask, "\xff")) == 0:
		return o.text + " ^ " + number(o.xor)
	}
	return o.text + " & " + number(o.mask) + " ^ " + number(o.xor)
}

// assigned is the operand as a value that is written.
func (o operand) assigned(t *ruleText, kind valueKind) string {
	if o.raw == nil {
		return o.expression()
	}
	return operand{kind: kind}.value(t, o.raw)
}

// rewrite is the text of a write to the packet.
func (t *ruleText) rewrite(x rule.PayloadSet) string {
	at := rule.Payload{Base: x.Base, Offset: x.Offset, Len: x.Len}
	o := t.regs[x.From]
	if o.raw == nil && o.mask != nil {
		inverse := make([]byte, len(o.mask))
		for i := range o.mask {
			inverse[i] = ^o.mask[i]
		}
		if name, shift := field(at, inverse); name != "" {
			n := uint64(0)
			for _, b := range o.xor {
				n = n<<8 | uint64(b)
			}
			return fmt.Sprintf("%s set 0x%x", name, n>>shift)
		}
	}
	to := t.payload(at)
	return to.text + " set " + o.assigned(t, to.kind)
}

func (t *ruleText) payload(x rule.Payload) operand {
	o, ok := payloadWords[[3]uint32{x.Base, x.Offset, x.Len}]
	six := strings.HasPrefix(o.text, "ip6 ")
	switch {
	case ok && (x.Base != unix.NFT_PAYLOAD_NETWORK_HEADER || six == t.v6):
	case x.Base == unix.NFT_PAYLOAD_NETWORK_HEADER && x.Len < 4 && (x.Offset == 12 || x.Offset == 16) && !t.v6:
		o = payloadWords[[3]uint32{1, x.Offset, 4}]
	case x.Base == unix.NFT_PAYLOAD_NETWORK_HEADER && x.Len < 16 && (x.Offset == 8 || x.Offset == 24) && t.v6:
		o = payloadWords[[3]uint32{1, x.Offset, 16}]
	default:
		base := map[uint32]string{0: "ll", 1: "nh", 2: "th"}[x.Base]
		o = operand{text: fmt.Sprintf("@%s,%d,%d", base, 8*x.Offset, 8*x.Len)}
	}
	if strings.HasPrefix(o.text, "th ") && slices.Contains(portProtos, t.proto) {
		o.text = t.proto + o.text[2:]
	}
	o.of, o.size = x, int(x.Len)
	return o
}

// payloadWords name parts of a packet, by base, offset and length.
var payloadWords = map[[3]uint32]operand{
	{0, 12, 2}: {text: "ether type", kind: etherValue},
	{1, 9, 1}:  {text: "ip protocol", kind: protoValue}, {1, 8, 1}: {text: "ip ttl", kind: octetValue},
	{1, 12, 4}: {text: "ip saddr", kind: addressValue}, {1, 16, 4}: {text: "ip daddr", kind: addressValue},
	{1, 2, 2}: {text: "ip length", kind: portValue}, {1, 4, 2}: {text: "ip id", kind: portValue},
	{1, 6, 1}: {text: "ip6 nexthdr", kind: protoValue}, {1, 7, 1}: {text: "ip6 hoplimit", kind: octetValue},
	{1, 8, 16}: {text: "ip6 saddr", kind: addressValue}, {1, 24, 16}: {text: "ip6 daddr", kind: addressValue},
	{2, 0, 2}: {text: "th sport", kind: portValue}, {2, 2, 2}: {text: "th dport", kind: portValue},
	{2, 13, 1}: {text: "tcp flags"},
}

// named returns the operand of a key of meta or ct.
func named(words map[uint32]operand, key uint32, what string) operand {
	if o, ok := words[key]; ok {
		return o
	}
	return operand{text: fmt.Sprintf("%s key %d", what, key)}
}

// directed adds the direction to a property of a connection.
func directed(o operand, direction int) operand {
	word := map[int]string{0: "original", 1: "reply"}[direction]
	if word != "" {
		o.text = "ct " + word + strings.TrimPrefix(o.text, "ct")
	}
	return o
}

var metaWords = map[uint32]operand{
	0: {text: "meta length", kind: decimalValue}, 1: {text: "meta protocol", kind: etherValue, size: 2},
	2: {text: "meta priority", kind: markValue}, 3: {text: "meta mark", kind: markValue, size: 4},
	4: {text: "iif", kind: linkValue, size: 4}, 5: {text: "oif", kind: linkValue, size: 4},
	6: {text: "iifname", kind: nameValue, size: 16}, 7: {text: "oifname", kind: nameValue, size: 16},
	8: {text: "iiftype", kind: linkTypeValue}, 9: {text: "oiftype", kind: linkTypeValue},
	10: {text: "meta skuid", kind: decimalValue, size: 4}, 11: {text: "meta skgid", kind: decimalValue, size: 4},
	12: {text: "meta nftrace", kind: octetValue}, 13: {text: "meta rtclassid", kind: decimalValue},
	15: {text: "meta nfproto", kind: familyValue, size: 1}, 16: {text: "meta l4proto", kind: protoValue, size: 1},
	17: {text: "meta ibrname", kind: nameValue, size: 16}, 18: {text: "meta obrname", kind: nameValue, size: 16},
	19: {text: "meta pkttype", kind: packetTypeValue}, 20: {text: "meta cpu", kind: decimalValue, size: 4},
	21: {text: "iifgroup", kind: decimalValue, size: 4}, 22: {text: "oifgroup", kind: decimalValue, size: 4},
	23: {text: "meta cgroup", kind: decimalValue, size: 4}, 24: {text: "meta random", kind: decimalValue},
}

var ctWords = map[uint32]operand{
	0: {text: "ct state", kind: stateValue, size: 4}, 1: {text: "ct direction", kind: directionValue},
	2: {text: "ct status", kind: statusValue, size: 4}, 3: {text: "ct mark", kind: markValue, size: 4},
	5: {text: "ct expiration", kind: decimalValue}, 6: {text: "ct helper", kind: nameValue},
	7: {text: "ct l3proto", kind: familyValue}, 10: {text: "ct protocol", kind: protoValue},
	8: {text: "ct saddr", kind: addressValue}, 9: {text: "ct daddr", kind: addressValue},
	11: {text: "ct proto-src", kind: portValue}, 12: {text: "ct proto-dst", kind: portValue},
	ctLabels: {text: "ct label"}, 14: {text: "ct packets"}, 15: {text: "ct bytes"}, 16: {text: "ct avgpkt"},
	ctZone: {text: "ct zone", kind: decimalValue}, 19: {text: "ct ip saddr", kind: addressValue},
	20: {text: "ct ip daddr", kind: addressValue}, 21: {text: "ct ip6 saddr", kind: addressValue},
	22: {text: "ct ip6 daddr", kind: addressValue}, 23: {text: "ct id", kind: decimalValue},
}

// fibWord is the operand of a route.
func fibWord(x rule.Fib) operand {
	var by []string
	for bit, word := range []string{0: "saddr", 1: "daddr", 2: "mark", 3: "iif", 4: "oif"} {
		if x.Flags>>bit&1 != 0 {
			by = append(by, word)
		}
	}
	o := operand{text: "fib " + strings.Join(by, " . ")}
	switch x.Result {
	case unix.NFT_FIB_RESULT_OIF:
		o.text, o.kind = o.text+" oif", linkValue
	case unix.NFT_FIB_RESULT_OIFNAME:
		o.text, o.kind = o.text+" oifname", nameValue
	default:
		o.text, o.kind = o.text+" type", addressTypeValue
	}
	if x.Flags&unix.NFTA_FIB_F_PRESENT != 0 {
		o.kind = presentValue
	}
	return o
}

// joined is the text of a concatenation of registers of n bytes.
func (t *ruleText) joined(from rule.Register, n int) string {
	var all []string
	for _, o := range t.parts(from, n) {
		all = append(all, o.expression())
	}
	return strings.Join(all, " . ")
}

// parts are the operands in registers of n bytes.
func (t *ruleText) parts(from rule.Register, n int) (all []operand) {
	for at := from; at == from || int(at-from) < n; {
		o, ok := t.regs[at]
		if !ok {
			break
		}
		all = append(all, o)
		at += rule.Register(max((max(o.size, 1)+3)/4*4, 4))
	}
	return all
}

func (t *ruleText) lookup(x rule.Lookup) {
	parts := t.parts(x.From, t.w.width(x.Set))
	key := t.joined(x.From, t.w.width(x.Set))
	set := t.w.setText(t, x.Set, parts...)
	switch {
	case x.Maps && x.To == 0:
		t.say(key, "vmap", set)
	case x.Maps:
		t.regs[x.To] = operand{text: key + " map " + set}
	case x.Inverted:
		t.say(key, "!=", set)
	default:
		t.say(key, set)
	}
}

// width is the number of bytes in a set's keys; 0 if it cannot be read.
func (w *walk) width(set string) int {
	n, _ := w.keyLen(set)
	return n
}

// maxElements bounds the elements of an anonymous set in a text.
const maxElements = 32

// setText names a set; an anonymous one belongs to the rule, and is written with its elements.
func (w *walk) setText(t *ruleText, set string, parts ...operand) string {
	if !strings.HasPrefix(set, "__") {
		return "@" + set
	}
	all, err := w.allElements(set)
	if err != nil || len(all) > maxElements || len(parts) != 1 {
		if len(all) == 0 || len(all) > maxElements || err != nil || len(parts) == 0 {
			return "{ … }"
		}
	}
	var words []string
	for i := 0; i < len(all); i++ {
		el := all[i]
		last := []byte(nil)
		if i+1 < len(all) && all[i+1].end && len(parts) == 1 { // the next one ends an interval
			last = before(all[i+1].key)
			i++
		}
		word := t.element(el.key, cmp.Or(string(last), el.keyEnd), parts)
		switch {
		case el.end:
			continue
		case el.decides:
			word += " : " + el.verdict.String()
		case el.data != "":
			word += " : " + t.data([]byte(el.data))
		}
		words = append(words, word)
	}
	return "{ " + strings.Join(words, ", ") + " }"
}

// element is the text of a key, or of a range of keys.
func (t *ruleText) element(key []byte, last string, parts []operand) string {
	var words []string
	at := 0
	for _, o := range parts {
		n := min(max(o.size, 1), len(key)-at)
		if len(parts) == 1 {
			n = len(key)
		}
		if n <= 0 {
			break
		}
		low := key[at : at+n]
		word := o.value(t, low)
		if len(last) >= at+n && last[at:at+n] != string(low) {
			high := []byte(last[at : at+n])
			word = ranged(o, t, low, high)
		}
		words = append(words, word)
		at += (n + 3) / 4 * 4
	}
	return strings.Join(words, " . ")
}

// ranged is the text of a range: of addresses as a prefix, if it is one.
func ranged(o operand, t *ruleText, low, high []byte) string {
	if o.kind == addressValue {
		a, ok := netip.AddrFromSlice(low)
		common := 0
		for common < len(low) && low[common] == high[common] {
			common++
		}
		n := 8 * common
		if common < len(low) {
			n += bits.LeadingZeros8(low[common] ^ high[common])
		}
		if p, err := a.Prefix(n); ok && err == nil && p.Addr() == a && bytes.Equal(lastOf(p), high) {
			return p.String()
		}
	}
	return o.value(t, low) + "-" + o.value(t, high)
}

// lastOf is the last address of a prefix.
func lastOf(p netip.Prefix) []byte {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < 8*len(b); i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	return b
}

// before is the value before another, as big endian.
func before(b []byte) []byte {
	b = bytes.Clone(b)
	for i := len(b) - 1; i >= 0; i-- {
		b[i]--
		if b[i] != 0xff {
			break
		}
	}
	return b
}

// data is the text of an element's data: its kind is not known, so its size decides.
func (t *ruleText) data(v []byte) string {
	switch {
	case len(v) == 8 && !t.v6, len(v) == 20 && t.v6:
		n := len(v) - 4
		return operand{kind: addressValue}.value(t, v[:n]) + " . " + strconv.Itoa(int(binary.BigEndian.Uint16(v[n:])))
	case len(v) == 16, len(v) == 4:
		return operand{kind: addressValue}.value(t, v)
	case len(v) == 2:
		return operand{kind: portValue}.value(t, v)
	}
	return "0x" + hex.EncodeToString(v)
}

// listed is an element of an anonymous set.
type listed struct {
	element
	key    []byte
	keyEnd string // of a range in a concatenation
	end    bool   // it ends the interval before it
}

// allElements lists a set.
func (w *walk) allElements(set string) (all []listed, err error) {
	const intervalEnd, keyEnd = 1, 10 // NFT_SET_ELEM_INTERVAL_END, NFTA_SET_ELEM_KEY_END
	err = w.table.EachElement(w.ctx, set, func(el []byte) {
		x := listed{element: elementOf(el), key: bytes.Clone(wire.ElementKey(el))}
		x.keyEnd = string(nlconn.Attribute(nlconn.Attribute(el, keyEnd), unix.NFTA_DATA_VALUE))
		x.end = nlconn.BE32(nlconn.Attribute(el, unix.NFTA_SET_ELEM_FLAGS))&intervalEnd != 0
		all = append(all, x)
	})
	slices.SortStableFunc(all, func(a, b listed) int {
		if c := bytes.Compare(a.key, b.key); c != 0 {
			return c
		}
		return map[bool]int{true: -1, false: 1}[a.end && !b.end] // an interval ends before another begins
	})
	if len(all) > 0 && all[0].end {
		all = all[1:]
	}
	return all, err
}

var protoWords = map[byte]string{unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp", unix.IPPROTO_SCTP: "sctp",
	unix.IPPROTO_ICMP: "icmp", unix.IPPROTO_ICMPV6: "ipv6-icmp", 33: "dccp", 50: "esp", 51: "ah", 136: "udplite"}

// Bits of ct state and ct status.
var (
	stateWords  = []string{"invalid", "established", "related", "new", 6: "untracked"}
	statusWords = []string{"expected", "seen-reply", "assured", "confirmed", "snat", "dnat", 9: "dying"}
)

// value formats a value of the operand.
func (o operand) value(t *ruleText, b []byte) string {
	number := func(all map[uint32]string, n uint32) string {
		return cmp.Or(all[n], strconv.FormatUint(uint64(n), 10))
	}
	flags := func(words []string) string {
		var names []string
		for i, name := range words {
			if nlconn.Order.Uint32(b)>>i&1 != 0 && name != "" {
				names = append(names, name)
			}
		}
		return cmp.Or(strings.Join(names, ","), fmt.Sprintf("0x%x", nlconn.Order.Uint32(b)))
	}
	switch {
	case o.kind == addressValue:
		return o.address(t, b)
	case o.kind == portValue && len(b) == 2:
		return strconv.Itoa(int(binary.BigEndian.Uint16(b)))
	case o.kind == protoValue && len(b) == 1:
		return cmp.Or(protoWords[b[0]], strconv.Itoa(int(b[0])))
	case o.kind == octetValue && len(b) == 1:
		return strconv.Itoa(int(b[0]))
	case o.kind == markValue && len(b) == 4:
		return fmt.Sprintf("0x%x", nlconn.Order.Uint32(b))
	case o.kind == decimalValue && len(b) == 4:
		return strconv.FormatUint(uint64(nlconn.Order.Uint32(b)), 10)
	case o.kind == decimalValue && len(b) == 2:
		return strconv.Itoa(int(nlconn.Order.Uint16(b)))
	case o.kind == linkValue && len(b) == 4:
		if name := t.w.linkName(nlconn.Order.Uint32(b)); name != "" {
			return strconv.Quote(name)
		}
		return strconv.FormatUint(uint64(nlconn.Order.Uint32(b)), 10)
	case o.kind == linkTypeValue && len(b) == 2:
		return number(map[uint32]string{1: "ether", 512: "ppp", 772: "loopback", 769: "ip6tnl", 768: "ipip"},
			uint32(nlconn.Order.Uint16(b)))
	case o.kind == packetTypeValue && len(b) == 1:
		return number(map[uint32]string{0: "host", 1: "broadcast", 2: "multicast", 3: "other"}, uint32(b[0]))
	case o.kind == directionValue && len(b) == 1:
		return number(map[uint32]string{0: "original", 1: "reply"}, uint32(b[0]))
	case o.kind == addressTypeValue && len(b) == 4:
		return number(map[uint32]string{1: "unicast", 2: "local", 3: "broadcast", 4: "anycast", 5: "multicast",
			6: "blackhole", 7: "unreachable", 8: "prohibit"}, nlconn.Order.Uint32(b))
	case o.kind == familyValue && len(b) == 1:
		return number(map[uint32]string{unix.NFPROTO_IPV4: "ipv4", unix.NFPROTO_IPV6: "ipv6"}, uint32(b[0]))
	case o.kind == etherValue && len(b) == 2:
		return cmp.Or(map[uint16]string{unix.ETH_P_IP: "ip", unix.ETH_P_IPV6: "ip6",
			unix.ETH_P_ARP: "arp"}[nlconn.BE16(b)],
			"0x"+hex.EncodeToString(b))
	case o.kind == nameValue:
		name := nlconn.CStr(b)
		if len(b) < unix.IFNAMSIZ && len(name) == len(b) {
			name += "*"
		}
		return strconv.Quote(name)
	case o.kind == stateValue && len(b) == 4:
		return flags(stateWords)
	case o.kind == statusValue && len(b) == 4:
		return flags(statusWords)
	case o.kind == presentValue:
		return map[bool]string{true: "exists", false: "missing"}[len(bytes.Trim(b, "\x00")) > 0]
	case o.kind == bigValue && len(b) == 4:
		return strconv.FormatUint(uint64(nlconn.BE32(b)), 10)
	}
	return "0x" + hex.EncodeToString(b)
}

// address formats an address or a prefix: a value with less bytes than an address is one.
func (o operand) address(t *ruleText, b []byte) string {
	size := 4
	if len(b) > 4 || t.v6 || strings.HasPrefix(o.text, "ip6 ") {
		size = 16
	}
	prefix := 8 * len(b)
	if len(o.raw) == 1 {
		prefix = int(o.raw[0])
	}
	a, ok := netip.AddrFromSlice(append(bytes.Clone(b), make([]byte, max(0, size-len(b)))...))
	switch {
	case !ok:
		return "0x" + hex.EncodeToString(b)
	case prefix < 8*size:
		return fmt.Sprintf("%s/%d", a, prefix)
	}
	return a.String()
}

// linkName returns the name of a device; "" if it is not known.
func (w *walk) linkName(index uint32) string {
	n, ok := w.node.(interface{ LinkName(uint32) string })
	if !ok {
		return ""
	}
	return n.LinkName(index)
}
