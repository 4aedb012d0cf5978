package wire

import (
	"fmt"

	nft "github.com/google/nftables"

	"kube-proxy/internal/netlink"
	"kube-proxy/lb"
)

// The fields of keys and data. A mark and a class id have the types of the variables of rules, and
// a slot that of a random number; their meaning is for people.
var (
	MarkField = Field{Type: nft.TypeMark, Size: 4, Number: true,
		Expression: Expression{Text: "meta mark", Kind: exprMeta, Parameters: []uint32{3}}, Text: markText}
	ClassField = Field{Type: nft.TypeClassID, Size: 4, Number: true,
		Expression: Expression{Text: "meta priority", Kind: exprMeta, Parameters: []uint32{2}}, Text: classText}
	SlotField = Field{Type: nft.TypeInteger, Size: 4, Number: true,
		Expression: Expression{Text: "numgen random mod 1", Kind: exprNumgen, Parameters: []uint32{1, 1, 0}},
		Text:       func(b []byte) string { return fmt.Sprint(netlink.Order.Uint32(b)) }}
	ProtoField = Field{Type: nft.TypeInetProto, Size: 4, Text: func(b []byte) string { return lb.Proto(b[0]).String() }}
	PortField  = Field{Type: nft.TypeInetService, Size: 4,
		Expression: Expression{Text: "th dport", Kind: exprPayload, Parameters: []uint32{11, 2}}, Text: portText}
	IPv4Field = Field{Type: nft.TypeIPAddr, Size: 4,
		Expression: Expression{Text: "ip daddr", Kind: exprPayload, Parameters: []uint32{12, 12}}, Text: addrText}
	IPv6Field = Field{Type: nft.TypeIP6Addr, Size: 16,
		Expression: Expression{Text: "ip6 daddr", Kind: exprPayload, Parameters: []uint32{13, 9}}, Text: addrText}
	// OnlyPort is a port that fills the whole data: the kernel does not pad it.
	OnlyPort = Field{Type: nft.TypeInetService, Size: 2, Text: portText}
	// VersionField is the version of IP.
	VersionField = Field{Type: nft.TypeNFProto, Size: 1, Text: versionText}
)

func addrText(b []byte) string { return ParseAddr(b).String() }

func portText(b []byte) string { return fmt.Sprint(ParsePort(b)) }

func markText(b []byte) string { return fmt.Sprintf("0x%08x", netlink.Order.Uint32(b)) }

func classText(b []byte) string {
	n := netlink.Order.Uint32(b)
	return fmt.Sprintf("%x:%x", n>>16, n&0xffff)
}

func versionText(b []byte) string { return map[byte]string{2: "ipv4", 10: "ipv6"}[b[0]] }
