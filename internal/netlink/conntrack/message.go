package conntrack

import (
	"net/netip"

	"kube-proxy/internal/netlink"
)

// Numbers of the kernel's nfnetlink_conntrack.h, nf_conntrack_common.h and netlink.h.
const (
	nested = 0x8000

	ack    = 0x4 // NLM_F_*
	dump   = 0x300
	excl   = 0x200
	create = 0x400

	subsystem = 1 << 8

	// The types of messages, as struct nlmsghdr has them.
	New      = subsystem
	Get      = subsystem | 1
	Delete   = subsystem | 2
	GetStats = subsystem | 5

	ctaTupleOrig  = 1
	ctaTupleReply = 2
	ctaStatus     = 3
	ctaProtoInfo  = 4
	ctaTimeout    = 7
	ctaMark       = 8
	ctaID         = 12
	ctaZone       = 18
	ctaFilter     = 25
	ctaStatusMask = 26

	ctaTupleIP    = 1
	ctaTupleProto = 2

	ctaIPv4Src, ctaIPv4Dst = 1, 2
	ctaIPv6Src, ctaIPv6Dst = 3, 4

	ctaProtoNum, ctaProtoSrcPort, ctaProtoDstPort = 1, 2, 3

	// The attributes of CTA_PROTOINFO, and in each of them the state.
	ctaProtoInfoTCP, ctaProtoInfoSCTP = 1, 3
	ctaProtoInfoState                 = 1

	ctaFilterOrigFlags = 1
)

// GroupNew is NFNLGRP_CONNTRACK_NEW: notifications of entries whose first packet passed all rules.
const GroupNew = 1

// Bits of [Entry.Status], as nf_conntrack_common.h has them (IPS_*).
const (
	SeenReply = 1 << 1
	Assured   = 1 << 2
	Confirmed = 1 << 3        // it is in the table
	Offloaded = 1<<14 | 1<<15 // a flowtable has it, in software or hardware
)

// TCPEstablished is the [Entry.State] of an established TCP connection (TCP_CONNTRACK_ESTABLISHED).
const TCPEstablished = 3

// By selects the parts of the original tuple that a dump compares: CTA_FILTER_F_*.
type By uint32

// The parts.
const (
	BySource      By = 1 << 0
	ByDestination By = 1 << 1
	ByProto       By = 1 << 3
	BySourcePort  By = 1 << 4
	ByPort        By = 1 << 5
	// ByNoReply selects entries without a reply (CTA_STATUS_MASK, kernel 5.17); an older kernel
	// lists the others too.
	ByNoReply By = 1 << 31
)

// Entry is one entry of the conntrack table.
type Entry struct {
	// Orig is the direction of the first packet, Reply that of the replies.
	Orig, Reply Tuple
	// Status are the bits IPS_*.
	Status uint32
	// Timeout is the time in seconds without a packet after which the entry expires. Messages about
	// new entries may lack it and fields below.
	Timeout uint32
	Mark    uint32
	// State is TCP's or SCTP's, TCP_CONNTRACK_* or SCTP_CONNTRACK_*; 0 for none.
	State uint8
	Zone  uint16

	// The values of the attributes that name the entry, in the buffer it was read from. The last is
	// nil without a zone.
	tuple, id, zone []byte
}

// Tuple is one direction of an entry.
type Tuple struct {
	From, To netip.AddrPort
	Proto    uint8
	// ports: the tuple has both ports.
	ports bool
}

// Parse reads the body of a message. It returns false for an entry without ports or of another
// family, which no Service makes. The entry is valid until the body is overwritten.
func (e *Entry) Parse(body []byte) bool {
	*e = Entry{}
	if len(body) < 4 {
		return false
	}
	netlink.Attributes(body[4:], func(typ uint16, v []byte) bool {
		switch typ {
		case ctaTupleOrig:
			e.tuple = v
			e.Orig.parse(v)
		case ctaTupleReply:
			e.Reply.parse(v)
		case ctaStatus:
			e.Status = netlink.BE32(v)
		case ctaProtoInfo:
			netlink.Attributes(v, func(typ uint16, v []byte) bool {
				if typ == ctaProtoInfoTCP || typ == ctaProtoInfoSCTP {
					e.State = netlink.U8(netlink.Attribute(v, ctaProtoInfoState))
				}
				return true
			})
		case ctaTimeout:
			e.Timeout = netlink.BE32(v)
		case ctaMark:
			e.Mark = netlink.BE32(v)
		case ctaID:
			e.id = v
		case ctaZone:
			e.zone, e.Zone = v, netlink.BE16(v)
		}
		return true
	})
	return e.Orig.To.IsValid() && e.Reply.From.IsValid() && e.Orig.ports && e.Reply.ports
}

