package conntrack

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// Numbers of the kernel's nfnetlink_conntrack.h, nf_conntrack_common.h and netlink.h, which stay as they are for ever.
const (
	headerLen  = 20 // struct nlmsghdr and struct nfgenmsg
	nlaNested  = 0x8000
	nlaTypeBit = 0x3fff

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

// GroupNew is NFNLGRP_CONNTRACK_NEW, which hears of each entry whose first packet has passed all rules.
const GroupNew = 1

// Bits of [Entry.Status], as nf_conntrack_common.h has them (IPS_*).
const (
	SeenReply = 1 << 1
	Assured   = 1 << 2
	Confirmed = 1 << 3 // it is in the table
)

// By says what of a tuple a dump compares entries with: CTA_FILTER_F_* of the original direction.
type By uint32

// What can be compared.
const (
	BySource      By = 1 << 0
	ByDestination By = 1 << 1
	ByProto       By = 1 << 3
	BySourcePort  By = 1 << 4
	ByPort        By = 1 << 5
	// ByNoReply asks for entries without an answer (CTA_STATUS_MASK, kernel 5.17); an older kernel lists
	// the others too.
	ByNoReply By = 1 << 31
)

// Entry is one entry of the conntrack table.
type Entry struct {
	// Orig is the direction of the first packet, as it came; Reply that of the answers, as they come.
	Orig, Reply Tuple
	// Status are the bits IPS_*.
	Status uint32
	// Timeout is after how many seconds without a packet the entry goes. A new one's message may lack it, as other fields below.
	Timeout uint32
	Mark    uint32
	// State is TCP's or SCTP's, TCP_CONNTRACK_* or SCTP_CONNTRACK_*; 0 for none.
	State uint8
	Zone  uint16

	// What names the entry: attributes with their headers, in the buffer that the entry was read from. Without a zone the last is nil.
	tuple, id, zone []byte
}

// Tuple is one direction of an entry.
type Tuple struct {
	From, To netip.AddrPort
	Proto    uint8
	// ports: it has both.
	ports bool
}

// attr takes the first attribute of b apart. whole is the attribute with its header, without padding. ok
// is false at the end; an attribute that does not fit ends the list too, and is told by bad.
func attr(b []byte) (typ uint16, payload, whole, rest []byte, ok, bad bool) {
	if len(b) == 0 {
		return 0, nil, nil, nil, false, false
	}
	if len(b) < 4 {
		return 0, nil, nil, nil, false, true
	}
	n := int(binary.NativeEndian.Uint16(b))
	if n < 4 || n > len(b) {
		return 0, nil, nil, nil, false, true
	}
	next := min((n+3)&^3, len(b))
	return binary.NativeEndian.Uint16(b[2:]) & nlaTypeBit, b[4:n], b[:n], b[next:], true, false
}

// Parse reads the body of a message of the kernel, struct nfgenmsg and attributes. It reports false for an entry without
// ports or whose family is unknown to us, which no service can have made. The entry is good until the body is written over.
func (e *Entry) Parse(body []byte) (bool, error) {
	*e = Entry{}
	if len(body) < 4 {
		return false, fmt.Errorf("conntrack entry of %d bytes is cut off", len(body))
	}
	for b := body[4:]; ; {
		typ, payload, whole, rest, ok, bad := attr(b)
		if bad {
			return false, fmt.Errorf("conntrack entry of %d bytes is cut off", len(body))
		}
		if !ok {
			break
		}
		switch typ {
		case ctaTupleOrig:
			e.tuple = whole
			bad = !e.Orig.parse(payload)
		case ctaTupleReply:
			bad = !e.Reply.parse(payload)
		case ctaStatus:
			e.Status = number(payload)
		case ctaProtoInfo:
			e.State = stateOf(payload)
		case ctaTimeout:
			e.Timeout = number(payload)
		case ctaMark:
			e.Mark = number(payload)
		case ctaID:
			e.id = whole
		case ctaZone:
			e.zone = whole
			if len(payload) == 2 {
				e.Zone = binary.BigEndian.Uint16(payload)
			}
		}
		if bad {
			return false, fmt.Errorf("conntrack entry: tuple of %d bytes is cut off", len(payload))
		}
		b = rest
	}
	return e.Orig.To.IsValid() && e.Reply.From.IsValid() && e.Orig.ports && e.Reply.ports, nil
}

// number is a number of 32 bits of an attribute; 0 if that is another.
func number(b []byte) uint32 {
	if len(b) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}

// stateOf is the state in CTA_PROTOINFO.
func stateOf(b []byte) uint8 {
	for {
		typ, inner, _, rest, ok, _ := attr(b)
		if !ok {
			return 0
		}
		if typ == ctaProtoInfoTCP || typ == ctaProtoInfoSCTP {
			for {
				typ, v, _, rest, ok, _ := attr(inner)
				if !ok {
					break
				}
				if typ == ctaProtoInfoState && len(v) == 1 {
					return v[0]
				}
				inner = rest
			}
		}
		b = rest
	}
}

func (t *Tuple) parse(b []byte) bool {
	var from, to netip.Addr
	var fromPort, toPort uint16
	for {
		typ, payload, _, rest, ok, bad := attr(b)
		if !ok {
			t.From, t.To = netip.AddrPortFrom(from, fromPort), netip.AddrPortFrom(to, toPort)
			return !bad
		}
		switch typ {
		case ctaTupleIP:
			from, to, ok = parseIP(payload)
		case ctaTupleProto:
			fromPort, toPort, ok = t.parseProto(payload)
		}
		if !ok {
			return false
		}
		b = rest
	}
}

func parseIP(b []byte) (from, to netip.Addr, ok bool) {
	for {
		typ, payload, _, rest, more, bad := attr(b)
		if !more {
			return from, to, !bad
		}
		switch {
		case typ == ctaIPv4Src && len(payload) == 4:
			from = netip.AddrFrom4([4]byte(payload))
		case typ == ctaIPv4Dst && len(payload) == 4:
			to = netip.AddrFrom4([4]byte(payload))
		case typ == ctaIPv6Src && len(payload) == 16:
			from = netip.AddrFrom16([16]byte(payload))
		case typ == ctaIPv6Dst && len(payload) == 16:
			to = netip.AddrFrom16([16]byte(payload))
		}
		b = rest
	}
}

func (t *Tuple) parseProto(b []byte) (from, to uint16, ok bool) {
	var hasFrom, hasTo bool
	for {
		typ, payload, _, rest, more, bad := attr(b)
		if !more {
			t.ports = hasFrom && hasTo
			return from, to, !bad
		}
		switch {
		case typ == ctaProtoNum && len(payload) == 1:
			t.Proto = payload[0]
		case typ == ctaProtoSrcPort && len(payload) == 2:
			from, hasFrom = binary.BigEndian.Uint16(payload), true
		case typ == ctaProtoDstPort && len(payload) == 2:
			to, hasTo = binary.BigEndian.Uint16(payload), true
		}
		b = rest
	}
}

// appendHeader appends the headers of a conntrack message to the kernel; the caller sets the length with
// setLength once the attributes are there.
func appendHeader(b []byte, msg uint16, flags uint16, family byte) []byte {
	b = binary.NativeEndian.AppendUint32(b, 0)
	b = binary.NativeEndian.AppendUint16(b, msg)
	b = binary.NativeEndian.AppendUint16(b, flags|requestFlag)
	return append(b, 0, 0, 0, 0, 0, 0, 0, 0, family, 0, 0, 0) // the sequence number, see SetSeq, and the port
}

// The flags of requests, NLM_F_*.
const (
	requestFlag = 0x1
	ackFlag     = 0x4
	dumpFlag    = 0x300
	exclFlag    = 0x200
	createFlag  = 0x400
)

// SetSeq writes the sequence number of the message that begins at start.
func SetSeq(b []byte, start int, seq uint32) { binary.NativeEndian.PutUint32(b[start+8:], seq) }

// setLength writes the length of the message that begins at start and ends with b.
func setLength(b []byte, start int) { binary.NativeEndian.PutUint32(b[start:], uint32(len(b)-start)) }

// appendAttr appends an attribute, padded.
func appendAttr(b []byte, typ uint16, payload ...byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(4+len(payload)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	return pad(append(b, payload...))
}

func pad(b []byte) []byte {
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

// appendNested appends an attribute whose payload fill appends.
func appendNested(b []byte, typ uint16, fill func([]byte) []byte) []byte {
	start := len(b)
	b = fill(appendAttr(b, typ|nlaNested))
	binary.NativeEndian.PutUint16(b[start:], uint16(len(b)-start))
	return b
}

// all is what names an entry.
const all = BySource | ByDestination | ByProto | BySourcePort | ByPort

// appendTuple appends an attribute with what by names of the tuple.
func appendTuple(b []byte, typ uint16, t Tuple, by By) []byte {
	return appendNested(b, typ, func(b []byte) []byte {
		if by&(BySource|ByDestination) != 0 {
			b = appendNested(b, ctaTupleIP, func(b []byte) []byte {
				src, dst := uint16(ctaIPv4Src), uint16(ctaIPv4Dst)
				if t.To.Addr().Is6() || t.From.Addr().Is6() {
					src, dst = ctaIPv6Src, ctaIPv6Dst
				}
				if by&BySource != 0 {
					b = appendAttr(b, src, t.From.Addr().AsSlice()...)
				}
				if by&ByDestination != 0 {
					b = appendAttr(b, dst, t.To.Addr().AsSlice()...)
				}
				return b
			})
		}
		return appendNested(b, ctaTupleProto, func(b []byte) []byte {
			b = appendAttr(b, ctaProtoNum, t.Proto)
			if by&BySourcePort != 0 {
				b = appendAttr(b, ctaProtoSrcPort, binary.BigEndian.AppendUint16(nil, t.From.Port())...)
			}
			if by&ByPort != 0 {
				b = appendAttr(b, ctaProtoDstPort, binary.BigEndian.AppendUint16(nil, t.To.Port())...)
			}
			return b
		})
	})
}

// DumpRequest asks for the entries of a family, AF_INET or AF_INET6, that are like the tuple in what by names, which has ByProto. Kernels
// before 5.8 do not know the filter and send all.
func DumpRequest(family byte, t Tuple, by By) []byte {
	b := appendHeader(nil, Get, dumpFlag, family)
	b = appendTuple(b, ctaTupleOrig, t, by)
	b = appendNested(b, ctaFilter, func(b []byte) []byte {
		return appendAttr(b, ctaFilterOrigFlags, binary.NativeEndian.AppendUint32(nil, uint32(by&^ByNoReply))...)
	})
	if by&ByNoReply != 0 {
		b = appendAttr(b, ctaStatus, 0, 0, 0, 0)
		b = appendAttr(b, ctaStatusMask, binary.BigEndian.AppendUint32(nil, SeenReply)...)
	}
	setLength(b, 0)
	return b
}

// GetRequest asks for the one entry of zone 0 of which the tuple is a direction. The kernel answers ENOENT if there is none.
func GetRequest(family byte, t Tuple) []byte {
	b := appendHeader(nil, Get, ackFlag, family) // the kernel marks an entry as one of many, so that it ends nothing
	b = appendTuple(b, ctaTupleOrig, t, all)
	setLength(b, 0)
	return b
}

// AppendNew appends the request to make an entry of e's tuples, status, timeout, mark, and state of TCP. Tests fill tables by it.
func (e *Entry) AppendNew(b []byte, family byte) []byte {
	start := len(b)
	b = appendHeader(b, New, ackFlag|createFlag|exclFlag, family)
	b = appendTuple(b, ctaTupleOrig, e.Orig, all)
	b = appendTuple(b, ctaTupleReply, e.Reply, all)
	b = appendAttr(b, ctaStatus, binary.BigEndian.AppendUint32(nil, e.Status|Confirmed)...)
	b = appendAttr(b, ctaTimeout, binary.BigEndian.AppendUint32(nil, e.Timeout)...)
	b = appendAttr(b, ctaMark, binary.BigEndian.AppendUint32(nil, e.Mark)...)
	if e.State != 0 {
		b = appendNested(b, ctaProtoInfo, func(b []byte) []byte {
			return appendNested(b, ctaProtoInfoTCP, func(b []byte) []byte { return appendAttr(b, ctaProtoInfoState, e.State) })
		})
	}
	setLength(b, start)
	return b
}

// AppendDelete appends the request to delete e and nothing else: the id keeps a younger entry with the same
// addresses safe. It reports false, and appends nothing, if e lacks what names it; a request without a tuple
// would empty the whole table.
func (e *Entry) AppendDelete(b []byte, family byte) ([]byte, bool) {
	if len(e.tuple) <= 4 || len(e.id) != 8 {
		return b, false
	}
	start := len(b)
	b = appendHeader(b, Delete, ackFlag, family)
	b = pad(append(b, e.tuple...))
	b = pad(append(b, e.id...))
	b = pad(append(b, e.zone...))
	setLength(b, start)
	return b, true
}
