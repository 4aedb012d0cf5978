package ipvsfake

import (
	"bytes"
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// order is that of numbers in attributes.
var order = binary.NativeEndian

// Numbers of include/uapi/linux/ip_vs.h; written down once more, so that a mistake of package ipvs is not one here too.
const (
	attrService, attrDest, attrDaemon, attrTCP, attrTCPFin, attrUDP = 1, 2, 3, 4, 5, 6

	svcAF, svcProtocol, svcAddr, svcPort, svcMark, svcScheduler, svcFlags, svcTimeout, svcNetmask, svcStats, svcEngine, svcStats64 = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12

	destAddr, destPort, destForwarding, destWeight, destUpper, destLower, destActive, destInactive, destPersistent = 1, 2, 3, 4, 5, 6, 7, 8, 9
	destStats, destFamily, destStats64, destTunType, destTunPort, destTunFlags                                     = 10, 11, 12, 13, 14, 15

	infoVersion, infoTableSize = 1, 2

	flagHashed = 2 // IP_VS_SVC_F_HASHED
)

// kind is what a policy says of an attribute, NLA_….
type kind struct {
	check func(v []byte, limit int) error
	limit int
}

func number(size int) kind { return kind{atLeast, size} }

// atLeast is of numbers: what is too long is cut.
func atLeast(v []byte, limit int) error {
	if len(v) < limit {
		return unix.ERANGE
	}
	return nil
}

// atMost is of NLA_BINARY.
func atMost(v []byte, limit int) error {
	if len(v) > limit {
		return unix.ERANGE
	}
	return nil
}

// text is of NLA_NUL_STRING: a NUL within the limit and one byte more, and no longer than that.
func text(v []byte, limit int) error {
	if head := v[:min(len(v), limit+1)]; len(head) == 0 || bytes.IndexByte(head, 0) < 0 {
		return unix.EINVAL
	}
	n := len(v)
	if v[n-1] == 0 {
		n--
	}
	if n > limit {
		return unix.ERANGE
	}
	return nil
}

// nested is of NLA_NESTED: nothing, or at least one attribute's head.
func nested(v []byte, _ int) error {
	if len(v) != 0 && len(v) < 4 {
		return unix.ERANGE
	}
	return nil
}

// The policies ip_vs_cmd_policy, ip_vs_svc_policy and ip_vs_dest_policy.
var (
	cmdPolicy = []kind{attrService: {nested, 0}, attrDest: {nested, 0}, attrDaemon: {nested, 0}, attrTCP: number(4), attrTCPFin: number(4), attrUDP: number(4)}
	svcPolicy = []kind{svcAF: number(2), svcProtocol: number(2), svcAddr: {atMost, 16}, svcPort: number(2), svcMark: number(4), svcScheduler: {text, 15},
		svcFlags: {atMost, 8}, svcTimeout: number(4), svcNetmask: number(4), svcStats: {nested, 0}, svcEngine: {text, 16}, svcStats64: {}}
	destPolicy = []kind{destAddr: {atMost, 16}, destPort: number(2), destForwarding: number(4), destWeight: number(4), destUpper: number(4), destLower: number(4),
		destActive: number(4), destInactive: number(4), destPersistent: number(4), destStats: {nested, 0}, destFamily: number(2), destStats64: {},
		destTunType: number(1), destTunPort: number(2), destTunFlags: number(2)}
)

// parse takes attributes apart as nla_parse_deprecated does: of two of a type the last counts, unknown ones are left out, and so
// is what follows one whose length is wrong. A type that is not there is nil; one that is empty is not.
func parse(b []byte, policy []kind) ([][]byte, error) {
	attrs := make([][]byte, len(policy))
	for len(b) >= 4 {
		n := int(order.Uint16(b))
		if n < 4 || n > len(b) {
			break
		}
		typ, v := int(order.Uint16(b[2:])&0x3fff), b[4:n:n]
		b = b[min((n+3)&^3, len(b)):]
		if typ == 0 || typ >= len(policy) {
			continue
		}
		if p := policy[typ]; p.check != nil {
			if err := p.check(v, p.limit); err != nil {
				return nil, err
			}
		}
		attrs[typ] = v
	}
	return attrs, nil
}

func u16(b []byte) uint16 { return order.Uint16(b) }
func u32(b []byte) uint32 { return order.Uint32(b) }

// filled is as nla_memcpy copies: the rest is zero.
func filled(b []byte) (v [16]byte) {
	copy(v[:], b)
	return v
}

func cstring(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}
