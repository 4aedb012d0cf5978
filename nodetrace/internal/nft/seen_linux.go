package nft

import (
	"bytes"
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	nlconn "kube-proxy/internal/netlink"
	"kube-proxy/internal/nft/rule"
	"kube-proxy/nodetrace/internal/follow"
	"kube-proxy/trace"
)

// Seen are the packet's properties that rules see at one hook and cannot change.
type Seen struct {
	// Family is NFPROTO_IPV4 or NFPROTO_IPV6. Proto is the protocol of the transport layer.
	Family, Proto byte
	// From is the source; port 0 is unknown. The destination port of ICMP is its type and code.
	From netip.AddrPort
	// In and Out are the devices; a missing one has no name.
	In, Out Link
	// Sent: a process of this node sends the packet. Received: the kernel may have found the socket
	// of this node that receives it (early demux, of connections alone).
	Sent, Received bool
	Conn           Conn
}

// Link is a device as rules see it.
type Link struct {
	Name  string
	Index uint32
	Type  uint16 // ARPHRD_*
	// Port: it is a port of a bridge, whose name and number are not known.
	Port bool
}

// Conn is the packet's connection in conntrack.
type Conn struct {
	// State and Status are bits of ct state and ct status. Known: conntrack has the packet.
	State, Status uint32
	Known, Reply  bool
	// Error: the packet reports an error of the connection; of TCP, it is a reset.
	Error bool
	// Later: the packet is not the first one of its direction.
	Later bool
	// From and To are the tuple of the original direction, ReplyFrom and ReplyTo that of replies.
	From, To, ReplyFrom, ReplyTo netip.AddrPort
}

// seenOf returns a packet that opens a connection, for a walk through one table.
func seenOf(family byte, p trace.Packet) Seen {
	in := Link{Name: p.In, Type: unix.ARPHRD_ETHER}
	if p.In == "lo" || p.Host && p.In == "" {
		in.Type = unix.ARPHRD_LOOPBACK
	}
	return Seen{Family: family, Proto: byte(p.Proto), From: p.From, In: in, Conn: Conn{State: stateNew,
		Known: true, From: p.From, To: p.To}}
}

// Node answers the queries of expressions about the node.
type Node interface {
	// AddressType returns RTN_LOCAL, RTN_BROADCAST or another type. LinkTo returns the device of
	// the route to an address, 0 without a route, and for an address of the node.
	AddressType(a netip.Addr) (uint32, error)
	LinkTo(a netip.Addr) (index uint32, name string, err error)
}

// Extend applies a rule that has extensions of iptables. body is its message.
type Extend func(as *follow.Rule, body []byte, flows []follow.Flow) (met []follow.Met, rest []follow.Flow, err error)

// place is the position of a rule.
type place struct {
	w     *walk
	chain string
	i     int
}

// rule returns the name of the rule, always the same pointer.
func (p place) rule() *follow.Rule {
	r := &p.w.chains[p.chain][p.i]
	if r.as == nil {
		r.as = &follow.Rule{Table: p.w.table.Title(), Chain: p.chain, Number: p.i + 1, Handle: r.Handle,
			Text: p.w.text(r)}
	}
	return r.as
}

// unknown handles an expression that the walk cannot evaluate. A walk through one table treats it
// as a match that fails. Others follow both ways, and mark one of them as doubtful.
func (w *walk) unknown(x rule.Expression, f *flow) bool {
	if w.node == nil {
		w.say("a rule has the expression %T, which this program does not know, and takes for a match that fails", x)
		return false
	}
	if !f.unsure {
		w.forked = append(w.forked, *f)
		f.unsure, f.Share = true, 0
	}
	if f.Doubt == nil {
		f.Doubt = w.at.rule()
	}
	return true
}

// blind loads an unknown value of n bytes.
func (w *walk) blind(x rule.Expression, to rule.Register, n int, f *flow) bool {
	if w.node == nil || to == 0 {
		return w.unknown(x, f)
	}
	f.hide(to, max(n, 4), true)
	return true
}

