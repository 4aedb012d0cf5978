// Package nftwire writes and reads the messages of nf_tables, for those who make tables of it, collects them in transactions, and sends them.
package nftwire

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// The message and attribute numbers below come from the kernel's include/uapi/linux/netfilter/nf_tables.h;
// golang.org/x/sys/unix has them all.

// Order is the byte order of netlink headers and of nftables registers that hold plain integers. nftables
// attributes themselves are big endian.
var Order = binary.NativeEndian

// AttrLimit is the most bytes that an attribute may have.
const AttrLimit = 65535

// Header is the length of struct nfgenmsg, with which bodies begin.
const Header = 4

const (
	attrTypeMask = 0x3fff // NLA_TYPE_MASK: without the flags nested and network order
)

// MsgType is the type of a message, such as unix.NFT_MSG_NEWTABLE, of nf_tables.
func MsgType(m uint16) uint16 { return unix.NFNL_SUBSYS_NFTABLES<<8 | m }

// Encoder appends netlink messages and attributes to a buffer. Lengths are filled in by the matching end.
type Encoder struct{ B []byte }

// Message begins a message to the nftables subsystem for a family.
func (e *Encoder) Message(typ, flags uint16, family byte, seq uint32) int {
	return e.Raw(MsgType(typ), flags, family, seq, 0)
}

// Raw begins a message of any netfilter subsystem; res is the big-endian res_id of nfgenmsg.
func (e *Encoder) Raw(typ, flags uint16, family byte, seq uint32, res uint16) int {
	at := len(e.B)
	e.B = Order.AppendUint32(e.B, 0)
	e.B = Order.AppendUint16(e.B, typ)
	e.B = Order.AppendUint16(e.B, flags|unix.NLM_F_REQUEST)
	e.B = Order.AppendUint32(e.B, seq)
	e.B = Order.AppendUint32(e.B, 0)
	e.B = append(e.B, family, unix.NFNETLINK_V0)
	e.B = binary.BigEndian.AppendUint16(e.B, res)
	return at
}

// EndMessage ends the message that begins there.
func (e *Encoder) EndMessage(at int) {
	Order.PutUint32(e.B[at:], uint32(len(e.B)-at))
}

// Nest begins an attribute that holds attributes.
func (e *Encoder) Nest(typ uint16) int {
	at := len(e.B)
	e.B = Order.AppendUint16(e.B, 0)
	e.B = Order.AppendUint16(e.B, typ|unix.NLA_F_NESTED)
	return at
}

// EndNest ends the attribute that begins there.
func (e *Encoder) EndNest(at int) {
	Order.PutUint16(e.B[at:], uint16(len(e.B)-at))
}

// Bytes appends an attribute.
func (e *Encoder) Bytes(typ uint16, v []byte) {
	e.B = Order.AppendUint16(e.B, uint16(4+len(v)))
	e.B = Order.AppendUint16(e.B, typ)
	e.B = append(e.B, v...)
	e.pad()
}

// Str appends an attribute that is a string.
func (e *Encoder) Str(typ uint16, v string) {
	e.B = Order.AppendUint16(e.B, uint16(5+len(v)))
	e.B = Order.AppendUint16(e.B, typ)
	e.B = append(e.B, v...)
	e.B = append(e.B, 0)
	e.pad()
}

// U32 appends an attribute that is a number.
func (e *Encoder) U32(typ uint16, v uint32) {
	e.B = Order.AppendUint16(e.B, 8)
	e.B = Order.AppendUint16(e.B, typ)
	e.B = binary.BigEndian.AppendUint32(e.B, v)
}

func (e *Encoder) pad() {
	for len(e.B)%4 != 0 {
		e.B = append(e.B, 0)
	}
}

// Attributes calls f for each attribute in b, without the flag bits of its type, until f returns false. A
// malformed rest is ignored: what the kernel sends is well formed.
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

// BE32 is a number of an attribute, 0 if it is too short.
func BE32(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}

// CStr returns b as a string without the terminating NUL.
func CStr(b []byte) string {
	for i, c := range b {
		if c == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}

// Batch frames the messages of a transaction, of which seq is the highest number, and returns what to send and the number of the
// message that is acknowledged: the last. The first of bufs is kept free for the begin. If generation is not 0, the kernel refuses
// the transaction (ERESTART) unless the ruleset is still of that generation.
func Batch(bufs [][]byte, seq, generation uint32) (framed [][]byte, last uint32) {
	last = askForAck(bufs[len(bufs)-1])
	begin, end := Encoder{make([]byte, 0, 32)}, Encoder{make([]byte, 0, 24)}
	at := begin.Raw(unix.NFNL_MSG_BATCH_BEGIN, 0, unix.AF_UNSPEC, 0, unix.NFNL_SUBSYS_NFTABLES)
	if generation != 0 {
		begin.U32(unix.NFNL_BATCH_GENID, generation)
	}
	begin.EndMessage(at)
	at = end.Raw(unix.NFNL_MSG_BATCH_END, 0, unix.AF_UNSPEC, seq+1, unix.NFNL_SUBSYS_NFTABLES)
	end.EndMessage(at)
	bufs[0] = begin.B
	return append(bufs, end.B), last
}

// askForAck sets the flag in the last message of b, and returns its sequence number.
func askForAck(b []byte) uint32 {
	at := 0
	for {
		next := at + int(Order.Uint32(b[at:]))
		if next >= len(b) {
			break
		}
		at = next
	}
	Order.PutUint16(b[at+6:], Order.Uint16(b[at+6:])|unix.NLM_F_ACK)
	return Order.Uint32(b[at+8:])
}
