package relay

import (
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"

	"kube-proxy/lb"
)

// The relay is a router among others: it lowers the TTL of what it sends to backends. Otherwise two
// relays whose backends are each other, which the author of endpoints can arrange, would pass a
// connection on until neither has a descriptor left.

// fewHops is the TTL that a client must have left before a silent or unreachable backend is blamed:
// with less, a router on the way may have dropped the packet. No path in a cluster is that long.
const fewHops = 32

// wantHops enables reports of how many hops the packets of clients have left.
func wantHops(a netip.Addr) option {
	return forFamily(a, option{"IP_RECVTTL", unix.IPPROTO_IP, unix.IP_RECVTTL, 1},
		option{"IPV6_RECVHOPLIMIT", unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT, 1})
}

// limitHops limits the hops of packets to an address; -1 is the node's own limit.
func limitHops(a netip.Addr, hops int) option {
	return forFamily(a, option{"IP_TTL", unix.IPPROTO_IP, unix.IP_TTL, hops},
		option{"IPV6_UNICAST_HOPS", unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, hops})
}

// hops returns how many hops the client's packets have left; 0 if the kernel does not know.
func (c *conn) hops() int {
	if c.from.proto != lb.TCP {
		return 0
	}
	level, opt := unix.IPPROTO_IP, unix.IP_PKTOPTIONS
	if c.from.at.Addr().Is6() {
		level, opt = unix.IPPROTO_IPV6, unix.IPV6_2292PKTOPTIONS
	}
	var b [recvControlSize]byte
	size := uint32(len(b))
	if getsockopt(int(c.ends[client].fd), level, opt, unsafe.Pointer(&b), &size) != nil {
		return 0 // the client has gone, which epoll reports too
	}
	return parseControl(b[:min(int(size), len(b))]).hops
}
