package ipvsfake

import (
	"hash/fnv"
	"net/netip"
	"slices"

	"kube-proxy/internal/ipvswire"
)

// key is by what the kernel finds a service.
type key struct {
	family uint16
	mark   uint32 // 0: by the rest
	proto  uint16
	addr   [16]byte // of IPv4 the first four
	port   uint16
}

func keyOf(id ipvswire.ServiceID) key {
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
	if family == uint16(ipvswire.IPv6) {
		return netip.AddrFrom16(b)
	}
	return netip.AddrFrom4([4]byte(b[:]))
}

func (k key) id() ipvswire.ServiceID {
	if k.mark != 0 {
		return ipvswire.ByMark(ipvswire.Family(k.family), k.mark)
	}
	return ipvswire.ByAddr(netip.AddrPortFrom(addrOf(k.family, k.addr), k.port), uint8(k.proto))
}

// service is a virtual service.
type service struct {
	key
	scheduler, engine string
	flags             uint32
	ticks             uint32 // the timeout in ticks of the clock, cut to 32 bits
	netmask           [4]byte
	destinations      []*destination // the newest first
	stats             ipvswire.Stats
}

func (s *service) timeout() uint32 { return s.ticks / hz }

// destination is a real server, and what the kernel remembers of the service that it is one of.
type destination struct {
	of           key
	family       uint16
	addr         [16]byte
	port         uint16
	forwarding   uint32
	weight       uint32
	upper, lower uint32
	tunType      uint8
	tunPort      uint16
	tunFlags     uint16
	conns        Conns
	stats        ipvswire.Stats
}

func (d *destination) addrPort() netip.AddrPort {
	return netip.AddrPortFrom(addrOf(d.family, d.addr), d.port)
}

// same reports whether two are of one address and port.
func (d *destination) same(o *destination) bool {
	return d.family == o.family && d.addr == o.addr && d.port == o.port
}

func (s *service) state() ipvswire.Service {
	mask := ipvswire.Service{ServiceID: s.id(), Scheduler: s.scheduler, Flags: ipvswire.Flags(s.flags &^ flagHashed), Timeout: s.timeout(), Engine: s.engine}
	if s.family == uint16(ipvswire.IPv6) {
		mask.Netmask = order.Uint32(s.netmask[:])
	} else {
		mask.Netmask = uint32(s.netmask[0])<<24 | uint32(s.netmask[1])<<16 | uint32(s.netmask[2])<<8 | uint32(s.netmask[3])
	}
	return mask
}

func (d *destination) state() ipvswire.DestinationState {
	return ipvswire.DestinationState{
		Destination: ipvswire.Destination{Addr: d.addrPort(), Forwarding: ipvswire.Forwarding(d.forwarding), Weight: int32(d.weight), Upper: d.upper, Lower: d.lower,
			Tunnel: ipvswire.TunnelOptions{Type: d.tunType, Port: d.tunPort, Flags: d.tunFlags}},
		Active: d.conns.Active, Inactive: d.conns.Inactive, Persistent: d.conns.Persistent, Stats: d.stats,
	}
}

// rows is the size of each of the kernel's two tables of services, IP_VS_SVC_TAB_SIZE.
const rows = 256

// table holds services in the order in which the kernel lists them: by row, those by address before those by mark, in a row the
// newest first.
type table struct {
	byKey map[key]*service
	rows  [2 * rows][]*service
}

func newTable() table { return table{byKey: map[key]*service{}} }

func (t *table) find(k key) *service { return t.byKey[k] }

func (t *table) row(k key) *[]*service {
	if k.mark != 0 {
		return &t.rows[rows+k.mark%rows]
	}
	h := fnv.New32a()
	h.Write(k.addr[:])
	h.Write([]byte{byte(k.port >> 8), byte(k.port), byte(k.proto)})
	return &t.rows[h.Sum32()%rows]
}

func (t *table) add(s *service) {
	t.byKey[s.key] = s
	row := t.row(s.key)
	*row = slices.Insert(*row, 0, s)
}

func (t *table) remove(s *service) {
	delete(t.byKey, s.key)
	row := t.row(s.key)
	*row = slices.DeleteFunc(*row, func(o *service) bool { return o == s })
}

// at returns the service at a position of the list.
func (t *table) at(i int) *service {
	for _, row := range t.rows {
		if i < len(row) {
			return row[i]
		}
		i -= len(row)
	}
	return nil
}
