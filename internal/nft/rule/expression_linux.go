package rule

import (
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink"
	"kube-proxy/internal/nft/wire"
)

// Expression is one expression of a rule in the kernel: a value of the types below. Two rules with
// equal expressions do the same. An expression that this program cannot read is an [Unknown].
type Expression any

// Register is the offset of a register in the kernel's 80 bytes of registers. 0 is none: the first
// 16 bytes hold the verdict.
type Register int

// Registers is the size of all registers in bytes, with the verdict's.
const Registers = 80

// The expressions. Keys, operations and flags are those of linux/netfilter/nf_tables.h.
type (
	// Payload loads a part of a header; Base is NFT_PAYLOAD_*, Offset and Len are in bytes.
	Payload struct {
		To                Register
		Base, Offset, Len uint32
	}
	// PayloadSet writes a part of a header.
	PayloadSet struct {
		From              Register
		Base, Offset, Len uint32
	}
	// Meta loads a property of the packet (NFT_META_*), and MetaSet writes it.
	Meta struct {
		To  Register
		Key uint32
	}
	MetaSet struct {
		From Register
		Key  uint32
	}
	// Ct loads a property of the connection (NFT_CT_*), and CtSet writes it. Direction is
	// [EitherWay], or IP_CT_DIR_*.
	Ct struct {
		To        Register
		Key       uint32
		Direction int
	}
	CtSet struct {
		From      Register
		Key       uint32
		Direction int
	}
	// Fib loads a property of a route (NFT_FIB_RESULT_*); Flags are NFTA_FIB_F_*.
	Fib struct {
		To            Register
		Result, Flags uint32
	}
	// Socket loads a property of the packet's socket (NFT_SOCKET_*).
	Socket struct {
		To         Register
		Key, Level uint32
	}
	// Cmp compares registers with a value (NFT_CMP_*).
	Cmp struct {
		From  Register
		Op    uint32
		Value string
	}
	// Range compares registers with a range (NFT_RANGE_*), which includes its ends.
	Range struct {
		From      Register
		Op        uint32
		Low, High string
	}
	// Bitwise is NFT_BITWISE_*: masks and inverts bits, shifts by Data, or combines two registers.
	Bitwise struct {
		To, From, Second Register
		Len, Op          uint32
		Mask, Xor, Data  string
	}
	// Byteorder swaps the bytes of values of Size bytes (NFT_BYTEORDER_*).
	Byteorder struct {
		To, From      Register
		Op, Len, Size uint32
	}
	// Immediate loads a value.
	Immediate struct {
		To    Register
		Value string
	}
	// Ends gives a verdict.
	Ends struct{ Verdict wire.Verdict }
	// Lookup finds registers in a set. Maps: it loads the data into To; 0 takes the verdict.
	Lookup struct {
		From, To       Register
		Set            string
		Maps, Inverted bool
	}
	// Dynset writes an element to a set (NFT_DYNSET_OP_*). Timeout is in milliseconds. Limit names
	// an expression of the element that may end the rule; "" for none.
	Dynset struct {
		Set       string
		Op        uint32
		Key, Data Register
		Timeout   uint64
		Inverted  bool
		Limit     string
	}
	// Numgen loads a number below Modulus (NFT_NG_*), plus Offset.
	Numgen struct {
		To                    Register
		Type, Modulus, Offset uint32
	}
	// Hash loads a hash of registers below Modulus (NFT_HASH_*), plus Offset.
	Hash struct {
		To, From                         Register
		Len, Type, Modulus, Seed, Offset uint32
	}
	// NAT translates (NFT_NAT_*); registers are 0 for what is kept. Flags are NF_NAT_RANGE_*.
	NAT struct {
		Type, Family, Flags                uint32
		AddrMin, AddrMax, PortMin, PortMax Register
	}
	// Redirect translates to this node, and Masquerade to its address.
	Redirect struct {
		Flags            uint32
		PortMin, PortMax Register
	}
	Masquerading struct {
		Flags            uint32
		PortMin, PortMax Register
	}
	// Refuse rejects (NFT_REJECT_*).
	Refuse struct {
		Type uint32
		Code uint8
	}
	// Exthdr loads, or with From writes, an option of a header (NFT_EXTHDR_OP_*).
	Exthdr struct {
		To, From                     Register
		Op, Type, Offset, Len, Flags uint32
	}
	// Load loads another property, which is not evaluated: rt, osf, xfrm, tunnel.
	Load struct {
		To   Register
		Name string
		Key  uint32
	}
	// Limit is a rate: Rate packets, or bytes, in Unit seconds.
	Limit struct {
		Rate, Unit        uint64
		Burst, Type, Flag uint32
	}
	// Quota and Connlimit count bytes and connections.
	Quota     struct{ Bytes, Flags uint64 }
	Connlimit struct{ Count, Flags uint32 }
	// Object refers to a stateful object (NFT_OBJECT_*) by its name, or by a map.
	Object struct {
		Type      uint32
		Name, Set string
		From      Register
	}
	// Offload gives the connection to a flowtable.
	Offload struct{ Table string }
	// Untrack takes the packet out of conntrack.
	Untrack struct{}
	// Count, Log and Last change nothing.
	Count struct{}
	Log   struct {
		Prefix string
		Group  int // -1 for the kernel's log
	}
	Last struct{}
	// Takes gives the packet to another part of the kernel or to a program: queue, fwd, tproxy,
	// synproxy. Copies sends a copy of it: dup.
	Takes struct{ Name, Data string }
	Copy  struct{ Data string }
	// Xtables is a match or a target of iptables.
	Xtables struct {
		Target   bool
		Name     string
		Revision uint32
		Info     string
	}
	// Unknown is any other expression.
	Unknown struct{ Name, Data string }
)

