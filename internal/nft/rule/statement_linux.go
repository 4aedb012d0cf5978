package rule

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/lb"
)

// Statement is one step of a rule, both in the kernel's format and in the language of nft(8). The
// zero value does nothing.
type Statement struct {
	text  string // "" if nft does not print it
	exprs []expr.Any
}

// Matches.

// Matches of a packet and its connection.
var (
	OverTCP            = Is(L4Proto, "tcp", []byte{unix.IPPROTO_TCP})
	NotOverTCP         = match(L4Proto.text+" != tcp", L4Proto, expr.CmpOpNeq, []byte{unix.IPPROTO_TCP})
	SourceIsLocal      = Is(sourceType, "local", wire.AppendNumber(nil, unix.RTN_LOCAL))
	DestinationIsLocal = Is(destinationType, "local", wire.AppendNumber(nil, unix.RTN_LOCAL))
	// FromThisNode matches packets that the node sent to itself.
	FromThisNode  = Is(inputType, "loopback", netlink.Order.AppendUint16(nil, unix.ARPHRD_LOOPBACK))
	NewConnection = Statement{"ct state new", NotZero(ctState.And(expr.CtStateBitNEW)).exprs}
	Answer        = Is(ctDirection, "reply", []byte{1})
	// DestinationTranslated matches connections whose destination was translated.
	DestinationTranslated = Statement{"ct status dnat", NotZero(ctStatus.And(statusDstNAT)).exprs}
	// NotTransparent matches packets that would reach a socket which is not transparent.
	NotTransparent = Is(transparent, "0", []byte{0})
	// HasPorts is the match that nft requires before the port of an unknown protocol. All frontends
	// have ports.
	HasPorts = Statement{text: "meta l4proto { tcp, udp, sctp }"}
)

// statusDstNAT is IPS_DST_NAT.
const statusDstNAT = 1 << 5

// Is matches an operand with that value, which text names.
func Is(o Operand, text string, value []byte) Statement {
	return match(o.text+" "+text, o, expr.CmpOpEq, value)
}

// IsNumber matches an operand equal to the number.
func IsNumber(o Operand, n uint32) Statement {
	return Is(o, fmt.Sprintf("0x%08x", n), wire.AppendNumber(nil, n))
}

// IsZero matches an operand equal to 0.
func IsZero(o Operand) Statement {
	return match(o.text+" == 0x00000000", o, expr.CmpOpEq, make([]byte, 4))
}

// NotZero matches a number other than 0. For a variable that means that it was found, because no
// object has the number 0; old kernels cannot look up a key without its number.
func NotZero(o Operand) Statement {
	return match(o.text+" != 0x00000000", o, expr.CmpOpNeq, make([]byte, 4))
}

func match(text string, o Operand, op expr.CmpOp, value []byte) Statement {
	return Statement{text, append(o.loadTo(nil, scratch), &expr.Cmp{Op: op, Register: scratch, Data: value})}
}

// InPrefix matches packets whose address is in the prefix.
//
// Rules for the node's addresses use this match instead of sets of intervals. The kernel publishes
// changes of those sets a moment later than the rest of a transaction, so a packet in between would
// meet new rules and an empty set.
func (ip IP) InPrefix(a Operand, p netip.Prefix) Statement {
	if p.Bits() == 0 {
		return Statement{} // every packet
	}
	return ip.matchPrefix("", a, expr.CmpOpEq, p)
}

// NotLoopback excludes loopback addresses from NodePorts (SV-64).
func (ip IP) NotLoopback(a Operand) Statement {
	return ip.matchPrefix("!= ", a, expr.CmpOpNeq, ip.loopback())
}

func (ip IP) matchPrefix(not string, a Operand, op expr.CmpOp, p netip.Prefix) Statement {
	p = p.Masked()
	text := p.String()
	if p.IsSingleIP() {
		text = p.Addr().String()
	}
	return match(a.text+" "+not+text, a.FirstBits(p.Bits(), ip), op, p.Addr().AsSlice())
}

// fromInterface matches packets that arrived on the interface with that name or, with all, on those
// whose names have that prefix.
func fromInterface(name string, all bool) Statement {
	name = name[:min(len(name), unix.IFNAMSIZ-1)]
	value := []byte(name)
	if all {
		name += "*"
	} else {
		value = make([]byte, unix.IFNAMSIZ)
		copy(value, name)
	}
	return Is(inputName, `"`+name+`"`, value)
}

