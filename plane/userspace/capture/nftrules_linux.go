package capture

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	nlconn "kube-proxy/internal/netlink/conn"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/lb"
	"kube-proxy/plane/internal/ranges"
)

// chain is a chain with its rules.
type chain struct {
	name  string
	hook  wire.Hook // none for a chain that is only jumped to
	rules []rule
}

// rule is a rule of a chain. Its comment ends in a digest of what it does, by which a later process sees that the rule in the
// kernel is as it should be.
type rule struct {
	comment string
	exprs   []byte // NFTA_RULE_EXPRESSIONS
}

// digest identifies a chain's rules.
func (c chain) digest() string {
	var b strings.Builder
	for _, r := range c.rules {
		b.WriteString(r.comment + "\n")
	}
	return b.String()
}

// ruleset renders the chains for one family and node. It is pure, and what it renders does not depend on rows.
type ruleset struct {
	family
	sets      [setCount]wire.Set
	mark      uint32
	localhost bool
	sockets   bool // rules may look at the sockets that packets reach (nft_socket)
	node      lb.Node
}

// Registers, of 32 bits each: what is looked up begins at key, and what is found comes to the others.
const (
	keptMark = unix.NFT_REG32_00
	foundA   = unix.NFT_REG32_00 + 1 // to 04
	foundP   = unix.NFT_REG32_00 + 5
	number   = unix.NFT_REG32_00 + 8
	key      = unix.NFT_REG32_00 + 9
)

type exprs = []expr.Any

func (r *ruleset) rule(comment string, parts ...exprs) rule {
	e := wire.Encoder{Encoder: nlconn.Encoder{B: make([]byte, 0, 512)}}
	for _, part := range parts {
		for _, x := range part {
			b, err := expr.Marshal(r.proto, x)
			if err != nil {
				panic(fmt.Sprintf("plane/userspace/capture: cannot encode %T: %v", x, err)) // a mistake in this file
			}
			at := e.Nest(unix.NFTA_LIST_ELEM)
			e.B = append(e.B, b...)
			e.EndNest(at)
		}
	}
	sum := sha256.Sum256(e.B)
	return rule{strings.TrimSpace(comment + " [" + hex.EncodeToString(sum[:4]) + "]"), e.B}
}