// EitherWay is a direction that an expression does not give.
const EitherWay = -1

// BitwiseMask is NFT_BITWISE_MASK_XOR, HashJenkins NFT_HASH_JENKINS, and DynsetDelete
// NFT_DYNSET_OP_DELETE.
const (
	BitwiseMask  = 0
	HashJenkins  = 0
	DynsetDelete = 2
)

// registerOf returns the offset of a register.
func registerOf(b []byte) Register {
	switch r := int(netlink.BE32(b)); {
	case b == nil || r == 0:
		return 0
	case r <= unix.NFT_REG_4:
		return Register(r * 16)
	case r >= unix.NFT_REG32_00 && r <= unix.NFT_REG32_15:
		return Register(16 + 4*(r-unix.NFT_REG32_00))
	}
	return 0
}

// Expressions reads the expressions of a rule (NFTA_RULE_EXPRESSIONS), from the kernel or in a
// message to it.
func Expressions(list []byte) (all []Expression) {
	netlink.Attributes(list, func(_ uint16, x []byte) bool {
		all = append(all, expressionOf(netlink.CStr(netlink.Attribute(x, unix.NFTA_EXPR_NAME)),
			netlink.Attribute(x, unix.NFTA_EXPR_DATA)))
		return true
	})
	return all
}

// attributes are those of one expression.
type attributes []byte

func (a attributes) bytes(n uint16) []byte { return netlink.Attribute(a, n) }
func (a attributes) num(n uint16) uint32   { return netlink.BE32(a.bytes(n)) }
func (a attributes) long(n uint16) uint64  { return netlink.BE64(a.bytes(n)) }
func (a attributes) reg(n uint16) Register { return registerOf(a.bytes(n)) }

// regs reads the registers of the ends of a range. The kernel dumps what a request leaves out: the
// upper end is the lower one, and flag is set.
func (a attributes) regs(low, high uint16, flags *uint32, flag uint32) (lowest, highest Register) {
	lowest, highest = a.reg(low), a.reg(high)
	if lowest == 0 {
		return lowest, highest
	}
	*flags |= flag
	if highest == 0 {
		highest = lowest
	}
	return lowest, highest
}

