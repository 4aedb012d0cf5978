package rule

import (
	"fmt"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"kube-proxy/internal/nft/wire"
)

// Operand is a value that statements use: a part of the packet, a random number, or a variable.
type Operand struct {
	text string
	load loader // nil if it already is in its register
	reg  uint32 // of a variable, else 0
}

// loader appends the expressions that put an operand into a register.
type loader func(x []expr.Any, to uint32) []expr.Any

// Variables are numbers that the rule has looked up. The kernel has them in registers, which nft's
// language cannot name; its text keeps them in ct mark and meta priority, which no other rule
// reads. The maps give each number the type of its place.
//
// The parts of a key are in adjacent registers. So a member comes before the id of its set, and
// that before a slot or client.
var (
	Number = Operand{text: "ct mark", reg: scratch}
	Member = Operand{text: "meta priority", reg: scratch}
	SetID  = Operand{text: "ct mark", reg: scratch + 1}
)

// Registers, of 32 bits each.
const (
	scratch  = unix.NFT_REG32_00
	address  = scratch + 1  // to 4: the result of [LookAddress]
	port     = scratch + 5  // the result of [LookPort]
	keptMark = scratch + 9  // the packet's own mark, while Find uses the mark
	freshKey = scratch + 10 // keys that do not begin with a variable, and backends
)

// The parts of a packet and its connection that rules read.
var (
	PacketMark  = metadata("meta mark", expr.MetaKeyMARK)
	L4Proto     = metadata("meta l4proto", expr.MetaKeyL4PROTO)
	NFProto     = metadata("meta nfproto", expr.MetaKeyNFPROTO)
	inputName   = metadata("iifname", expr.MetaKeyIIFNAME)
	inputType   = metadata("iiftype", expr.MetaKeyIIFTYPE)
	ctState     = connection("ct state", expr.CtKeySTATE)
	ctStatus    = connection("ct status", expr.CtKeySTATUS)
	ctDirection = connection("ct direction", expr.CtKeyDIRECTION)
	transparent = single("socket transparent", func(to uint32) expr.Any {
		return &expr.Socket{Key: expr.SocketKeyTransparent, Register: to}
	})
	DPort        = payload("th dport", expr.PayloadBaseTransportHeader, 2, 2)
	OriginalPort = originally("ct original proto-dst", expr.CtKeyPROTODST)
)

// NodePort is the key of a packet to a NodePort.
var NodePort = []Operand{L4Proto, DPort}

// VIP returns the key of a packet to a service address.
func (ip IP) VIP() []Operand { return []Operand{ip.Destination(), L4Proto, DPort} }

// Source is the packet's source address, Destination its destination.
func (ip IP) Source() Operand      { return ip.address(" saddr", ip.saddr) }
func (ip IP) Destination() Operand { return ip.address(" daddr", ip.daddr) }

func (ip IP) address(name string, offset uint32) Operand {
	return payload(ip.Name()+name, expr.PayloadBaseNetworkHeader, offset, uint32(ip.AddrLen))
}

// OriginalDestination returns the destination of the connection's first packet, before any
// translation.
func (ip IP) OriginalDestination() Operand {
	return originally("ct original "+ip.Name()+" daddr", ip.ctDaddr)
}

// Client returns the source of the connection's first packet and its port.
func (ip IP) Client() []Operand {
	return []Operand{originally("ct original "+ip.Name()+" saddr", ip.ctSaddr),
		originally("ct original proto-src", expr.CtKeyPROTOSRC)}
}

// Endpoint returns the source of the connection's replies and its port: its destination after all
// translations. Unlike the packet's own destination, it is known before IPVS translates.
func (ip IP) Endpoint() []Operand {
	return []Operand{directed("ct reply "+ip.Name()+" saddr", ip.ctSaddr, reply),
		directed("ct reply proto-src", expr.CtKeyPROTOSRC, reply)}
}

// reply is IP_CT_DIR_REPLY.
const reply = 1

// sourceType and destinationType read whether an address belongs to this machine.
var (
	sourceType = single("fib saddr type", func(to uint32) expr.Any {
		return &expr.Fib{Register: to, ResultADDRTYPE: true, FlagSADDR: true}
	})
	destinationType = single("fib daddr type", func(to uint32) expr.Any {
		return &expr.Fib{Register: to, ResultADDRTYPE: true, FlagDADDR: true}
	})
)

