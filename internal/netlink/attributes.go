package netlink

import (
	"bytes"
	"encoding/binary"
	"net/netip"
)

// Order is the byte order of headers, and of numbers in attributes of most subsystems; netfilter's
// are big endian.
var Order = binary.NativeEndian

// AttrLimit is the maximum size of an attribute in bytes, including its header.
const AttrLimit = 65535

// Numbers of linux/netlink.h, repeated here so that messages can be encoded and decoded on every
// system.
const (
	flagRequest  = 0x1    // NLM_F_REQUEST
	flagNested   = 0x8000 // NLA_F_NESTED
	attrTypeMask = 0x3fff // NLA_TYPE_MASK: without the flags nested and network order
)

// Encoder appends messages and attributes to a buffer. The matching end functions fill in lengths.
type Encoder struct{ B []byte }

// Begin begins a message with NLM_F_REQUEST and the flags, and returns its offset.
func (e *Encoder) Begin(typ, flags uint16, seq uint32) int {
	at := len(e.B)
	e.B = Order.AppendUint32(e.B, 0)
	e.B = Order.AppendUint16(e.B, typ)
	e.B = Order.AppendUint16(e.B, flags|flagRequest)
	e.B = Order.AppendUint32(e.B, seq)
	e.B = Order.AppendUint32(e.B, 0)
	return at
}

// Netfilter begins a message to a subsystem of netfilter, with its struct nfgenmsg; resource is its
// res_id.
func (e *Encoder) Netfilter(typ, flags uint16, family byte, seq uint32, resource uint16) int {
	at := e.Begin(typ, flags, seq)
	e.B = append(e.B, family, 0) // NFNETLINK_V0
	e.B = binary.BigEndian.AppendUint16(e.B, resource)
	return at
}

// EndMessage ends the message that begins at that offset.
func (e *Encoder) EndMessage(at int) { Order.PutUint32(e.B[at:], uint32(len(e.B)-at)) }

// Nest begins an attribute that holds attributes.
func (e *Encoder) Nest(typ uint16) int {
	at := len(e.B)
	e.head(4, typ|flagNested)
	return at
}

// EndNest ends the attribute that begins at that offset.
func (e *Encoder) EndNest(at int) { Order.PutUint16(e.B[at:], uint16(len(e.B)-at)) }

func (e *Encoder) head(size int, typ uint16) {
	e.B = Order.AppendUint16(e.B, uint16(size))
	e.B = Order.AppendUint16(e.B, typ)
}

// Bytes appends an attribute.
func (e *Encoder) Bytes(typ uint16, v []byte) {
	e.head(4+len(v), typ)
	e.B = append(e.B, v...)
	e.pad()
}

// Addr appends an address as 4 or 16 bytes.
func (e *Encoder) Addr(typ uint16, a netip.Addr) {
	b := a.As16() // in which an IPv4 address comes last
	e.Bytes(typ, b[len(b)-a.BitLen()/8:])
}

// Str appends a string attribute.
func (e *Encoder) Str(typ uint16, v string) {
	e.head(5+len(v), typ)
	e.B = append(e.B, v...)
	e.B = append(e.B, 0)
	e.pad()
}

// U8 appends an attribute of one byte.
func (e *Encoder) U8(typ uint16, v uint8) {
	e.head(5, typ)
	e.B = append(e.B, v, 0, 0, 0)
}

// U16 appends a number in big endian.
func (e *Encoder) U16(typ, v uint16) {
	e.head(6, typ)
	e.B = append(binary.BigEndian.AppendUint16(e.B, v), 0, 0)
}

// U32 appends a number in big endian.
func (e *Encoder) U32(typ uint16, v uint32) {
	e.head(8, typ)
	e.B = binary.BigEndian.AppendUint32(e.B, v)
}

// U64 appends a number in big endian.
func (e *Encoder) U64(typ uint16, v uint64) {
	e.head(12, typ)
	e.B = binary.BigEndian.AppendUint64(e.B, v)
}

// Native16 appends a number in the machine's byte order.
func (e *Encoder) Native16(typ, v uint16) {
	e.head(6, typ)
	e.B = append(Order.AppendUint16(e.B, v), 0, 0)
}

// Native32 appends a number in the machine's byte order.
func (e *Encoder) Native32(typ uint16, v uint32) {
	e.head(8, typ)
	e.B = Order.AppendUint32(e.B, v)
}

func (e *Encoder) pad() {
	for len(e.B)%4 != 0 {
		e.B = append(e.B, 0)
	}
}

// Attributes calls f for each attribute in b, without the flag bits of its type, until f returns
// false. It ignores a malformed rest.
func Attributes(b []byte, f func(typ uint16, v []byte) bool) {
	for len(b) >= 4 {
		n := int(Order.Uint16(b))
		if n < 4 || n > len(b) {
			return
		}
		if !f(Order.Uint16(b[2:])&attrTypeMask, b[4:n]) {
			return
		}
		b = b[min((n+3)&^3, len(b)):]
	}
}

// Attribute returns the value of the first attribute of that type, or nil.
func Attribute(b []byte, typ uint16) (v []byte) {
	Attributes(b, func(t uint16, x []byte) bool {
		if t == typ {
			v = x
		}
		return v == nil
	})
	return v
}

// U8 returns an attribute of one byte, or 0 without a value. The functions below do the same.
func U8(b []byte) uint8 { return number(b, 1, func(b []byte) uint8 { return b[0] }) }

// BE16 returns a number in big endian.
func BE16(b []byte) uint16 { return number(b, 2, binary.BigEndian.Uint16) }

// BE32 returns a number in big endian.
func BE32(b []byte) uint32 { return number(b, 4, binary.BigEndian.Uint32) }

// BE64 returns a number in big endian.
func BE64(b []byte) uint64 { return number(b, 8, binary.BigEndian.Uint64) }

// Native16 returns a number in the machine's byte order.
func Native16(b []byte) uint16 { return number(b, 2, Order.Uint16) }

// Native32 returns a number in the machine's byte order.
func Native32(b []byte) uint32 { return number(b, 4, Order.Uint32) }

func number[T any](b []byte, size int, read func([]byte) T) (v T) {
	if len(b) >= size {
		v = read(b)
	}
	return v
}

// CStr returns b as a string without the terminating NUL.
func CStr(b []byte) string {
	text, _, _ := bytes.Cut(b, []byte{0})
	return string(text)
}
