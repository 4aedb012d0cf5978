package nftables

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"kube-proxy/lb"
)

// chain is a chain with its rules.
type chain struct {
	name  string
	hook  *hook // nil for a chain that is only jumped to
	rules []rule
}

// hook says where a base chain sits.
type hook struct {
	typ      string // filter or nat
	num      uint32
	priority int32
}

// The priorities of DP-20: connections are translated at dstnat, so that others may hook before and after.
const (
	prioDstNAT    = -100
	prioPreDstNAT = prioDstNAT - 10
	prioFilter    = 0
	prioSrcNAT    = 100
)

// rule is a rule as the kernel takes it, with a comment that ends in a digest of its content: by it a later
// process sees that the rule is as it should be.
type rule struct {
	comment string
	exprs   []byte     // NFTA_RULE_EXPRESSIONS
	parts   []expr.Any // what exprs encodes
}

// ruleset renders the chains for one family and node. It is pure.
type ruleset struct {
	family
	sets [setCount]setDef
	mark uint32 // the packet mark of connections to masquerade
	node lb.Node
	// Session affinity: whether the kernel can hash, the seed, and affinityPlaces but for tests.
	hashes       bool
	seed, places uint32
}

// Registers are the 32-bit ones, numbered from 0: a concatenated key is a run of them.
func reg(n uint32) uint32 { return unix.NFT_REG32_00 + n }

func (r *ruleset) rule(comment string, parts ...[]expr.Any) rule {
	e := encoder{}
	all := slices.Concat(parts...)
	for _, x := range all {
		if x, ok := x.(*original); ok {
			at := e.nest(unix.NFTA_LIST_ELEM)
			x.encode(&e)
			e.endNest(at)
			continue
		}
		b, err := expr.Marshal(r.proto, x)
		if err != nil {
			panic(fmt.Sprintf("plane/nftables: cannot encode %T of rule %q: %v", x, comment, err)) // a mistake in this file
		}
		at := e.nest(unix.NFTA_LIST_ELEM)
		e.b = append(e.b, b...)
		e.endNest(at)
	}
	sum := sha256.Sum256(e.b)
	return rule{strings.TrimSpace(comment + " [" + hex.EncodeToString(sum[:4]) + "]"), e.b, all}
}

// digest identifies a chain's rules.
func digest(rules []rule) string {
	var b strings.Builder
	for _, r := range rules {
		b.WriteString(r.comment)
		b.WriteByte('\n')
	}
	return b.String()
}

// The parts that rules are made of. Names say what the nft program would show.

func (r *ruleset) lookup(set setIndex, from uint32) []expr.Any {
	return []expr.Any{&expr.Lookup{SourceRegister: reg(from), SetName: r.sets[set].name}}
}

func (r *ruleset) mapTo(set setIndex, from, to uint32) []expr.Any {
	return []expr.Any{&expr.Lookup{SourceRegister: reg(from), DestRegister: reg(to), IsDestRegSet: true, SetName: r.sets[set].name}}
}

// number looks up a number and takes it to a register by way of the packet mark, which it gives its value
// from keepMark back at once. The detour is for people: nft up to 1.0.6, which Debian 12 has, aborts when it
// lists a rule in which the answer of one map is the key of the next, but knows what a mark is.
func (r *ruleset) number(set setIndex, from, to uint32) []expr.Any {
	return append(r.mapTo(set, from, to),
		&expr.Meta{Key: expr.MetaKeyMARK, Register: reg(to), SourceRegister: true},
		&expr.Meta{Key: expr.MetaKeyMARK, Register: reg(to)},
		&expr.Meta{Key: expr.MetaKeyMARK, Register: reg(markKept), SourceRegister: true})
}

// isKey matches what a map from frontends to classes has; no class is 0. Old kernels look at the keys of a map only
// together with their data.
func (r *ruleset) isKey(set setIndex, from uint32) []expr.Any {
	return append(r.number(set, from, 0), &expr.Cmp{Op: expr.CmpOpNeq, Register: reg(0), Data: appendNum(nil, 0)})
}

// markKept is the register that holds the packet's own mark in rules that use number.
const markKept = 9

func keepMark() []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyMARK, Register: reg(markKept)}}
}

func (r *ruleset) vmap(set setIndex, from uint32) []expr.Any {
	return []expr.Any{&expr.Lookup{SourceRegister: reg(from), DestRegister: unix.NFT_REG_VERDICT, IsDestRegSet: true, SetName: r.sets[set].name}}
}

