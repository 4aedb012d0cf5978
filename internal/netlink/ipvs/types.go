package ipvs

import (
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// Family is an address family, by its number in Linux.
type Family uint16

// The families.
const (
	IPv4 Family = 2  // AF_INET
	IPv6 Family = 10 // AF_INET6
)

// FamilyOf returns the family of an address, or 0.
func FamilyOf(a netip.Addr) Family {
	switch {
	case a.Is4():
		return IPv4
	case a.IsValid():
		return IPv6
	}
	return 0
}

// WholeAddress returns the netmask that treats each client address separately.
func (f Family) WholeAddress() uint32 {
	if f == IPv6 {
		return 128
	}
	return 1<<32 - 1
}

// ServiceID names a virtual service: by address, port and protocol, or by firewall mark and family.
// [ByAddr] and [ByMark] create it, so that equal names are equal values.
type ServiceID struct {
	Family Family
	Mark   uint32 // 0: by address
	Addr   netip.AddrPort
	Proto  uint8 // IPPROTO_TCP (6), IPPROTO_UDP (17) or IPPROTO_SCTP (132)
}

// ByAddr names the service of an address, without zone, and port. Port 0 means the other ports of
// the address.
func ByAddr(addr netip.AddrPort, proto uint8) ServiceID {
	return ServiceID{Family: FamilyOf(addr.Addr()), Addr: addr, Proto: proto}
}

// ByMark names the service of packets with that firewall mark, compared as a whole. The mark is not
// 0.
func ByMark(family Family, mark uint32) ServiceID { return ServiceID{Family: family, Mark: mark} }

// String returns, for example, "TCP 10.0.0.1:80" or "mark 0x4001 (IPv6)".
func (id ServiceID) String() string {
	if id.Mark != 0 {
		if id.Family == IPv6 {
			return fmt.Sprintf("mark %#x (IPv6)", id.Mark)
		}
		return fmt.Sprintf("mark %#x", id.Mark)
	}
	if name, known := map[uint8]string{6: "TCP", 17: "UDP", 132: "SCTP"}[id.Proto]; known {
		return name + " " + id.Addr.String()
	}
	return fmt.Sprintf("protocol %d %s", id.Proto, id.Addr)
}

// Flags are the flags of a virtual service (IP_VS_SVC_F_…), without the kernel's own flag "hashed".
type Flags uint32

// The flags.
const (
	Persistent Flags = 1 << 0 // a client stays with its destination for the service's Timeout
	OnePacket  Flags = 1 << 2 // each datagram is scheduled separately
	// sh and mh: fall back to another destination if the chosen one has weight 0 or is overloaded
	Sched1 Flags = 1 << 3
	Sched2 Flags = 1 << 4 // sh and mh: the source port counts too

	hashed Flags = 1 << 1
)

// Service is a virtual service. Equal values are the same for the kernel.
type Service struct {
	ServiceID
	Scheduler string // at most 15 bytes
	Flags     Flags
	Timeout   uint32 // persistence timeout in seconds; stored but unused without Persistent
	// Netmask groups client addresses for persistence and schedulers: for IPv4 a mask (0xffffff00
	// is /24), for IPv6 a prefix length, 1 to 128. Family.WholeAddress is usual.
	Netmask uint32
}

// String returns all settings, as in "TCP 10.0.0.1:80 rr flags 0x1 timeout 10800 netmask
// 0xffffffff".
func (s Service) String() string {
	return fmt.Sprintf("%s %s flags %#x timeout %d netmask %#x", s.ServiceID, s.Scheduler, uint32(s.Flags), s.Timeout,
		s.Netmask)
}

// Forwarding is the way in which packets reach a destination (IP_VS_CONN_F_…).
type Forwarding uint8

// The methods. The kernel lists the last two.
const (
	Masq   Forwarding = 0 // destination NAT
	Local  Forwarding = 1
	Tunnel Forwarding = 2
	Route  Forwarding = 3 // direct routing
	Bypass Forwarding = 4
)

// Destination is a real server. Its address and port identify it in the service.
type Destination struct {
	Addr       netip.AddrPort
	Forwarding Forwarding
	// 0 takes no new connections and keeps its present ones; the kernel refuses negative weights.
	Weight int32
	// At Upper connections the destination gets no more until it has less than Lower; 0 means no
	// limit.
	Upper, Lower uint32
}

// Stats are counters of 64 bits.
type Stats struct {
	Conns, InPackets, OutPackets, InBytes, OutBytes uint64
}

// ServiceState is a virtual service as the kernel lists it.
type ServiceState struct {
	Service
	Stats Stats
}

// DestinationState is a destination as the kernel lists it.
type DestinationState struct {
	Destination
	Active     uint32 // established connections
	Inactive   uint32 // all other tracked connections
	Persistent uint32 // persistence templates of this destination
	Stats      Stats
}

// Verb is the kind of an operation.
type Verb uint8

// The verbs, as the kernel numbers them (IPVS_CMD_…). Set replaces all settings of an existing
// Service or Destination. Deleting a service deletes its destinations.
const (
	NewService     Verb = 1
	SetService     Verb = 2
	DelService     Verb = 3 // only the ServiceID counts
	NewDestination Verb = 5
	SetDestination Verb = 6
	DelDestination Verb = 7 // only the address counts
)

var verbs = [...]string{NewService: "add", SetService: "change", DelService: "remove", NewDestination: "add",
	SetDestination: "change", DelDestination: "remove"}

// Op is one operation. For an operation on a destination only the ServiceID of Service counts.
type Op struct {
	Verb        Verb
	Service     Service
	Destination Destination
}

// String describes the operation, as in "add real server 10.1.0.5:8080 of virtual server TCP
// 10.0.0.1:80".
func (op Op) String() string {
	var b strings.Builder
	b.WriteString(verbs[op.Verb])
	if op.Verb >= NewDestination {
		fmt.Fprintf(&b, " real server %s of", op.Destination.Addr)
	}
	fmt.Fprintf(&b, " virtual server %s", op.Service.ServiceID)
	if op.Verb == NewService || op.Verb == SetService {
		fmt.Fprintf(&b, " with scheduler %s", op.Service.Scheduler)
	}
	return b.String()
}

// Timeouts are the timeouts of connections in whole seconds, shared by the whole network namespace.
type Timeouts struct {
	TCP    time.Duration // of established connections
	TCPFin time.Duration // of connections that one side has closed
	UDP    time.Duration
}
