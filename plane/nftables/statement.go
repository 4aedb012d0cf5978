//go:build linux

package nftables

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"kube-proxy/internal/nft/wire"
	"kube-proxy/lb"
)

// statement is one step of a rule, both as the kernel takes it and in the language of nft(8). The zero value does nothing.
// This file has every step that rules are made of, each once and in both forms; what rules there are, rules.go says.
type statement struct {
	text  string // "" if nft does not say it
	exprs []expr.Any
}

// operand is a value that statements work on: a part of the packet, a number drawn at random, or a variable.
type operand struct {
	text string
	load loader // nil if it is in its register already
	reg  uint32 // of a variable, else 0
}

// loader appends the expressions that put an operand into a register.
type loader func(x []expr.Any, to uint32) []expr.Any

// Variables are numbers that the rule has looked up. The kernel has them in registers, for which the language of nft has no
// word; there they are held in ct mark and meta priority, at which no other rule looks. The maps give each number the type of
// its place, see [schema].
//
// The parts of a key are in registers one behind the other. So a member comes before the id of its set, and that before a slot
// or client.
var (
	number = operand{text: "ct mark", reg: scratch} // a class, shape, set id or list of source ranges
	member = operand{text: "meta priority", reg: scratch}
	setID  = operand{text: "ct mark", reg: scratch + 1}
)

// Registers, of 32 bits each.
const (
	scratch  = unix.NFT_REG32_00
	keptMark = scratch + 9  // the packet's own mark, while find needs that
	freshKey = scratch + 10 // keys that do not begin with a variable, and backends
)

// What rules look at in a packet and its connection.
var (
	packetMark   = metadata("meta mark", expr.MetaKeyMARK)
	l4proto      = metadata("meta l4proto", expr.MetaKeyL4PROTO)
	inputName    = metadata("iifname", expr.MetaKeyIIFNAME)
	ctState      = connection("ct state", expr.CtKeySTATE)
	ctStatus     = connection("ct status", expr.CtKeySTATUS)
	dport        = payload("th dport", expr.PayloadBaseTransportHeader, 2, 2)
	originalPort = originally("ct original proto-dst", expr.CtKeyPROTODST)
)

func (f family) source() operand      { return f.address(" saddr", f.saddr) }
func (f family) destination() operand { return f.address(" daddr", f.daddr) }

func (f family) address(name string, offset uint32) operand {
	return payload(f.ip()+name, expr.PayloadBaseNetworkHeader, offset, uint32(f.addrLen))
}

// originalDestination is what the first packet of the connection was sent to, before any translation.
func (f family) originalDestination() operand {
	return originally("ct original "+f.ip()+" daddr", f.ctDaddr)
}

// sourceType and destinationType say whether an address is one of this machine.
var (
	sourceType      = single("fib saddr type", func(to uint32) expr.Any { return &expr.Fib{Register: to, ResultADDRTYPE: true, FlagSADDR: true} })
	destinationType = single("fib daddr type", func(to uint32) expr.Any { return &expr.Fib{Register: to, ResultADDRTYPE: true, FlagDADDR: true} })
)

// random is a number below n.
func random(n uint32) operand {
	return single(fmt.Sprintf("numgen random mod %d", n), func(to uint32) expr.Any {
		return &expr.Numgen{Register: to, Modulus: n, Type: unix.NFT_NG_RANDOM}
	})
}

// hash is a number below n that depends on the client's address and the seed.
func (f family) hash(n, seed uint32) operand {
	client := f.source()
	return operand{text: fmt.Sprintf("jhash %s mod %d seed 0x%x", client.text, n, seed), load: func(x []expr.Any, to uint32) []expr.Any {
		return append(client.load(x, freshKey), &expr.Hash{SourceRegister: freshKey, DestRegister: to, Length: uint32(f.addrLen),
			Modulus: n, Seed: seed, Type: expr.HashTypeJenkins})
	}}
}

func single(text string, load func(to uint32) expr.Any) operand {
	return operand{text: text, load: func(x []expr.Any, to uint32) []expr.Any { return append(x, load(to)) }}
}

