package ipvsfake

import (
	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink"
	"kube-proxy/internal/netlink/ipvs"
)

// answer begins the body of an answer: struct genlmsghdr.
func answer(cmd Command) *netlink.Encoder {
	const room = 512 // for a service or destination
	return &netlink.Encoder{B: append(make([]byte, 0, room), byte(cmd), 1, 0, 0)}
}

// nest is Encoder.Nest without the flag NLA_F_NESTED, which IPVS does not set.
func nest(e *netlink.Encoder, typ uint16) int {
	at := len(e.B)
	e.B = order.AppendUint16(e.B, 0)
	e.B = order.AppendUint16(e.B, typ)
	return at
}

// serviceAnswer describes a service (ip_vs_genl_fill_service).
func serviceAnswer(s *service) []byte {
	e := answer(NewService)
	in := nest(e, attrService)
	e.Native16(svcAF, s.family)
	if s.mark != 0 {
		e.Native32(svcMark, s.mark)
	} else {
		e.Native16(svcProtocol, s.proto)
		e.Bytes(svcAddr, s.addr[:])
		e.U16(svcPort, s.port)
	}
	e.Str(svcScheduler, s.scheduler)
	e.Bytes(svcFlags, order.AppendUint32(order.AppendUint32(nil, s.flags), ^uint32(0)))
	e.Native32(svcTimeout, s.timeout())
	e.Bytes(svcNetmask, s.netmask[:])
	appendStats(e, svcStats, svcStats64, s.stats)
	e.EndNest(in)
	return e.B
}

// destinationAnswer describes a destination (ip_vs_genl_fill_dest).
func destinationAnswer(d *destination) []byte {
	e := answer(NewDest)
	in := nest(e, attrDest)
	e.Bytes(destAddr, d.addr[:])
	e.U16(destPort, d.port)
	e.Native32(destForwarding, d.forwarding)
	e.Native32(destWeight, d.weight)
	e.Native32(destUpper, d.upper)
	e.Native32(destLower, d.lower)
	e.Native32(destActive, d.conns.Active)
	e.Native32(destInactive, d.conns.Inactive)
	e.Native32(destPersistent, d.conns.Persistent)
	e.Native16(destFamily, d.family)
	appendStats(e, destStats, destStats64, d.stats)
	e.EndNest(in)
	return e.B
}

// appendStats appends counters in their old form, of 64 bits only for bytes, and in their new one;
// the rates are 0.
func appendStats(e *netlink.Encoder, old, wide uint16, s ipvs.Stats) {
	all := []uint64{s.Conns, s.InPackets, s.OutPackets, s.InBytes, s.OutBytes, 0, 0, 0, 0, 0}
	in := nest(e, old)
	for i, n := range all {
		if typ := uint16(i + 1); typ == 4 || typ == 5 {
			e.Bytes(typ, order.AppendUint64(nil, n))
		} else {
			e.Native32(typ, uint32(n))
		}
	}
	e.EndNest(in)
	in = nest(e, wide)
	for i, n := range all {
		e.Bytes(uint16(i+1), order.AppendUint64(nil, n))
	}
	e.EndNest(in)
}

func (k *Kernel) configAnswer() []byte {
	e := answer(SetConfig)
	for i, n := range k.timeouts {
		e.Native32(attrTCP+uint16(i), n)
	}
	return e.B
}

// familyAnswer is the generic netlink controller's description of the family.
func (k *Kernel) familyAnswer() []byte {
	e := answer(unix.CTRL_CMD_NEWFAMILY)
	e.Str(unix.CTRL_ATTR_FAMILY_NAME, "IPVS")
	e.Native16(unix.CTRL_ATTR_FAMILY_ID, k.family)
	e.Native32(unix.CTRL_ATTR_VERSION, 1)
	return e.B
}