// chains are all chains of the table.
//
//	prerouting, output, before translation   "refuse": who may not, or finds nobody; in the order of the row's routes
//	prerouting, output, dstnat               "lead": to the port of the listener
//	forward, output                          "unknown": what reached a service address untranslated (SV-62, SV-63)
//	input                                    "guard": nobody reaches a listener who was not led there
func (r *ruleset) chains() []chain {
	base := func(name, typ string, num uint32, priority int32, rules ...rule) chain {
		return chain{name, wire.Hook{Type: typ, Num: num, Priority: priority}, rules}
	}
	const dstnat, filter = -100, 0
	own := r.rule("the proxy's own connections", r.marked(), accept)
	// What the proxy sends to this node itself comes by here too, with its mark.
	back := r.rule("the proxy's own connections", fromLoopback, r.marked(), accept)
	refuse := r.rule("", isNew, jump("refuse"))
	all := []chain{
		base("filter-prerouting", "filter", unix.NF_INET_PRE_ROUTING, dstnat-10, back, refuse),
		base("filter-output-before", "filter", unix.NF_INET_LOCAL_OUT, dstnat-10, own, refuse),
		base("nat-prerouting", "nat", unix.NF_INET_PRE_ROUTING, dstnat, r.rule("", jump("lead"))),
		base("nat-output", "nat", unix.NF_INET_LOCAL_OUT, dstnat, own, r.rule("", jump("lead"))),
		base("filter-forward", "filter", unix.NF_INET_FORWARD, filter, r.rule("", isNew, jump("unknown"))),
		base("filter-output", "filter", unix.NF_INET_LOCAL_OUT, filter, r.rule("", isNew, jump("unknown"))),
		base("filter-input", "filter", unix.NF_INET_LOCAL_IN, filter,
			r.rule("no port of the proxy", lookup(r.sets[sListeners].Name, key, true, r.nodePort()), accept),
			r.rule("", jump("guard"))),
		{name: "refused", rules: []rule{r.rule("", overTCP, reset), r.rule("", r.unreachable())}},
		{name: "guard", rules: slices.Concat(
			[]rule{r.rule("an answer", ctIs(expr.CtKeyDIRECTION, []byte{1}), accept)},
			r.intruders(),
			[]rule{
				r.rule("led here", ctBit(expr.CtKeySTATUS, statusDstNAT), accept),
				r.rule("a port like one where nobody listens", jump("refused")),
			})},
		{name: "unknown", rules: []rule{
			r.rule("a port that the service does not have", lookup(r.sets[sClusterIPs].Name, key, false, r.payload(r.daddr, key)), jump("refused")),
		}},
	}
	unknown, guard := &all[len(all)-1], &all[len(all)-2]
	for _, p := range r.node.ServiceCIDRs {
		unknown.rules = append(unknown.rules, r.rule("an address that no service has", r.inPrefix(r.daddr, p), drop))
	}
	refuseRules := []rule{
		r.rule("led on the way out", ctBit(expr.CtKeySTATUS, statusDstNAT), accept),
		r.rule("source ranges", r.find(sSourceLists, number, r.vip()), jump("sources")),
	}
	var leadRules []rule
	refuseRules = append(refuseRules, r.bySource("refuse", false)...)
	leadRules = append(leadRules, r.bySource("lead", false)...)
	for _, p := range r.node.NodePorts {
		here := append(append(r.inPrefix(r.daddr, p), r.notLoopback()...), destinationIsLocal...)
		refuseRules = append(refuseRules, r.rule("this node", here, jump("refuse-nodeports")))
		leadRules = append(leadRules, r.rule("this node", here, jump("lead-nodeports")))
		// A NodePort that is the port of its own listener is not translated. What is led somewhere passes here too.
		guard.rules = slices.Insert(guard.rules, len(guard.rules)-1, r.rule("this node", here, jump("refuse-nodeports")))
	}
	all = append(all, chain{name: "refuse", rules: refuseRules}, chain{name: "lead", rules: leadRules}, r.sources(),
		chain{name: "refuse-nodeports", rules: r.bySource("refuse-nodeports", true)}, chain{name: "lead-nodeports", rules: r.bySource("lead-nodeports", true)})
	for from := lb.Pods; from <= lb.Anywhere; from++ {
		for _, np := range []bool{false, true} {
			all = append(all, r.refuse(from, np), r.lead(from, np))
		}
	}
	return all
}

// intruders refuse packets that would reach the socket of another program: it has taken the port of a listener while no
// proxy ran. Sockets of the proxy are transparent, which a program without privileges cannot set. The kernel finds no
// sockets of SCTP.
func (r *ruleset) intruders() []rule {
	if !r.sockets {
		return nil
	}
	return []rule{r.rule("a socket of another program", exprs{&expr.Socket{Key: expr.SocketKeyTransparent, Register: key},
		&expr.Cmp{Op: expr.CmpOpEq, Register: key, Data: []byte{0}}}, jump("refused"))}
}

// bySource jumps to the chains of the kinds of sources, in the order of routes. A chain that has the key does not come back.
func (r *ruleset) bySource(what string, nodePort bool) (rules []rule) {
	for _, match := range r.fromPods() {
		rules = append(rules, r.rule("", match, jump(what+"-"+lb.Pods.String())))
	}
	return append(rules, r.rule("", sourceIsLocal, jump(what+"-"+lb.Host.String())), r.rule("", jump(what+"-"+lb.Anywhere.String())))
}

func chainName(what string, f lb.From, nodePort bool) string {
	if nodePort {
		what += "-nodeports"
	}
	return what + "-" + f.String()
}

// keyOf loads the key of a packet.
func (r *ruleset) keyOf(nodePort bool) exprs {
	if nodePort {
		return r.nodePort()
	}
	return r.vip()
}

// refuse lets pass what is led somewhere, and refuses what is to be refused.
func (r *ruleset) refuse(f lb.From, nodePort bool) chain {
	return chain{name: chainName("refuse", f, nodePort), rules: []rule{
		r.rule("", r.find(ports(f, nodePort), foundP, r.keyOf(nodePort)), accept),
		r.rule("", r.findMarked(refusals(f, nodePort), number, r.keyOf(nodePort)), exprs{&expr.Cmp{Op: expr.CmpOpEq, Register: number, Data: appendNumber(nil, uint32(lb.Drop))}}, drop),
		r.rule("", r.find(refusals(f, nodePort), number, r.keyOf(nodePort)), jump("refused")),
	}}
}