// payload loads a part of the packet. The rule ends if the packet has no such part.
func (w *walk) payload(x rule.Payload, f *flow) bool {
	b, known := w.header(x.Base, f)
	from, to := int(x.Offset), int(x.Offset+x.Len)
	switch {
	case b == nil && w.node != nil:
		return w.blind(x, x.To, int(x.Len), f)
	case to > len(b) || from > to:
		return false
	}
	if !f.load(x.To, b[from:to]) {
		return false
	}
	for i := from; i < to && w.node != nil; i++ {
		switch at := x.To + rule.Register(i-from); {
		case known[i] != 0:
		case x.Base == unix.NFT_PAYLOAD_TRANSPORT_HEADER && i < 4:
			f.hidePort(at)
		default:
			f.hide(at, 1, true)
		}
	}
	return true
}

// rewrite writes a part of the packet. What it cannot follow leaves the way in doubt.
func (w *walk) rewrite(x rule.PayloadSet, f *flow) bool {
	b, known := w.header(x.Base, f)
	from, to := int(x.Offset), int(x.Offset+x.Len)
	if b == nil || to > len(b) || from > to || w.node == nil {
		return w.unknown(x, f)
	}
	was := bytes.Clone(b)
	v := f.at(x.From, to-from)
	if len(v) != to-from {
		return w.unknown(x, f)
	}
	certain := true
	for i := from; i < to; i++ {
		switch at := x.From + rule.Register(i-from); {
		case !f.blindAt(at, 1):
			b[i], known[i] = v[i-from], 1
		case known[i] != 0: // else it was unknown, and may be the same
			certain = false
		}
	}
	v6 := w.seen.Family == unix.NFPROTO_IPV6
	same := func(from, to int) bool { return bytes.Equal(b[from:to], was[from:to]) }
	addresses, ttl := [2]int{12, 16}, 8
	if v6 {
		addresses, ttl = [2]int{8, 24}, 7
	}
	switch {
	case x.Base == unix.NFT_PAYLOAD_NETWORK_HEADER:
		n := addresses[1] - addresses[0]
		if f.TOS = b[1]; v6 {
			f.TOS = b[0]<<4 | b[1]>>4
		}
		if known[ttl] != 0 {
			f.TTL = b[ttl]
		}
		if !same(addresses[0], addresses[1]) {
			a, _ := netip.AddrFromSlice(b[addresses[0]:addresses[1]])
			f.From = netip.AddrPortFrom(a, w.seen.From.Port())
		}
		if !same(addresses[1], addresses[1]+n) {
			a, _ := netip.AddrFromSlice(b[addresses[1] : addresses[1]+n])
			f.To, f.TranslatedBy = netip.AddrPortFrom(a, f.To.Port()), w.at.rule()
		}
		proto := 9
		if v6 {
			proto = 6
		}
		certain = certain && same(proto, proto+1) && b[0]>>4 == was[0]>>4
	case x.Base == unix.NFT_PAYLOAD_TRANSPORT_HEADER && to <= 4:
		if !same(0, 2) {
			source, _ := w.source(f)
			f.From = netip.AddrPortFrom(source.Addr(), binary.BigEndian.Uint16(b))
		}
		if !same(2, 4) {
			f.To, f.TranslatedBy = netip.AddrPortFrom(f.To.Addr(), binary.BigEndian.Uint16(b[2:])), w.at.rule()
		}
	default:
		certain = certain && bytes.Equal(b, was)
	}
	return certain || w.unknown(x, f)
}

// source returns the source of the packet, as earlier rules have left it; sure is false for a
// masqueraded packet, which has an address of the node.
func (w *walk) source(f *flow) (from netip.AddrPort, sure bool) {
	if w.node == nil || !f.Masqueraded && !f.From.IsValid() {
		return w.seen.From, true
	}
	return f.From, f.From.IsValid()
}

