package nft

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	nlconn "kube-proxy/internal/netlink"
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
	// Sent: a process of this node sends the packet.
	Sent bool
	Conn Conn
}

// Link is a device as rules see it.
type Link struct {
	Name  string
	Index uint32
	Type  uint16 // ARPHRD_*
}

// Conn is the packet's connection in conntrack.
type Conn struct {
	// State and Status are bits of ct state and ct status. Known: conntrack has the packet.
	State, Status uint32
	Known, Reply  bool
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
		r.as = &follow.Rule{Table: p.w.table.Title(), Chain: p.chain, Number: p.i + 1, Handle: r.Handle, Text: r.Text()}
	}
	return r.as
}

// unknown handles an expression that the walk cannot evaluate. A walk through one table treats it
// as a match that fails. Others follow both ways, and mark one of them as doubtful.
func (w *walk) unknown(s Step, f *flow) bool {
	if w.node == nil {
		w.say("a rule has the expression %s, which this program does not know, and takes for a match that fails",
			s.name)
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

// blind loads an unknown value.
func (w *walk) blind(s Step, f *flow) bool {
	if w.node == nil || s.to == 0 {
		return w.unknown(s, f)
	}
	f.hide(s.to, max(int(s.length), 4), true)
	return true
}

// hide records whether the content of registers is unknown.
func (f *flow) hide(from, n int, unknown bool) {
	for word := from / 4; word < min(from+n+3, registers)/4; word++ {
		f.hidden &^= 1 << word
		if unknown {
			f.hidden |= 1 << word
		}
	}
}

// blindAt reports whether a part of these registers is unknown.
func (f *flow) blindAt(from, n int) bool {
	for word := from / 4; word < min(from+n+3, registers)/4; word++ {
		if f.hidden>>word&1 != 0 {
			return true
		}
	}
	return false
}

// seeing separates flows that know the key of a lookup from the others. The others match in doubt:
// their value is unknown, and from a verdict map they get the worst verdict.
func (w *walk) seeing(s Step, flows []flow) (seeing, blind []flow) {
	if w.node == nil {
		return flows, nil
	}
	n, err := w.keyLen(s.set)
	for _, f := range flows {
		if err != nil || !f.blindAt(s.from, n) {
			seeing = append(seeing, f)
			continue
		}
		w.unknown(s, &f)
		if s.lookup && s.to == 0 {
			f.Verdict = trace.Drop
		} else if s.lookup {
			f.hide(s.to, 16, true)
		}
		blind = append(blind, f)
	}
	return seeing, blind
}

// payload loads a part of the packet. The rule ends if the packet has no such part.
func (w *walk) payload(s Step, f *flow) bool {
	if s.to == 0 { // it writes to the packet
		return w.unknown(s, f)
	}
	b, known := w.header(s.key, f)
	from, to := int(s.offset), int(s.offset+s.length)
	switch {
	case b == nil && w.node != nil:
		return w.blind(s, f)
	case to > len(b) || from > to:
		return false
	case w.node != nil && bytes.IndexByte(known[from:to], 0) >= 0:
		return w.blind(s, f)
	}
	return f.load(s.to, b[from:to])
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
		mark(0, 1)
		mark(6, 7)
		if mark(24, 40); sure {
			mark(8, 24)
		}
	case base == unix.NFT_PAYLOAD_NETWORK_HEADER:
		b, known = networkHeader(w.seen.Family, w.seen.Proto, from.Addr(), f.To.Addr()), make([]byte, 20)
		mark(0, 2)
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
		b[12], b[13] = 5<<4, 1<<1 // of TCP: no options, SYN
		if w.seen.Conn.Reply {
			b[13] |= 1 << 4
		} else if w.seen.Conn.Status&statusSeenReply != 0 {
			b[13] = 1 << 4
		}
		if mark(2, 4); from.Port() != 0 {
			mark(0, 2)
		}
		if w.seen.Proto == unix.IPPROTO_TCP {
			mark(13, 14)
		}
	}
	return b, known
}

func (w *walk) etherType() uint16 {
	if w.seen.Family == unix.NFPROTO_IPV6 {
		return unix.ETH_P_IPV6
	}
	return unix.ETH_P_IP
}

func (w *walk) meta(s Step, f *flow) bool {
	if s.from != 0 {
		if s.key == unix.NFT_META_MARK {
			if f.blindAt(s.from, 4) {
				return w.unknown(s, f)
			}
			f.Mark = nlconn.Order.Uint32(f.at(s.from, 4))
		}
		return true
	}
	link := w.seen.In
	switch s.key {
	case unix.NFT_META_OIF, unix.NFT_META_OIFNAME, unix.NFT_META_OIFTYPE:
		link = w.seen.Out
	}
	switch s.key {
	case unix.NFT_META_MARK:
		return f.load(s.to, number(f.Mark))
	case unix.NFT_META_L4PROTO:
		return f.load(s.to, []byte{w.seen.Proto})
	case unix.NFT_META_NFPROTO:
		return f.load(s.to, []byte{w.seen.Family})
	case unix.NFT_META_PROTOCOL:
		return f.load(s.to, binary.BigEndian.AppendUint16(nil, w.etherType()))
	case unix.NFT_META_IIFNAME, unix.NFT_META_OIFNAME:
		name := make([]byte, unix.IFNAMSIZ)
		copy(name, link.Name)
		return f.load(s.to, name)
	case unix.NFT_META_IIFTYPE, unix.NFT_META_OIFTYPE:
		switch {
		case w.node != nil && w.seen.Sent && s.key == unix.NFT_META_IIFTYPE: // kernels differ
			return w.blind(s, f)
		case w.node != nil && link.Name == "":
			return false
		}
		return f.load(s.to, nlconn.Order.AppendUint16(nil, link.Type))
	case unix.NFT_META_PRIORITY:
		return f.load(s.to, number(0))
	}
	if w.node != nil {
		switch s.key {
		case unix.NFT_META_IIF, unix.NFT_META_OIF:
			return f.load(s.to, number(link.Index))
		case unix.NFT_META_SKUID, unix.NFT_META_SKGID:
			if !w.seen.Sent {
				return false
			}
		case unix.NFT_META_PKTTYPE:
			return f.load(s.to, []byte{unix.PACKET_HOST})
		}
	}
	return w.blind(Step{name: fmt.Sprintf("meta, key %d", s.key), to: s.to, length: 16}, f)
}

// Bits of ct state and ct status.
const (
	stateNew        = 1 << 3 // NF_CT_STATE_BIT(IP_CT_NEW)
	statusDstNAT    = 1 << 5 // IPS_DST_NAT
	statusSrcNAT    = 1 << 4 // IPS_SRC_NAT
	statusSeenReply = 1 << 1 // IPS_SEEN_REPLY
)

func (w *walk) ct(s Step, f *flow) bool {
	c := w.seen.Conn
	if f.Untracked {
		c.State, c.Known = 1<<6, false
	}
	if s.from != 0 {
		if s.key == unix.NFT_CT_MARK && c.Known {
			f.ConnMark = nlconn.Order.Uint32(f.at(s.from, 4))
		}
		return true
	}
	if s.key != unix.NFT_CT_STATE && !c.Known {
		return false
	}
	from, to := c.From, c.To
	if s.flags == 2 { // of replies
		if from, to = c.ReplyFrom, c.ReplyTo; !from.IsValid() {
			from, to = f.To, w.seen.From
		}
	}
	switch s.key {
	case unix.NFT_CT_STATE:
		return f.load(s.to, number(c.State))
	case unix.NFT_CT_STATUS:
		// A destination that equals the original is no translation.
		if f.Translated && f.To != c.To {
			c.Status |= statusDstNAT
		}
		if f.Masqueraded && w.node != nil {
			c.Status |= statusSrcNAT
		}
		return f.load(s.to, number(c.Status))
	case unix.NFT_CT_DIRECTION:
		if c.Reply {
			return f.load(s.to, []byte{1})
		}
		return f.load(s.to, []byte{0})
	case unix.NFT_CT_MARK:
		return f.load(s.to, number(f.ConnMark))
	case unix.NFT_CT_SRC, unix.NFT_CT_SRC_IP, unix.NFT_CT_SRC_IP6:
		return f.load(s.to, from.Addr().AsSlice())
	case unix.NFT_CT_DST, unix.NFT_CT_DST_IP, unix.NFT_CT_DST_IP6:
		return f.load(s.to, to.Addr().AsSlice())
	case unix.NFT_CT_PROTO_SRC:
		if from.Port() != 0 {
			return f.load(s.to, binary.BigEndian.AppendUint16(nil, from.Port()))
		}
	case unix.NFT_CT_PROTO_DST:
		return f.load(s.to, binary.BigEndian.AppendUint16(nil, to.Port()))
	case unix.NFT_CT_PROTOCOL:
		return f.load(s.to, []byte{w.seen.Proto})
	case unix.NFT_CT_L3PROTOCOL:
		return f.load(s.to, []byte{w.seen.Family})
	}
	return w.blind(Step{name: fmt.Sprintf("ct, key %d", s.key), to: s.to, length: 16}, f)
}

func (w *walk) fib(s Step, f *flow) bool {
	if w.node != nil {
		return w.inspectRoute(s, f)
	}
	if s.key != unix.NFT_FIB_RESULT_ADDRTYPE {
		return w.unknown(s, f)
	}
	local := w.p.Host
	if s.flags&unix.NFTA_FIB_F_DADDR != 0 {
		local = w.endsHere(f.State)
	}
	typ := uint32(unix.RTN_UNICAST)
	if local {
		typ = unix.RTN_LOCAL
	}
	return f.load(s.to, number(typ))
}

// inspectRoute evaluates fib for any rule.
func (w *walk) inspectRoute(s Step, f *flow) bool {
	from, sure := w.source(f)
	a := from.Addr()
	if s.flags&unix.NFTA_FIB_F_DADDR != 0 {
		a = f.To.Addr()
	} else if !sure {
		return w.blind(s, f)
	}
	if s.key == unix.NFT_FIB_RESULT_ADDRTYPE {
		typ, err := w.node.AddressType(a)
		if err != nil || s.flags&(unix.NFTA_FIB_F_IIF|unix.NFTA_FIB_F_OIF) != 0 {
			return w.blind(s, f)
		}
		return f.load(s.to, number(typ))
	}
	index, name, err := w.node.LinkTo(a)
	if w.seen.In.Type == unix.ARPHRD_LOOPBACK { // its packets pass every reverse path check
		index, name = w.seen.In.Index, w.seen.In.Name
	}
	if s.flags&unix.NFTA_FIB_F_IIF != 0 && index != w.seen.In.Index || s.flags&unix.NFTA_FIB_F_OIF != 0 &&
		index != w.seen.Out.Index {
		index, name = 0, ""
	}
	switch {
	case err != nil || s.flags&unix.NFTA_FIB_F_MARK != 0 && f.Mark != 0:
		return w.blind(s, f)
	case s.flags&unix.NFTA_FIB_F_PRESENT != 0:
		present := byte(0)
		if index != 0 {
			present = 1
		}
		return f.load(s.to, []byte{present})
	case s.key == unix.NFT_FIB_RESULT_OIFNAME:
		b := make([]byte, unix.IFNAMSIZ)
		copy(b, name)
		return f.load(s.to, b)
	}
	return f.load(s.to, number(index))
}

// general evaluates expressions that rules of kube-proxy do not have.
func (w *walk) general(s Step, f *flow) bool {
	if w.node == nil {
		return w.unknown(s, f)
	}
	switch s.name {
	case "byteorder":
		v := slices.Clone(f.at(s.from, int(s.length)))
		if n := int(s.offset); n > 1 && nlconn.Order.Uint16([]byte{1, 0}) == 1 {
			for i := 0; i+n <= len(v); i += n {
				slices.Reverse(v[i : i+n])
			}
		}
		unknown := f.blindAt(s.from, int(s.length))
		f.load(s.to, v)
		f.hide(s.to, len(v), unknown)
		return true
	case "notrack":
		if !f.Untracked && !w.seen.Conn.Known {
			f.Untracked, f.UntrackedBy = true, w.at.rule()
		}
		return true
	case "exthdr", "osf", "rt", "xfrm", "hash", "numgen":
		return s.to == 0 && s.name == "exthdr" || w.blind(s, f)
	case "objref":
		const counter = 1 // NFT_OBJECT_COUNTER
		return s.key == counter || w.unknown(s, f)
	case "flow_offload": // it takes up a connection that has had a reply, which then bypasses the chain
		if w.seen.Conn.State == stateNew {
			return false
		}
		f.Offload = w.at.rule()
		return true
	case "dup", "secmark":
		return true
	case "queue", "fwd", "tproxy", "synproxy": // another one decides
		w.unknown(s, f)
		f.Verdict = trace.Drop
		return true
	}
	f.hidden = 1<<(registers/4) - 1 // it may have written them
	return w.unknown(s, f)          // limit, quota, connlimit and any other match
}

// itself returns the destination of a redirect: this node.
func (w *walk) itself() netip.Addr {
	v6, out := w.seen.Family == unix.NFPROTO_IPV6, w.node != nil && w.seen.In.Name == ""
	switch {
	case v6 && out:
		return netip.IPv6Loopback()
	case v6:
		return netip.IPv6Unspecified()
	case out:
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return netip.IPv4Unspecified()
}

// maxDrawn limits the ways that a walk through any rules follows for a random number.
const maxDrawn = 1 << 13