func metadata(text string, key expr.MetaKey) operand {
	return single(text, func(to uint32) expr.Any { return &expr.Meta{Key: key, Register: to} })
}

func connection(text string, key expr.CtKey) operand {
	return single(text, func(to uint32) expr.Any { return &expr.Ct{Key: key, Register: to} })
}

func payload(text string, header expr.PayloadBase, offset, n uint32) operand {
	return single(text, func(to uint32) expr.Any {
		return &expr.Payload{DestRegister: to, Base: header, Offset: offset, Len: n}
	})
}

func originally(text string, key expr.CtKey) operand {
	return single(text, func(to uint32) expr.Any { return &original{expr.Ct{Key: key, Register: to}} })
}

// original is a part of what the first packet of a connection was sent to. The library leaves out the direction of such a key.
type original struct{ expr.Ct }

func (o *original) encode(e *wire.Encoder) {
	e.Str(unix.NFTA_EXPR_NAME, "ct")
	at := e.Nest(unix.NFTA_EXPR_DATA)
	e.U32(unix.NFTA_CT_KEY, uint32(o.Key))
	e.U32(unix.NFTA_CT_DREG, o.Register)
	e.Bytes(unix.NFTA_CT_DIRECTION, []byte{0}) // IP_CT_DIR_ORIGINAL
	e.EndNest(at)
}

// loaded is the operand where the statement before has left it.
func (o operand) loaded() operand { o.load = nil; return o }

func (o operand) and(mask uint32) operand {
	return o.bitwise(fmt.Sprintf("%s & 0x%08x", o.text, mask), appendNum(nil, mask), make([]byte, 4))
}

func (o operand) or(bits uint32) operand {
	return o.bitwise(fmt.Sprintf("%s | 0x%08x", o.text, bits), appendNum(nil, ^bits), appendNum(nil, bits))
}

func (o operand) xor(bits uint32) operand {
	return o.bitwise(fmt.Sprintf("%s ^ 0x%08x", o.text, bits), appendNum(nil, ^uint32(0)), appendNum(nil, bits))
}