// header returns a header of the packet, and which of its bytes are known; nil for an unknown
// header.
func (w *walk) header(base uint32, f *flow) (b, known []byte) {
	v6 := w.seen.Family == unix.NFPROTO_IPV6
	from, sure := w.source(f)
	mark := func(from, to int) {
		for i := from; i < to; i++ {
			known[i] = 1
		}
	}
	switch {
	case base == unix.NFPROTO_UNSPEC && w.t.Family != unix.NFPROTO_IPV4 &&
		w.t.Family != unix.NFPROTO_IPV6: // the link layer
		b, known = make([]byte, 14), make([]byte, 14)
		binary.BigEndian.PutUint16(b[12:], w.etherType())
		mark(12, 14)
	case base == unix.NFT_PAYLOAD_NETWORK_HEADER && v6:
		b, known = networkHeader(w.seen.Family, w.seen.Proto, from.Addr(), f.To.Addr()), make([]byte, 40)
		b[0], b[1], b[7] = b[0]|f.TOS>>4, f.TOS<<4, f.TTL
		mark(0, 2) // the flow label is not known; its first bits share a byte with the class
		mark(6, 7)
		if f.TTL != 0 {
			mark(7, 8)
		}
		if mark(24, 40); sure {
			mark(8, 24)
		}
	case base == unix.NFT_PAYLOAD_NETWORK_HEADER:
		b, known = networkHeader(w.seen.Family, w.seen.Proto, from.Addr(), f.To.Addr()), make([]byte, 20)
		b[1], b[8] = f.TOS, f.TTL
		mark(0, 2)
		if f.TTL != 0 {
			mark(8, 9)
		}
		mark(6, 8)
		mark(9, 10)
		if mark(16, 20); sure {
			mark(12, 16)
		}
	case base == unix.NFT_PAYLOAD_TRANSPORT_HEADER:
		b, known = make([]byte, 20), make([]byte, 20)
		if p := w.seen.Proto; p == unix.IPPROTO_ICMP || p == unix.IPPROTO_ICMPV6 {
			binary.BigEndian.PutUint16(b, f.To.Port())
			mark(0, 2)
			return b[:8], known
		}
		binary.BigEndian.PutUint16(b, from.Port())
		binary.BigEndian.PutUint16(b[2:], f.To.Port())
		const syn, rst, ack = 1 << 1, 1 << 2, 1 << 4
		b[12], b[13] = 5<<4, syn // of TCP: no options
		switch {
		case w.seen.Conn.Error:
			b[13] = rst | ack
		case w.seen.Conn.Later:
			b[13] = ack
		case w.seen.Conn.Reply:
			b[13] = syn | ack
		}
		if f.To.Port() != 0 {
			mark(2, 4)
		}
		if from.Port() != 0 {
			mark(0, 2)
		}
		if w.seen.Proto == unix.IPPROTO_TCP {
			mark(13, 14)
		}
	}
	return b, known
}

// meta loads a property of the packet.
func (w *walk) meta(x rule.Meta, f *flow) bool {
	link := w.seen.In
	switch x.Key {
	case unix.NFT_META_OIF, unix.NFT_META_OIFNAME, unix.NFT_META_OIFTYPE:
		link = w.seen.Out
	}
	switch x.Key {
	case unix.NFT_META_MARK:
		return f.load(x.To, number(f.Mark))
	case unix.NFT_META_L4PROTO:
		return f.load(x.To, []byte{w.seen.Proto})
	case unix.NFT_META_NFPROTO:
		return f.load(x.To, []byte{w.seen.Family})
	case unix.NFT_META_PROTOCOL:
		return f.load(x.To, binary.BigEndian.AppendUint16(nil, w.etherType()))
	case unix.NFT_META_IIFNAME, unix.NFT_META_OIFNAME:
		if link.Port {
			return w.blind(x, x.To, unix.IFNAMSIZ, f)
		}
		name := make([]byte, unix.IFNAMSIZ)
		copy(name, link.Name)
		return f.load(x.To, name)
	case unix.NFT_META_IIFTYPE, unix.NFT_META_OIFTYPE:
		switch {
		case w.node != nil && w.seen.Sent && x.Key == unix.NFT_META_IIFTYPE: // kernels differ
			return w.blind(x, x.To, 4, f)
		case w.node != nil && link.Name == "":
			return false
		}
		return f.load(x.To, nlconn.Order.AppendUint16(nil, link.Type))
	case unix.NFT_META_PRIORITY:
		return f.load(x.To, number(0))
	}
	if w.node != nil {
		switch x.Key {
		case unix.NFT_META_IIF, unix.NFT_META_OIF:
			if !link.Port {
				return f.load(x.To, number(link.Index))
			}
		case unix.NFT_META_SKUID, unix.NFT_META_SKGID:
			if !w.seen.Sent && !w.seen.Received {
				return false
			}
		case unix.NFT_META_PKTTYPE:
			return f.load(x.To, []byte{unix.PACKET_HOST})
		}
	}
	return w.blind(x, x.To, 16, f)
}