func (r *ruleset) network(offset, to uint32) []expr.Any {
	return []expr.Any{&expr.Payload{DestRegister: reg(to), Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: uint32(r.addrLen)}}
}

// vip loads ip daddr . meta l4proto . th dport, nodePort the same without the address.
func (r *ruleset) vip(at uint32) []expr.Any {
	return append(r.network(r.daddr, at), nodePort(at+r.addrRegs)...)
}

func nodePort(at uint32) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg(at)},
		&expr.Payload{DestRegister: reg(at + 1), Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
	}
}

func verdict(kind expr.VerdictKind, chain string) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: kind, Chain: chain}}
}

func jump(c string) []expr.Any { return verdict(expr.VerdictJump, c) }
func goTo(c string) []expr.Any { return verdict(expr.VerdictGoto, c) }
func dropIt() []expr.Any       { return verdict(expr.VerdictDrop, "") }
func goBack() []expr.Any       { return verdict(expr.VerdictReturn, "") }
func (r *ruleset) reject() []expr.Any {
	code := uint8(3) // ICMP_PORT_UNREACH
	if r.fam == lb.IPv6 {
		code = 4 // ICMPV6_PORT_UNREACH
	}
	return []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: code}}
}

// overTCP matches TCP packets, the only ones that tcpReset can answer.
func overTCP() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg(0)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg(0), Data: []byte{unix.IPPROTO_TCP}},
	}
}

// tcpReset refuses a TCP connection, and has the kernel close what it tracks of it.
func tcpReset() []expr.Any { return []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}} }

func newConnection() []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: reg(0)},
		&expr.Bitwise{SourceRegister: reg(0), DestRegister: reg(0), Len: 4, Mask: appendNum(nil, expr.CtStateBitNEW), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg(0), Data: make([]byte, 4)},
	}
}

// original loads a part of what the first packet of a connection was sent to, before any translation. The library leaves
// out the direction of such a key.
type original struct{ expr.Ct }

func (o *original) encode(e *encoder) {
	e.str(unix.NFTA_EXPR_NAME, "ct")
	at := e.nest(unix.NFTA_EXPR_DATA)
	e.u32(unix.NFTA_CT_KEY, uint32(o.Key))
	e.u32(unix.NFTA_CT_DREG, o.Register)
	e.bytes(unix.NFTA_CT_DIRECTION, []byte{0}) // IP_CT_DIR_ORIGINAL
	e.endNest(at)
}

func (r *ruleset) originalAddr(to uint32) []expr.Any {
	return []expr.Any{&original{expr.Ct{Key: r.ctDaddr, Register: reg(to)}}}
}

// originalNodePort loads meta l4proto . ct original proto-dst.
func originalNodePort(at uint32) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg(at)},
		&original{expr.Ct{Key: expr.CtKeyPROTODST, Register: reg(at + 1)}},
	}
}

// destinationTranslated matches packets of connections that somebody has led to another destination.
func destinationTranslated() []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATUS, Register: reg(0)},
		&expr.Bitwise{SourceRegister: reg(0), DestRegister: reg(0), Len: 4, Mask: appendNum(nil, statusDstNAT), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg(0), Data: make([]byte, 4)},
	}
}

// statusDstNAT is IPS_DST_NAT.
const statusDstNAT = 1 << 5

// toItself matches packets whose source and destination are the same address. The kernel cannot compare two registers;
// but it can look up whether a byte of the one and a byte of the other stand together in a set, which has each byte with
// itself. The last byte comes first, in which addresses differ most.
func (r *ruleset) toItself() []expr.Any {
	var x []expr.Any
	for i := uint32(r.addrLen); i > 0; i-- {
		for to, offset := range []uint32{r.saddr, r.daddr} {
			x = append(x, &expr.Payload{DestRegister: reg(uint32(to)), Base: expr.PayloadBaseNetworkHeader, Offset: offset + i - 1, Len: 1})
		}
		x = append(x, r.lookup(sEqualBytes, 0)...)
	}
	return x
}

// hairpin masquerades a backend that is its own client, if it is a frontend of ours that led it to itself (SV-60): the
// connection's first destination was one. Other programs translate as well, such as CNI plugins for hostPort.
func (r *ruleset) hairpin() chain {
	service := append(r.originalAddr(10), originalNodePort(10+r.addrRegs)...)
	rules := []rule{r.rule("by a service address", keepMark(), service, r.isKey(sServices, 10), masquerade())}
	for _, p := range r.node.NodePorts {
		rules = append(rules, r.rule("by a NodePort", r.within(p, r.originalAddr(0)), r.notLoopback(r.originalAddr(0)),
			keepMark(), originalNodePort(10), r.isKey(sNodePorts, 10), masquerade()))
	}
	return chain{name: "hairpin", rules: rules}
}