// parse reads CTA_TUPLE_ORIG or CTA_TUPLE_REPLY.
func (t *Tuple) parse(b []byte) {
	var from, to netip.Addr
	netlink.Attributes(netlink.Attribute(b, ctaTupleIP), func(typ uint16, v []byte) bool {
		switch typ {
		case ctaIPv4Src, ctaIPv6Src:
			from, _ = netip.AddrFromSlice(v)
		case ctaIPv4Dst, ctaIPv6Dst:
			to, _ = netip.AddrFromSlice(v)
		}
		return true
	})
	proto := netlink.Attribute(b, ctaTupleProto)
	source, dest := netlink.Attribute(proto, ctaProtoSrcPort), netlink.Attribute(proto, ctaProtoDstPort)
	t.Proto, t.ports = netlink.U8(netlink.Attribute(proto, ctaProtoNum)), source != nil && dest != nil
	t.From, t.To = netip.AddrPortFrom(from, netlink.BE16(source)), netip.AddrPortFrom(to, netlink.BE16(dest))
}

// all selects the complete tuple.
const all = BySource | ByDestination | ByProto | BySourcePort | ByPort

// appendTuple appends an attribute with the parts of the tuple.
func appendTuple(e *netlink.Encoder, typ uint16, t Tuple, by By) {
	tuple := e.Nest(typ)
	if by&(BySource|ByDestination) != 0 {
		src, dst := uint16(ctaIPv4Src), uint16(ctaIPv4Dst)
		if t.To.Addr().Is6() || t.From.Addr().Is6() {
			src, dst = ctaIPv6Src, ctaIPv6Dst
		}
		ip := e.Nest(ctaTupleIP)
		if by&BySource != 0 {
			e.Addr(src, t.From.Addr())
		}
		if by&ByDestination != 0 {
			e.Addr(dst, t.To.Addr())
		}
		e.EndNest(ip)
	}
	proto := e.Nest(ctaTupleProto)
	e.U8(ctaProtoNum, t.Proto)
	if by&BySourcePort != 0 {
		e.U16(ctaProtoSrcPort, t.From.Port())
	}
	if by&ByPort != 0 {
		e.U16(ctaProtoDstPort, t.To.Port())
	}
	e.EndNest(proto)
	e.EndNest(tuple)
}

// DumpRequest requests the entries of a family, AF_INET or AF_INET6, that equal the tuple in the
// parts of by, which must include ByProto. Kernels before 5.8 send all.
func DumpRequest(family byte, t Tuple, by By) []byte {
	var e netlink.Encoder
	at := e.Netfilter(Get, dump, family, 0, 0)
	appendTuple(&e, ctaTupleOrig, t, by)
	filter := e.Nest(ctaFilter)
	e.Native32(ctaFilterOrigFlags, uint32(by&^ByNoReply))
	e.EndNest(filter)
	if by&ByNoReply != 0 {
		e.U32(ctaStatus, 0)
		e.U32(ctaStatusMask, SeenReply)
	}
	e.EndMessage(at)
	return e.B
}

// GetRequest requests the entry of zone 0 with the tuple in one of its directions. The kernel
// answers ENOENT if no such entry exists.
func GetRequest(family byte, t Tuple) []byte {
	var e netlink.Encoder
	// The kernel marks an entry as one of many, so only the acknowledgement ends the answer.
	at := e.Netfilter(Get, ack, family, 0, 0)
	appendTuple(&e, ctaTupleOrig, t, all)
	e.EndMessage(at)
	return e.B
}

// AppendNew appends the request to make an entry with e's tuples, status, timeout, mark and TCP
// state. Tests fill tables by it.
func (e *Entry) AppendNew(b []byte, family byte) []byte {
	to := netlink.Encoder{B: b}
	at := to.Netfilter(New, ack|create|excl, family, 0, 0)
	appendTuple(&to, ctaTupleOrig, e.Orig, all)
	appendTuple(&to, ctaTupleReply, e.Reply, all)
	to.U32(ctaStatus, e.Status|Confirmed)
	to.U32(ctaTimeout, e.Timeout)
	to.U32(ctaMark, e.Mark)
	if e.State != 0 {
		info := to.Nest(ctaProtoInfo)
		tcp := to.Nest(ctaProtoInfoTCP)
		to.U8(ctaProtoInfoState, e.State)
		to.EndNest(tcp)
		to.EndNest(info)
	}
	to.EndMessage(at)
	return to.B
}

// AppendDelete appends the request to delete e; its id protects a younger entry with the same
// addresses. It returns false, and appends nothing, if e lacks its name: a request without a tuple
// would empty the table.
func (e *Entry) AppendDelete(b []byte, family byte) ([]byte, bool) {
	if len(e.tuple) == 0 || len(e.id) != 4 {
		return b, false
	}
	to := netlink.Encoder{B: b}
	at := to.Netfilter(Delete, ack, family, 0, 0)
	to.Bytes(ctaTupleOrig|nested, e.tuple)
	to.Bytes(ctaID, e.id)
	if e.zone != nil {
		to.Bytes(ctaZone, e.zone)
	}
	to.EndMessage(at)
	return to.B, true
}