func (a attributes) text(n uint16) string { return netlink.CStr(a.bytes(n)) }
func (a attributes) value(n uint16) string {
	return string(netlink.Attribute(a.bytes(n), unix.NFTA_DATA_VALUE))
}
func (a attributes) direction(n uint16) int {
	if d := a.bytes(n); len(d) > 0 {
		return int(d[0])
	}
	return EitherWay
}

// expressionOf reads one expression.
func expressionOf(name string, data []byte) Expression {
	a := attributes(data)
	switch name {
	case "payload":
		if from := a.reg(unix.NFTA_PAYLOAD_SREG); from != 0 {
			return PayloadSet{from, a.num(unix.NFTA_PAYLOAD_BASE), a.num(unix.NFTA_PAYLOAD_OFFSET),
				a.num(unix.NFTA_PAYLOAD_LEN)}
		}
		return Payload{a.reg(unix.NFTA_PAYLOAD_DREG), a.num(unix.NFTA_PAYLOAD_BASE), a.num(unix.NFTA_PAYLOAD_OFFSET),
			a.num(unix.NFTA_PAYLOAD_LEN)}
	case "meta":
		if from := a.reg(unix.NFTA_META_SREG); from != 0 {
			return MetaSet{from, a.num(unix.NFTA_META_KEY)}
		}
		return Meta{a.reg(unix.NFTA_META_DREG), a.num(unix.NFTA_META_KEY)}
	case "ct":
		if from := a.reg(unix.NFTA_CT_SREG); from != 0 {
			return CtSet{from, a.num(unix.NFTA_CT_KEY), a.direction(unix.NFTA_CT_DIRECTION)}
		}
		return Ct{a.reg(unix.NFTA_CT_DREG), a.num(unix.NFTA_CT_KEY), a.direction(unix.NFTA_CT_DIRECTION)}
	case "fib":
		return Fib{a.reg(unix.NFTA_FIB_DREG), a.num(unix.NFTA_FIB_RESULT), a.num(unix.NFTA_FIB_FLAGS)}
	case "socket":
		return Socket{a.reg(expr.NFTA_SOCKET_DREG), a.num(expr.NFTA_SOCKET_KEY), a.num(expr.NFTA_SOCKET_LEVEL)}
	case "cmp":
		return Cmp{a.reg(unix.NFTA_CMP_SREG), a.num(unix.NFTA_CMP_OP), a.value(unix.NFTA_CMP_DATA)}
	case "range":
		return Range{a.reg(unix.NFTA_RANGE_SREG), a.num(unix.NFTA_RANGE_OP), a.value(unix.NFTA_RANGE_FROM_DATA),
			a.value(unix.NFTA_RANGE_TO_DATA)}
	case "bitwise":
		return Bitwise{To: a.reg(unix.NFTA_BITWISE_DREG), From: a.reg(unix.NFTA_BITWISE_SREG),
			Second: a.reg(nftaBitwiseSecond), Len: a.num(unix.NFTA_BITWISE_LEN), Op: a.num(nftaBitwiseOp),
			Mask: a.value(unix.NFTA_BITWISE_MASK), Xor: a.value(unix.NFTA_BITWISE_XOR), Data: a.value(nftaBitwiseData)}
	case "byteorder":
		return Byteorder{a.reg(unix.NFTA_BYTEORDER_DREG), a.reg(unix.NFTA_BYTEORDER_SREG),
			a.num(unix.NFTA_BYTEORDER_OP), a.num(unix.NFTA_BYTEORDER_LEN), a.num(unix.NFTA_BYTEORDER_SIZE)}
	case "immediate":
		if to := a.reg(unix.NFTA_IMMEDIATE_DREG); to != 0 {
			return Immediate{to, a.value(unix.NFTA_IMMEDIATE_DATA)}
		}
		return Ends{wire.VerdictOf(a.bytes(unix.NFTA_IMMEDIATE_DATA))}
	case "lookup":
		return Lookup{From: a.reg(unix.NFTA_LOOKUP_SREG), To: a.reg(unix.NFTA_LOOKUP_DREG),
			Set: a.text(unix.NFTA_LOOKUP_SET), Maps: a.bytes(unix.NFTA_LOOKUP_DREG) != nil,
			Inverted: a.num(unix.NFTA_LOOKUP_FLAGS)&unix.NFT_LOOKUP_F_INV != 0}
	case "dynset":
		return Dynset{Set: a.text(unix.NFTA_DYNSET_SET_NAME), Op: a.num(unix.NFTA_DYNSET_OP),
			Key: a.reg(unix.NFTA_DYNSET_SREG_KEY), Data: a.reg(unix.NFTA_DYNSET_SREG_DATA),
			Timeout:  a.long(unix.NFTA_DYNSET_TIMEOUT),
			Inverted: a.num(unix.NFTA_DYNSET_FLAGS)&unix.NFT_DYNSET_F_INV != 0,
			Limit:    Limiting(a.bytes(unix.NFTA_DYNSET_EXPR), a.bytes(nftaDynsetExpressions))}
	case "numgen":
		return Numgen{a.reg(unix.NFTA_NG_DREG), a.num(unix.NFTA_NG_TYPE), a.num(unix.NFTA_NG_MODULUS),
			a.num(unix.NFTA_NG_OFFSET)}
	case "hash":
		return Hash{To: a.reg(unix.NFTA_HASH_DREG), From: a.reg(unix.NFTA_HASH_SREG), Len: a.num(unix.NFTA_HASH_LEN),
			Type: a.num(unix.NFTA_HASH_TYPE), Modulus: a.num(unix.NFTA_HASH_MODULUS),
			Seed: a.num(unix.NFTA_HASH_SEED), Offset: a.num(unix.NFTA_HASH_OFFSET)}
	}
	return statementOf(name, a)
}