// ToItself matches packets with the same source and destination address. The kernel cannot compare
// two registers. But it can look up whether a byte of one and a byte of the other are together in a
// set, which has each byte with itself. The last byte comes first, because addresses differ most
// there.
func (ip IP) ToItself(equal *wire.Set) []Statement {
	var all []Statement
	octet := func(at uint32) Operand {
		return payload(fmt.Sprintf("@nh,%d,8", 8*at), expr.PayloadBaseNetworkHeader, at, 1)
	}
	for i := uint32(ip.AddrLen); i > 0; i-- {
		all = append(all, In(equal, octet(ip.saddr+i-1), octet(ip.daddr+i-1)))
	}
	return all
}

// Sets and maps.

// lookup appends the expressions that load a key and look it up. The key begins in the register of
// its variable, or at a register. text is the key.
func lookup(x []expr.Any, set *wire.Set, key []Operand, at uint32, to expr.Lookup) (exprs []expr.Any, text string) {
	if v := key[0].reg; v != 0 {
		at = v
	}
	to.SetName, to.SourceRegister = set.Name, at
	x, text = load(x, set, key, at)
	return append(x, &to), text
}

// load appends the expressions that load a key of a set into registers.
func load(x []expr.Any, set *wire.Set, key []Operand, at uint32) (exprs []expr.Any, text string) {
	parts := make([]string, 0, 4)
	for i, o := range key {
		x, parts = o.loadTo(x, at), append(parts, o.text)
		at += uint32(set.Key[i].Size+3) / 4
	}
	return x, strings.Join(parts, " . ")
}

// In matches if the set has the key.
func In(set *wire.Set, key ...Operand) Statement {
	exprs, text := lookup(nil, set, key, scratch, expr.Lookup{})
	return Statement{text + " @" + set.Name, exprs}
}

// NotIn matches if the set does not have the key.
func NotIn(set *wire.Set, key ...Operand) Statement {
	exprs, text := lookup(nil, set, key, scratch, expr.Lookup{Invert: true})
	return Statement{text + " != @" + set.Name, exprs}
}

// VMap applies the verdict that the map has for the key.
func VMap(set *wire.Set, key ...Operand) Statement {
	exprs, text := lookup(nil, set, key, scratch, expr.Lookup{DestRegister: unix.NFT_REG_VERDICT, IsDestRegSet: true})
	return Statement{text + " vmap @" + set.Name, exprs}
}

// Find looks up a variable; if the map lacks the key, the rule ends.
//
// The result reaches its register through the packet mark, which gets its own value back at once.
// The detour is for people: nft up to 1.0.6, which Debian 12 has, aborts when it lists a rule in
// which one map's result is the key of the next, but it can print a mark.
func Find(v Operand, set *wire.Set, key ...Operand) Statement {
	x := make([]expr.Any, 0, 8)
	if key[0].reg == 0 { // else it was kept when that variable was found
		x = PacketMark.load(x, keptMark)
	}
	x, text := lookup(x, set, key, freshKey, expr.Lookup{DestRegister: v.reg, IsDestRegSet: true})
	x = append(PacketMark.load(append(x, writeMark(v.reg)), v.reg), writeMark(keptMark))
	return Statement{v.text + " set " + text + " map @" + set.Name, x}
}

// Backend returns two statements: one looks up a backend, and ends the rule without one; the other
// translates the destination to it. nft prints both as the translation.
func (ip IP) Backend(set *wire.Set, key ...Operand) (look, dnat Statement) {
	look, to := find(freshKey, set, key)
	return look, ip.dnat(HasPorts.text+" dnat "+ip.Name()+" to "+to, freshKey, freshKey+uint32(ip.AddrLen)/4)
}

// Leading returns statements that redirect a packet to the port that a map has for the key, and to
// the address that another has; without that map, the packet keeps its address. If a map lacks the
// key, the rule ends.
func (ip IP) Leading(addresses *wire.Set, ports *wire.Set, key ...Operand) []Statement {
	inspectPort, to := find(port, ports, key)
	if addresses == nil {
		return []Statement{inspectPort, ip.dnat(HasPorts.text+" dnat "+ip.Name()+" to :"+to, 0, port)}
	}
	inspectAddress, at := find(address, addresses, []Operand{NFProto})
	return []Statement{inspectAddress, inspectPort, ip.dnat(HasPorts.text+" dnat "+ip.Name()+" to "+at+" : "+to,
		address, port)}
}

// Redirecting returns statements that redirect a packet to this node, to the port that a map has
// for the key.
func Redirecting(ports *wire.Set, key ...Operand) []Statement {
	look, to := find(port, ports, key)
	return []Statement{look, {HasPorts.text + " redirect to :" + to, []expr.Any{&expr.Redir{RegisterProtoMin: port}}}}
}

