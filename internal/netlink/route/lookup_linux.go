package route

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink"
)

// Query asks for the route of a packet.
type Query struct {
	// From is the source; for packets of the node it must be an address of the node, or invalid for
	// one that the kernel chooses.
	To, From netip.Addr
	// In is the index of the interface on which the packet arrives; 0 for the node's own packets.
	In   int32
	Mark uint32
	// Proto and the ports are for policy rules; 0 is unknown, which the kernel takes for UDP. It
	// takes only TCP, UDP and the family's ICMP.
	Proto            byte
	FromPort, ToPort uint16
}

// Route is where a packet goes.
type Route struct {
	// Type is RTN_*.
	Type byte
	// Out is the index of the interface on which the packet leaves; 0 without a route.
	Out int32
	// Gateway is the next hop; invalid if that is the destination itself.
	Gateway netip.Addr
	// Source is the source address of the node's own packets; invalid if the kernel names none.
	Source netip.Addr
	Table  uint32 // RT_TABLE_*
	MTU    uint32 // of the route; 0 means the interface's
	Encap  uint16 // LWTUNNEL_ENCAP_*: the route encapsulates packets, or gives them to BPF programs
	// Errno is the reason why no route exists; else 0.
	Errno unix.Errno
}

// Rule is a policy rule (ip-rule(8)), as far as it selects by what a query may not know.
type Rule struct {
	Priority uint32
	// SourcePorts and Users: it selects by source ports, and by users of programs.
	SourcePorts, Users bool
}

// Rules lists the policy rules of a family that select by source ports or by users.
func Rules(ctx context.Context, conn netlink.Asker, family byte) ([]Rule, error) {
	const priority, users, sourcePorts = 6, 20, 23 // FRA_PRIORITY, FRA_UID_RANGE, FRA_SPORT_RANGE
	request := netlink.Request(unix.RTM_GETRULE, unix.NLM_F_DUMP, append([]byte{family}, make([]byte, 11)...))
	all, err := netlink.Dump(ctx, conn, request, func(m netlink.Message) (r Rule, ok bool) {
		const header = 12 // struct fib_rule_hdr
		if len(m.Body) < header || m.Body[0] != family {
			return r, false
		}
		netlink.Attributes(m.Body[header:], func(typ uint16, v []byte) bool {
			switch typ {
			case priority:
				r.Priority = netlink.Native32(v)
			case users:
				r.Users = true
			case sourcePorts:
				r.SourcePorts = true
			}
			return true
		})
		return r, r.Users || r.SourcePorts
	})
	if err != nil {
		return nil, fmt.Errorf("list the policy rules: %w", err)
	}
	return all, nil
}

// Here reports whether the packet is for this node.
func (r Route) Here() bool { return r.Type == unix.RTN_LOCAL }

// Lookup queries the kernel for a route, including its policy rules. For an incoming packet the
// kernel also checks the source, as its sysctls require.
func Lookup(ctx context.Context, conn netlink.Asker, q Query) (r Route, err error) {
	err = conn.Do(ctx, q.request(0), func(m netlink.Message) error {
		r.parse(m.Body)
		return nil
	})
	if refused := (*netlink.Error)(nil); errors.As(err, &refused) {
		return Route{Errno: refused.Errno}, nil
	}
	return r, err
}

// Legs returns how many next hops the route of a packet has, among which the kernel chooses by a
// hash of the packet; 0 without a route.
func Legs(ctx context.Context, conn netlink.Asker, q Query) (n int, err error) {
	err = conn.Do(ctx, q.request(unix.RTM_F_FIB_MATCH), func(m netlink.Message) error {
		if len(m.Body) >= unix.SizeofRtMsg {
			n = max(1, len(hops(netlink.Attribute(m.Body[unix.SizeofRtMsg:], unix.RTA_MULTIPATH))))
		}
		return nil
	})
	if refused := (*netlink.Error)(nil); errors.As(err, &refused) {
		return 0, nil
	}
	return n, err
}

// request is the message of the query, with flags of struct rtmsg.
func (q Query) request(flags uint32) []byte {
	head := make([]byte, unix.SizeofRtMsg)
	head[0], head[1] = family(q.To), byte(q.To.BitLen())
	netlink.Order.PutUint32(head[8:], flags)
	var e netlink.Encoder
	e.Addr(unix.RTA_DST, q.To)
	if q.From.IsValid() {
		head[2] = byte(q.From.BitLen())
		e.Addr(unix.RTA_SRC, q.From)
	}
	if q.In != 0 {
		e.Native32(unix.RTA_IIF, uint32(q.In))
		e.Native32(unix.RTA_UID, 0) // policy rules take forwarded packets for those of root
	}
	if q.Mark != 0 {
		e.Native32(unix.RTA_MARK, q.Mark)
	}
	icmp := byte(unix.IPPROTO_ICMP)
	if q.To.Is6() {
		icmp = unix.IPPROTO_ICMPV6
	}
	if q.Proto == unix.IPPROTO_TCP || q.Proto == unix.IPPROTO_UDP || q.Proto == icmp {
		e.U8(unix.RTA_IP_PROTO, q.Proto)
		e.U16(unix.RTA_SPORT, q.FromPort)
		e.U16(unix.RTA_DPORT, q.ToPort)
	}
	return netlink.Request(unix.RTM_GETROUTE, 0, head, e.B)
}