// firstBits is an address without its other bits.
func (o operand) firstBits(n int, f family) operand {
	if n == 8*f.addrLen {
		return o
	}
	mask := make([]byte, f.addrLen)
	for i := range n {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return o.bitwise(o.text+" & "+parseAddr(mask, f.addrLen).String(), mask, make([]byte, f.addrLen))
}

// bitwise is the operand & mask ^ xor. A variable is changed where it is.
func (o operand) bitwise(text string, mask, xor []byte) operand {
	return operand{text: text, reg: o.reg, load: func(x []expr.Any, to uint32) []expr.Any {
		return append(o.loadTo(x, to), &expr.Bitwise{SourceRegister: to, DestRegister: to, Len: uint32(len(mask)), Mask: mask, Xor: xor})
	}}
}

func (o operand) loadTo(x []expr.Any, register uint32) []expr.Any {
	if o.load == nil {
		return x
	}
	return o.load(x, register)
}

// Matches.

var (
	overTCP            = is(l4proto, "tcp", []byte{unix.IPPROTO_TCP})
	sourceIsLocal      = is(sourceType, "local", appendNum(nil, unix.RTN_LOCAL))
	destinationIsLocal = is(destinationType, "local", appendNum(nil, unix.RTN_LOCAL))
	newConnection      = statement{"ct state new", notZero(ctState.and(expr.CtStateBitNEW)).exprs}
	// destinationTranslated matches connections that somebody has led to another destination.
	destinationTranslated = statement{"ct status dnat", notZero(ctStatus.and(statusDstNAT)).exprs}
	// hasPorts is what nft wants to read before the port of a protocol that it does not know. All frontends have ports.
	hasPorts = statement{text: "meta l4proto { tcp, udp, sctp }"}
)

// statusDstNAT is IPS_DST_NAT.
const statusDstNAT = 1 << 5

func is(o operand, text string, value []byte) statement {
	return match(o.text+" "+text, o, expr.CmpOpEq, value)
}

// notZero matches a number other than 0. Of a variable it says that there is one, because nothing has the number 0; old kernels
// cannot look up a key without its number.
func notZero(o operand) statement {
	return match(o.text+" != 0x00000000", o, expr.CmpOpNeq, make([]byte, 4))
}

func match(text string, o operand, op expr.CmpOp, value []byte) statement {
	return statement{text, append(o.loadTo(nil, scratch), &expr.Cmp{Op: op, Register: scratch, Data: value})}
}

// inPrefix matches packets whose address lies in the prefix.
//
// What follows from the node is written in rules with this match, not in sets of intervals: the kernel publishes changes of
// those a moment later than the rest of a transaction, so a packet between would meet new rules and an empty set.
func (r *ruleset) inPrefix(a operand, p netip.Prefix) statement {
	if p.Bits() == 0 {
		return statement{} // every packet
	}
	return r.matchPrefix("", a, expr.CmpOpEq, p)
}

func (r *ruleset) notInPrefix(a operand, p netip.Prefix) statement {
	return r.matchPrefix("!= ", a, expr.CmpOpNeq, p)
}

func (r *ruleset) matchPrefix(not string, a operand, op expr.CmpOp, p netip.Prefix) statement {
	p = p.Masked()
	text := p.String()
	if p.IsSingleIP() {
		text = p.Addr().String()
	}
	return match(a.text+" "+not+text, a.firstBits(p.Bits(), r.family), op, p.Addr().AsSlice())
}

// fromInterface matches packets that came in by the interface of that name or, with all, by those whose names begin so.
func fromInterface(name string, all bool) statement {
	value := []byte(name)
	if all {
		name += "*"
	} else {
		value = make([]byte, unix.IFNAMSIZ)
		copy(value, name)
	}
	return is(inputName, `"`+name+`"`, value)
}

// toItself matches packets whose source and destination are the same address. The kernel cannot compare two registers;
// but it can look up whether a byte of the one and a byte of the other stand together in a set, which has each byte with
// itself. The last byte comes first, in which addresses differ most.
func (r *ruleset) toItself() []statement {
	var all []statement
	octet := func(at uint32) operand {
		return payload(fmt.Sprintf("@nh,%d,8", 8*at), expr.PayloadBaseNetworkHeader, at, 1)
	}
	for i := uint32(r.addrLen); i > 0; i-- {
		all = append(all, r.in(sEqualBytes, octet(r.saddr+i-1), octet(r.daddr+i-1)))
	}
	return all
}

// Sets and maps.

// lookup appends the expressions that load a key and look it up. The key begins where its variable is, or at a register. text
// is the key.
func (r *ruleset) lookup(x []expr.Any, set setIndex, key []operand, at uint32, to expr.Lookup) (exprs []expr.Any, text string) {
	if v := key[0].reg; v != 0 {
		at = v
	}
	to.SetName, to.SourceRegister = r.sets[set].Name, at
	parts := make([]string, 0, 4)
	for i, o := range key {
		x, parts = o.loadTo(x, at), append(parts, o.text)
		at += uint32(r.sets[set].Key[i].Size) / 4
	}
	return append(x, &to), strings.Join(parts, " . ")
}

// in matches if the set has the key.
func (r *ruleset) in(set setIndex, key ...operand) statement {
	exprs, text := r.lookup(nil, set, key, scratch, expr.Lookup{})
	return statement{text + " @" + r.sets[set].Name, exprs}
}

// vmap does what the verdict map has for the key.
func (r *ruleset) vmap(set setIndex, key ...operand) statement {
	exprs, text := r.lookup(nil, set, key, scratch, expr.Lookup{DestRegister: unix.NFT_REG_VERDICT, IsDestRegSet: true})
	return statement{text + " vmap @" + r.sets[set].Name, exprs}
}

// find looks up a variable; where the map has nothing, the rule ends.
//
// The answer comes to its register by way of the packet mark, which gets back its own value at once. The detour is for people:
// nft up to 1.0.6, which Debian 12 has, aborts when it lists a rule in which the answer of one map is the key of the next, but
// knows what a mark is.
func (r *ruleset) find(v operand, set setIndex, key ...operand) statement {
	x := make([]expr.Any, 0, 8)
	if key[0].reg == 0 { // else it was kept when that variable was found
		x = packetMark.load(x, keptMark)
	}
	x, text := r.lookup(x, set, key, freshKey, expr.Lookup{DestRegister: v.reg, IsDestRegSet: true})
	x = append(packetMark.load(append(x, writeMark(v.reg)), v.reg), writeMark(keptMark))
	return statement{v.text + " set " + text + " map @" + r.sets[set].Name, x}
}

// backend returns two statements: one looks up a backend, and ends the rule if there is none; the other translates the
// destination to it. nft says both where it translates.
func (r *ruleset) backend(set setIndex, key ...operand) (look, dnat statement) {
	exprs, text := r.lookup(nil, set, key, freshKey, expr.Lookup{DestRegister: freshKey, IsDestRegSet: true})
	return statement{exprs: exprs}, statement{fmt.Sprintf("%s dnat %s to %s map @%s", hasPorts.text, r.ip(), text, r.sets[set].Name),
		[]expr.Any{&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(r.proto), RegAddrMin: freshKey, RegProtoMin: freshKey + uint32(r.addrLen)/4}}}
}

