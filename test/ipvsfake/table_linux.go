package ipvsfake

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"kube-proxy/internal/netlink"
	"kube-proxy/internal/netlink/ipvs"
)

// key is the kernel's key of a service.
type key struct {
	family uint16
	mark   uint32 // 0: by the rest
	proto  uint16
	addr   [16]byte // of IPv4 the first four
	port   uint16
}

func keyOf(id ipvs.ServiceID) key {
	k := key{family: uint16(id.Family), mark: id.Mark}
	if id.Mark == 0 {
		k.proto, k.addr, k.port = uint16(id.Proto), addrBytes(id.Addr.Addr()), id.Addr.Port()
	}
	return k
}

func addrBytes(a netip.Addr) (b [16]byte) {
	if a.Is4() {
		copy(b[:], a.AsSlice())
		return b
	}
	return a.As16()
}

func addrOf(family uint16, b [16]byte) netip.Addr {
	if family == uint16(ipvs.IPv6) {
		return netip.AddrFrom16(b)
	}
	return netip.AddrFrom4([4]byte(b[:]))
}

func (k key) id() ipvs.ServiceID {
	if k.mark != 0 {
		return ipvs.ByMark(ipvs.Family(k.family), k.mark)
	}
	return ipvs.ByAddr(netip.AddrPortFrom(addrOf(k.family, k.addr), k.port), uint8(k.proto))
}

// service is a virtual service.
type service struct {
	key
	made         int // its place in the order of creation
	scheduler    string
	flags        uint32
	ticks        uint32 // the timeout in ticks of the clock, cut to 32 bits
	netmask      [4]byte
	destinations map[name]*destination
	stats        ipvs.Stats
}

func (s *service) timeout() uint32 { return s.ticks / hz }

// listed returns the services in the order of a list: the oldest first.
func (k *Kernel) listed() []*service {
	return slices.SortedFunc(maps.Values(k.services), func(a, b *service) int { return cmp.Compare(a.made, b.made) })
}

// listed returns the destinations in the order of a list: the newest first.
func (s *service) listed() []*destination {
	return slices.SortedFunc(maps.Values(s.destinations), func(a, b *destination) int {
		return cmp.Compare(b.made, a.made)
	})
}

// name is the key of a destination in its service.
type name struct {
	family uint16
	addr   [16]byte
	port   uint16
}

// destination is a real server of a service, which it outlives if it has connections.
type destination struct {
	name
	made         int // its place in the order of creation
	of           *service
	forwarding   uint32
	weight       uint32
	upper, lower uint32
	conns        Conns
	stats        ipvs.Stats
}

func (d *destination) addrPort() netip.AddrPort {
	return netip.AddrPortFrom(addrOf(d.family, d.addr), d.port)
}

func (s *service) state() ipvs.Service {
	mask := netlink.BE32(s.netmask[:])
	if s.family == uint16(ipvs.IPv6) {
		mask = netlink.Native32(s.netmask[:])
	}
	return ipvs.Service{ServiceID: s.id(), Scheduler: s.scheduler, Flags: ipvs.Flags(s.flags &^ flagHashed),
		Timeout: s.timeout(), Netmask: mask}
}

func (d *destination) state() ipvs.DestinationState {
	return ipvs.DestinationState{
		Destination: ipvs.Destination{Addr: d.addrPort(), Forwarding: ipvs.Forwarding(d.forwarding),
			Weight: int32(d.weight), Upper: d.upper, Lower: d.lower},
		Active: d.conns.Active, Inactive: d.conns.Inactive, Persistent: d.conns.Persistent, Stats: d.stats,
	}
}