// addressIsLocal matches packets whose source or destination is an address of this machine.
func addressIsLocal(source bool) []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: reg(0), ResultADDRTYPE: true, FlagSADDR: source, FlagDADDR: !source},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg(0), Data: appendNum(nil, unix.RTN_LOCAL)},
	}
}

func (r *ruleset) setMark() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: reg(0)},
		&expr.Bitwise{SourceRegister: reg(0), DestRegister: reg(0), Len: 4, Mask: appendNum(nil, ^r.mark), Xor: appendNum(nil, r.mark)},
		&expr.Meta{Key: expr.MetaKeyMARK, Register: reg(0), SourceRegister: true},
	}
}

// takeMark matches marked packets and takes the mark away: a packet that is wrapped and comes by again
// must not be masqueraded twice.
func (r *ruleset) takeMark() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: reg(0)},
		&expr.Bitwise{SourceRegister: reg(0), DestRegister: reg(0), Len: 4, Mask: appendNum(nil, r.mark), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg(0), Data: make([]byte, 4)},
		&expr.Meta{Key: expr.MetaKeyMARK, Register: reg(0)},
		&expr.Bitwise{SourceRegister: reg(0), DestRegister: reg(0), Len: 4, Mask: appendNum(nil, ^uint32(0)), Xor: appendNum(nil, r.mark)},
		&expr.Meta{Key: expr.MetaKeyMARK, Register: reg(0), SourceRegister: true},
	}
}

func masquerade() []expr.Any { return []expr.Any{&expr.Masq{FullyRandom: true}} }

func (r *ruleset) dnat(at uint32) []expr.Any {
	return []expr.Any{&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(r.proto), RegAddrMin: reg(at), RegProtoMin: reg(at + r.addrRegs)}}
}

func pickSlot(size, to uint32) []expr.Any {
	return []expr.Any{&expr.Numgen{Register: reg(to), Modulus: size, Type: unix.NFT_NG_RANDOM}}
}

// inside matches packets whose address at an offset of the IP header lies in the prefix.
//
// What follows from the node stands in rules like this one, not in sets of intervals: the kernel publishes
// changes of those a moment later than the rest of a transaction, so a packet between would meet new rules and
// an empty set.
func (r *ruleset) inside(p netip.Prefix, offset uint32) []expr.Any {
	return r.within(p, r.network(offset, 0))
}

// within matches what load loads into register 0, if that lies in the prefix.
func (r *ruleset) within(p netip.Prefix, load []expr.Any) []expr.Any {
	if p.Bits() == 0 {
		return []expr.Any{} // every packet; nil would mean that there is nothing to match
	}
	x := append(load, r.mask(p.Bits(), 0)...)
	return append(x, &expr.Cmp{Op: expr.CmpOpEq, Register: reg(0), Data: p.Masked().Addr().AsSlice()})
}

// cut loads the first bits of an address of the IP header.
func (r *ruleset) cut(offset uint32, bits int, to uint32) []expr.Any {
	return append(r.network(offset, to), r.mask(bits, to)...)
}

// mask keeps the first bits of an address.
func (r *ruleset) mask(bits int, at uint32) []expr.Any {
	if bits == r.addrLen*8 {
		return nil
	}
	mask := make([]byte, r.addrLen)
	for i := range bits {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return []expr.Any{&expr.Bitwise{SourceRegister: reg(at), DestRegister: reg(at), Len: uint32(r.addrLen), Mask: mask, Xor: make([]byte, r.addrLen)}}
}

// fromPods are the matches of which one holds for what the local-traffic detector recognises; none if it
// recognises nothing (SV-67).
func (r *ruleset) fromPods() [][]expr.Any {
	d := r.node.Pods
	name := func(b []byte) [][]expr.Any {
		return [][]expr.Any{{
			&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: reg(0)},
			&expr.Cmp{Op: expr.CmpOpEq, Register: reg(0), Data: b},
		}}
	}
	switch {
	case d.Interface != "":
		whole := make([]byte, unix.IFNAMSIZ)
		copy(whole, d.Interface)
		return name(whole)
	case d.InterfacePrefix != "":
		return name([]byte(d.InterfacePrefix))
	}
	var matches [][]expr.Any
	for _, p := range d.Prefixes {
		matches = append(matches, r.inside(p, r.saddr))
	}
	return matches
}

