package failover

import (
	"net/netip"

	"kube-proxy/lb"
)

// Notice reports that a client's first packet to an endpoint stays unanswered. The kernel reports
// it, and the client decides whether it occurs: it is a reason to probe the endpoint, and proves
// nothing.
type Notice struct {
	Kind  Kind
	Proto lb.Proto
	// Endpoint is the translated destination.
	Endpoint netip.AddrPort
	// Frontend is the original destination; zero if the source of notices does not know it.
	Frontend netip.AddrPort
}

// Kind is what happened to the packet.
type Kind uint8

// The kinds of notices.
const (
	// Retransmission: the client sent its first packet again.
	Retransmission Kind = iota + 1
	// Unreachable: an ICMP host or network unreachable answered it.
	Unreachable
)

// String returns the kind in lower case.
func (k Kind) String() string {
	if k == Unreachable {
		return "unreachable"
	}
	return "retransmission"
}

// Endpoint is an endpoint of one protocol.
type Endpoint struct {
	Addr  netip.AddrPort
	Proto lb.Proto
}
