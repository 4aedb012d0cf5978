package ipvs

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink"
)

// Numbers of include/uapi/linux/ip_vs.h. Attributes are in the machine's byte order; addresses,
// ports and IPv4 netmasks in the network's.
const (
	familyName    = "IPVS"
	familyVersion = 1

	cmdGetService = 4 // and the verbs
	cmdGetDest    = 8
	cmdSetConfig  = 12
	cmdGetConfig  = 13
	cmdGetInfo    = 15

	attrService       = 1
	attrDest          = 2
	attrTimeoutTCP    = 4
	attrTimeoutTCPFin = 5
	attrTimeoutUDP    = 6

	svcAF        = 1
	svcProtocol  = 2
	svcAddr      = 3
	svcPort      = 4
	svcMark      = 5
	svcScheduler = 6
	svcFlags     = 7 // struct ip_vs_flags: the flags, and their mask
	svcTimeout   = 8
	svcNetmask   = 9
	svcStats64   = 12

	destAddr       = 1
	destPort       = 2
	destForwarding = 3
	destWeight     = 4
	destUpper      = 5
	destLower      = 6
	destActive     = 7
	destInactive   = 8
	destPersistent = 9
	destFamily     = 11
	destStats64    = 12

	statConns      = 1
	statInPackets  = 2
	statOutPackets = 3
	statInBytes    = 4
	statOutBytes   = 5
)

const genlHeader = 4 // struct genlmsghdr

// begin begins a request to the family with that number.
func begin(e *netlink.Encoder, family uint16, flags uint16, cmd uint8) int {
	at := e.Begin(family, flags, 0)
	e.B = append(e.B, cmd, familyVersion, 0, 0)
	return at
}

// appendOp appends the message of an operation.
func appendOp(e *netlink.Encoder, family uint16, op *Op) {
	at := begin(e, family, unix.NLM_F_ACK, uint8(op.Verb))
	appendService(e, &op.Service, op.Verb == NewService || op.Verb == SetService)
	if op.Verb >= NewDestination {
		appendDestination(e, &op.Destination, op.Verb != DelDestination)
	}
	e.EndMessage(at)
}

func appendService(e *netlink.Encoder, s *Service, whole bool) {
	nest := e.Nest(attrService)
	e.Native16(svcAF, uint16(s.Family))
	if s.Mark != 0 {
		e.Native32(svcMark, s.Mark)
	} else {
		e.Native16(svcProtocol, uint16(s.Proto))
		e.Addr(svcAddr, s.Addr.Addr())
		e.U16(svcPort, s.Addr.Port())
	}
	if whole {
		e.Str(svcScheduler, s.Scheduler)
		var flags [8]byte
		netlink.Order.PutUint32(flags[:], uint32(s.Flags))
		netlink.Order.PutUint32(flags[4:], ^uint32(0))
		e.Bytes(svcFlags, flags[:])
		e.Native32(svcTimeout, s.Timeout)
		if s.Family == IPv6 {
			e.Native32(svcNetmask, s.Netmask)
		} else {
			e.U32(svcNetmask, s.Netmask)
		}
	}
	e.EndNest(nest)
}

func appendDestination(e *netlink.Encoder, d *Destination, whole bool) {
	nest := e.Nest(attrDest)
	e.Addr(destAddr, d.Addr.Addr())
	e.U16(destPort, d.Addr.Port())
	e.Native16(destFamily, uint16(FamilyOf(d.Addr.Addr())))
	if whole {
		e.Native32(destForwarding, uint32(d.Forwarding))
		e.Native32(destWeight, uint32(d.Weight))
		e.Native32(destUpper, d.Upper)
		e.Native32(destLower, d.Lower)
	}
	e.EndNest(nest)
}

// attributes returns the attributes of an answer's body, if it answers that command.
func attributes(body []byte, cmd uint8) ([]byte, bool) {
	if len(body) < genlHeader || body[0] != cmd {
		return nil, false
	}
	return body[genlHeader:], true
}

