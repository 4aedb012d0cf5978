package rule

import (
	"net/netip"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"kube-proxy/internal/nft/wire"
	"kube-proxy/lb"
)

// IP has the differences between the two versions of IP.
type IP struct {
	Family  lb.Family
	Proto   byte // NFPROTO_*, which is AF_* as well
	AddrLen int  // bytes of an address
	Addr    wire.Field

	saddr, daddr uint32 // offsets in the header
	// The keys of the original source and destination.
	ctSaddr, ctDaddr expr.CtKey
}

// IPOf returns the IP of a family.
func IPOf(f lb.Family) IP {
	if f == lb.IPv6 {
		return IP{f, unix.NFPROTO_IPV6, 16, wire.IPv6Field, 8, 24, unix.NFT_CT_SRC_IP6, unix.NFT_CT_DST_IP6}
	}
	return IP{f, unix.NFPROTO_IPV4, 4, wire.IPv4Field, 12, 16, unix.NFT_CT_SRC_IP, unix.NFT_CT_DST_IP}
}

// Name returns the version's name in the language of nft(8).
func (ip IP) Name() string {
	if ip.Family == lb.IPv6 {
		return "ip6"
	}
	return "ip"
}

// loopback returns the addresses of this node at which no NodePort answers (SV-64).
func (ip IP) loopback() netip.Prefix {
	if ip.Family == lb.IPv6 {
		return netip.PrefixFrom(netip.IPv6Loopback(), 128)
	}
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{127}), 8)
}

// FromPods returns the matches for packets from pods: one for each way in which the local-traffic
// detector recognises them. If it has none (SV-67), pods are treated as from anywhere.
func (ip IP) FromPods(d lb.Detector) []Statement {
	switch {
	case d.Interface != "":
		return []Statement{fromInterface(d.Interface, false)}
	case d.InterfacePrefix != "":
		return []Statement{fromInterface(d.InterfacePrefix, true)}
	}
	var matches []Statement
	for _, p := range d.Prefixes {
		matches = append(matches, ip.InPrefix(ip.Source(), p))
	}
	return matches
}
