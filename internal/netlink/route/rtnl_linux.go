package route

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink"
)

// Loopback is the index of the interface lo of every network namespace.
const Loopback = 1

// Open opens a socket for requests, and one for notifications of addresses of a family,
// unix.AF_INET or unix.AF_INET6, and of more groups (RTNLGRP_*), in the calling thread's network
// namespace.
func Open(family byte, more ...uint32) (conn, events *netlink.Conn, err error) {
	group := uint32(unix.RTNLGRP_IPV4_IFADDR)
	if family == unix.AF_INET6 {
		group = unix.RTNLGRP_IPV6_IFADDR
	}
	cfg := netlink.Config{Protocol: unix.NETLINK_ROUTE, ReceiveBuffer: 1 << 20}
	conn, err = netlink.Open(cfg)
	if err != nil {
		return nil, nil, fmt.Errorf("query addresses: %w", err)
	}
	cfg.Groups = append([]uint32{group}, more...)
	events, err = netlink.Open(cfg)
	if err != nil {
		conn.Close()
		return nil, nil, fmt.Errorf("listen for changes of addresses: %w", err)
	}
	return conn, events, nil
}

// Address is an address of an interface.
type Address struct {
	Addr  netip.Addr
	Bits  int
	Index int32 // of the interface
	Scope byte  // RT_SCOPE_*; for IPv6 it follows from the address
	// Flags are IFA_F_*. With IFA_F_DEPRECATED in a request, the address is no source address.
	Flags uint32
}

// ParseAddress reads struct ifaddrmsg and its attributes.
func ParseAddress(body []byte) (a Address, ok bool) {
	if len(body) < unix.SizeofIfAddrmsg {
		return a, false
	}
	a = Address{Bits: int(body[1]), Flags: uint32(body[2]), Scope: body[3],
		Index: int32(netlink.Order.Uint32(body[4:]))}
	var local, peer []byte
	netlink.Attributes(body[unix.SizeofIfAddrmsg:], func(typ uint16, v []byte) bool {
		switch typ {
		case unix.IFA_LOCAL:
			local = v
		case unix.IFA_ADDRESS:
			peer = v
		case unix.IFA_FLAGS:
			a.Flags = netlink.Native32(v)
		}
		return true
	})
	if local == nil { // IPv6 has only the other attribute, unless there is a peer
		local = peer
	}
	a.Addr, ok = netip.AddrFromSlice(local)
	return a, ok
}

// AppendAddress appends a request about an address: unix.RTM_NEWADDR or unix.RTM_DELADDR.
func AppendAddress(e *netlink.Encoder, typ, flags uint16, a Address) {
	at := e.Begin(typ, flags, 0)
	e.B = append(e.B, family(a.Addr), byte(a.Bits), 0, a.Scope)
	e.B = netlink.Order.AppendUint32(e.B, uint32(a.Index))
	e.Addr(unix.IFA_LOCAL, a.Addr)
	e.Addr(unix.IFA_ADDRESS, a.Addr)
	e.Native32(unix.IFA_FLAGS, a.Flags&^unix.IFA_F_DEPRECATED)
	if a.Flags&unix.IFA_F_DEPRECATED != 0 { // it is preferred for 0 s, and valid for ever
		var lifetimes [16]byte // struct ifa_cacheinfo
		netlink.Order.PutUint32(lifetimes[4:], math.MaxUint32)
		e.Bytes(unix.IFA_CACHEINFO, lifetimes[:])
	}
	e.EndMessage(at)
}

// Addresses lists the addresses of a family, unix.AF_INET or unix.AF_INET6, or of both with 0.
func Addresses(ctx context.Context, conn netlink.Asker, family byte) ([]Address, error) {
	request := netlink.Request(unix.RTM_GETADDR, unix.NLM_F_DUMP,
		append([]byte{family}, make([]byte, unix.SizeofIfAddrmsg-1)...))
	all, err := netlink.Dump(ctx, conn, request, func(m netlink.Message) (Address, bool) {
		a, ok := ParseAddress(m.Body)
		return a, ok && m.Type == unix.RTM_NEWADDR && (family == 0 || m.Body[0] == family)
	})
	if err != nil {
		return nil, fmt.Errorf("list the addresses of this node: %w", err)
	}
	return all, nil
}

