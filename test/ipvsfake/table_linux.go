package ipvsfake

import (
	"container/list"
	"net/netip"

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
	scheduler    string
	flags        uint32
	ticks        uint32 // the timeout in ticks of the clock, cut to 32 bits
	netmask      [4]byte
	destinations list.List              // of *destination, the newest first
	byName       map[name]*list.Element // of them
	stats        ipvs.Stats
}

func (s *service) timeout() uint32 { return s.ticks / hz }

// find returns the destination of a name, or nil.
func (s *service) find(n name) *destination {
	if e := s.byName[n]; e != nil {
		return e.Value.(*destination)
	}
	return nil
}

func (s *service) add(d *destination) { s.byName[d.name] = s.destinations.PushFront(d) }

func (s *service) remove(d *destination) {
	s.destinations.Remove(s.byName[d.name])
	delete(s.byName, d.name)
}

// all yields the destinations.
func (s *service) all(yield func(*destination) bool) {
	for e := s.destinations.Front(); e != nil && yield(e.Value.(*destination)); e = e.Next() {
	}
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
	mask := ipvs.Service{ServiceID: s.id(), Scheduler: s.scheduler, Flags: ipvs.Flags(s.flags &^ flagHashed),
		Timeout: s.timeout()}
	if s.family == uint16(ipvs.IPv6) {
		mask.Netmask = order.Uint32(s.netmask[:])
	} else {
		mask.Netmask = uint32(s.netmask[0])<<24 | uint32(s.netmask[1])<<16 | uint32(s.netmask[2])<<8 |
			uint32(s.netmask[3])
	}
	return mask
}

func (d *destination) state() ipvs.DestinationState {
	return ipvs.DestinationState{
		Destination: ipvs.Destination{Addr: d.addrPort(), Forwarding: ipvs.Forwarding(d.forwarding),
			Weight: int32(d.weight), Upper: d.upper, Lower: d.lower},
		Active: d.conns.Active, Inactive: d.conns.Inactive, Persistent: d.conns.Persistent, Stats: d.stats,
	}
}

// table holds services in the order of their creation.
type table struct {
	byKey map[key]*list.Element // of order
	order list.List             // of *service
}

func newTable() table { return table{byKey: map[key]*list.Element{}} }

func (t *table) find(k key) *service {
	if e := t.byKey[k]; e != nil {
		return e.Value.(*service)
	}
	return nil
}

func (t *table) add(s *service) { t.byKey[s.key] = t.order.PushBack(s) }

func (t *table) remove(s *service) {
	t.order.Remove(t.byKey[s.key])
	delete(t.byKey, s.key)
}

// all yields the services.
func (t *table) all(yield func(*service) bool) {
	for e := t.order.Front(); e != nil && yield(e.Value.(*service)); e = e.Next() {
	}
}
