package netlab

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"github.com/mdlayher/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// rtnl changes the links, addresses, neighbours and routes of one namespace. It has its own
// encoding: tests of internal/netlink compare theirs with what the lab has.
type rtnl struct{ conn *netlink.Conn }

func openRTNL(ns netns.NsHandle) (*rtnl, error) {
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, &netlink.Config{NetNS: int(ns)})
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	return &rtnl{conn}, nil
}

func (r *rtnl) close() { _ = r.conn.Close() }

// attributes appends the attributes of a request.
type attributes = func(*netlink.AttributeEncoder)

// encode returns a fixed header with attributes behind it.
func encode(head []byte, attrs attributes) ([]byte, error) {
	e := netlink.NewAttributeEncoder()
	attrs(e)
	b, err := e.Encode()
	return append(head, b...), err
}

// change sends a request, and waits until the kernel has done it.
func (r *rtnl) change(typ uint16, flags netlink.HeaderFlags, head []byte, attrs attributes) error {
	data, err := encode(head, attrs)
	if err != nil {
		return err
	}
	_, err = r.conn.Execute(netlink.Message{Data: data,
		Header: netlink.Header{Type: netlink.HeaderType(typ), Flags: netlink.Request | netlink.Acknowledge | flags}})
	return err
}

// ifInfo is a struct ifinfomsg.
func ifInfo(family byte, index int, flags, change uint32) []byte {
	b := make([]byte, unix.SizeofIfInfomsg)
	b[0] = family
	binary.NativeEndian.PutUint32(b[4:], uint32(index))
	binary.NativeEndian.PutUint32(b[8:], flags)
	binary.NativeEndian.PutUint32(b[12:], change)
	return b
}

// link is an interface of the namespace.
type link struct {
	index int
	hw    net.HardwareAddr
}

func (r *rtnl) find(name string) (l link, err error) {
	data, err := encode(ifInfo(0, 0, 0, 0), func(e *netlink.AttributeEncoder) { e.String(unix.IFLA_IFNAME, name) })
	if err != nil {
		return l, err
	}
	answers, err := r.conn.Execute(netlink.Message{Data: data,
		Header: netlink.Header{Type: unix.RTM_GETLINK, Flags: netlink.Request}})
	if err != nil {
		return l, fmt.Errorf("find %s: %w", name, err)
	}
	for _, m := range answers {
		l.index = int(binary.NativeEndian.Uint32(m.Data[4:]))
		d, err := netlink.NewAttributeDecoder(m.Data[unix.SizeofIfInfomsg:])
		if err != nil {
			return l, err
		}
		for d.Next() {
			if d.Type() == unix.IFLA_ADDRESS {
				l.hw = d.Bytes()
			}
		}
	}
	return l, nil
}

// up starts an interface.
func (r *rtnl) up(index int) error {
	return r.change(unix.RTM_NEWLINK, 0, ifInfo(0, index, unix.IFF_UP, unix.IFF_UP), func(*netlink.AttributeEncoder) {})
}

// add creates an interface of a kind, and starts it.
func (r *rtnl) add(name, kind string, hw net.HardwareAddr, data attributes) error {
	return r.change(unix.RTM_NEWLINK, netlink.Create|netlink.Excl, ifInfo(0, 0, unix.IFF_UP, unix.IFF_UP),
		func(e *netlink.AttributeEncoder) {
			e.String(unix.IFLA_IFNAME, name)
			e.Bytes(unix.IFLA_ADDRESS, hw)
			e.Nested(unix.IFLA_LINKINFO, func(e *netlink.AttributeEncoder) error {
				e.String(unix.IFLA_INFO_KIND, kind)
				e.Nested(unix.IFLA_INFO_DATA, func(e *netlink.AttributeEncoder) error { data(e); return nil })
				return nil
			})
		})
}

// addBridge creates a bridge without multicast snooping (which would need a querier).
func (r *rtnl) addBridge(name string, hw net.HardwareAddr) error {
	return r.add(name, "bridge", hw, func(e *netlink.AttributeEncoder) { e.Uint8(unix.IFLA_BR_MCAST_SNOOPING, 0) })
}

const vethInfoPeer = 1 // linux/veth.h

// addVeth creates a pair of interfaces; peer lies in another namespace, and is down.
func (r *rtnl) addVeth(name string, hw net.HardwareAddr, peer string, peerHW net.HardwareAddr,
	ns netns.NsHandle) error {
	return r.add(name, "veth", hw, func(e *netlink.AttributeEncoder) {
		e.Do(vethInfoPeer, func() ([]byte, error) {
			return encode(ifInfo(0, 0, 0, 0), func(e *netlink.AttributeEncoder) {
				e.String(unix.IFLA_IFNAME, peer)
				e.Bytes(unix.IFLA_ADDRESS, peerHW)
				e.Uint32(unix.IFLA_NET_NS_FD, uint32(ns))
			})
		})
	})
}