// Bits of ct state and ct status.
const (
	stateNew     = 1 << 3 // NF_CT_STATE_BIT(IP_CT_NEW)
	statusDstNAT = 1 << 5 // IPS_DST_NAT
	statusSrcNAT = 1 << 4 // IPS_SRC_NAT
)

// Keys of ct that golang.org/x/sys does not have.
const (
	ctLabels = 13
	ctZone   = 17
)

// tracked reports whether the packet has an entry of conntrack.
func (w *walk) tracked(f *flow) bool { return w.seen.Conn.Known && !f.Untracked }

// setCt writes a property of the connection.
func (w *walk) setCt(x rule.CtSet, f *flow) bool {
	n := map[uint32]int{unix.NFT_CT_MARK: 4, ctLabels: 16}[x.Key]
	switch {
	case x.Key == ctZone: // conntrack then looks elsewhere
		return w.unknown(x, f)
	case n == 0 || !w.tracked(f):
		return true
	case f.blindAt(x.From, n):
		return w.unknown(x, f)
	case x.Key == unix.NFT_CT_MARK:
		f.ConnMark = nlconn.Order.Uint32(f.at(x.From, 4))
	default:
		for i, b := range f.at(x.From, n) {
			f.Label[i] |= b
		}
	}
	return true
}

// ct loads a property of the connection. The rule ends without one.
func (w *walk) ct(x rule.Ct, f *flow) bool {
	c := w.seen.Conn
	if f.Untracked {
		c.State, c.Known = 1<<6, false
	}
	if x.Key != unix.NFT_CT_STATE && !c.Known {
		return false
	}
	from, to := c.From, c.To
	const reply = 1
	if x.Direction == reply {
		if from, to = c.ReplyFrom, c.ReplyTo; !from.IsValid() {
			from, to = f.To, w.seen.From
		}
	}
	switch x.Key {
	case unix.NFT_CT_STATE:
		return f.load(x.To, number(c.State))
	case unix.NFT_CT_STATUS:
		// A destination that equals the original is no translation.
		if f.Translated && f.To != c.To {
			c.Status |= statusDstNAT
		}
		if w.node != nil && f.NewSource(w.seen.Sent, w.seen.From.Addr()) {
			c.Status |= statusSrcNAT
		}
		return f.load(x.To, number(c.Status))
	case unix.NFT_CT_DIRECTION:
		if c.Reply {
			return f.load(x.To, []byte{1})
		}
		return f.load(x.To, []byte{0})
	case unix.NFT_CT_MARK:
		return f.load(x.To, number(f.ConnMark))
	case ctLabels:
		return f.load(x.To, f.Label[:])
	case ctZone: // a rule that sets another leaves the way in doubt
		return f.load(x.To, nlconn.Order.AppendUint16(nil, 0))
	case unix.NFT_CT_SRC, unix.NFT_CT_SRC_IP, unix.NFT_CT_SRC_IP6:
		return f.load(x.To, from.Addr().AsSlice())
	case unix.NFT_CT_DST, unix.NFT_CT_DST_IP, unix.NFT_CT_DST_IP6:
		return f.load(x.To, to.Addr().AsSlice())
	case unix.NFT_CT_PROTO_SRC:
		return w.port(x, from.Port(), f)
	case unix.NFT_CT_PROTO_DST:
		return w.port(x, to.Port(), f)
	case unix.NFT_CT_PROTOCOL:
		return f.load(x.To, []byte{w.seen.Proto})
	case unix.NFT_CT_L3PROTOCOL:
		return f.load(x.To, []byte{w.seen.Family})
	}
	return w.blind(x, x.To, 16, f)
}

