//go:build linux

package nftables

import (
	"fmt"

	nft "github.com/google/nftables"

	"kube-proxy/internal/nftwire"
	"kube-proxy/internal/nlconn"
	"kube-proxy/lb"
)

// The fields. Numbers have types of three kinds for the sake of people: mark and classid are those of the variables of rules,
// see [operand], and a slot is what numgen gives. A byte has the type of a slot, too.
var (
	markField = nftwire.Field{Type: nft.TypeMark, Size: 4, Number: true,
		Expression: nftwire.Expression{Text: "meta mark", Kind: nftwire.ExprMeta, Parameters: []uint32{3}}, Text: nftwire.MarkText}
	memberField = nftwire.Field{Type: nft.TypeClassID, Size: 4, Number: true,
		Expression: nftwire.Expression{Text: "meta priority", Kind: nftwire.ExprMeta, Parameters: []uint32{2}}, Text: memberText}
	slotField = nftwire.Field{Type: nft.TypeInteger, Size: 4, Number: true,
		Expression: nftwire.Expression{Text: "numgen random mod 1", Kind: nftwire.ExprNumgen, Parameters: []uint32{1, 1, 0}}, Text: slotText}
	protoField = nftwire.Field{Type: nft.TypeInetProto, Size: 4, Text: func(b []byte) string { return lb.Proto(b[0]).String() }}
	portField  = nftwire.Field{Type: nft.TypeInetService, Size: 4,
		Expression: nftwire.Expression{Text: "th dport", Kind: nftwire.ExprPayload, Parameters: []uint32{11, 2}}, Text: nftwire.PortText}
	ipField = nftwire.Field{Type: nft.TypeIPAddr, Size: 4,
		Expression: nftwire.Expression{Text: "ip daddr", Kind: nftwire.ExprPayload, Parameters: []uint32{12, 12}}, Text: nftwire.AddrText}
	ip6Field = nftwire.Field{Type: nft.TypeIP6Addr, Size: 16,
		Expression: nftwire.Expression{Text: "ip6 daddr", Kind: nftwire.ExprPayload, Parameters: []uint32{13, 9}}, Text: nftwire.AddrText}
)

func memberText(b []byte) string {
	n := nlconn.Order.Uint32(b)
	return fmt.Sprintf("%x:%x", n>>16, n&0xffff)
}

func slotText(b []byte) string { return fmt.Sprint(nlconn.Order.Uint32(b)) }
