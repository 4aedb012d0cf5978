// Package nflog encodes requests to nfnetlink_log, by which rules send copies of packets to a
// program, and decodes those packets. Package netlink carries them.
package nflog

import (
	"kube-proxy/internal/netlink"
)

// Numbers of the kernel's nfnetlink_log.h.
const (
	subsystem = 4 << 8 // NFNL_SUBSYS_ULOG
	configure = subsystem | 1

	// MsgPacket is the type of messages with a packet, as struct nlmsghdr has it.
	MsgPacket = subsystem

	ack = 0x4 // NLM_F_ACK

	cfgCommand, cfgMode, cfgThreshold = 1, 2, 5

	commandBind = 1
	copyPacket  = 2

	attrPayload, attrPrefix = 9, 10
)

// Bind returns the requests by which a socket receives the first size bytes of each packet of a
// group, at once. Send them in this order. The kernel refuses the first with EPERM if another
// socket has the group.
func Bind(group uint16, size uint8) [][]byte {
	request := func(fill func(e *netlink.Encoder)) []byte {
		var e netlink.Encoder
		at := e.Netfilter(configure, ack, 0, 0, group)
		fill(&e)
		e.EndMessage(at)
		return e.B
	}
	return [][]byte{
		request(func(e *netlink.Encoder) { e.U8(cfgCommand, commandBind) }),
		request(func(e *netlink.Encoder) {
			e.Bytes(cfgMode, []byte{0, 0, 0, size, copyPacket, 0}) // struct nfulnl_msg_config_mode
			e.U32(cfgThreshold, 1)
		}),
	}
}

// Packet is a packet from a rule. It is valid until its message is overwritten.
type Packet struct {
	// Prefix is the rule's.
	Prefix string
	// Payload begins with the IP header.
	Payload []byte
}

// Parse reads the body of a MsgPacket.
func Parse(body []byte) (p Packet) {
	if len(body) < 4 {
		return p
	}
	netlink.Attributes(body[4:], func(typ uint16, v []byte) bool {
		switch typ {
		case attrPrefix:
			p.Prefix = netlink.CStr(v)
		case attrPayload:
			p.Payload = v
		}
		return true
	})
	return p
}
