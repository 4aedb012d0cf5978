// Package wire encodes and decodes the messages of nf_tables, collects them in transactions, and
// sends them. It describes sets and their elements, and lists the content of a table.
package wire

import (
	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink"
)

// The message and attribute numbers below come from the kernel's
// include/uapi/linux/netfilter/nf_tables.h; golang.org/x/sys/unix has them all.

// Header is the length of struct nfgenmsg, with which bodies begin.
const Header = 4

// MsgType is the type of a message, such as unix.NFT_MSG_NEWTABLE, of nf_tables.
func MsgType(m uint16) uint16 { return unix.NFNL_SUBSYS_NFTABLES<<8 | m }

// Encoder appends messages and attributes to a buffer.
type Encoder struct{ netlink.Encoder }

// Message begins a message to the nftables subsystem for a family.
func (e *Encoder) Message(typ, flags uint16, family byte, seq uint32) int {
	return e.Netfilter(MsgType(typ), flags, family, seq, 0)
}

// Request returns a request message; attrs are types of attributes, each followed by its string.
func Request(typ, flags uint16, family byte, attrs ...any) []byte {
	var e Encoder
	at := e.Message(typ, flags, family, 0)
	for i := 0; i+1 < len(attrs); i += 2 {
		e.Str(uint16(attrs[i].(int)), attrs[i+1].(string))
	}
	e.EndMessage(at)
	return e.B
}

// Batch frames the messages of a transaction, whose highest number is seq. It returns the buffers
// to send and the number of the acknowledged message, which is the last. The first of bufs is
// reserved for the batch's begin. If generation is not 0, the kernel refuses the transaction
// (ERESTART) unless the ruleset still has that generation.
func Batch(bufs [][]byte, seq, generation uint32) (framed [][]byte, last uint32) {
	last = askForAck(bufs[len(bufs)-1])
	begin, end := netlink.Encoder{B: make([]byte, 0, 32)}, netlink.Encoder{B: make([]byte, 0, 24)}
	at := begin.Netfilter(unix.NFNL_MSG_BATCH_BEGIN, 0, unix.AF_UNSPEC, 0, unix.NFNL_SUBSYS_NFTABLES)
	if generation != 0 {
		begin.U32(unix.NFNL_BATCH_GENID, generation)
	}
	begin.EndMessage(at)
	at = end.Netfilter(unix.NFNL_MSG_BATCH_END, 0, unix.AF_UNSPEC, seq+1, unix.NFNL_SUBSYS_NFTABLES)
	end.EndMessage(at)
	bufs[0] = begin.B
	return append(bufs, end.B), last
}

// askForAck sets the flag in the last message of b, and returns its sequence number.
func askForAck(b []byte) uint32 {
	at := 0
	for {
		next := at + int(netlink.Order.Uint32(b[at:]))
		if next >= len(b) {
			break
		}
		at = next
	}
	netlink.Order.PutUint16(b[at+6:], netlink.Order.Uint16(b[at+6:])|unix.NLM_F_ACK)
	return netlink.Order.Uint32(b[at+8:])
}
