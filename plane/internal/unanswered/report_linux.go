package unanswered

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"

	"kube-proxy/failover"
	"kube-proxy/internal/netlink"
	"kube-proxy/internal/netlink/conntrack"
	"kube-proxy/internal/netlink/nflog"
	"kube-proxy/lb"
)

// headers is how much of a packet a report has: the headers of an ICMP error and, within it, those
// of the refused packet.
const headers = 128

// reports reads the connections of reported packets. Not every kernel has them in the reports
// themselves (CONFIG_NETFILTER_NETLINK_GLUE_CT).
type reports struct {
	conn   *netlink.Conn
	family byte
	entry  conntrack.Entry
}

func openReports(family byte) (*reports, error) {
	conn, err := netlink.Open(netlink.Config{Protocol: unix.NETLINK_NETFILTER})
	if err != nil {
		return nil, err
	}
	return &reports{conn: conn, family: family}, nil
}

func (r *reports) close() error {
	if r == nil {
		return nil
	}
	return r.conn.Close()
}

// notice reads a report. ok is false if its connection is no longer there, or is not one of a
// Service. An ICMP error may also be about a connection that a program made to an endpoint itself.
func (r *reports) notice(ctx context.Context, m netlink.Message) (n failover.Notice, ok bool, err error) {
	if m.Type != nflog.MsgPacket {
		return n, false, nil
	}
	p := nflog.Parse(m.Body)
	kind, find := failover.Retransmission, tupleOf
	if p.Prefix == unreachable {
		kind, find = failover.Unreachable, refusedTuple
	}
	tuple, ok := find(p.Payload)
	if !ok {
		return n, false, nil
	}
	found := false
	err = r.conn.Do(ctx, conntrack.GetRequest(r.family, tuple), func(m netlink.Message) error {
		if e := &r.entry; m.Type == conntrack.New && e.Parse(m.Body) {
			n = failover.Notice{Kind: kind, Proto: lb.Proto(e.Orig.Proto), Endpoint: e.Reply.From}
			if e.Reply.From != e.Orig.To {
				n.Frontend = e.Orig.To
			}
			found = kind == failover.Unreachable || n.Frontend.IsValid()
		}
		return nil
	})
	if errors.Is(err, unix.ENOENT) {
		err = nil
	}
	return n, found && err == nil, err
}

// tupleOf reads the addresses and ports of an IP packet. It returns false if the packet is too
// short, or an IPv6 packet with extension headers.
func tupleOf(packet []byte) (t conntrack.Tuple, ok bool) {
	proto, from, to, payload, ok := ipOf(packet)
	if !ok || len(payload) < 4 {
		return t, false
	}
	return conntrack.Tuple{Proto: proto, From: netip.AddrPortFrom(from, binary.BigEndian.Uint16(payload)),
		To: netip.AddrPortFrom(to, binary.BigEndian.Uint16(payload[2:]))}, true
}

// refusedTuple reads the packet that an ICMP error is about: one that had its translated addresses.
// So its replies' tuple names the connection.
func refusedTuple(packet []byte) (t conntrack.Tuple, ok bool) {
	const header = 8
	if _, _, _, payload, ok := ipOf(packet); ok && len(payload) > header {
		t, ok = tupleOf(payload[header:])
		t.From, t.To = t.To, t.From
		return t, ok
	}
	return t, false
}

// ipOf reads an IP header.
func ipOf(packet []byte) (proto byte, from, to netip.Addr, payload []byte, ok bool) {
	const v4, v6 = 20, 40
	switch {
	case len(packet) >= v4 && packet[0]>>4 == 4:
		from, _ = netip.AddrFromSlice(packet[12:16])
		to, _ = netip.AddrFromSlice(packet[16:20])
		length := 4 * int(packet[0]&0xf)
		return packet[9], from, to, packet[min(length, len(packet)):], length >= v4
	case len(packet) >= v6 && packet[0]>>4 == 6:
		from, _ = netip.AddrFromSlice(packet[8:24])
		to, _ = netip.AddrFromSlice(packet[24:40])
		return packet[6], from, to, packet[v6:], true
	}
	return 0, from, to, nil, false
}
