package lb

import (
	"cmp"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Family is an IP address family. A table, an engine and a plane belong to one family each (G6).
type Family uint8

// The two families; their values are the version numbers in the IP header.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// String returns "IPv4" or "IPv6", as metrics and logs name the family.
func (f Family) String() string {
	switch f {
	case IPv4:
		return "IPv4"
	case IPv6:
		return "IPv6"
	}
	return "Family(" + strconv.Itoa(int(f)) + ")"
}

// Loopback returns 127.0.0.1 or ::1.
func (f Family) Loopback() netip.Addr {
	if f == IPv6 {
		return netip.IPv6Loopback()
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1})
}

// Everywhere is the prefix that holds every address of the family: 0.0.0.0/0 or ::/0.
func (f Family) Everywhere() netip.Prefix {
	if f == IPv6 {
		return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
}

// FamilyOf returns the family of a; an IPv4-mapped IPv6 address counts as IPv6. The zero Addr has
// family 0.
func FamilyOf(a netip.Addr) Family {
	switch {
	case a.Is4():
		return IPv4
	case a.Is6():
		return IPv6
	}
	return 0
}

// Proto is a transport protocol, by its IANA protocol number.
type Proto uint8

// The protocols that a Service may have.
const (
	TCP  Proto = 6
	UDP  Proto = 17
	SCTP Proto = 132
)

// String returns the protocol's name in lower case: tcp, udp, sctp.
func (p Proto) String() string {
	switch p {
	case TCP:
		return "tcp"
	case UDP:
		return "udp"
	case SCTP:
		return "sctp"
	}
	return strconv.Itoa(int(p))
}

// ParseProto is the inverse of [Proto.String]; it also takes upper case.
func ParseProto(s string) (Proto, error) {
	switch strings.ToLower(s) {
	case "tcp":
		return TCP, nil
	case "udp":
		return UDP, nil
	case "sctp":
		return SCTP, nil
	}
	return 0, fmt.Errorf("protocol %q: want tcp, udp or sctp", s)
}

// Key holds the packet fields that select a frontend. It is comparable and its own map key.
//
// A zero Addr means every NodePort address of this node (see [Node.NodePorts]): a NodePort is one
// frontend.
type Key struct {
	Addr  netip.Addr
	Port  uint16
	Proto Proto
}

// IsNodePort reports whether k means all NodePort addresses of the node.
func (k Key) IsNodePort() bool { return !k.Addr.IsValid() }

// String returns "192.0.2.7:80/tcp", "[2001:db8::7]:80/tcp" or, for a NodePort,
// "nodeport:30080/tcp".
func (k Key) String() string {
	if k.IsNodePort() {
		return fmt.Sprintf("nodeport:%d/%s", k.Port, k.Proto)
	}
	return netip.AddrPortFrom(k.Addr, k.Port).String() + "/" + k.Proto.String()
}

// Compare orders keys by address, port and protocol; NodePorts are first.
func (k Key) Compare(o Key) int {
	return cmp.Or(k.Addr.Compare(o.Addr), cmp.Compare(k.Port, o.Port), cmp.Compare(k.Proto, o.Proto))
}