const rangeOfAddresses, rangeOfPorts = 1, 2 // NF_NAT_RANGE_MAP_IPS, NF_NAT_RANGE_PROTO_SPECIFIED

// statementOf reads an expression that acts or counts.
func statementOf(name string, a attributes) Expression {
	switch name {
	case "nat":
		n := NAT{Type: a.num(unix.NFTA_NAT_TYPE), Family: a.num(unix.NFTA_NAT_FAMILY),
			Flags: a.num(unix.NFTA_NAT_FLAGS)}
		n.AddrMin, n.AddrMax = a.regs(unix.NFTA_NAT_REG_ADDR_MIN, unix.NFTA_NAT_REG_ADDR_MAX, &n.Flags,
			rangeOfAddresses)
		n.PortMin, n.PortMax = a.regs(unix.NFTA_NAT_REG_PROTO_MIN, unix.NFTA_NAT_REG_PROTO_MAX, &n.Flags, rangeOfPorts)
		return n
	case "redir":
		r := Redirect{Flags: a.num(unix.NFTA_REDIR_FLAGS)}
		r.PortMin, r.PortMax = a.regs(unix.NFTA_REDIR_REG_PROTO_MIN, unix.NFTA_REDIR_REG_PROTO_MAX, &r.Flags,
			rangeOfPorts)
		return r
	case "masq":
		m := Masquerading{Flags: a.num(unix.NFTA_MASQ_FLAGS)}
		m.PortMin, m.PortMax = a.regs(unix.NFTA_MASQ_REG_PROTO_MIN, unix.NFTA_MASQ_REG_PROTO_MAX, &m.Flags,
			rangeOfPorts)
		return m
	case "reject":
		r := Refuse{Type: a.num(unix.NFTA_REJECT_TYPE)}
		if c := a.bytes(unix.NFTA_REJECT_ICMP_CODE); len(c) > 0 && r.Type != unix.NFT_REJECT_TCP_RST {
			r.Code = c[0]
		}
		return r
	case "exthdr":
		x := Exthdr{To: a.reg(unix.NFTA_EXTHDR_DREG), From: a.reg(nftaExthdrSource), Op: a.num(nftaExthdrOp),
			Offset: a.num(unix.NFTA_EXTHDR_OFFSET), Len: a.num(unix.NFTA_EXTHDR_LEN), Flags: a.num(nftaExthdrFlags)}
		if t := a.bytes(unix.NFTA_EXTHDR_TYPE); len(t) > 0 {
			x.Type = uint32(t[0])
		}
		return x
	case "rt", "osf", "xfrm", "tunnel":
		to, key := uint16(1), uint16(2)
		if name == "tunnel" {
			to, key = 2, 1
		}
		return Load{a.reg(to), name, a.num(key)}
	case "limit":
		return Limit{a.long(unix.NFTA_LIMIT_RATE), a.long(unix.NFTA_LIMIT_UNIT), a.num(unix.NFTA_LIMIT_BURST),
			a.num(unix.NFTA_LIMIT_TYPE), a.num(unix.NFTA_LIMIT_FLAGS)}
	case "quota":
		return Quota{a.long(unix.NFTA_QUOTA_BYTES), uint64(a.num(unix.NFTA_QUOTA_FLAGS))}
	case "connlimit":
		return Connlimit{a.num(1), a.num(2)} // NFTA_CONNLIMIT_*
	case "objref":
		return Object{Type: a.num(unix.NFTA_OBJREF_IMM_TYPE), Name: a.text(unix.NFTA_OBJREF_IMM_NAME),
			From: a.reg(unix.NFTA_OBJREF_SET_SREG), Set: a.text(unix.NFTA_OBJREF_SET_NAME)}
	case "flow_offload":
		return Offload{a.text(1)} // NFTA_FLOW_TABLE_NAME
	case "notrack":
		return Untrack{}
	case "counter":
		return Count{}
	case "last":
		return Last{}
	case "log":
		l := Log{Prefix: a.text(unix.NFTA_LOG_PREFIX), Group: -1}
		if g := a.bytes(unix.NFTA_LOG_GROUP); len(g) == 2 {
			l.Group = int(netlink.BE16(g))
		}
		return l
	case "queue", "fwd", "tproxy", "synproxy":
		return Takes{name, string(a)}
	case "dup":
		return Copy{string(a)}
	case "match", "target":
		return Xtables{name == "target", a.text(unix.NFTA_MATCH_NAME), a.num(unix.NFTA_MATCH_REV),
			string(a.bytes(unix.NFTA_MATCH_INFO))}
	}
	return Unknown{name, string(a)}
}