// Has matches if the map has the key.
func Has(set *wire.Set, key ...Operand) Statement {
	look, text := find(port, set, key)
	return Statement{text, look.exprs}
}

// find looks up a value that a later statement of the rule uses, with the text for that statement.
func find(to uint32, set *wire.Set, key []Operand) (look Statement, text string) {
	exprs, text := lookup(nil, set, key, freshKey, expr.Lookup{DestRegister: to, IsDestRegSet: true})
	return Statement{exprs: exprs}, text + " map @" + set.Name
}

func (ip IP) dnat(text string, addr, port uint32) Statement {
	return Statement{text, []expr.Any{&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(ip.Proto), RegAddrMin: addr,
		RegProtoMin: port}}}
}

// Remember makes a map that packets fill assign the client to the member for a time; Forget ends
// that.
func Remember(set *wire.Set, client Operand, seconds uint32) Statement {
	return memory("update", unix.NFT_DYNSET_OP_UPDATE, set, client, seconds)
}

// Forget is the opposite of Remember.
func Forget(set *wire.Set, client Operand, seconds uint32) Statement {
	return memory("delete", dynsetDelete, set, client, seconds)
}

// dynsetDelete is NFT_DYNSET_OP_DELETE, since Linux 5.4.
const dynsetDelete = 2

func memory(verb string, op uint32, set *wire.Set, client Operand, seconds uint32) Statement {
	return Statement{fmt.Sprintf("%s @%s { %s . %s timeout %ds : %s }", verb, set.Name, SetID.text, client.text,
		seconds, Member.text),
		append(client.loadTo(nil, SetID.reg+1), &expr.Dynset{SrcRegKey: SetID.reg, SrcRegData: Member.reg,
			SetName: set.Name, Operation: op, Timeout: time.Duration(seconds) * time.Second})}
}

// Counter counts packets.
var Counter = Statement{"counter", []expr.Any{&expr.Counter{}}}

// Increment increments the key's counter in a set that packets fill, and keeps it for that time
// afterwards; 0 means for ever.
func Increment(set *wire.Set, kept time.Duration, key ...Operand) Statement {
	x, text := load(nil, set, key, freshKey)
	timeout := ""
	if kept > 0 {
		timeout = fmt.Sprintf("timeout %ds ", int(kept.Seconds()))
	}
	return Statement{fmt.Sprintf("update @%s { %s %scounter }", set.Name, text, timeout),
		append(x, &expr.Dynset{SrcRegKey: freshKey,
			SetName: set.Name, Operation: unix.NFT_DYNSET_OP_UPDATE, Timeout: kept,
			Exprs: []expr.Any{&expr.Counter{}}})}
}

// Effects on the packet.

func writeMark(from uint32) expr.Any {
	return &expr.Meta{Key: expr.MetaKeyMARK, Register: from, SourceRegister: true}
}

// SetMark changes the packet's mark.
func SetMark(o Operand) Statement {
	return Statement{"meta mark set " + o.text, append(o.load(nil, scratch), writeMark(scratch))}
}

// Masquerade changes the packet's source to an address of this node, and its port.
var Masquerade = Statement{"masquerade fully-random", []expr.Any{&expr.Masq{FullyRandom: true}}}

// TCPReset refuses a TCP connection, and makes the kernel close the tracked connection.
var TCPReset = Statement{"reject with tcp reset", []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}}}

// Reject answers with ICMP port unreachable, like a port without a listener.
func (ip IP) Reject() Statement {
	icmp, code := "icmp", uint8(3) // ICMP_PORT_UNREACH
	if ip.Family == lb.IPv6 {
		icmp, code = "icmpv6", 4 // ICMPV6_PORT_UNREACH
	}
	return Statement{"reject with " + icmp + " port-unreachable",
		[]expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: code}}}
}

// The verdicts without a chain.
var (
	Drop   = End(wire.Drop)
	Accept = End(wire.Accept)
	GoBack = End(wire.Return)
)

// Jump goes through another chain, and GoTo does not come back.
func Jump(chain string) Statement { return End(wire.Jump(chain)) }
func GoTo(chain string) Statement { return End(wire.GoTo(chain)) }

// End ends the rule with a verdict.
func End(v wire.Verdict) Statement {
	return Statement{v.String(), []expr.Any{&expr.Verdict{Kind: v.Kind, Chain: v.Chain}}}
}