// setMaster makes an interface a port of a bridge; 0 for none.
func (r *rtnl) setMaster(index, bridge int) error {
	return r.change(unix.RTM_NEWLINK, 0, ifInfo(0, index, 0, 0),
		func(e *netlink.AttributeEncoder) { e.Uint32(unix.IFLA_MASTER, uint32(bridge)) })
}

const brportMode = 4 // IFLA_BRPORT_MODE of linux/if_link.h: hairpin

// enslave makes an interface a port of a bridge. With hairpin, the bridge may send a frame back
// through the port by which it came.
func (r *rtnl) enslave(index, bridge int, hairpin bool) error {
	if err := r.setMaster(index, bridge); err != nil {
		return fmt.Errorf("make it a port: %w", err)
	}
	err := r.change(unix.RTM_SETLINK, 0, ifInfo(unix.AF_BRIDGE, index, 0, 0), func(e *netlink.AttributeEncoder) {
		e.Nested(unix.IFLA_PROTINFO, func(e *netlink.AttributeEncoder) error {
			e.Uint8(brportMode, map[bool]byte{true: 1}[hairpin])
			return nil
		})
	})
	if err != nil {
		return fmt.Errorf("set its hairpin mode: %w", err)
	}
	return nil
}

func familyOf(a netip.Addr) byte {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// addAddr gives an interface an address, in force at once.
func (r *rtnl) addAddr(index int, p netip.Prefix) error {
	head := []byte{familyOf(p.Addr()), byte(p.Bits()), 0, unix.RT_SCOPE_UNIVERSE}
	if p.Addr().Is6() {
		head[2] = unix.IFA_F_NODAD
	}
	head = binary.NativeEndian.AppendUint32(head, uint32(index))
	return r.change(unix.RTM_NEWADDR, netlink.Create|netlink.Excl, head,
		func(e *netlink.AttributeEncoder) {
			e.Bytes(unix.IFA_LOCAL, p.Addr().AsSlice())
			e.Bytes(unix.IFA_ADDRESS, p.Addr().AsSlice())
			if p.Addr().Is4() && p.Bits() < 31 {
				last := p.Masked().Addr().As4()
				host := uint32(1)<<(32-p.Bits()) - 1
				e.Bytes(unix.IFA_BROADCAST, binary.BigEndian.AppendUint32(nil, binary.BigEndian.Uint32(last[:])|host))
			}
		})
}

// setNeighbour sets the hardware address of a neighbour, for ever.
func (r *rtnl) setNeighbour(index int, a netip.Addr, hw net.HardwareAddr) error {
	head := make([]byte, unix.SizeofNdMsg)
	head[0] = familyOf(a)
	binary.NativeEndian.PutUint32(head[4:], uint32(index))
	binary.NativeEndian.PutUint16(head[8:], unix.NUD_PERMANENT)
	return r.change(unix.RTM_NEWNEIGH, netlink.Create|netlink.Replace, head, func(e *netlink.AttributeEncoder) {
		e.Bytes(unix.NDA_DST, a.AsSlice())
		e.Bytes(unix.NDA_LLADDR, hw)
	})
}

// route is a route to dst. The zero values mean a unicast route of table main, everywhere, without
// gateway, interface or source.
type route struct {
	dst              netip.Prefix
	gateway, source  netip.Addr
	index            int // of the interface
	kind, table      byte
	scope            byte
	onlink, replaces bool
}

func (r *rtnl) addRoute(t route) error {
	kind, table, flags := t.kind, t.table, netlink.Create|netlink.Excl
	if kind == 0 {
		kind = unix.RTN_UNICAST
	}
	if table == 0 {
		table = unix.RT_TABLE_MAIN
	}
	if t.replaces {
		flags = netlink.Create | netlink.Replace
	}
	head := []byte{familyOf(t.dst.Addr()), byte(t.dst.Bits()), 0, 0, table, unix.RTPROT_BOOT, t.scope, kind, 0, 0, 0, 0}
	if t.onlink {
		binary.NativeEndian.PutUint32(head[8:], unix.RTNH_F_ONLINK)
	}
	return r.change(unix.RTM_NEWROUTE, flags, head, func(e *netlink.AttributeEncoder) {
		e.Bytes(unix.RTA_DST, t.dst.Addr().AsSlice())
		if t.gateway.IsValid() {
			e.Bytes(unix.RTA_GATEWAY, t.gateway.AsSlice())
		}
		if t.source.IsValid() {
			e.Bytes(unix.RTA_PREFSRC, t.source.AsSlice())
		}
		if t.index != 0 {
			e.Uint32(unix.RTA_OIF, uint32(t.index))
		}
	})
}