// Attributes that golang.org/x/sys does not have.
const (
	nftaBitwiseOp, nftaBitwiseData, nftaBitwiseSecond = 6, 7, 8
	nftaDynsetExpressions                             = 10 // since Linux 5.11
	nftaExthdrFlags, nftaExthdrOp, nftaExthdrSource   = 5, 6, 7
)

// Limiting returns the name of the expression of an element that may end a rule, "" for none: one
// is NFTA_DYNSET_EXPR or NFTA_SET_ELEM_EXPR, more are the list that newer kernels have beside it.
func Limiting(one, more []byte) (name string) {
	look := func(_ uint16, x []byte) bool {
		n := netlink.CStr(netlink.Attribute(x, unix.NFTA_EXPR_NAME))
		if n != "" && !Idle(expressionOf(n, netlink.Attribute(x, unix.NFTA_EXPR_DATA))) {
			name = n
		}
		return name == ""
	}
	look(0, one)
	netlink.Attributes(more, look)
	return name
}

// Idle reports whether an expression only counts or logs.
func Idle(x Expression) bool {
	switch x.(type) {
	case Count, Log, Last:
		return true
	}
	return false
}

// Does reports whether two lists of expressions do the same.
func Does(a, b []Expression) bool {
	acts := func(all []Expression) []Expression { return slices.DeleteFunc(slices.Clone(all), Idle) }
	return slices.Equal(acts(a), acts(b))
}