// remember makes the affinity map lead the client to the member for a time, and forget makes it lead him nowhere.
func (r *ruleset) remember(client operand, seconds uint32) statement {
	return r.affinity("update", unix.NFT_DYNSET_OP_UPDATE, client, seconds)
}

func (r *ruleset) forget(client operand, seconds uint32) statement {
	return r.affinity("delete", dynsetDelete, client, seconds)
}

// dynsetDelete is NFT_DYNSET_OP_DELETE, since Linux 5.4.
const dynsetDelete = 2

func (r *ruleset) affinity(verb string, op uint32, client operand, seconds uint32) statement {
	name := r.sets[sAffinity].Name
	return statement{fmt.Sprintf("%s @%s { %s . %s timeout %ds : %s }", verb, name, setID.text, client.text, seconds, member.text),
		append(client.loadTo(nil, setID.reg+1), &expr.Dynset{SrcRegKey: setID.reg, SrcRegData: member.reg, SetName: name,
			Operation: op, Timeout: time.Duration(seconds) * time.Second})}
}

// What is done to the packet.

func writeMark(from uint32) expr.Any {
	return &expr.Meta{Key: expr.MetaKeyMARK, Register: from, SourceRegister: true}
}

// setMark gives the packet another mark.
func setMark(o operand) statement {
	return statement{"meta mark set " + o.text, append(o.load(nil, scratch), writeMark(scratch))}
}

var masquerade = statement{"masquerade fully-random", []expr.Any{&expr.Masq{FullyRandom: true}}}

// tcpReset refuses a TCP connection, and has the kernel close what it tracks of it.
var tcpReset = statement{"reject with tcp reset", []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}}}

func (r *ruleset) reject() statement {
	icmp, code := "icmp", uint8(3) // ICMP_PORT_UNREACH
	if r.fam == lb.IPv6 {
		icmp, code = "icmpv6", 4 // ICMPV6_PORT_UNREACH
	}
	return statement{"reject with " + icmp + " port-unreachable", []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: code}}}
}

// elementVerdict ends a rule. It is also the data of an element of a verdict map.
type elementVerdict struct{ wire.Verdict }

func verdictOf(kind expr.VerdictKind, chain string) elementVerdict {
	return elementVerdict{wire.Verdict{Kind: kind, Chain: chain}}
}

var (
	drops   = verdictOf(expr.VerdictDrop, "")
	returns = verdictOf(expr.VerdictReturn, "")

	drop   = drops.statement()
	goBack = returns.statement()
)

func jump(chain string) statement { return verdictOf(expr.VerdictJump, chain).statement() }
func goTo(chain string) statement { return verdictOf(expr.VerdictGoto, chain).statement() }

func (v elementVerdict) statement() statement {
	return statement{v.String(), []expr.Any{&expr.Verdict{Kind: v.Kind, Chain: v.Chain}}}
}