// lead translates. What goes to a service address goes to an address of the node, which the interface that it came by need not
// have; what came for a NodePort stays at its address.
func (r *ruleset) lead(f lb.From, nodePort bool) chain {
	c := chain{name: chainName("lead", f, nodePort)}
	port := r.find(ports(f, nodePort), foundP, r.keyOf(nodePort))
	if nodePort {
		c.rules = append(c.rules, r.rule("", port, exprs{&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(r.proto), RegProtoMin: foundP}}))
	} else {
		addr := r.find(sNodeAddresses, foundA, exprs{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: key}})
		c.rules = append(c.rules,
			r.rule("", addr, port, exprs{&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(r.proto), RegAddrMin: foundA, RegProtoMin: foundP}}),
			r.rule("a node without addresses", port, exprs{&expr.Redir{RegisterProtoMin: foundP}}))
	}
	c.rules = append(c.rules, r.rule("refused before", r.find(refusals(f, nodePort), number, r.keyOf(nodePort)), accept))
	return c
}

// sources drop packets from sources that are in none of the frontend's ranges. There is a rule for each length of a range (ADR 0018).
func (r *ruleset) sources() chain {
	c := chain{name: "sources"}
	for n := r.addrLen * 8; n > 0; n -= ranges.Stride {
		mask := make([]byte, r.addrLen)
		for i := range n {
			mask[i/8] |= 0x80 >> (i % 8)
		}
		list := r.findMarked(sSourceLists, number, r.vip())
		length := exprs{&expr.Bitwise{SourceRegister: number, DestRegister: number, Len: 4, Mask: appendNumber(nil, ^uint32(n)), Xor: appendNumber(nil, uint32(n))}}
		client := append(r.payload(r.saddr, key), &expr.Bitwise{SourceRegister: key, DestRegister: key, Len: uint32(r.addrLen), Mask: mask, Xor: make([]byte, r.addrLen)})
		c.rules = append(c.rules, r.rule(fmt.Sprintf("a range of %d bits", n), list, length, lookup(r.sets[sSourceRanges].Name, number, false, client), back))
	}
	c.rules = append(c.rules, r.rule("in no range", drop))
	return c
}

// fromPods are the matches for packets from pods: one for each way in which the local-traffic detector recognises them. If it
// recognises none (SV-67), pods are treated as from anywhere.
func (r *ruleset) fromPods() []exprs {
	d := r.node.Pods
	name := func(value []byte) []exprs {
		return []exprs{{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: key}, &expr.Cmp{Op: expr.CmpOpEq, Register: key, Data: value}}}
	}
	switch {
	case d.Interface != "":
		value := make([]byte, unix.IFNAMSIZ)
		copy(value, d.Interface[:min(len(d.Interface), unix.IFNAMSIZ-1)])
		return name(value)
	case d.InterfacePrefix != "":
		return name([]byte(d.InterfacePrefix)[:min(len(d.InterfacePrefix), unix.IFNAMSIZ-1)])
	}
	var matches []exprs
	for _, p := range d.Prefixes {
		matches = append(matches, r.inPrefix(r.saddr, p))
	}
	return matches
}

// Matches and what is done.

// statusDstNAT is IPS_DST_NAT.
const statusDstNAT = 1 << 5

var (
	accept = exprs{&expr.Verdict{Kind: expr.VerdictAccept}}
	drop   = exprs{&expr.Verdict{Kind: expr.VerdictDrop}}
	back   = exprs{&expr.Verdict{Kind: expr.VerdictReturn}}
	reset  = exprs{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}}

	isNew              = ctBit(expr.CtKeySTATE, expr.CtStateBitNEW)
	overTCP            = exprs{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: key}, &expr.Cmp{Op: expr.CmpOpEq, Register: key, Data: []byte{unix.IPPROTO_TCP}}}
	destinationIsLocal = local(&expr.Fib{Register: key, ResultADDRTYPE: true, FlagDADDR: true})
	sourceIsLocal      = local(&expr.Fib{Register: key, ResultADDRTYPE: true, FlagSADDR: true})
)

func local(fib *expr.Fib) exprs {
	return exprs{fib, &expr.Cmp{Op: expr.CmpOpEq, Register: key, Data: appendNumber(nil, unix.RTN_LOCAL)}}
}

func jump(to string) exprs { return exprs{&expr.Verdict{Kind: expr.VerdictJump, Chain: to}} }