// Random returns a random number below n.
func Random(n uint32) Operand {
	return single(fmt.Sprintf("numgen random mod %d", n), func(to uint32) expr.Any {
		return &expr.Numgen{Register: to, Modulus: n, Type: unix.NFT_NG_RANDOM}
	})
}

// Hash returns a number below n that depends on the client's address and the seed.
func (ip IP) Hash(n, seed uint32) Operand {
	client := ip.Source()
	return Operand{text: fmt.Sprintf("jhash %s mod %d seed 0x%x", client.text, n, seed),
		load: func(x []expr.Any, to uint32) []expr.Any {
			return append(client.load(x, freshKey), &expr.Hash{SourceRegister: freshKey, DestRegister: to,
				Length: uint32(ip.AddrLen), Modulus: n, Seed: seed, Type: expr.HashTypeJenkins})
		}}
}

func single(text string, load func(to uint32) expr.Any) Operand {
	return Operand{text: text, load: func(x []expr.Any, to uint32) []expr.Any { return append(x, load(to)) }}
}

func metadata(text string, key expr.MetaKey) Operand {
	return single(text, func(to uint32) expr.Any { return &expr.Meta{Key: key, Register: to} })
}

func connection(text string, key expr.CtKey) Operand {
	return single(text, func(to uint32) expr.Any { return &expr.Ct{Key: key, Register: to} })
}

func payload(text string, header expr.PayloadBase, offset, n uint32) Operand {
	return single(text, func(to uint32) expr.Any {
		return &expr.Payload{DestRegister: to, Base: header, Offset: offset, Len: n}
	})
}

func originally(text string, key expr.CtKey) Operand { return directed(text, key, 0) }

// directed returns a part of the connection's tuple in a direction, IP_CT_DIR_*.
func directed(text string, key expr.CtKey, direction byte) Operand {
	return single(text, func(to uint32) expr.Any { return &directedCt{expr.Ct{Key: key, Register: to}, direction} })
}

// directedCt is a part of a connection's tuple. The library omits the direction of such a key.
type directedCt struct {
	expr.Ct
	direction byte
}

func (o *directedCt) encode(e *wire.Encoder) {
	e.Str(unix.NFTA_EXPR_NAME, "ct")
	at := e.Nest(unix.NFTA_EXPR_DATA)
	e.U32(unix.NFTA_CT_KEY, uint32(o.Key))
	e.U32(unix.NFTA_CT_DREG, o.Register)
	e.Bytes(unix.NFTA_CT_DIRECTION, []byte{o.direction})
	e.EndNest(at)
}

// Loaded returns the operand in the place where the previous statement left it.
func (o Operand) Loaded() Operand { o.load = nil; return o }

// And, Or and Xor return the operand with changed bits.
func (o Operand) And(mask uint32) Operand {
	return o.bitwise(fmt.Sprintf("%s & 0x%08x", o.text, mask), wire.AppendNumber(nil, mask), make([]byte, 4))
}

func (o Operand) Or(bits uint32) Operand {
	return o.bitwise(fmt.Sprintf("%s | 0x%08x", o.text, bits), wire.AppendNumber(nil, ^bits),
		wire.AppendNumber(nil, bits))
}

func (o Operand) Xor(bits uint32) Operand {
	return o.bitwise(fmt.Sprintf("%s ^ 0x%08x", o.text, bits), wire.AppendNumber(nil, ^uint32(0)),
		wire.AppendNumber(nil, bits))
}

// FirstBits returns an address with only its first n bits.
func (o Operand) FirstBits(n int, ip IP) Operand {
	if n == 8*ip.AddrLen {
		return o
	}
	mask := make([]byte, ip.AddrLen)
	for i := range n {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return o.bitwise(o.text+" & "+wire.ParseAddr(mask).String(), mask, make([]byte, ip.AddrLen))
}

// bitwise returns the operand & mask ^ xor. It changes a variable in its register.
func (o Operand) bitwise(text string, mask, xor []byte) Operand {
	return Operand{text: text, reg: o.reg, load: func(x []expr.Any, to uint32) []expr.Any {
		return append(o.loadTo(x, to), &expr.Bitwise{SourceRegister: to, DestRegister: to, Len: uint32(len(mask)),
			Mask: mask, Xor: xor})
	}}
}

func (o Operand) loadTo(x []expr.Any, register uint32) []expr.Any {
	if o.load == nil {
		return x
	}
	return o.load(x, register)
}