// Link is an interface.
type Link struct {
	Index  int32
	Type   uint16 // ARPHRD_*
	Flags  uint32 // IFF_*
	Name   string
	Kind   string // such as "dummy"; "" for hardware
	VLANs  bool   // a bridge that filters by VLAN
	MTU    uint32
	Master int32 // the index of the interface that it belongs to; 0 for none
	XDP    bool  // an XDP program is attached
}

// ParseLink reads struct ifinfomsg and its attributes.
func ParseLink(body []byte) (l Link, ok bool) {
	if len(body) < unix.SizeofIfInfomsg {
		return l, false
	}
	l = Link{Type: netlink.Order.Uint16(body[2:]), Index: int32(netlink.Order.Uint32(body[4:])),
		Flags: netlink.Order.Uint32(body[8:])}
	netlink.Attributes(body[unix.SizeofIfInfomsg:], func(typ uint16, v []byte) bool {
		switch typ {
		case unix.IFLA_IFNAME:
			l.Name = netlink.CStr(v)
		case unix.IFLA_LINKINFO:
			l.Kind = netlink.CStr(netlink.Attribute(v, unix.IFLA_INFO_KIND))
			const vlanFiltering = 7 // IFLA_BR_VLAN_FILTERING
			l.VLANs = l.Kind == "bridge" && netlink.U8(netlink.Attribute(netlink.Attribute(v, unix.IFLA_INFO_DATA),
				vlanFiltering)) != 0
		case unix.IFLA_MTU:
			l.MTU = netlink.Native32(v)
		case unix.IFLA_MASTER:
			l.Master = int32(netlink.Native32(v))
		case unix.IFLA_XDP:
			l.XDP = netlink.U8(netlink.Attribute(v, unix.IFLA_XDP_ATTACHED)) != 0
		}
		return true
	})
	return l, true
}

// Links lists the interfaces.
func Links(ctx context.Context, conn netlink.Asker) ([]Link, error) {
	request := netlink.Request(unix.RTM_GETLINK, unix.NLM_F_DUMP, make([]byte, unix.SizeofIfInfomsg))
	all, err := netlink.Dump(ctx, conn, request, func(m netlink.Message) (Link, bool) { return ParseLink(m.Body) })
	if err != nil {
		return nil, fmt.Errorf("list the interfaces: %w", err)
	}
	return all, nil
}

// FindLink finds the interface with a name; its index is 0 if it does not exist.
func FindLink(ctx context.Context, conn netlink.Asker, name string) (found Link, err error) {
	var e netlink.Encoder
	e.Str(unix.IFLA_IFNAME, name)
	found, err = getLink(ctx, conn, 0, e.B)
	if err != nil {
		return Link{}, fmt.Errorf("look for interface %s: %w", name, err)
	}
	return found, nil
}

// LinkName returns the name of the interface with an index, or "" if it does not exist.
func LinkName(ctx context.Context, conn netlink.Asker, index int32) (name string, err error) {
	l, err := getLink(ctx, conn, index, nil)
	if err != nil {
		return "", fmt.Errorf("look for interface number %d: %w", index, err)
	}
	return l.Name, nil
}

// getLink requests the interface with an index, or with the attributes' name.
func getLink(ctx context.Context, conn netlink.Asker, index int32, attrs []byte) (found Link, err error) {
	head := make([]byte, unix.SizeofIfInfomsg)
	netlink.Order.PutUint32(head[4:], uint32(index))
	err = conn.Do(ctx, netlink.Request(unix.RTM_GETLINK, 0, head, attrs), func(m netlink.Message) error {
		found, _ = ParseLink(m.Body)
		return nil
	})
	if errors.Is(err, unix.ENODEV) {
		return Link{}, nil
	}
	return found, err
}

