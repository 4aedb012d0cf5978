package rule

import (
	"net/netip"

	"github.com/google/nftables/expr"
)

// Traced makes the kernel report each rule that the packet meets from here on, to listeners of
// NFNLGRP_NFTRACE, for at most twenty packets a second.
var Traced = []Statement{
	{"limit rate 20/second burst 20 packets", []expr.Any{
		&expr.Limit{Type: expr.LimitTypePkts, Rate: 20, Unit: expr.LimitTimeSecond, Burst: 20}}},
	{"meta nftrace set 1", []expr.Any{&expr.Immediate{Register: scratch, Data: []byte{1}},
		&expr.Meta{Key: expr.MetaKeyNFTRACE, Register: scratch, SourceRegister: true}}},
}

// Directions of a tracked connection.
var (
	Original = Is(ctDirection, "original", []byte{0})
	// Handshake matches TCP segments that open or refuse a connection.
	Handshake = flags("tcp flags & (syn | rst) != 0", synFlag|rstFlag, expr.CmpOpNeq, 0)
	// Opening matches a client's SYN.
	Opening = flags("tcp flags & (syn | ack) == syn", synFlag|ackFlag, expr.CmpOpEq, synFlag)
)

// Flags of TCP.
const (
	synFlag = 0x02
	rstFlag = 0x04
	ackFlag = 0x10
)

func flags(text string, mask byte, op expr.CmpOp, value byte) Statement {
	o := payload("tcp flags", expr.PayloadBaseTransportHeader, 13, 1).bitwise("", []byte{mask}, []byte{0})
	return match(text, o, op, []byte{value})
}

// From matches packets by protocol, source and destination; source port 0 matches any port.
func (ip IP) From(proto uint8, from, to netip.AddrPort) []Statement {
	sport := payload("th sport", expr.PayloadBaseTransportHeader, 0, 2)
	return tuple(proto, from, to, ip.Source(), ip.Destination(), sport, DPort)
}

// OriginallyFrom matches packets of both directions by the tuple of their connection's first
// packet.
func (ip IP) OriginallyFrom(proto uint8, from, to netip.AddrPort) []Statement {
	client := ip.Client()
	return tuple(proto, from, to, client[0], ip.OriginalDestination(), client[1], OriginalPort)
}

func tuple(proto uint8, from, to netip.AddrPort, source, destination, sport, dport Operand) []Statement {
	is := func(o Operand, a netip.Addr) Statement { return Is(o, a.String(), a.AsSlice()) }
	at := func(o Operand, port uint16) Statement { return Is(o, "", []byte{byte(port >> 8), byte(port)}) }
	all := []Statement{Is(L4Proto, "", []byte{proto}), is(source, from.Addr()),
		is(destination, to.Addr()), at(dport, to.Port())}
	if from.Port() != 0 {
		all = append(all, at(sport, from.Port()))
	}
	return all
}
