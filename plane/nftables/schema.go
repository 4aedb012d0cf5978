//go:build linux

package nftables

import (
	"encoding/binary"
	"net/netip"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	nlconn "kube-proxy/internal/netlink/conn"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/lb"
)

// TableName is the name of the table in both families (G3, DP-20).
const TableName = "kube-proxy"

// family holds what differs between the two IP versions.
type family struct {
	fam          lb.Family
	proto        byte   // NFPROTO_*
	addrLen      int    // bytes of an address
	saddr, daddr uint32 // offsets in the IP header
	ctDaddr      expr.CtKey
	addr         wire.Field
}

func familyOf(f lb.Family) family {
	if f == lb.IPv6 {
		return family{f, unix.NFPROTO_IPV6, 16, 8, 24, unix.NFT_CT_DST_IP6, ip6Field}
	}
	return family{f, unix.NFPROTO_IPV4, 4, 12, 16, unix.NFT_CT_DST_IP, ipField}
}

func (f family) ip() string {
	if f.fam == lb.IPv6 {
		return "ip6"
	}
	return "ip"
}

// setIndex numbers the sets and maps of the table. Their number is constant, whatever the cluster's size:
// the kernel finds a set by walking the table's list.
type setIndex int

const (
	sServices setIndex = iota
	sNodePorts
	sClusterSets
	sNodePortClusterSets
	sLocalSets
	sNodePortLocalSets
	sSetShapes
	sBackends
	sMembers
	sMemberBackends
	sAffinity
	sSourceLists
	sSourceRanges
	sClusterIPs
	sEqualBytes
	sReserved
	sConnections
	sNodePortConnections
	sLocalhostRejected
	sFilterClasses
	sNATClasses
	sClusterShapes
	sLocalShapes
	setCount
)

// schema is the sets of a family. hashes says whether the kernel can hash the addresses of clients, see affinity.go.
func schema(f family, hashes bool) *[setCount]wire.Set {
	vip := wire.Fields{f.addr, protoField, portField}
	nodePort := vip[1:]
	one := wire.Fields{markField}
	setAndSlot := wire.Fields{markField, slotField}
	member := wire.Fields{memberField}
	backend := wire.Fields{f.addr, portField}
	client := f.addr
	if hashes {
		client = slotField
	}
	return &[setCount]wire.Set{
		sServices:            {Name: "services", Key: vip, Data: one, Comment: "frontend -> class"},
		sNodePorts:           {Name: "nodeports", Key: nodePort, Data: one, Comment: "NodePort -> class"},
		sClusterSets:         {Name: "cluster-sets", Key: vip, Data: one, Comment: "frontend -> set id, all backends"},
		sNodePortClusterSets: {Name: "nodeport-cluster-sets", Key: nodePort, Data: one, Comment: "NodePort -> set id, all backends"},
		sLocalSets:           {Name: "local-sets", Key: vip, Data: one, Comment: "frontend -> set id, backends on this node"},
		sNodePortLocalSets:   {Name: "nodeport-local-sets", Key: nodePort, Data: one, Comment: "NodePort -> set id, backends on this node"},
		sSetShapes:           {Name: "set-shapes", Key: one, Data: one, Comment: "set id -> shape"},
		sBackends:            {Name: "backends", Key: setAndSlot, Data: backend, Comment: "set id, slot -> backend"},
		sMembers:             {Name: "members", Key: setAndSlot, Data: member, Comment: "set id, slot -> member: sets with affinity"},
		sMemberBackends:      {Name: "member-backends", Key: wire.Fields{memberField, markField}, Data: backend, Comment: "member, its set id -> backend"},
		sAffinity: {Name: "affinity", Key: wire.Fields{markField, client}, Data: member, Size: affinityLimit,
			Flags: unix.NFT_SET_TIMEOUT | unix.NFT_SET_EVAL, Comment: "set id, client -> its last member"},
		sSourceLists:  {Name: "source-lists", Key: vip, Data: one, Comment: "frontend -> list of those who may use it"},
		sSourceRanges: {Name: "source-ranges", Key: wire.Fields{markField, f.addr}, Comment: "list and length of the range, range"},
		sClusterIPs:   {Name: "cluster-ips", Key: wire.Fields{f.addr}, Comment: "addresses of kind ClusterIP"},
		sEqualBytes:   {Name: "equal-bytes", Key: wire.Fields{slotField, slotField}, Comment: "each byte with itself: so rules compare addresses"},
		sReserved:     {Name: "reserved", Key: one, Data: one, Comment: "1 -> set ids used up to here; 3 -> seed"},

		sConnections: {Name: "connections", Key: vip, Size: countersLimit,
			Flags: unix.NFT_SET_TIMEOUT | unix.NFT_SET_EVAL, Comment: "frontends in use, with their connections (--service-metrics)"},
		sNodePortConnections: {Name: "nodeport-connections", Key: nodePort, Size: countersLimit,
			Flags: unix.NFT_SET_TIMEOUT | unix.NFT_SET_EVAL, Comment: "NodePorts in use, with their connections (--service-metrics)"},
		sLocalhostRejected: {Name: "localhost-rejected", Key: nodePort, Size: countersLimit,
			Flags: unix.NFT_SET_EVAL, Comment: "NodePorts of UDP and SCTP, with the packets rejected on localhost"},

		sFilterClasses: {Name: "filter-classes", Key: one, Verdict: true, Comment: "class -> who may not pass"},
		sNATClasses:    {Name: "nat-classes", Key: one, Verdict: true, Comment: "class -> which set serves whom"},
		sClusterShapes: {Name: "cluster-shapes", Key: one, Verdict: true, Comment: "shape -> balancer"},
		sLocalShapes:   {Name: "local-shapes", Key: one, Verdict: true, Comment: "shape -> balancer"},
	}
}

