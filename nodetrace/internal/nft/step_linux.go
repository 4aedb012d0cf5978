package nft

import (
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	nlconn "kube-proxy/internal/netlink"
	"kube-proxy/internal/nft/wire"
)

// Step is one expression of a rule, reduced to its effect. Two rules with equal steps do the same.
type Step struct {
	name string
	// to, from and second are registers, as the number of their first byte; 0 means no register,
	// because those bytes hold the verdict.
	to, from, second int
	// key selects the operand or operation: the key of meta and ct, the base of payload, the
	// operation of cmp, range and dynset, the type of nat, numgen and hash, the result of fib, the
	// kind of reject.
	key                   uint32
	offset, length, flags uint32
	modulus, seed         uint32
	// value is the operand of a comparison, mask and xor are those of bitwise, or the ends of a
	// range.
	value, mask, xor string
	set              string
	lookup           bool // the result of set goes to a register
	inverted         bool
	verdict          wire.Verdict
	timeout          uint64 // milliseconds
}

// registers is the number of bytes in the kernel's registers, including the verdict's, which come
// first.
const registers = 80

// register returns the offset of a register.
func register(b []byte) int {
	switch r := int(nlconn.BE32(b)); {
	case b == nil || r == 0:
		return 0
	case r <= unix.NFT_REG_4:
		return r * 16
	case r >= unix.NFT_REG32_00 && r <= unix.NFT_REG32_15:
		return 16 + 4*(r-unix.NFT_REG32_00)
	}
	return 0
}

// Steps reads the expressions of a rule (NFTA_RULE_EXPRESSIONS), from the kernel or in a message to
// it.
func Steps(expressions []byte) (all []Step) {
	nlconn.Attributes(expressions, func(_ uint16, x []byte) bool {
		if name := nlconn.CStr(nlconn.Attribute(x, unix.NFTA_EXPR_NAME)); !idle[name] {
			all = append(all, stepOf(name, nlconn.Attribute(x, unix.NFTA_EXPR_DATA)))
		}
		return true
	})
	return all
}

// idle expressions count or log, and change nothing for the packet.
var idle = map[string]bool{"counter": true, "log": true, "last": true}