func ctIs(k expr.CtKey, value []byte) exprs {
	return exprs{&expr.Ct{Key: k, Register: key}, &expr.Cmp{Op: expr.CmpOpEq, Register: key, Data: value}}
}

func ctBit(k expr.CtKey, bit uint32) exprs {
	return append(exprs{&expr.Ct{Key: k, Register: key}}, anyBit(bit)...)
}

func anyBit(bits uint32) exprs {
	return exprs{
		&expr.Bitwise{SourceRegister: key, DestRegister: key, Len: 4, Mask: appendNumber(nil, bits), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: key, Data: make([]byte, 4)},
	}
}

// fromLoopback matches what this node sent to itself.
var fromLoopback = exprs{&expr.Meta{Key: expr.MetaKeyIIFTYPE, Register: key},
	&expr.Cmp{Op: expr.CmpOpEq, Register: key, Data: binary.NativeEndian.AppendUint16(nil, unix.ARPHRD_LOOPBACK)}}

// marked matches what the proxy sends itself; nothing if its packets have no mark.
func (r *ruleset) marked() exprs {
	return append(exprs{&expr.Meta{Key: expr.MetaKeyMARK, Register: key}}, anyBit(r.mark)...)
}

// unreachable answers with ICMP port unreachable, as a port does where nobody listens.
func (r *ruleset) unreachable() exprs {
	code := uint8(3) // ICMP_PORT_UNREACH
	if r.fam == lb.IPv6 {
		code = 4 // ICMPV6_PORT_UNREACH
	}
	return exprs{&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: code}}
}

func (r *ruleset) payload(offset, to uint32) exprs {
	return exprs{&expr.Payload{DestRegister: to, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: uint32(r.addrLen)}}
}

func (r *ruleset) vip() exprs {
	return append(r.payload(r.daddr, key), protoAndPort(key+uint32(r.addrLen)/4)...)
}

func (r *ruleset) nodePort() exprs { return protoAndPort(key) }

func protoAndPort(to uint32) exprs {
	return exprs{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: to},
		&expr.Payload{DestRegister: to + 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}}
}

func (r *ruleset) inPrefix(offset uint32, p netip.Prefix) exprs {
	return r.matchPrefix(offset, expr.CmpOpEq, p)
}

func (r *ruleset) matchPrefix(offset uint32, op expr.CmpOp, p netip.Prefix) exprs {
	if p.Bits() == 0 {
		return nil // every packet
	}
	p = p.Masked()
	mask := make([]byte, r.addrLen)
	for i := range p.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return append(r.payload(offset, key),
		&expr.Bitwise{SourceRegister: key, DestRegister: key, Len: uint32(r.addrLen), Mask: mask, Xor: make([]byte, r.addrLen)},
		&expr.Cmp{Op: op, Register: key, Data: p.Addr().AsSlice()})
}

func (r *ruleset) notLoopback() exprs {
	if r.localhost && r.fam == lb.IPv4 {
		return nil
	}
	return r.matchPrefix(r.daddr, expr.CmpOpNeq, r.loopback())
}

// lookup matches if the set has the key whose parts load loads; with not, if it has not.
func lookup(set string, at uint32, not bool, load exprs) exprs {
	return append(load, &expr.Lookup{SetName: set, SourceRegister: at, Invert: not})
}

// find looks up what a map has; where it has nothing, the rule ends.
func (r *ruleset) find(set setIndex, to uint32, load exprs) exprs {
	return append(load, &expr.Lookup{SetName: r.sets[set].Name, SourceRegister: key, DestRegister: to, IsDestRegSet: true})
}

// findMarked is find for an answer that the rule looks at. It comes by way of the packet mark, which gets back its own value
// at once: nft up to 1.0.6, which Debian 12 has, has no word for the registers, and aborts where the answer of one map is the key of the next.
func (r *ruleset) findMarked(set setIndex, to uint32, load exprs) exprs {
	x := append(exprs{&expr.Meta{Key: expr.MetaKeyMARK, Register: keptMark}}, r.find(set, to, load)...)
	return append(x, &expr.Meta{Key: expr.MetaKeyMARK, Register: to, SourceRegister: true}, &expr.Meta{Key: expr.MetaKeyMARK, Register: to},
		&expr.Meta{Key: expr.MetaKeyMARK, Register: keptMark, SourceRegister: true})
}