// parseService reads an answer about a virtual service.
func parseService(body []byte) (ServiceState, error) {
	var s ServiceState
	attrs, ok := attributes(body, uint8(NewService))
	if !ok {
		return s, fmt.Errorf("an answer of %d bytes describes no virtual server", len(body))
	}
	var addr, netmask []byte
	var port uint16
	netlink.Attributes(netlink.Attribute(attrs, attrService), func(typ uint16, v []byte) bool {
		switch typ {
		case svcAF:
			s.Family = Family(netlink.Native16(v))
		case svcProtocol:
			s.Proto = uint8(netlink.Native16(v))
		case svcAddr:
			addr = v
		case svcPort:
			port = netlink.BE16(v)
		case svcMark:
			s.Mark = netlink.Native32(v)
		case svcScheduler:
			s.Scheduler = netlink.CStr(v)
		case svcFlags:
			s.Flags = Flags(netlink.Native32(v)) &^ hashed
		case svcTimeout:
			s.Timeout = netlink.Native32(v)
		case svcNetmask:
			netmask = v
		case svcStats64:
			s.Stats = parseStats(v)
		}
		return true
	})
	if s.Family == IPv6 {
		s.Netmask = netlink.Native32(netmask)
	} else {
		s.Netmask = netlink.BE32(netmask)
	}
	if s.Family != IPv4 && s.Family != IPv6 {
		return s, fmt.Errorf("the kernel lists a virtual server of the address family %d", s.Family)
	}
	if s.Mark != 0 {
		return s, nil
	}
	a, ok := parseAddress(s.Family, addr)
	if !ok {
		return s, fmt.Errorf("the kernel lists a virtual server with an address of %d bytes", len(addr))
	}
	s.Addr = netip.AddrPortFrom(a, port)
	return s, nil
}

// parseDestination reads an answer about a destination.
func parseDestination(body []byte) (DestinationState, error) {
	var s DestinationState
	attrs, ok := attributes(body, uint8(NewDestination))
	if !ok {
		return s, fmt.Errorf("an answer of %d bytes describes no real server", len(body))
	}
	var addr []byte
	var family Family
	var port uint16
	netlink.Attributes(netlink.Attribute(attrs, attrDest), func(typ uint16, v []byte) bool {
		switch typ {
		case destAddr:
			addr = v
		case destPort:
			port = netlink.BE16(v)
		case destForwarding:
			s.Forwarding = Forwarding(netlink.Native32(v) & 7) // IP_VS_CONN_F_FWD_MASK
		case destWeight:
			s.Weight = int32(netlink.Native32(v))
		case destUpper:
			s.Upper = netlink.Native32(v)
		case destLower:
			s.Lower = netlink.Native32(v)
		case destActive:
			s.Active = netlink.Native32(v)
		case destInactive:
			s.Inactive = netlink.Native32(v)
		case destPersistent:
			s.Persistent = netlink.Native32(v)
		case destFamily:
			family = Family(netlink.Native16(v))
		case destStats64:
			s.Stats = parseStats(v)
		}
		return true
	})
	a, ok := parseAddress(family, addr)
	if !ok {
		return s, fmt.Errorf("the kernel lists a real server of the address family %d with an address of %d bytes",
			family, len(addr))
	}
	s.Addr = netip.AddrPortFrom(a, port)
	return s, nil
}

// parseAddress reads an address field, which has 16 bytes for IPv4 too.
func parseAddress(family Family, b []byte) (netip.Addr, bool) {
	switch {
	case family == IPv4 && len(b) >= 4:
		return netip.AddrFrom4([4]byte(b)), true
	case family == IPv6 && len(b) >= 16:
		return netip.AddrFrom16([16]byte(b)), true
	}
	return netip.Addr{}, false
}

// parseStats reads counters.
func parseStats(b []byte) (s Stats) {
	netlink.Attributes(b, func(typ uint16, v []byte) bool {
		if len(v) < 8 {
			return false
		}
		n := netlink.Order.Uint64(v)
		switch typ {
		case statConns:
			s.Conns = n
		case statInPackets:
			s.InPackets = n
		case statOutPackets:
			s.OutPackets = n
		case statInBytes:
			s.InBytes = n
		case statOutBytes:
			s.OutBytes = n
		}
		return true
	})
	return s
}