// notLoopback keeps NodePorts away from loopback addresses (SV-64). x loads the address into register 0.
func (r *ruleset) notLoopback(x []expr.Any) []expr.Any {
	if r.fam == lb.IPv6 {
		one := make([]byte, 16)
		one[15] = 1
		return append(x, &expr.Cmp{Op: expr.CmpOpNeq, Register: reg(0), Data: one})
	}
	return append(x,
		&expr.Bitwise{SourceRegister: reg(0), DestRegister: reg(0), Len: 4, Mask: []byte{255, 0, 0, 0}, Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg(0), Data: []byte{127, 0, 0, 0}})
}

// toNodePorts sends packets to a local address that answers NodePorts on to a chain.
func (r *ruleset) toNodePorts(chain string) []rule {
	var rules []rule
	for _, p := range r.node.NodePorts {
		rules = append(rules, r.rule("this node", r.inside(p, r.daddr), r.notLoopback(r.network(r.daddr, 0)), addressIsLocal(false), jump(chain)))
	}
	return rules
}

// serviceNetwork refuses what reached a service address untranslated.
//
// That may be a port that the service has: a connection that the kernel tracked before the service was here is never
// translated any more, and each SYN from the same port, also of later connections, keeps it tracked for two minutes
// more. A refused client has its port free at once, so the next connections try it again and again, all the more where
// ports are scarce. With a TCP reset the kernel (from 6.3 on) closes the tracked connection, and it ends 10 s later
// (nf_conntrack_tcp_timeout_close), whatever comes; after an ICMP error it does not.
func (r *ruleset) serviceNetwork() chain {
	const note = "a port that the service does not have"
	cluster := append(r.network(r.daddr, 0), r.lookup(sClusterIPs, 0)...)
	rules := []rule{r.rule(note, overTCP(), cluster, tcpReset()), r.rule(note, cluster, r.reject())}
	for _, p := range r.node.ServiceCIDRs {
		rules = append(rules, r.rule("an address that no service has", r.inside(p, r.daddr), dropIt()))
	}
	return chain{name: "service-network", rules: rules}
}

// skeleton is the chains that are always there.
func (r *ruleset) skeleton() []chain {
	vipClass := func(verdicts setIndex) rule {
		return r.rule("service address", keepMark(), r.vip(10), r.number(sServices, 10, 0), r.vmap(verdicts, 0))
	}
	nodePortClass := func(verdicts setIndex) rule {
		return r.rule("NodePort", keepMark(), nodePort(10), r.number(sNodePorts, 10, 0), r.vmap(verdicts, 0))
	}
	return []chain{
		{name: turnReject.chain(), rules: []rule{r.rule("", r.reject())}},
		{name: "filter-nodeports", rules: []rule{nodePortClass(sFilterClasses)}},
		// What a process of the node sends to a backend at the node's own address comes in again, translated. Somebody
		// else's Service may claim that address.
		{name: "filter-frontends", rules: append([]rule{
			r.rule("translated on the way out", destinationTranslated(), goBack()), vipClass(sFilterClasses)},
			r.toNodePorts("filter-nodeports")...)},
		{name: "nat-nodeports", rules: []rule{nodePortClass(sNATClasses)}},
		{name: "nat-frontends", rules: append([]rule{vipClass(sNATClasses)}, r.toNodePorts("nat-nodeports")...)},
		r.scope("cluster", sClusterSets, sNodePortClusterSets, sClusterShapes),
		r.masqThen("cluster"),
		r.scope("local", sLocalSets, sNodePortLocalSets, sLocalShapes),
		r.masqThen("local"),
		r.serviceNetwork(),
		r.hairpin(),

		{name: "filter-prerouting-pre-dnat", hook: &hook{"filter", unix.NF_INET_PRE_ROUTING, prioPreDstNAT},
			rules: []rule{r.rule("before translation", newConnection(), jump("filter-frontends"))}},
		{name: "filter-output-pre-dnat", hook: &hook{"filter", unix.NF_INET_LOCAL_OUT, prioPreDstNAT},
			rules: []rule{r.rule("before translation", newConnection(), jump("filter-frontends"))}},
		{name: "nat-prerouting", hook: &hook{"nat", unix.NF_INET_PRE_ROUTING, prioDstNAT}, rules: r.translate("translate")},
		{name: "nat-prerouting-again", hook: &hook{"nat", unix.NF_INET_PRE_ROUTING, prioDstNAT + 1}, rules: r.translate(secondLook)},
		{name: "nat-output", hook: &hook{"nat", unix.NF_INET_LOCAL_OUT, prioDstNAT}, rules: r.translate("translate")},
		{name: "nat-output-again", hook: &hook{"nat", unix.NF_INET_LOCAL_OUT, prioDstNAT + 1}, rules: r.translate(secondLook)},
		{name: "filter-forward", hook: &hook{"filter", unix.NF_INET_FORWARD, prioFilter},
			rules: []rule{r.rule("not translated", newConnection(), jump("service-network"))}},
		{name: "filter-output", hook: &hook{"filter", unix.NF_INET_LOCAL_OUT, prioFilter},
			rules: []rule{r.rule("not translated", newConnection(), jump("service-network"))}},
		{name: "nat-postrouting", hook: &hook{"nat", unix.NF_INET_POST_ROUTING, prioSrcNAT},
			rules: []rule{
				r.rule("asked for on the way in", r.takeMark(), masquerade()),
				r.rule("a backend that is its own client", destinationTranslated(), r.toItself(), goTo("hairpin")),
			}},
	}
}

