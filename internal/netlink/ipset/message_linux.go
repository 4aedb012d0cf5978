package ipset

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink"
)

// From the kernel's ip_set.h.
const (
	cmdProtocol = 1 // IPSET_CMD_*
	cmdCreate   = 2
	cmdDestroy  = 3
	cmdSwap     = 6
	cmdList     = 7
	cmdAdd      = 9
	cmdDelete   = 10
	cmdTest     = 11
	cmdType     = 13

	attrProtocol    = 1 // IPSET_ATTR_*, of commands
	attrSetName     = 2
	attrTypeName    = 3
	attrSetName2    = 3
	attrRevision    = 4
	attrFamily      = 5
	attrFlags       = 6
	attrData        = 7
	attrADT         = 8
	attrLine        = 9
	attrProtocolMin = 10

	attrIP        = 1 // of sets and members
	attrPort      = 4
	attrPortTo    = 5
	attrTimeout   = 6
	attrProto     = 7
	attrCADTFlags = 8

	attrHashSize   = 18 // of sets
	attrMaxElem    = 19
	attrNetmask    = 20
	attrElements   = 24
	attrReferences = 25

	attrIP2     = 20 // of members
	attrCIDR2   = 21
	attrSkbMark = 27

	addressIPv4 = 1 // IPSET_ATTR_IPADDR_*
	addressIPv6 = 2

	flagListHeader   = 1 << 2 // IPSET_FLAG_*
	flagWithForceAdd = 1 << 5
	flagWithSkbInfo  = 1 << 6
)

// Errors of ipsets, IPSET_ERR_*.
const (
	errProtocol = unix.Errno(4097)
	errFindType = unix.Errno(4098)
	errMaxSets  = unix.Errno(4099)
	errBusy     = unix.Errno(4100)
	errSetName2 = unix.Errno(4101)
	errMismatch = unix.Errno(4102)
	errExist    = unix.Errno(4103)
	errCIDR     = unix.Errno(4104)
	errIPv4     = unix.Errno(4109)
	errIPv6     = unix.Errno(4110)
	errSkbInfo  = unix.Errno(4114)
	errSpecific = unix.Errno(4352)
	errHashFull = errSpecific
	errHashElem = errSpecific + 1

	errHashProto   = errSpecific + 2
	errHashNoProto = errSpecific + 3
	errHashNoRange = errSpecific + 4
	errHashRange   = errSpecific + 5
)

// ofMember are the errors that refer to one member, not to the set.
var ofMember = map[unix.Errno]bool{errCIDR: true, errHashElem: true, errHashProto: true, errHashNoProto: true,
	errHashNoRange: true, errHashRange: true}

// explain replaces the kernel's numbers with text.
func explain(err error) error {
	var refused *netlink.Error
	errno := unix.Errno(0)
	if errors.As(err, &refused) {
		errno = refused.Errno
	} else if !errors.As(err, &errno) {
		return err
	}
	switch errno {
	case unix.ENOENT:
		return ErrNoSet
	case errBusy:
		return ErrInUse
	case errHashFull:
		return ErrFull
	case errSetName2:
		return fmt.Errorf("a set of that name exists: %w", unix.EEXIST)
	case errFindType:
		return fmt.Errorf("the kernel has no such type of set: %w", ErrUnsupported)
	}
	if text, known := texts[errno]; known {
		return fmt.Errorf("%s (%w)", text, refusal(errno))
	}
	return err
}

// refusal is an ipset error number, for which the system has no text.
type refusal unix.Errno

func (r refusal) Error() string        { return fmt.Sprintf("ipset error %d", int(r)) }
func (r refusal) Is(target error) bool { return target == unix.Errno(r) }

var texts = map[unix.Errno]string{
	errProtocol:  "the kernel does not understand the message",
	errMaxSets:   "there are as many sets as the kernel can have (the parameter max_sets of the module ip_set)",
	errMismatch:  "the sets are of different types",
	errIPv4:      "it wants an address of IPv4",
	errIPv6:      "it wants an address of IPv6",
	errSkbInfo:   "the set has no skbinfo",
	errHashElem:  "a set cannot have this member",
	errHashRange: "the range is none",
}

// appendMember appends a member with the number of its line, which the kernel's error names.
func appendMember(e *netlink.Encoder, m *Member, line uint32) {
	data := e.Nest(attrData)
	appendParts(e, m)
	e.Native32(attrLine, line)
	e.EndNest(data)
}