// ChangeLink returns a request that sets the flags (IFF_*) in which of an interface. With index 0
// it creates one with that name and kind, and with the other attributes.
func ChangeLink(l Link, which uint32, attrs ...[]byte) []byte {
	head := make([]byte, unix.SizeofIfInfomsg)
	netlink.Order.PutUint32(head[4:], uint32(l.Index))
	netlink.Order.PutUint32(head[8:], l.Flags)
	netlink.Order.PutUint32(head[12:], which)
	if l.Index != 0 {
		return netlink.Request(unix.RTM_NEWLINK, unix.NLM_F_ACK, head)
	}
	var e netlink.Encoder
	e.Str(unix.IFLA_IFNAME, l.Name)
	info := e.Nest(unix.IFLA_LINKINFO)
	e.Str(unix.IFLA_INFO_KIND, l.Kind)
	e.EndNest(info)
	return netlink.Request(unix.RTM_NEWLINK, unix.NLM_F_ACK|unix.NLM_F_CREATE|unix.NLM_F_EXCL,
		append([][]byte{head, e.B}, attrs...)...)
}

// DeleteLink returns a request that deletes an interface.
func DeleteLink(index int32) []byte {
	head := make([]byte, unix.SizeofIfInfomsg)
	netlink.Order.PutUint32(head[4:], uint32(index))
	return netlink.Request(unix.RTM_DELLINK, unix.NLM_F_ACK, head)
}

// LeadsHere reports whether packets to the address are for this node. A new IPv6 address becomes
// the node's a moment later.
func LeadsHere(ctx context.Context, conn netlink.Asker, a netip.Addr) (here bool, err error) {
	way, err := Lookup(ctx, conn, Query{To: a})
	return way.Here(), err
}

// Entry is an entry of a routing table. A route through several interfaces is one entry for each.
type Entry struct {
	Dst  netip.Prefix
	Link int32 // the index of the interface; 0 for none
}

// Entries lists the main routing table of a family, unix.AF_INET or unix.AF_INET6.
func Entries(ctx context.Context, conn netlink.Asker, family byte) (all []Entry, err error) {
	request := netlink.Request(unix.RTM_GETROUTE, unix.NLM_F_DUMP,
		append([]byte{family}, make([]byte, unix.SizeofRtMsg-1)...))
	parts, err := netlink.Dump(ctx, conn, request, func(m netlink.Message) ([]Entry, bool) {
		if len(m.Body) < unix.SizeofRtMsg || m.Body[0] != family {
			return nil, false
		}
		return parseRoute(m.Body)
	})
	if err != nil {
		return nil, fmt.Errorf("list the routes: %w", err)
	}
	return slices.Concat(parts...), nil
}

// hops returns the interfaces of a route's next hops. The kernel gives each as its length, flags,
// weight and interface (linux/rtnetlink.h).
func hops(v []byte) (links []int32) {
	for len(v) >= unix.SizeofRtNexthop {
		links = append(links, int32(netlink.Order.Uint32(v[4:])))
		v = v[min(max(int(netlink.Order.Uint16(v)+3)&^3, unix.SizeofRtNexthop), len(v)):]
	}
	return links
}

// parseRoute reads struct rtmsg and its attributes. It returns false for a route of a table other
// than main.
func parseRoute(body []byte) (all []Entry, main bool) {
	table, links := uint32(body[4]), []int32{0} // rtm_table
	dst := make([]byte, 4)
	if body[0] == unix.AF_INET6 {
		dst = make([]byte, 16)
	}
	netlink.Attributes(body[unix.SizeofRtMsg:], func(typ uint16, v []byte) bool {
		switch typ {
		case unix.RTA_TABLE:
			table = netlink.Native32(v)
		case unix.RTA_DST:
			copy(dst, v)
		case unix.RTA_OIF:
			links = []int32{int32(netlink.Native32(v))}
		case unix.RTA_MULTIPATH:
			links = hops(v)
		}
		return true
	})
	a, _ := netip.AddrFromSlice(dst)
	for _, link := range links {
		all = append(all, Entry{netip.PrefixFrom(a, int(body[1])), link})
	}
	return all, table == unix.RT_TABLE_MAIN
}