func appendAddr(b []byte, a netip.Addr) []byte {
	if a.Is4() {
		x := a.As4()
		return append(b, x[:]...)
	}
	x := a.As16()
	return append(b, x[:]...)
}

// appendNum appends a set id, slot, size, class or number of seconds, as a register holds it.
func appendNum(b []byte, v uint32) []byte { return nlconn.Order.AppendUint32(b, v) }

func appendOctet(b []byte, n byte) []byte { return append(b, n, 0, 0, 0) }

func appendPort(b []byte, p uint16) []byte {
	b = binary.BigEndian.AppendUint16(b, p)
	return append(b, 0, 0)
}

func appendKey(b []byte, k lb.Key) []byte {
	if !k.IsNodePort() {
		b = appendAddr(b, k.Addr)
	}
	return appendPort(appendOctet(b, byte(k.Proto)), k.Port)
}

func appendBackend(b []byte, ap netip.AddrPort) []byte {
	return appendPort(appendAddr(b, ap.Addr()), ap.Port())
}

// parseBackend is the inverse of appendBackend for an address of n bytes.
func parseBackend(b []byte, n int) netip.AddrPort {
	return netip.AddrPortFrom(parseAddr(b, n), binary.BigEndian.Uint16(b[n:]))
}

func parseAddr(b []byte, n int) netip.Addr {
	a, _ := netip.AddrFromSlice(b[:n])
	return a
}

// parseSourceRange returns the number of the list and the range that a key of source-ranges holds.
func parseSourceRange(b []byte) (list uint32, p netip.Prefix) {
	n := nlconn.Order.Uint32(b)
	return n >> lengthBits, netip.PrefixFrom(parseAddr(b[4:], len(b)-4), int(n&(1<<lengthBits-1)))
}

// parseKey is the inverse of appendKey; n is the length of the address, 0 for a NodePort.
func parseKey(b []byte, n int) lb.Key {
	var k lb.Key
	if n > 0 {
		k.Addr = parseAddr(b, n)
	}
	k.Proto = lb.Proto(b[n])
	k.Port = binary.BigEndian.Uint16(b[n+4:])
	return k
}
