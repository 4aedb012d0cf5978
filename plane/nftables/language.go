package nftables

import (
	"bytes"
	"fmt"
	"math/bits"
	"net/netip"
	"strings"

	nft "github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"kube-proxy/lb"
)

// speaker says the expressions of one rule in the language of nft(8), in which there are no registers. Most of what
// a register holds, such as ip daddr, can be said where it is used. Not so the answer of a map that is part of the
// key of another: the language allows a map nowhere but at the end. So such a number is put aside first, in a place
// that the language has a name for:
//
//	ct mark        class numbers and set ids
//	meta priority  members
//
// Each has the type that the number has in the maps, see schema. Neither is looked at by any rule of ours but the
// one that wrote it. The plane's own rules leave both alone.
type speaker struct {
	*ruleset
	regs map[uint32]*value // by number of the 32-bit register in which the value begins
	mark *value            // the packet's mark
	said *value            // the mark that what was said so far leaves in the packet
	held map[string]*value // by place
	out  []string
	err  error
}

// value is what a register holds.
type value struct {
	text      string // a selector, or "key map @set" if set is not nil
	set       *setDef
	mask, xor []byte // what bitwise did to it, or nil
	place     string // where the answer of a map has been put aside
	used      bool
}

// say returns the rule without its comment. The error names what the language cannot say.
func (r *ruleset) say(ru rule) (string, error) {
	own := &value{text: "meta mark"}
	s := &speaker{ruleset: r, regs: map[uint32]*value{}, mark: own, said: own, held: map[string]*value{}}
	for _, x := range ru.parts {
		s.one(x)
	}
	s.sayMark()
	for _, v := range s.regs {
		if v.set != nil && !v.used {
			s.mistake("the answer of %q is not used", v.text)
		}
	}
	return strings.Join(s.out, " "), s.err
}

// mistake is one in the rules or in what speaker knows of them.
func (s *speaker) mistake(format string, args ...any) {
	panic("plane/nftables: cannot say " + fmt.Sprintf(format, args...))
}

func (s *speaker) emit(format string, args ...any) {
	s.out = append(s.out, fmt.Sprintf(format, args...))
}

func (s *speaker) one(x expr.Any) {
	switch x := x.(type) {
	case *expr.Meta:
		s.meta(x)
	case *expr.Payload:
		s.load(x.DestRegister, s.payload(x))
	case *expr.Ct:
		s.ct(x)
	case *original:
		s.original(x)
	case *expr.Fib:
		side := "daddr"
		if x.FlagSADDR {
			side = "saddr"
		}
		s.load(x.Register, "fib "+side+" type")
	case *expr.Numgen:
		if x.Type != unix.NFT_NG_RANDOM || x.Offset != 0 {
			s.mistake("numgen type %d offset %d", x.Type, x.Offset)
		}
		s.load(x.Register, fmt.Sprintf("numgen random mod %d", x.Modulus))
	case *expr.Hash:
		if x.Type != expr.HashTypeJenkins || x.Offset != 0 || x.Length != uint32(s.addrLen) {
			s.mistake("hash type %d offset %d", x.Type, x.Offset)
		}
		s.load(x.DestRegister, fmt.Sprintf("jhash %s mod %d seed 0x%x", s.value(x.SourceRegister).text, x.Modulus, x.Seed))
	case *expr.Bitwise:
		v := *s.value(x.SourceRegister)
		if v.mask != nil {
			s.mistake("bitwise of %q", v.text)
		}
		if v.set != nil {
			v = value{text: s.aside(s.value(x.SourceRegister))}
		}
		v.mask, v.xor = x.Mask, x.Xor
		s.regs[x.DestRegister] = &v
	case *expr.Cmp:
		s.compare(x)
	case *expr.Lookup:
		s.lookup(x)
	case *expr.Dynset:
		s.dynset(x)
	default:
		s.final(x)
	}
}

func (s *speaker) ct(x *expr.Ct) {
	names := map[expr.CtKey]string{expr.CtKeySTATE: "ct state", expr.CtKeySTATUS: "ct status"}
	if names[x.Key] == "" || x.SourceRegister {
		s.mistake("ct key %d", x.Key)
	}
	s.load(x.Register, names[x.Key])
}

func (s *speaker) original(x *original) {
	switch x.Key {
	case s.ctDaddr:
		s.load(x.Register, "ct original "+s.ip()+" daddr")
	case expr.CtKeyPROTODST:
		s.havePorts()
		s.load(x.Register, "ct original proto-dst")
	default:
		s.mistake("ct original key %d", x.Key)
	}
}

// havePorts says a match of those protocols that have ports: the language wants it before it speaks of a port of which it
// does not know the protocol. All frontends are of these.
func (s *speaker) havePorts() { s.emit("meta l4proto { tcp, udp, sctp }") }

func (s *speaker) load(register uint32, text string) { s.regs[register] = &value{text: text} }

func (s *speaker) value(register uint32) *value {
	v := s.regs[register]
	if v == nil {
		s.mistake("what register %d holds", register)
	}
	return v
}

