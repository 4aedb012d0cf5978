//go:build linux

package nftables

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// The message and attribute numbers below come from the kernel's include/uapi/linux/netfilter/nf_tables.h;
// golang.org/x/sys/unix has them all.

// order is the byte order of netlink headers and of nftables registers that hold plain integers. nftables
// attributes themselves are big endian.
var order = binary.NativeEndian

const (
	nlHeader  = 16 // struct nlmsghdr
	nfHeader  = 4  // struct nfgenmsg
	attrLimit = 65535

	attrTypeMask = 0x3fff // NLA_TYPE_MASK: without the flags nested and network order
)

func msgType(m uint16) uint16 { return unix.NFNL_SUBSYS_NFTABLES<<8 | m }

// encoder appends netlink messages and attributes to a buffer. Lengths are filled in by the matching end.
type encoder struct{ b []byte }

// message begins a message to the nftables subsystem for a family.
func (e *encoder) message(typ, flags uint16, family byte, seq uint32) int {
	return e.raw(msgType(typ), flags, family, seq, 0)
}

// raw begins a message of any netfilter subsystem; res is the big-endian res_id of nfgenmsg.
func (e *encoder) raw(typ, flags uint16, family byte, seq uint32, res uint16) int {
	at := len(e.b)
	e.b = order.AppendUint32(e.b, 0)
	e.b = order.AppendUint16(e.b, typ)
	e.b = order.AppendUint16(e.b, flags|unix.NLM_F_REQUEST)
	e.b = order.AppendUint32(e.b, seq)
	e.b = order.AppendUint32(e.b, 0)
	e.b = append(e.b, family, unix.NFNETLINK_V0)
	e.b = binary.BigEndian.AppendUint16(e.b, res)
	return at
}

func (e *encoder) endMessage(at int) {
	order.PutUint32(e.b[at:], uint32(len(e.b)-at))
}

// nest begins an attribute that holds attributes.
func (e *encoder) nest(typ uint16) int {
	at := len(e.b)
	e.b = order.AppendUint16(e.b, 0)
	e.b = order.AppendUint16(e.b, typ|unix.NLA_F_NESTED)
	return at
}

func (e *encoder) endNest(at int) {
	order.PutUint16(e.b[at:], uint16(len(e.b)-at))
}

func (e *encoder) bytes(typ uint16, v []byte) {
	e.b = order.AppendUint16(e.b, uint16(4+len(v)))
	e.b = order.AppendUint16(e.b, typ)
	e.b = append(e.b, v...)
	e.pad()
}

func (e *encoder) str(typ uint16, v string) {
	e.b = order.AppendUint16(e.b, uint16(5+len(v)))
	e.b = order.AppendUint16(e.b, typ)
	e.b = append(e.b, v...)
	e.b = append(e.b, 0)
	e.pad()
}

func (e *encoder) u32(typ uint16, v uint32) {
	e.b = order.AppendUint16(e.b, 8)
	e.b = order.AppendUint16(e.b, typ)
	e.b = binary.BigEndian.AppendUint32(e.b, v)
}

func (e *encoder) pad() {
	for len(e.b)%4 != 0 {
		e.b = append(e.b, 0)
	}
}

// attributes calls f for each attribute in b, without the flag bits of its type, until f returns false. A
// malformed rest is ignored: what the kernel sends is well formed.
func attributes(b []byte, f func(typ uint16, v []byte) bool) {
	for len(b) >= 4 {
		n := int(order.Uint16(b))
		if n < 4 || n > len(b) {
			return
		}
		if !f(order.Uint16(b[2:])&attrTypeMask, b[4:n]) {
			return
		}
		b = b[min((n+3)&^3, len(b)):]
	}
}

// attribute returns the value of the first attribute of that type, or nil.
func attribute(b []byte, typ uint16) (v []byte) {
	attributes(b, func(t uint16, x []byte) bool {
		if t == typ {
			v = x
		}
		return v == nil
	})
	return v
}

func be32(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}

// cstr returns b as a string without the terminating NUL.
func cstr(b []byte) string {
	for i, c := range b {
		if c == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}