// secondLook is what the chains ...-again are for. A packet that comes while a transaction takes effect may meet
// new elements under old rules: it finds a chain that is still empty for it, or misses the slot that just went, and
// falls through. Rules are those of the moment at which the packet enters a base chain, so the second look has
// base chains of its own.
const secondLook = "a change came between two lookups"

func (r *ruleset) translate(comment string) []rule {
	return []rule{r.rule(comment, jump("nat-frontends"))}
}

// scope goes from the frontend to its set, from there to the set's shape, and on to the balancer.
//
// Shapes with affinity are in the map in two parts. First the one that remembers knows the client and leads him to his backend;
// if it does not, the one that chooses puts a backend into the memory, and then the first knows the client.
func (r *ruleset) scope(name string, vips, nodePorts, shapes setIndex) chain {
	part := func(mask uint32) []expr.Any {
		return []expr.Any{&expr.Bitwise{SourceRegister: reg(0), DestRegister: reg(0), Len: 4, Mask: appendNum(nil, mask), Xor: make([]byte, 4)}}
	}
	c := chain{name: name}
	for i, way := range []struct {
		comment string
		load    []expr.Any
		sets    setIndex
	}{{"service address", r.vip(10), vips}, {"NodePort", nodePort(10), nodePorts}} {
		for _, step := range []struct {
			comment string
			part    []expr.Any
		}{{"", nil}, {": a client who was here before", part(timePart)}, {": choose", part(sizePart)}, {": as chosen", part(timePart)}} {
			c.rules = append(c.rules, r.rule(way.comment+step.comment,
				keepMark(), way.load, r.number(way.sets, 10, 0), r.number(sSetShapes, 0, 0), step.part, r.vmap(shapes, 0)))
		}
		if i == 0 {
			c.rules = append(c.rules, r.noNodePort(vips))
		}
	}
	return c
}

// noNodePort ends a chain for what a frontend's address led there: a NodePort may have the number of its port.
func (r *ruleset) noNodePort(vips setIndex) rule {
	return r.rule("no NodePort", keepMark(), r.vip(10), r.isKey(vips, 10), goBack())
}

func (r *ruleset) masqThen(scope string) chain {
	return chain{name: scope + "-masq", rules: []rule{
		r.rule("the backend shall see this node", r.setMark()),
		r.rule("", goTo(scope)),
	}}
}

// classChains are the chains that a class needs of its own, with the verdicts that lead a packet of the class
// into the right chain: the first in the filter hooks, the second in the nat hooks.
func (r *ruleset) classChains(c class) (chains []chain, filter, nat elementVerdict) {
	if c.simple() {
		t := c.at(lb.Anywhere)
		switch {
		case t.balances():
			return nil, returns, elementVerdict{expr.VerdictGoto, t.chain()}
		case t == turnDrop:
			return nil, elementVerdict{kind: expr.VerdictDrop}, returns
		}
		return nil, elementVerdict{expr.VerdictGoto, t.chain()}, returns
	}
	if c.eighths() != 0 {
		chains = append(chains, chain{name: c.sourcesChain(), rules: r.sourceRules(c)})
	}
	filter, nat = returns, returns
	if rules := r.filterRules(c); len(rules) > 0 {
		name := "filter." + c.String()
		chains = append(chains, chain{name: name, rules: rules})
		filter = elementVerdict{expr.VerdictGoto, name}
	}
	if rules := r.natRules(c); len(rules) > 0 {
		name := "nat." + c.String()
		chains = append(chains, chain{name: name, rules: rules})
		nat = elementVerdict{expr.VerdictGoto, name}
	}
	return chains, filter, nat
}

