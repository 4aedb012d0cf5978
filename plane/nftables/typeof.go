package nftables

import (
	nft "github.com/google/nftables"
	"github.com/google/nftables/userdata"
)

// How the nft program writes down an expression in the user data of a set: the kind of the expression, then what
// belongs to it. The numbers are those of its enum expr_types and of its tables; the kernel keeps them for it, so
// they stay what they are.
const (
	typeofKind = 0 // NFTNL_UDATA_SET_TYPEOF_EXPR
	typeofData = 1 // NFTNL_UDATA_SET_TYPEOF_DATA

	exprPayload = 7
	exprMeta    = 9
	exprConcat  = 13
	exprNumgen  = 23
)

// expression says of which expression a field has the type: in the language of nft, and as user data.
func (f field) expression() (text string, udata []byte) {
	numbers := func(kind uint32, text string, values ...uint32) (string, []byte) {
		var data []byte
		for i, v := range values {
			data = userdata.AppendUint32(data, userdata.Type(i), v)
		}
		return text, kindAndData(kind, data)
	}
	switch f.typ.Name {
	case nft.TypeMark.Name:
		return numbers(exprMeta, "meta mark", 3)
	case nft.TypeClassID.Name:
		return numbers(exprMeta, "meta priority", 2)
	case nft.TypeInteger.Name:
		return numbers(exprNumgen, "numgen random mod 1", 1, 1, 0)
	case nft.TypeIPAddr.Name:
		return numbers(exprPayload, "ip daddr", 12, 12)
	case nft.TypeIP6Addr.Name:
		return numbers(exprPayload, "ip6 daddr", 13, 9)
	case nft.TypeInetService.Name:
		return numbers(exprPayload, "th dport", 11, 2)
	}
	panic("plane/nftables: no expression has type " + f.typ.Name) // a mistake in schema
}

func kindAndData(kind uint32, data []byte) []byte {
	return userdata.Append(userdata.AppendUint32(nil, typeofKind, kind), typeofData, data)
}

// typeOf is the user data for the expressions of a key or of data.
func typeOf(fields []field) []byte {
	if len(fields) == 1 {
		_, u := fields[0].expression()
		return u
	}
	var all []byte
	for i, f := range fields {
		_, u := f.expression()
		all = userdata.Append(all, userdata.Type(i), u)
	}
	return kindAndData(exprConcat, all)
}