// appendParts appends the parts of a member.
func appendParts(e *netlink.Encoder, m *Member) {
	if m.Addr.IsValid() {
		appendAddr(e, attrIP, m.Addr)
	}
	if m.Net.IsValid() {
		appendAddr(e, attrIP2, m.Net.Addr())
		if !m.Net.IsSingleIP() {
			e.U8(attrCIDR2, uint8(m.Net.Bits()))
		}
	}
	if !m.Addr.IsValid() || m.Proto != 0 {
		e.U16(attrPort|unix.NLA_F_NET_BYTEORDER, m.Port)
	}
	if m.Proto != 0 {
		e.U8(attrProto, m.Proto)
	}
	if m.Mark != 0 || m.Mask != 0 {
		e.U64(attrSkbMark|unix.NLA_F_NET_BYTEORDER, uint64(m.Mark)<<32|uint64(m.Mask))
	}
}

func appendAddr(e *netlink.Encoder, typ uint16, a netip.Addr) {
	kind := uint16(addressIPv4)
	if a.Is6() {
		kind = addressIPv6
	}
	nest := e.Nest(typ)
	e.Addr(kind|unix.NLA_F_NET_BYTEORDER, a)
	e.EndNest(nest)
}

func parseAddr(nest []byte) netip.Addr {
	a, ok := netip.AddrFromSlice(netlink.Attribute(nest, addressIPv4))
	if !ok {
		a, _ = netip.AddrFromSlice(netlink.Attribute(nest, addressIPv6))
	}
	return a
}

// parseHeader reads the description of a set; its type is "" in later parts of an answer.
func parseHeader(attrs []byte) Header {
	var h Header
	var other []string
	lastPort := uint16(65535)
	netlink.Attributes(attrs, func(typ uint16, v []byte) bool {
		switch typ {
		case attrSetName:
			h.Name = netlink.CStr(v)
		case attrTypeName:
			h.Type = Type(netlink.CStr(v))
		case attrFamily:
			h.Family = Family(netlink.U8(v))
		}
		return true
	})
	netlink.Attributes(netlink.Attribute(attrs, attrData), func(typ uint16, v []byte) bool {
		switch typ {
		case attrMaxElem:
			h.MaxElem = netlink.BE32(v)
		case attrElements:
			h.Members = netlink.BE32(v)
		case attrReferences:
			h.References = netlink.BE32(v)
		case attrTimeout:
			other = append(other, fmt.Sprintf("timeout %d", netlink.BE32(v)))
		case attrNetmask:
			other = append(other, fmt.Sprintf("netmask %d", netlink.U8(v)))
		case attrPort:
			if first := netlink.BE16(v); first != 0 && h.Type == BitmapPort {
				other = append(other, fmt.Sprintf("a range from %d", first))
			}
		case attrPortTo:
			lastPort = netlink.BE16(v)
		case attrCADTFlags:
			flags := netlink.BE32(v)
			h.SkbInfo = flags&flagWithSkbInfo != 0
			if flags&flagWithForceAdd != 0 { // it would evict members when full
				other = append(other, "forceadd")
			}
		}
		return true
	})
	if h.Type == BitmapPort && lastPort != 65535 {
		other = append(other, fmt.Sprintf("a range to %d", lastPort))
	}
	h.Other = strings.Join(other, ", ")
	return h
}

// parseMembers calls f with each member in an answer.
func parseMembers(attrs []byte, f func(Member)) {
	netlink.Attributes(netlink.Attribute(attrs, attrADT), func(typ uint16, v []byte) bool {
		if typ == attrData {
			f(parseMember(v))
		}
		return true
	})
}

func parseMember(data []byte) (m Member) {
	var second netip.Addr
	bits := -1
	netlink.Attributes(data, func(typ uint16, v []byte) bool {
		switch typ {
		case attrIP:
			m.Addr = parseAddr(v)
		case attrIP2:
			second = parseAddr(v)
		case attrCIDR2:
			bits = int(netlink.U8(v))
		case attrPort:
			m.Port = netlink.BE16(v)
		case attrProto:
			m.Proto = netlink.U8(v)
		case attrSkbMark:
			if len(v) == 8 {
				m.Mark, m.Mask = binary.BigEndian.Uint32(v), binary.BigEndian.Uint32(v[4:])
			}
		}
		return true
	})
	if second.IsValid() {
		if bits < 0 || bits > second.BitLen() {
			bits = second.BitLen()
		}
		m.Net = netip.PrefixFrom(second, bits)
	}
	return m
}