// elementVerdict is the data of an element of a verdict map.
type elementVerdict struct {
	kind  expr.VerdictKind
	chain string
}

var returns = elementVerdict{kind: expr.VerdictReturn}

// froms are the kinds of sources with what matches them, in the order of routes. The detector may recognise
// nothing: then pods are anywhere.
func (r *ruleset) froms(c class, f func(t turn, match []expr.Any)) {
	if t := c.at(lb.Pods); t != turnNone {
		for _, m := range r.fromPods() {
			f(t, m)
		}
	}
	if t := c.at(lb.Host); t != turnNone {
		f(t, addressIsLocal(true))
	}
	f(c.at(lb.Anywhere), nil)
}

// filterRules refuse what the class refuses; what they let pass is for natRules.
func (r *ruleset) filterRules(c class) []rule {
	var rules []rule
	refuses := false
	if c.eighths() != 0 {
		rules, refuses = append(rules, r.rule("source ranges", jump(c.sourcesChain()))), true
	}
	r.froms(c, func(t turn, match []expr.Any) {
		switch t {
		case turnReject:
			rules, refuses = append(rules, r.rule("", match, goTo(turnReject.chain()))), true
		case turnDrop:
			rules, refuses = append(rules, r.rule("", match, dropIt())), true
		default:
			if match != nil {
				rules = append(rules, r.rule("", match, goBack()))
			}
		}
	})
	if !refuses {
		return nil
	}
	return rules
}

// sourceRules let pass whom one of the frontend's source ranges has, and drop all others. There is a rule for each length.
func (r *ruleset) sourceRules(c class) []rule {
	var rules []rule
	for _, n := range r.lengths(c.eighths()) {
		list := append(append(keepMark(), r.vip(10)...), r.number(sSourceLists, 10, 0)...)
		list = append(list, &expr.Bitwise{SourceRegister: reg(0), DestRegister: reg(0), Len: 4, Mask: appendNum(nil, ^uint32(n)), Xor: appendNum(nil, uint32(n))})
		rules = append(rules, r.rule(fmt.Sprintf("a range of %d bits", n), list, r.cut(r.saddr, n, 1), r.lookup(sSourceRanges, 0), goBack()))
	}
	return append(rules, r.rule("in no range", dropIt()))
}

// natRules send each kind of source to its set.
func (r *ruleset) natRules(c class) []rule {
	var rules []rule
	balances := false
	r.froms(c, func(t turn, match []expr.Any) {
		if t.balances() {
			rules, balances = append(rules, r.rule("", match, goTo(t.chain()))), true
		} else if match != nil {
			rules = append(rules, r.rule("", match, goBack()))
		}
	})
	if !balances {
		return nil
	}
	return rules
}

// balancer picks a backend of a set, or does one part of that where the set has affinity.
func (r *ruleset) balancer(s shape) chain {
	vips, nodePorts := sClusterSets, sNodePortClusterSets
	if s.scope == lb.Local {
		vips, nodePorts = sLocalSets, sNodePortLocalSets
	}
	var rules []rule
	for i, way := range []struct {
		comment string
		load    func(uint32) []expr.Any
		sets    setIndex
	}{{"service address", r.vip, vips}, {"NodePort", nodePort, nodePorts}} {
		if i > 0 {
			rules = append(rules, r.noNodePort(vips))
		}
		set := func(to uint32) []expr.Any {
			return slices.Concat(keepMark(), way.load(10), r.number(way.sets, 10, to))
		}
		switch {
		case s.seconds > 0:
			rules = append(rules, r.remember(s.seconds, set(1))...)
			continue
		case s.sticky:
			rules = append(rules, r.choose(s, set(1))...)
			continue
		}
		for _, n := range s.picks() {
			rules = append(rules, r.rule(way.comment, set(0), pickSlot(n, 1), r.mapTo(sBackends, 0, 10), r.dnat(10)))
		}
	}
	return chain{name: s.chain(), rules: rules}
}
