package wire

import (
	"encoding/binary"
	"net/netip"

	"kube-proxy/internal/netlink"
	"kube-proxy/lb"
)

// Records are elements as bytes: the key, then the data, each as wide as in registers.

// AppendAddr appends an address.
func AppendAddr(b []byte, a netip.Addr) []byte {
	if a.Is4() {
		x := a.As4()
		return append(b, x[:]...)
	}
	x := a.As16()
	return append(b, x[:]...)
}

// AppendNumber appends a number.
func AppendNumber(b []byte, n uint32) []byte { return netlink.Order.AppendUint32(b, n) }

// AppendOctet appends a byte.
func AppendOctet(b []byte, n byte) []byte { return append(b, n, 0, 0, 0) }

// AppendPort appends a port.
func AppendPort(b []byte, p uint16) []byte { return append(binary.BigEndian.AppendUint16(b, p), 0, 0) }

// AppendKey appends a frontend key; that of a NodePort has no address.
func AppendKey(b []byte, k lb.Key) []byte {
	if !k.IsNodePort() {
		b = AppendAddr(b, k.Addr)
	}
	return AppendPort(AppendOctet(b, byte(k.Proto)), k.Port)
}

// AppendAddrPort appends an address and a port.
func AppendAddrPort(b []byte, ap netip.AddrPort) []byte {
	return AppendPort(AppendAddr(b, ap.Addr()), ap.Port())
}

// ParseAddr reads an address from all of b.
func ParseAddr(b []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(b)
	return a
}

// ParsePort reads a port.
func ParsePort(b []byte) uint16 { return binary.BigEndian.Uint16(b) }

// ParseKey is the inverse of [AppendKey]; n is the length of the address, 0 for a NodePort.
func ParseKey(b []byte, n int) (k lb.Key) {
	if n > 0 {
		k.Addr = ParseAddr(b[:n])
	}
	k.Proto, k.Port = lb.Proto(b[n]), ParsePort(b[n+4:])
	return k
}

// ParseAddrPort is the inverse of [AppendAddrPort] for an address of n bytes.
func ParseAddrPort(b []byte, n int) netip.AddrPort {
	return netip.AddrPortFrom(ParseAddr(b[:n]), ParsePort(b[n:]))
}
