//go:build linux

package nftables

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"kube-proxy/internal/nlconn"
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
	addr         field
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
	sFilterClasses
	sNATClasses
	sClusterShapes
	sLocalShapes
	setCount
)

// setDef describes one set or map.
type setDef struct {
	name    string
	key     []field
	data    []field // nil for a set or a verdict map
	verdict bool
	flags   uint32
	size    uint32 // the most elements; 0 for no limit
	comment string
}

// schema is the sets of a family. hashes says whether the kernel can hash the addresses of clients, see affinity.go.
func schema(f family, hashes bool) *[setCount]setDef {
	vip := []field{f.addr, protoField, portField}
	nodePort := vip[1:]
	one := []field{markField}
	setAndSlot := []field{markField, slotField}
	member := []field{memberField}
	backend := []field{f.addr, portField}
	client := f.addr
	if hashes {
		client = slotField
	}
	return &[setCount]setDef{
		sServices:            {name: "services", key: vip, data: one, comment: "frontend -> class"},
		sNodePorts:           {name: "nodeports", key: nodePort, data: one, comment: "NodePort -> class"},
		sClusterSets:         {name: "cluster-sets", key: vip, data: one, comment: "frontend -> set id, all backends"},
		sNodePortClusterSets: {name: "nodeport-cluster-sets", key: nodePort, data: one, comment: "NodePort -> set id, all backends"},
		sLocalSets:           {name: "local-sets", key: vip, data: one, comment: "frontend -> set id, backends on this node"},
		sNodePortLocalSets:   {name: "nodeport-local-sets", key: nodePort, data: one, comment: "NodePort -> set id, backends on this node"},
		sSetShapes:           {name: "set-shapes", key: one, data: one, comment: "set id -> shape"},
		sBackends:            {name: "backends", key: setAndSlot, data: backend, comment: "set id, slot -> backend"},
		sMembers:             {name: "members", key: setAndSlot, data: member, comment: "set id, slot -> member: sets with affinity"},
		sMemberBackends:      {name: "member-backends", key: []field{memberField, markField}, data: backend, comment: "member, its set id -> backend"},
		sAffinity: {name: "affinity", key: []field{markField, client}, data: member, size: affinityLimit,
			flags: unix.NFT_SET_TIMEOUT | unix.NFT_SET_EVAL, comment: "set id, client -> its last member"},
		sSourceLists:  {name: "source-lists", key: vip, data: one, comment: "frontend -> list of those who may use it"},
		sSourceRanges: {name: "source-ranges", key: []field{markField, f.addr}, comment: "list and length of the range, range"},
		sClusterIPs:   {name: "cluster-ips", key: []field{f.addr}, comment: "addresses of kind ClusterIP"},
		sEqualBytes:   {name: "equal-bytes", key: []field{slotField, slotField}, comment: "each byte with itself: so rules compare addresses"},
		sReserved:     {name: "reserved", key: one, data: one, comment: "1, 2 -> set ids, members used up to here; 3 -> seed"},

		sConnections: {name: "connections", key: vip, size: countersLimit,
			flags: unix.NFT_SET_TIMEOUT | unix.NFT_SET_EVAL, comment: "frontends in use, with their connections (--service-metrics)"},
		sNodePortConnections: {name: "nodeport-connections", key: nodePort, size: countersLimit,
			flags: unix.NFT_SET_TIMEOUT | unix.NFT_SET_EVAL, comment: "NodePorts in use, with their connections (--service-metrics)"},

		sFilterClasses: {name: "filter-classes", key: one, verdict: true, comment: "class -> who may not pass"},
		sNATClasses:    {name: "nat-classes", key: one, verdict: true, comment: "class -> which set serves whom"},
		sClusterShapes: {name: "cluster-shapes", key: one, verdict: true, comment: "shape -> balancer"},
		sLocalShapes:   {name: "local-shapes", key: one, verdict: true, comment: "shape -> balancer"},
	}
}

// What golang.org/x/sys/unix does not have, from nf_tables.h.
const (
	policyAccept = 1 // NF_ACCEPT
	tableDormant = 1 // NFT_TABLE_F_DORMANT: its chains are not in force
)

func (d *setDef) keyLen() int  { return width(d.key) }
func (d *setDef) dataLen() int { return width(d.data) }

// byExpression reports whether the nft program knows the types of the set by expressions, as in
// "typeof meta mark . numgen random mod 1 : ip daddr . th dport". It must where a field has no type with a name.
func (d *setDef) byExpression() bool {
	return slices.ContainsFunc(d.key, func(f field) bool { return f.kind == exprNumgen })
}

// dynamic sets are filled by packets; their elements are not ours to compare.
func (d *setDef) dynamic() bool { return d.flags&unix.NFT_SET_EVAL != 0 }

// recordLen is the length of a record, which is one element as bytes: the key, then the data.
func (d *setDef) recordLen() int { return d.keyLen() + d.dataLen() }

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