// meta follows the packet's mark, which rules change for a moment to look up numbers (see [ruleset.number]): what
// counts is the mark that remains.
func (s *speaker) meta(x *expr.Meta) {
	switch {
	case x.Key == expr.MetaKeyMARK && x.SourceRegister:
		s.mark = s.value(x.Register)
	case x.Key == expr.MetaKeyMARK:
		s.regs[x.Register] = s.mark
	case x.Key == expr.MetaKeyL4PROTO && !x.SourceRegister:
		s.load(x.Register, "meta l4proto")
	case x.Key == expr.MetaKeyIIFNAME && !x.SourceRegister:
		s.load(x.Register, "iifname")
	default:
		s.mistake("meta key %d", x.Key)
	}
}

// sayMark says which mark the packet gets, if it is another than before.
func (s *speaker) sayMark() {
	if s.mark == s.said {
		return
	}
	v := s.mark
	if v.text != "meta mark" || len(v.mask) != 4 {
		s.mistake("that the mark becomes %q", v.text)
	}
	mask, xor := order.Uint32(v.mask), order.Uint32(v.xor)
	switch {
	case mask == ^xor:
		s.emit("meta mark set meta mark | 0x%08x", xor)
	case mask == ^uint32(0):
		s.emit("meta mark set meta mark ^ 0x%08x", xor)
	default:
		s.mistake("mark & %#x ^ %#x", mask, xor)
	}
	s.said = v
}

func (s *speaker) payload(x *expr.Payload) string {
	ip := s.ip()
	switch {
	case x.Base == expr.PayloadBaseNetworkHeader && x.Offset == s.saddr && x.Len == uint32(s.addrLen):
		return ip + " saddr"
	case x.Base == expr.PayloadBaseNetworkHeader && x.Offset == s.daddr && x.Len == uint32(s.addrLen):
		return ip + " daddr"
	case x.Base == expr.PayloadBaseTransportHeader && x.Offset == 2 && x.Len == 2:
		return "th dport"
	case x.Base == expr.PayloadBaseNetworkHeader && x.Len == 1:
		return fmt.Sprintf("@nh,%d,8", 8*x.Offset)
	}
	s.mistake("payload %d+%d of header %d", x.Offset, x.Len, x.Base)
	return ""
}

// compare says a match.
func (s *speaker) compare(x *expr.Cmp) {
	v := s.value(x.Register)
	not := ""
	if x.Op == expr.CmpOpNeq {
		not = "!= "
	} else if x.Op != expr.CmpOpEq {
		s.mistake("operator %d", x.Op)
	}
	zero := bytes.Count(x.Data, []byte{0}) == len(x.Data)
	switch {
	case v.set != nil:
		if not == "" || !zero {
			s.mistake("a match of the answer of %q with %x", v.text, x.Data)
		}
		s.emit("%s != 0x00000000", s.aside(v))
	case v == s.mark || v.text == "meta mark":
		if v.mask == nil || not == "" || !zero {
			s.mistake("a match of the mark with %x", x.Data)
		}
		s.emit("meta mark & 0x%08x != 0x00000000", order.Uint32(v.mask))
	case v.text == "ct state":
		if v.mask == nil || not == "" || !zero || order.Uint32(v.mask) != expr.CtStateBitNEW {
			s.mistake("a match of ct state with %x", v.mask)
		}
		s.emit("ct state new")
	case v.text == "ct status":
		if v.mask == nil || not == "" || !zero || order.Uint32(v.mask) != statusDstNAT {
			s.mistake("a match of ct status with %x", v.mask)
		}
		s.emit("ct status dnat")
	case strings.HasPrefix(v.text, "fib "):
		if order.Uint32(x.Data) != unix.RTN_LOCAL {
			s.mistake("address type %x", x.Data)
		}
		s.emit("%s %slocal", v.text, not)
	case v.text == "iifname":
		s.emit("iifname %s%s", not, s.interfaces(x.Data))
	case v.text == "meta l4proto" && len(x.Data) == 1:
		s.emit("meta l4proto %s%v", not, lb.Proto(x.Data[0]))
	case len(x.Data) == s.addrLen:
		a, _ := netip.AddrFromSlice(x.Data)
		s.emit("%s %s%s", v.text, not, prefixText(a, v.mask))
	default:
		s.mistake("a match of %q", v.text)
	}
}

func prefixText(a netip.Addr, mask []byte) string {
	if mask == nil {
		return a.String()
	}
	n := 0
	for _, b := range mask {
		n += bits.OnesCount8(b)
	}
	return netip.PrefixFrom(a, n).String()
}

// interfaces says the name of one interface, or of all that begin so.
func (s *speaker) interfaces(name []byte) string {
	text := string(bytes.TrimRight(name, "\x00"))
	if strings.ContainsAny(text, "\"\\*") || strings.ContainsFunc(text, unprintable) {
		s.err = fmt.Errorf("interface name %q has characters that the language of nft cannot say", text)
		return `""`
	}
	if len(name) < unix.IFNAMSIZ {
		text += "*"
	}
	return `"` + text + `"`
}

