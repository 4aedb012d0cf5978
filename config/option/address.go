package option

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"
)

// ParseAddr reads an IP address; octets of IPv4 may have leading zeros, which do not make them
// octal (FL-07).
func ParseAddr(s string) (netip.Addr, error) {
	if strings.Contains(s, ".") && !strings.Contains(s, ":") {
		octets := strings.Split(s, ".")
		for i, octet := range octets {
			octets[i] = cmp.Or(strings.TrimLeft(octet, "0"), octet[:min(1, len(octet))])
		}
		s = strings.Join(octets, ".")
	}
	a, err := netip.ParseAddr(s)
	if err == nil && a.Zone() != "" {
		err = fmt.Errorf("address %q has a zone", s)
	}
	return a.Unmap(), err
}

// ParsePrefix reads a CIDR and clears its host bits.
func ParsePrefix(s string) (netip.Prefix, error) {
	addr, bits, ok := strings.Cut(s, "/")
	if !ok {
		return netip.Prefix{}, fmt.Errorf("%q has no prefix length", s)
	}
	a, err := ParseAddr(addr)
	if err != nil {
		return netip.Prefix{}, err
	}
	p, err := netip.ParsePrefix(a.String() + "/" + bits)
	if err != nil {
		return netip.Prefix{}, err
	}
	return p.Masked(), nil
}