// port loads a port of the connection; 0 is unknown.
func (w *walk) port(x rule.Ct, port uint16, f *flow) bool {
	if !f.load(x.To, binary.BigEndian.AppendUint16(nil, port)) {
		return false
	}
	if icmp := w.seen.Proto == unix.IPPROTO_ICMP || w.seen.Proto == unix.IPPROTO_ICMPV6; port == 0 && !icmp {
		f.hidePort(x.To)
		f.hidePort(x.To + 1)
	}
	return true
}

// fib loads what the node's routes say of an address.
func (w *walk) fib(x rule.Fib, f *flow) bool {
	if w.node != nil {
		return w.inspectRoute(x, f)
	}
	if x.Result != unix.NFT_FIB_RESULT_ADDRTYPE {
		return w.unknown(x, f)
	}
	local := w.p.Host
	if x.Flags&unix.NFTA_FIB_F_DADDR != 0 {
		local = w.endsHere(f.State)
	}
	typ := uint32(unix.RTN_UNICAST)
	if local {
		typ = unix.RTN_LOCAL
	}
	return f.load(x.To, number(typ))
}

// inspectRoute evaluates fib for any rule.
func (w *walk) inspectRoute(x rule.Fib, f *flow) bool {
	from, sure := w.source(f)
	a := from.Addr()
	if x.Flags&unix.NFTA_FIB_F_DADDR != 0 {
		a = f.To.Addr()
	} else if !sure {
		return w.blind(x, x.To, 16, f)
	}
	if x.Result == unix.NFT_FIB_RESULT_ADDRTYPE {
		typ, err := w.node.AddressType(a)
		if err != nil || x.Flags&(unix.NFTA_FIB_F_IIF|unix.NFTA_FIB_F_OIF) != 0 {
			return w.blind(x, x.To, 4, f)
		}
		return f.load(x.To, number(typ))
	}
	index, name, err := w.node.LinkTo(a)
	if w.seen.In.Type == unix.ARPHRD_LOOPBACK { // its packets pass every reverse path check
		index, name = w.seen.In.Index, w.seen.In.Name
	}
	if x.Flags&unix.NFTA_FIB_F_IIF != 0 && index != w.seen.In.Index || x.Flags&unix.NFTA_FIB_F_OIF != 0 &&
		index != w.seen.Out.Index {
		index, name = 0, ""
	}
	switch {
	case err != nil || x.Flags&unix.NFTA_FIB_F_MARK != 0 && f.Mark != 0:
		return w.blind(x, x.To, 16, f)
	case x.Flags&unix.NFTA_FIB_F_PRESENT != 0:
		present := byte(0)
		if index != 0 {
			present = 1
		}
		return f.load(x.To, []byte{present})
	case x.Result == unix.NFT_FIB_RESULT_OIFNAME:
		b := make([]byte, unix.IFNAMSIZ)
		copy(b, name)
		return f.load(x.To, b)
	}
	return f.load(x.To, number(index))
}

func (w *walk) etherType() uint16 {
	if w.seen.Family == unix.NFPROTO_IPV6 {
		return unix.ETH_P_IPV6
	}
	return unix.ETH_P_IP
}

// networkHeader is a header without the fields that rules may change.
func networkHeader(family, proto byte, from, to netip.Addr) []byte {
	if family == unix.NFPROTO_IPV6 {
		b := make([]byte, 40)
		b[0], b[6] = 6<<4, proto
		copy(b[8:24], from.AsSlice())
		copy(b[24:], to.AsSlice())
		return b
	}
	b := make([]byte, 20)
	b[0], b[9] = 4<<4|5, proto
	copy(b[12:16], from.AsSlice())
	copy(b[16:], to.AsSlice())
	return b
}