func stepOf(name string, d []byte) Step {
	s := Step{name: name}
	attr := func(n uint16) []byte { return nlconn.Attribute(d, n) }
	num := func(n uint16) uint32 { return nlconn.BE32(attr(n)) }
	value := func(n uint16) string { return string(nlconn.Attribute(attr(n), unix.NFTA_DATA_VALUE)) }
	switch name {
	case "payload":
		s.to, s.from, s.key = register(attr(unix.NFTA_PAYLOAD_DREG)), register(attr(unix.NFTA_PAYLOAD_SREG)),
			num(unix.NFTA_PAYLOAD_BASE)
		s.offset, s.length = num(unix.NFTA_PAYLOAD_OFFSET), num(unix.NFTA_PAYLOAD_LEN)
	case "meta":
		s.to, s.from, s.key = register(attr(unix.NFTA_META_DREG)), register(attr(unix.NFTA_META_SREG)),
			num(unix.NFTA_META_KEY)
	case "ct":
		s.to, s.from, s.key = register(attr(unix.NFTA_CT_DREG)), register(attr(unix.NFTA_CT_SREG)),
			num(unix.NFTA_CT_KEY)
		if dir := attr(unix.NFTA_CT_DIRECTION); len(dir) > 0 {
			s.flags = 1 + uint32(dir[0])
		}
	case "fib":
		s.to, s.key, s.flags = register(attr(unix.NFTA_FIB_DREG)), num(unix.NFTA_FIB_RESULT), num(unix.NFTA_FIB_FLAGS)
	case "socket":
		s.to, s.key = register(attr(expr.NFTA_SOCKET_DREG)), num(expr.NFTA_SOCKET_KEY)
	case "cmp":
		s.from, s.key, s.value = register(attr(unix.NFTA_CMP_SREG)), num(unix.NFTA_CMP_OP), value(unix.NFTA_CMP_DATA)
	case "range":
		s.from, s.key = register(attr(unix.NFTA_RANGE_SREG)), num(unix.NFTA_RANGE_OP)
		s.mask, s.xor = value(unix.NFTA_RANGE_FROM_DATA), value(unix.NFTA_RANGE_TO_DATA)
	case "bitwise":
		s.to, s.from, s.length = register(attr(unix.NFTA_BITWISE_DREG)), register(attr(unix.NFTA_BITWISE_SREG)),
			num(unix.NFTA_BITWISE_LEN)
		s.key, s.mask, s.xor = num(nftaBitwiseOp), value(unix.NFTA_BITWISE_MASK), value(unix.NFTA_BITWISE_XOR)
	case "lookup":
		s.from, s.set = register(attr(unix.NFTA_LOOKUP_SREG)), nlconn.CStr(attr(unix.NFTA_LOOKUP_SET))
		s.to, s.lookup = register(attr(unix.NFTA_LOOKUP_DREG)), attr(unix.NFTA_LOOKUP_DREG) != nil
		s.inverted = num(unix.NFTA_LOOKUP_FLAGS)&unix.NFT_LOOKUP_F_INV != 0
	case "immediate":
		s.to, s.value = register(attr(unix.NFTA_IMMEDIATE_DREG)), value(unix.NFTA_IMMEDIATE_DATA)
		if s.to == 0 {
			s.verdict = wire.VerdictOf(attr(unix.NFTA_IMMEDIATE_DATA))
		}
	case "numgen":
		s.to, s.modulus, s.offset = register(attr(unix.NFTA_NG_DREG)), num(unix.NFTA_NG_MODULUS),
			num(unix.NFTA_NG_OFFSET)
		s.key = num(unix.NFTA_NG_TYPE)
	case "hash":
		s.to, s.from, s.length = register(attr(unix.NFTA_HASH_DREG)), register(attr(unix.NFTA_HASH_SREG)),
			num(unix.NFTA_HASH_LEN)
		s.modulus, s.seed, s.offset, s.key = num(unix.NFTA_HASH_MODULUS), num(unix.NFTA_HASH_SEED),
			num(unix.NFTA_HASH_OFFSET), num(unix.NFTA_HASH_TYPE)
	case "dynset":
		s.set, s.key = nlconn.CStr(attr(unix.NFTA_DYNSET_SET_NAME)), num(unix.NFTA_DYNSET_OP)
		s.from, s.second = register(attr(unix.NFTA_DYNSET_SREG_KEY)), register(attr(unix.NFTA_DYNSET_SREG_DATA))
		if t := attr(unix.NFTA_DYNSET_TIMEOUT); len(t) == 8 {
			s.timeout = uint64(nlconn.BE32(t))<<32 | uint64(nlconn.BE32(t[4:]))
		}
		s.inverted = num(unix.NFTA_DYNSET_FLAGS)&unix.NFT_DYNSET_F_INV != 0
		s.value = limits(attr(unix.NFTA_DYNSET_EXPR), attr(nftaDynsetExpressions))
	case "nat":
		s.key, s.flags = num(unix.NFTA_NAT_TYPE), num(unix.NFTA_NAT_FAMILY)
		s.from, s.second = register(attr(unix.NFTA_NAT_REG_ADDR_MIN)), register(attr(unix.NFTA_NAT_REG_PROTO_MIN))
	case "redir":
		s.second = register(attr(unix.NFTA_REDIR_REG_PROTO_MIN))
	case "masq":
		s.flags = num(unix.NFTA_MASQ_FLAGS)
	case "reject":
		s.key = num(unix.NFTA_REJECT_TYPE)
		if c := attr(unix.NFTA_REJECT_ICMP_CODE); len(c) > 0 && s.key != unix.NFT_REJECT_TCP_RST {
			s.flags = uint32(c[0])
		}
	case "byteorder":
		s.to, s.from = register(attr(unix.NFTA_BYTEORDER_DREG)), register(attr(unix.NFTA_BYTEORDER_SREG))
		s.length, s.offset = num(unix.NFTA_BYTEORDER_LEN), num(unix.NFTA_BYTEORDER_SIZE)
	case "exthdr", "osf", "rt", "xfrm": // they load into register 1 of their attributes
		s.to, s.length, s.value = register(attr(1)), 16, string(d)
	case "objref":
		s.key, s.value = num(unix.NFTA_OBJREF_IMM_TYPE), string(d)
	default:
		s.value = string(d) // distinguishes it from others of that name
	}
	return s
}

// limits returns the name of the expression of a dynamic element that may end the rule, or "".
func limits(one, more []byte) (name string) {
	look := func(_ uint16, x []byte) bool {
		if n := nlconn.CStr(nlconn.Attribute(x, unix.NFTA_EXPR_NAME)); n != "" && !idle[n] {
			name = n
		}
		return name == ""
	}
	look(0, one)
	nlconn.Attributes(more, look)
	return name
}

// nftaDynsetExpressions is NFTA_DYNSET_EXPRESSIONS, since Linux 5.11.
const nftaDynsetExpressions = 10

// nftaBitwiseOp is NFTA_BITWISE_OP, which is 0 in our rules.
const nftaBitwiseOp = 6