func (r *Route) parse(body []byte) {
	if len(body) < unix.SizeofRtMsg {
		return
	}
	r.Table, r.Type = uint32(body[4]), body[7] // rtm_table, rtm_type
	netlink.Attributes(body[unix.SizeofRtMsg:], func(typ uint16, v []byte) bool {
		switch typ {
		case unix.RTA_OIF:
			r.Out = int32(netlink.Native32(v))
		case unix.RTA_GATEWAY:
			r.Gateway, _ = netip.AddrFromSlice(v)
		case unix.RTA_VIA: // struct rtvia: the family before the address
			r.Gateway, _ = netip.AddrFromSlice(v[min(2, len(v)):])
		case unix.RTA_PREFSRC:
			r.Source, _ = netip.AddrFromSlice(v)
		case unix.RTA_TABLE:
			r.Table = netlink.Native32(v)
		case unix.RTA_METRICS:
			r.MTU = netlink.Native32(netlink.Attribute(v, unix.RTAX_MTU))
		case unix.RTA_ENCAP_TYPE:
			r.Encap = netlink.Native16(v)
		}
		return true
	})
}

func family(a netip.Addr) byte {
	if a.Is6() {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

// Neighbour is an entry of the neighbour table.
type Neighbour struct {
	Addr  netip.Addr
	Link  int32
	State uint16  // NUD_*
	MAC   [6]byte // its address of the link layer; zero if unknown, or of another length
}

// Neighbours lists the neighbours of a family, unix.AF_INET or unix.AF_INET6.
func Neighbours(ctx context.Context, conn netlink.Asker, family byte) ([]Neighbour, error) {
	request := netlink.Request(unix.RTM_GETNEIGH, unix.NLM_F_DUMP,
		append([]byte{family}, make([]byte, unix.SizeofNdMsg-1)...))
	all, err := netlink.Dump(ctx, conn, request, func(m netlink.Message) (Neighbour, bool) {
		if len(m.Body) < unix.SizeofNdMsg || m.Body[0] != family {
			return Neighbour{}, false
		}
		a, ok := netip.AddrFromSlice(netlink.Attribute(m.Body[unix.SizeofNdMsg:], unix.NDA_DST))
		n := Neighbour{Addr: a, Link: int32(netlink.Order.Uint32(m.Body[4:])), State: netlink.Order.Uint16(m.Body[8:])}
		if mac := netlink.Attribute(m.Body[unix.SizeofNdMsg:], unix.NDA_LLADDR); len(mac) == 6 {
			n.MAC = [6]byte(mac)
		}
		return n, ok
	})
	if err != nil {
		return nil, fmt.Errorf("list the neighbours: %w", err)
	}
	return all, nil
}

// Filters lists the traffic control filters of a parent on an interface: their kinds, such as
// "bpf", with their names. Parent is the handle of a qdisc, FilterIngress or FilterEgress.
func Filters(ctx context.Context, conn netlink.Asker, link int32, parent uint32) ([]string, error) {
	head := make([]byte, sizeofTcMsg)
	netlink.Order.PutUint32(head[4:], uint32(link))
	netlink.Order.PutUint32(head[12:], parent)
	request := netlink.Request(unix.RTM_GETTFILTER, unix.NLM_F_DUMP, head)
	all, err := netlink.Dump(ctx, conn, request, func(m netlink.Message) (string, bool) {
		if len(m.Body) < sizeofTcMsg {
			return "", false
		}
		kind := netlink.CStr(netlink.Attribute(m.Body[sizeofTcMsg:], unix.TCA_KIND))
		options := netlink.Attribute(m.Body[sizeofTcMsg:], unix.TCA_OPTIONS)
		if name := netlink.CStr(netlink.Attribute(options, tcaBPFName)); kind == "bpf" && name != "" {
			kind += " " + name
		}
		return kind, options != nil // the kernel also lists a filter's head, without options
	})
	if err != nil {
		return nil, fmt.Errorf("list the filters of interface number %d: %w", link, err)
	}
	return all, nil
}

// Qdisc is a queueing discipline of an interface.
type Qdisc struct {
	Link   int32
	Handle uint32 // 0 for one that has no filters
	Kind   string
}

// Qdiscs lists the queueing disciplines of all interfaces.
func Qdiscs(ctx context.Context, conn netlink.Asker) ([]Qdisc, error) {
	request := netlink.Request(unix.RTM_GETQDISC, unix.NLM_F_DUMP, make([]byte, sizeofTcMsg))
	all, err := netlink.Dump(ctx, conn, request, func(m netlink.Message) (q Qdisc, ok bool) {
		ok = len(m.Body) >= sizeofTcMsg
		if ok {
			q = Qdisc{int32(netlink.Order.Uint32(m.Body[4:])), netlink.Order.Uint32(m.Body[8:]),
				netlink.CStr(netlink.Attribute(m.Body[sizeofTcMsg:], unix.TCA_KIND))}
		}
		return q, ok
	})
	if err != nil {
		return nil, fmt.Errorf("list the queueing disciplines: %w", err)
	}
	return all, nil
}

// Numbers of the kernel's pkt_sched.h and pkt_cls.h.
const (
	sizeofTcMsg = 20
	tcaBPFName  = 7

	// FilterIngress and FilterEgress are parents for [Filters]: the hooks of an interface.
	FilterIngress = 0xfffffff2
	FilterEgress  = 0xfffffff3
)
