package conntrack

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"kube-proxy/lb"
)

// Numbers of the kernel's nfnetlink_conntrack.h and netlink.h, which stay as they are for ever.
const (
	headerLen  = 20 // struct nlmsghdr and struct nfgenmsg
	nlaNested  = 0x8000
	nlaTypeBit = 0x3fff

	subsysCtnetlink = 1
	msgNew          = 0
	msgGet          = 1
	msgDelete       = 2
	msgGetStats     = 5

	ctaTupleOrig  = 1
	ctaTupleReply = 2
	ctaID         = 12
	ctaZone       = 18
	ctaFilter     = 25

	ctaTupleIP    = 1
	ctaTupleProto = 2

	ctaIPv4Src, ctaIPv4Dst = 1, 2
	ctaIPv6Src, ctaIPv6Dst = 3, 4

	ctaProtoNum, ctaProtoSrcPort, ctaProtoDstPort = 1, 2, 3

	ctaFilterOrigFlags = 1
	filterProtoNum     = 1 << 3 // compare the protocol of CTA_TUPLE_ORIG; from Linux 5.8 on
)

// entry is one conntrack entry of a dump. Its slices point into the buffer that it was read from.
type entry struct {
	flow
	orig []byte // the attribute CTA_TUPLE_ORIG with its header
	id   []byte // the attribute CTA_ID with its header
	zone []byte // the attribute CTA_ZONE with its header, nil in zone 0
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

// parseEntry reads the attributes of a conntrack message into e. It reports false for an entry without
// ports or whose family is unknown to us, which no service can have made.
func (e *entry) parse(attrs []byte) (bool, error) {
	*e = entry{}
	var orig, reply tuple
	for b := attrs; ; {
		typ, payload, whole, rest, ok, bad := attr(b)
		if bad {
			return false, fmt.Errorf("conntrack entry of %d bytes is cut off", len(attrs))
		}
		if !ok {
			break
		}
		switch typ {
		case ctaTupleOrig:
			e.orig = whole
			bad = !orig.parse(payload)
		case ctaTupleReply:
			bad = !reply.parse(payload)
		case ctaID:
			e.id = whole
		case ctaZone:
			e.zone = whole
		}
		if bad {
			return false, fmt.Errorf("conntrack entry: tuple of %d bytes is cut off", len(payload))
		}
		b = rest
	}
	e.proto = lb.Proto(orig.proto)
	e.to = netip.AddrPortFrom(orig.dst, orig.dstPort)
	e.from = netip.AddrPortFrom(reply.src, reply.srcPort)
	return e.to.IsValid() && e.from.IsValid() && orig.ports && reply.ports, nil
}

// tuple is one direction of an entry, as far as it matters.
type tuple struct {
	src, dst         netip.Addr
	srcPort, dstPort uint16
	proto            uint8
	ports            bool
}

func (t *tuple) parse(b []byte) bool {
	for {
		typ, payload, _, rest, ok, bad := attr(b)
		if !ok {
			return !bad
		}
		switch typ {
		case ctaTupleIP:
			ok = t.parseIP(payload)
		case ctaTupleProto:
			ok = t.parseProto(payload)
		}
		if !ok {
			return false
		}
		b = rest
	}
}

func (t *tuple) parseIP(b []byte) bool {
	for {
		typ, payload, _, rest, ok, bad := attr(b)
		if !ok {
			return !bad
		}
		switch {
		case typ == ctaIPv4Src && len(payload) == 4:
			t.src = netip.AddrFrom4([4]byte(payload))
		case typ == ctaIPv4Dst && len(payload) == 4:
			t.dst = netip.AddrFrom4([4]byte(payload))
		case typ == ctaIPv6Src && len(payload) == 16:
			t.src = netip.AddrFrom16([16]byte(payload))
		case typ == ctaIPv6Dst && len(payload) == 16:
			t.dst = netip.AddrFrom16([16]byte(payload))
		}
		b = rest
	}
}

func (t *tuple) parseProto(b []byte) bool {
	var src, dst bool
	for {
		typ, payload, _, rest, ok, bad := attr(b)
		if !ok {
			t.ports = src && dst
			return !bad
		}
		switch {
		case typ == ctaProtoNum && len(payload) == 1:
			t.proto = payload[0]
		case typ == ctaProtoSrcPort && len(payload) == 2:
			t.srcPort, src = binary.BigEndian.Uint16(payload), true
		case typ == ctaProtoDstPort && len(payload) == 2:
			t.dstPort, dst = binary.BigEndian.Uint16(payload), true
		}
		b = rest
	}
}

// appendHeader appends the headers of a conntrack message to the kernel; the caller sets the length with
// setLength once the attributes are there.
func appendHeader(b []byte, msg uint16, flags uint16, family byte) []byte {
	b = binary.NativeEndian.AppendUint32(b, 0)
	b = binary.NativeEndian.AppendUint16(b, subsysCtnetlink<<8|msg)
	b = binary.NativeEndian.AppendUint16(b, flags)
	return append(b, 0, 0, 0, 0, 0, 0, 0, 0, family, 0, 0, 0) // the sequence number, see setSeq, and the port
}

// setSeq writes the sequence number of the message that begins at start.
func setSeq(b []byte, start int, seq uint32) { binary.NativeEndian.PutUint32(b[start+8:], seq) }

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

// dumpRequest asks for all entries of a family and protocol. Kernels before 5.8 do not know the filter and
// send the other protocols too.
func dumpRequest(family byte, proto lb.Proto, flags uint16) []byte {
	b := appendHeader(nil, msgGet, flags, family)
	b = appendNested(b, ctaTupleOrig, func(b []byte) []byte {
		return appendNested(b, ctaTupleProto, func(b []byte) []byte { return appendAttr(b, ctaProtoNum, byte(proto)) })
	})
	b = appendNested(b, ctaFilter, func(b []byte) []byte {
		return appendAttr(b, ctaFilterOrigFlags, binary.NativeEndian.AppendUint32(nil, filterProtoNum)...)
	})
	setLength(b, 0)
	return b
}

// appendDelete appends the request to delete e and nothing else: the id keeps a younger entry with the same
// addresses safe. It reports false, and appends nothing, if e lacks what names it; a request without a tuple
// would empty the whole table.
func appendDelete(b []byte, family byte, flags uint16, e *entry) ([]byte, bool) {
	if len(e.orig) <= 4 || len(e.id) != 8 {
		return b, false
	}
	start := len(b)
	b = appendHeader(b, msgDelete, flags, family)
	b = pad(append(b, e.orig...))
	b = pad(append(b, e.id...))
	b = pad(append(b, e.zone...))
	setLength(b, start)
	return b, true
}
