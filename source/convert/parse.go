package convert

import (
	"net/netip"
	"strconv"
	"strings"
	"unique"
)

// intern returns a copy of s that is shared with the equal strings interned at about the same time:
// there are few namespaces, port names and zones.
func intern(s string) string { return unique.Make(s).Value() }

// ParseAddr reads an address as the API does. IPv4 numbers may have leading zeros and are decimal
// all the same, since objects written so long ago are still valid; an IPv4 address inside IPv6 is
// the IPv4 address. Addresses with a zone are not accepted.
func ParseAddr(s string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(s)
	if err != nil {
		a, err = netip.ParseAddr(trimZeros(s))
	}
	if err != nil || a.Zone() != "" {
		return netip.Addr{}, false
	}
	return a.Unmap(), true
}

// parsePrefix reads "address/bits" with the same leniency and clears the host bits. An address
// without bits is not accepted.
func parsePrefix(s string) (netip.Prefix, bool) {
	addr, bits, ok := strings.Cut(strings.TrimSpace(s), "/")
	if !ok {
		return netip.Prefix{}, false
	}
	a, ok := ParseAddr(addr)
	if !ok {
		return netip.Prefix{}, false
	}
	n, err := strconv.ParseUint(bits, 10, 8)
	if err != nil {
		return netip.Prefix{}, false
	}
	length := int(n)
	if a.Is4() && strings.Contains(addr, ":") { // ::ffff:192.0.2.0/120
		length -= 96
	}
	p, err := a.Prefix(length)
	return p, err == nil
}

// trimZeros removes leading zeros from the four numbers of an IPv4 address; other strings stay.
func trimZeros(s string) string {
	parts := strings.Split(s, ".")
	if len(parts) != 4 {
		return s
	}
	for i, p := range parts {
		if trimmed := strings.TrimLeft(p, "0"); trimmed != "" {
			parts[i] = trimmed
		} else if p != "" {
			parts[i] = "0"
		}
	}
	return strings.Join(parts, ".")
}

// family names the family of an address for messages.
func family(ipv6 bool) string {
	if ipv6 {
		return "IPv6"
	}
	return "IPv4"
}