// key says the key of a set whose parts begin in a register.
func (s *speaker) key(d *setDef, register uint32) string {
	var parts []string
	for _, f := range d.key {
		parts = append(parts, s.part(register))
		register += uint32(f.size+3) / 4
	}
	return strings.Join(parts, " . ")
}

// part says one part of a key, or of data. The answer of a map is put aside for it.
func (s *speaker) part(register uint32) string {
	v := s.value(register)
	switch {
	case len(v.mask) == s.addrLen && strings.HasSuffix(v.text, "addr"):
		a, _ := netip.AddrFromSlice(v.mask)
		return v.text + " & " + a.String()
	case len(v.mask) == 4 && order.Uint32(v.mask) == ^order.Uint32(v.xor):
		return fmt.Sprintf("%s | 0x%08x", v.text, order.Uint32(v.xor))
	case len(v.mask) == 4 && order.Uint32(v.xor) == 0:
		return fmt.Sprintf("%s & 0x%08x", v.text, order.Uint32(v.mask))
	case v.mask != nil:
		s.mistake("a key of %q with a mask", v.text)
	}
	if v.set == nil {
		return v.text
	}
	return s.aside(v)
}

// aside puts the answer of a map aside, and returns the place.
func (s *speaker) aside(v *value) string {
	v.used = true
	if v.place == "" {
		if len(v.set.data) != 1 {
			s.mistake("where to put the answer of %q", v.text)
		}
		v.place = "ct mark"
		if v.set.data[0].typ.Name == nft.TypeClassID.Name {
			v.place = "meta priority"
		}
		s.emit("%s set %s", v.place, v.text)
		s.held[v.place] = v
	}
	if s.held[v.place] != v {
		s.mistake("what %s held before", v.place)
	}
	return v.place
}

func (s *speaker) def(name string) *setDef {
	for i := range s.sets {
		if s.sets[i].name == name {
			return &s.sets[i]
		}
	}
	s.mistake("set %q", name)
	return nil
}

func (s *speaker) lookup(x *expr.Lookup) {
	d := s.def(x.SetName)
	key := s.key(d, x.SourceRegister)
	switch {
	case d.verdict:
		s.sayMark()
		s.emit("%s vmap @%s", key, d.name)
	case x.IsDestRegSet:
		s.regs[x.DestRegister] = &value{text: key + " map @" + d.name, set: d}
	case x.Invert:
		s.emit("%s != @%s", key, d.name)
	default:
		s.emit("%s @%s", key, d.name)
	}
}

func (s *speaker) dynset(x *expr.Dynset) {
	d := s.def(x.SetName)
	verb, ok := map[uint32]string{unix.NFT_DYNSET_OP_UPDATE: "update", dynsetDelete: "delete"}[x.Operation]
	if !ok || x.Invert || len(x.Exprs) > 0 {
		s.mistake("a change of %s by operation %d", d.name, x.Operation)
	}
	key, data := s.key(d, x.SrcRegKey), s.part(x.SrcRegData)
	s.sayMark()
	s.emit("%s @%s { %s timeout %ds : %s }", verb, d.name, key, int(x.Timeout.Seconds()), data)
}

// final says what ends a rule.
func (s *speaker) final(x expr.Any) {
	s.sayMark()
	switch x := x.(type) {
	case *expr.NAT:
		to := s.value(x.RegAddrMin)
		if x.Type != expr.NATTypeDestNAT || to.set == nil || len(to.set.data) != 2 || x.RegProtoMin != x.RegAddrMin+s.addrRegs {
			s.mistake("a translation to %q", to.text)
		}
		to.used = true
		s.havePorts()
		s.emit("dnat %s to %s", s.ip(), to.text)
	case *expr.Masq:
		if *x != (expr.Masq{FullyRandom: true}) {
			s.mistake("%+v", *x)
		}
		s.emit("masquerade fully-random")
	case *expr.Reject:
		if x.Type == unix.NFT_REJECT_TCP_RST {
			s.emit("reject with tcp reset")
			break
		}
		if *x != *s.reject()[0].(*expr.Reject) {
			s.mistake("%+v", *x)
		}
		icmp := "icmp"
		if s.addrLen == 16 {
			icmp = "icmpv6"
		}
		s.emit("reject with %s port-unreachable", icmp)
	case *expr.Verdict:
		s.emit("%s", elementVerdict{x.Kind, x.Chain})
	default:
		s.mistake("%T", x)
	}
}

// String says the verdict as the nft program does.
func (v elementVerdict) String() string {
	switch v.kind {
	case expr.VerdictDrop:
		return "drop"
	case expr.VerdictReturn:
		return "return"
	case expr.VerdictJump:
		return "jump " + v.chain
	case expr.VerdictGoto:
		return "goto " + v.chain
	}
	return fmt.Sprintf("verdict %d %s", v.kind, v.chain)
}

func (f family) ip() string {
	if f.addrLen == 16 {
		return "ip6"
	}
	return "ip"
}
