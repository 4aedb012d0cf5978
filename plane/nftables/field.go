//go:build linux

package nftables

import (
	"fmt"
	"strings"

	nft "github.com/google/nftables"
	"github.com/google/nftables/userdata"

	"kube-proxy/internal/nlconn"
	"kube-proxy/lb"
)

// field is the type of a part of a key or of data.
type field struct {
	typ  nft.SetDatatype
	size int // bytes that it takes in a register, padded
	// A plain number is in a register in the machine's byte order.
	number bool
	// An expression of that type: as text, and as the nft program writes it down in the user data of a set. The kind is one of
	// its enum expr_types, what belongs to it are numbers of its tables. The kernel keeps them for it, so they stay what they are.
	expression string
	kind       uint32
	parameters []uint32
	text       func(value []byte) string
}

const (
	exprPayload = 7
	exprMeta    = 9
	exprConcat  = 13
	exprNumgen  = 23
)

// The fields. Numbers have types of three kinds for the sake of people: mark and classid are those of the variables of rules,
// see [operand], and a slot is what numgen gives. A byte has the type of a slot, too.
var (
	markField   = field{nft.TypeMark, 4, true, "meta mark", exprMeta, []uint32{3}, func(b []byte) string { return fmt.Sprintf("0x%08x", nlconn.Order.Uint32(b)) }}
	memberField = field{nft.TypeClassID, 4, true, "meta priority", exprMeta, []uint32{2}, func(b []byte) string {
		n := nlconn.Order.Uint32(b)
		return fmt.Sprintf("%x:%x", n>>16, n&0xffff)
	}}
	slotField  = field{nft.TypeInteger, 4, true, "numgen random mod 1", exprNumgen, []uint32{1, 1, 0}, func(b []byte) string { return fmt.Sprint(nlconn.Order.Uint32(b)) }}
	protoField = field{typ: nft.TypeInetProto, size: 4, text: func(b []byte) string { return lb.Proto(b[0]).String() }}
	portField  = field{nft.TypeInetService, 4, false, "th dport", exprPayload, []uint32{11, 2}, func(b []byte) string { return fmt.Sprint(uint16(b[0])<<8 | uint16(b[1])) }}
	ipField    = field{nft.TypeIPAddr, 4, false, "ip daddr", exprPayload, []uint32{12, 12}, func(b []byte) string { return parseAddr(b, 4).String() }}
	ip6Field   = field{nft.TypeIP6Addr, 16, false, "ip6 daddr", exprPayload, []uint32{13, 9}, func(b []byte) string { return parseAddr(b, 16).String() }}
)

// typeOf is the user data for the expressions of a key or of data.
func typeOf(fields []field) []byte {
	if len(fields) == 1 {
		return fields[0].userdata()
	}
	var all []byte
	for i, f := range fields {
		all = userdata.Append(all, userdata.Type(i), f.userdata())
	}
	return kindAndData(exprConcat, all)
}

func (f field) userdata() []byte {
	var data []byte
	for i, p := range f.parameters {
		data = userdata.AppendUint32(data, userdata.Type(i), p)
	}
	return kindAndData(f.kind, data)
}

func kindAndData(kind uint32, data []byte) []byte {
	const typeofKind, typeofData = 0, 1 // NFTNL_UDATA_SET_TYPEOF_EXPR and _DATA
	return userdata.Append(userdata.AppendUint32(nil, typeofKind, kind), typeofData, data)
}

// width is the bytes of a concatenation.
func width(fields []field) int {
	n := 0
	for _, f := range fields {
		n += f.size
	}
	return n
}

// nftType is the number under which the nft program knows a concatenation of types.
func nftType(fields []field) uint32 {
	var t uint32
	for _, f := range fields {
		t = t<<nft.SetConcatTypeBits | f.typ.GetNFTMagic()
	}
	return t
}

// hostOrder reports whether the nft program must print the value as a host-endian integer.
func hostOrder(fields []field) bool { return len(fields) == 1 && fields[0].number }

// concatenation is the text of each field, with dots between.
func concatenation(fields []field, text func(f field) string) string {
	all := make([]string, len(fields))
	for i, f := range fields {
		all[i] = text(f)
	}
	return strings.Join(all, " . ")
}

// valueText is the text of a value.
func valueText(fields []field, value []byte) string {
	return concatenation(fields, func(f field) string {
		text := f.text(value)
		value = value[f.size:]
		return text
	})
}
