package nodetrace

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink"
	rtnl "kube-proxy/internal/netlink/route"
	"kube-proxy/nodetrace/internal/hooks"
	"kube-proxy/trace"
)

// Numbers of the kernel's xfrm.h: messages, the size of struct xfrm_userpolicy_info, directions and
// attributes.
const (
	xfrmGetPolicy, xfrmGetDefault, sizeofPolicy      = 0x15, 0x28, 168
	xfrmIn, xfrmOut, xfrmForward                     = 0, 1, 2
	xfrmTemplates, xfrmType, xfrmMark, xfrmInterface = 5, 16, 21, 31
)

// ipsec has the XFRM policies of the network namespace.
type ipsec struct {
	policies []policy
	blocks   [3]bool // by direction: what no policy matches
}

// policy is a policy of XFRM.
type policy struct {
	direction, proto byte // proto 0 is any
	from, to         netip.Prefix
	fromPort, toPort [2]uint16 // a port and its mask
	mark             [2]uint32 // a mark and its mask
	priority         uint32
	partly           bool // it also selects by an interface, or is a sub policy
	block, transform bool
}

var directions = [...]string{"in", "out", "fwd"}

// String is as ip-xfrm(8) has it.
func (p *policy) String() string {
	return fmt.Sprintf("XFRM policy src %s dst %s dir %s priority %d%s", p.from, p.to, directions[p.direction],
		p.priority, map[bool]string{true: " action block"}[p.block])
}

// readPolicies reads the policies of a family; none on a kernel without XFRM.
func readPolicies(ctx context.Context, family byte) (x ipsec, err error) {
	conn, err := netlink.Open(netlink.Config{Protocol: unix.NETLINK_XFRM})
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return x, nil
	}
	if err == nil {
		defer conn.Close()
		err = conn.Do(ctx, netlink.Request(xfrmGetDefault, 0, make([]byte, 4)), func(m netlink.Message) error {
			for i, direction := range []int{xfrmIn, xfrmForward, xfrmOut} {
				x.blocks[direction] = i < len(m.Body) && m.Body[i] == 1 // XFRM_USERPOLICY_BLOCK
			}
			return nil
		})
	}
	if err == nil || errors.Is(err, unix.EINVAL) { // before Linux 5.14
		x.policies, err = netlink.Dump(ctx, conn, netlink.Request(xfrmGetPolicy, unix.NLM_F_DUMP),
			func(m netlink.Message) (policy, bool) { return parsePolicy(m.Body, family) })
	}
	if err != nil {
		return x, fmt.Errorf("list the XFRM policies: %w", err)
	}
	return x, nil
}

// parsePolicy reads a policy. Those of sockets and of another family are left out.
func parsePolicy(b []byte, family byte) (p policy, ok bool) {
	if len(b) < sizeofPolicy || netlink.Order.Uint16(b[40:]) != uint16(family) || b[160] > xfrmForward {
		return p, false
	}
	prefix := func(at int, bits byte) netip.Prefix {
		a := netip.AddrFrom16([16]byte(b[at:]))
		if family == unix.AF_INET {
			a = netip.AddrFrom4([4]byte(b[at:]))
		}
		return netip.PrefixFrom(a, int(bits)).Masked()
	}
	port := func(at int) [2]uint16 { return [2]uint16{netlink.BE16(b[at:]), netlink.BE16(b[at+2:])} }
	p = policy{direction: b[160], block: b[161] == 1, proto: b[44], priority: netlink.Order.Uint32(b[152:]),
		to: prefix(0, b[42]), from: prefix(16, b[43]), toPort: port(32), fromPort: port(36),
		partly: netlink.Order.Uint32(b[48:]) != 0}
	netlink.Attributes(b[sizeofPolicy:], func(typ uint16, v []byte) bool {
		switch {
		case typ == xfrmMark && len(v) >= 8:
			p.mark = [2]uint32{netlink.Native32(v), netlink.Order.Uint32(v[4:])}
		case typ == xfrmType && netlink.U8(v) != 0, typ == xfrmInterface && netlink.Native32(v) != 0:
			p.partly = true
		case typ == xfrmTemplates:
			p.transform = true
		}
		return true
	})
	return p, true
}

// selects reports whether the policy is for a packet. It is unsure of what is not known of the
// packet.
func (p *policy) selects(y way) (yes, unsure bool) {
	matches := func(port uint16, sel [2]uint16) bool { return (port^sel[0])&sel[1] == 0 }
	unsure = p.partly || y.From.Port() == 0 && p.fromPort[1] != 0
	return (p.proto == 0 || p.proto == byte(y.Proto)) && y.Mark&p.mark[1] == p.mark[0] &&
		p.from.Contains(y.From.Addr()) && p.to.Contains(y.To.Addr()) && matches(y.To.Port(), p.toPort) &&
		(unsure || matches(y.From.Port(), p.fromPort)), unsure
}

// secured says what the XFRM policies of a direction do with a packet: the one of the lowest
// priority decides. Those of in and fwd see the addresses with which the packet came, before any
// translation. device has the setting that exempts packets.
func (w *walk) secured(direction byte, on *way, device rtnl.Link) (s stop) {
	y := *on
	mayDrop := func(what string) { on.doubts = append(slices.Clip(on.doubts), doubt{what, trace.Dropped}) }
	exempt := map[bool]string{true: "disable_xfrm", false: "disable_policy"}[direction == xfrmOut]
	if y.To.Addr().Is4() && w.either(device.Name, exempt) != 0 {
		return s
	}
	if direction != xfrmOut && y.Flow.State != hooks.Untracked {
		came := map[bool]hooks.Tuple{false: y.Flow.Orig, true: y.Flow.Reverse}[y.reply]
		y.From, y.To = came.From, came.To
	}
	s = stop{verdict: trace.Dropped, stage: y.stage("ipsec"), do: "ip xfrm policy"}
	var best *policy
	for i := range w.ipsec.policies {
		p := &w.ipsec.policies[i]
		yes, unsure := p.selects(y)
		switch {
		case !yes || p.direction != direction:
		case unsure, best != nil && p.priority == best.priority && (p.block != best.block || p.transform):
			mayDrop(p.String())
		case best == nil || p.priority < best.priority:
			best = p
		}
	}
	switch {
	case best == nil && w.ipsec.blocks[direction] && device.Name != "lo":
		s.by, s.do = "XFRM policies of direction "+directions[direction]+" block by default", s.do+" getdefault"
	case best != nil && best.block:
		s.by = best.String()
	case best != nil && best.transform:
		mayDrop(best.String() + ": IPsec")
	}
	return s
}
