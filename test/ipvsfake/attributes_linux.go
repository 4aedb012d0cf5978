package ipvsfake

import (
	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink"
)

// order is the byte order of numbers in attributes.
var order = netlink.Order

// Numbers of include/uapi/linux/ip_vs.h, independent of those of package ipvs.
const (
	attrService, attrDest, attrDaemon, attrTCP, attrTCPFin, attrUDP = 1, 2, 3, 4, 5, 6

	svcAF, svcProtocol, svcAddr, svcPort, svcMark, svcScheduler, svcFlags, svcTimeout, svcNetmask = 1, 2, 3, 4, 5, 6, 7,
		8, 9
	svcStats, svcStats64 = 10, 12

	destAddr, destPort, destForwarding, destWeight, destUpper, destLower, destActive, destInactive, destPersistent = 1,
		2, 3, 4, 5, 6, 7, 8, 9
	destStats, destFamily, destStats64 = 10,
		11, 12

	flagHashed = 2 // IP_VS_SVC_F_HASHED
)

// The lengths of values, as our encoder writes them and the kernel's policies require; 0 is any.
var (
	cmdLengths = []int{attrService: 0, attrDest: 0, attrDaemon: 0, attrTCP: 4, attrTCPFin: 4, attrUDP: 4}
	svcLengths = []int{svcAF: 2, svcProtocol: 2, svcAddr: 0, svcPort: 2, svcMark: 4, svcScheduler: 0, svcFlags: 8,
		svcTimeout: 4, svcNetmask: 4}
	destLengths = []int{destAddr: 0, destPort: 2, destForwarding: 4, destWeight: 4, destUpper: 4, destLower: 4,
		destFamily: 2}
)

// parse returns the attributes by type; nil for missing ones. It refuses wrong lengths, unknown
// types and duplicates.
func parse(b []byte, lengths []int) (attrs [][]byte, err error) {
	attrs = make([][]byte, len(lengths))
	netlink.Attributes(b, func(typ uint16, v []byte) bool {
		if typ == 0 || int(typ) >= len(lengths) || lengths[typ] != 0 && len(v) != lengths[typ] || attrs[typ] != nil {
			err = unix.EINVAL
			return false
		}
		attrs[typ] = v
		return true
	})
	return attrs, err
}

func u16(b []byte) uint16 { return order.Uint16(b) }
func u32(b []byte) uint32 { return order.Uint32(b) }

// filled is as nla_memcpy copies: the rest is zero.
func filled(b []byte) (v [16]byte) {
	copy(v[:], b)
	return v
}
