//go:build linux

package nftables

import (
	"fmt"

	nft "github.com/google/nftables"

	nlconn "kube-proxy/internal/netlink/conn"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/lb"
)

// The fields. Numbers have types of three kinds for the sake of people: mark and classid are those of the variables of rules,
// see [operand], and a slot is what numgen gives. A byte has the type of a slot, too.
var (
	markField = wire.Field{Type: nft.TypeMark, Size: 4, Number: true,
		Expression: wire.Expression{Text: "meta mark", Kind: wire.ExprMeta, Parameters: []uint32{3}}, Text: wire.MarkText}
	memberField = wire.Field{Type: nft.TypeClassID, Size: 4, Number: true,
		Expression: wire.Expression{Text: "meta priority", Kind: wire.ExprMeta, Parameters: []uint32{2}}, Text: memberText}
	slotField = wire.Field{Type: nft.TypeInteger, Size: 4, Number: true,
		Expression: wire.Expression{Text: "numgen random mod 1", Kind: wire.ExprNumgen, Parameters: []uint32{1, 1, 0}}, Text: slotText}
	protoField = wire.Field{Type: nft.TypeInetProto, Size: 4, Text: func(b []byte) string { return lb.Proto(b[0]).String() }}
	portField  = wire.Field{Type: nft.TypeInetService, Size: 4,
		Expression: wire.Expression{Text: "th dport", Kind: wire.ExprPayload, Parameters: []uint32{11, 2}}, Text: wire.PortText}
	ipField = wire.Field{Type: nft.TypeIPAddr, Size: 4,
		Expression: wire.Expression{Text: "ip daddr", Kind: wire.ExprPayload, Parameters: []uint32{12, 12}}, Text: wire.AddrText}
	ip6Field = wire.Field{Type: nft.TypeIP6Addr, Size: 16,
		Expression: wire.Expression{Text: "ip6 daddr", Kind: wire.ExprPayload, Parameters: []uint32{13, 9}}, Text: wire.AddrText}
)

func memberText(b []byte) string {
	n := nlconn.Order.Uint32(b)
	return fmt.Sprintf("%x:%x", n>>16, n&0xffff)
}

func slotText(b []byte) string { return fmt.Sprint(nlconn.Order.Uint32(b)) }
