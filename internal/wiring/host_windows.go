package wiring

import "net"

// hasIPv6 reports whether this machine has IPv6, which the registry may have turned off.
func hasIPv6() bool {
	l, err := net.Listen("tcp6", "[::1]:0")
	if err != nil {
		return false
	}
	return l.Close() == nil
}
