package nftables

import (
	"encoding/binary"
	"net/netip"

	nft "github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"kube-proxy/lb"
)

// TableName is the name of the table in both families (G3, DP-20).
const TableName = "kube-proxy"

// family holds what differs between the two IP versions.
type family struct {
	fam          lb.Family
	proto        byte   // NFPROTO_*
	addrLen      int    // bytes of an address
	addrRegs     uint32 // 32-bit registers that an address fills
	saddr, daddr uint32 // offsets in the IP header
	ctDaddr      expr.CtKey
	addrType     nft.SetDatatype
}

func familyOf(f lb.Family) family {
	if f == lb.IPv6 {
		return family{f, unix.NFPROTO_IPV6, 16, 4, 8, 24, unix.NFT_CT_DST_IP6, nft.TypeIP6Addr}
	}
	return family{f, unix.NFPROTO_IPV4, 4, 1, 12, 16, unix.NFT_CT_DST_IP, nft.TypeIPAddr}
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
	sFilterClasses
	sNATClasses
	sClusterShapes
	sLocalShapes
	setCount
)

// field is a part of a key or of data: an nft type and the bytes that it takes in a register, padded.
type field struct {
	typ  nft.SetDatatype
	size int
}

// isNumber reports whether the field is a plain number, which a register holds in the machine's byte order. The
// numbers have types of three kinds for the sake of people: mark and classid are those of the variables of rules, see
// [operand], and a slot is what numgen gives. A byte has the type of a slot, too.
func (f field) isNumber() bool {
	switch f.typ.Name {
	case nft.TypeMark.Name, nft.TypeClassID.Name, nft.TypeInteger.Name:
		return true
	}
	return false
}

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
func schema(f family, hashes bool) [setCount]setDef {
	addr := field{f.addrType, f.addrLen}
	proto := field{nft.TypeInetProto, 4}
	port := field{nft.TypeInetService, 4}
	num := field{nft.TypeMark, 4}
	slot := field{nft.TypeInteger, 4}
	member := field{nft.TypeClassID, 4}
	vip := []field{addr, proto, port}
	nodePort := []field{proto, port}
	one := []field{num}
	backend := []field{addr, port}
	client := addr
	if hashes {
		client = slot
	}
	return [setCount]setDef{
		sServices:            {name: "services", key: vip, data: one, comment: "frontend -> class"},
		sNodePorts:           {name: "nodeports", key: nodePort, data: one, comment: "NodePort -> class"},
		sClusterSets:         {name: "cluster-sets", key: vip, data: one, comment: "frontend -> set id, all backends"},
		sNodePortClusterSets: {name: "nodeport-cluster-sets", key: nodePort, data: one, comment: "NodePort -> set id, all backends"},
		sLocalSets:           {name: "local-sets", key: vip, data: one, comment: "frontend -> set id, backends on this node"},
		sNodePortLocalSets:   {name: "nodeport-local-sets", key: nodePort, data: one, comment: "NodePort -> set id, backends on this node"},
		sSetShapes:           {name: "set-shapes", key: one, data: one, comment: "set id -> shape"},
		sBackends:            {name: "backends", key: []field{num, slot}, data: backend, comment: "set id, slot -> backend"},
		sMembers:             {name: "members", key: []field{num, slot}, data: []field{member}, comment: "set id, slot -> member: sets with affinity"},
		sMemberBackends:      {name: "member-backends", key: []field{member, num}, data: backend, comment: "member, its set id -> backend"},
		sAffinity: {name: "affinity", key: []field{num, client}, data: []field{member}, size: affinityLimit,
			flags: unix.NFT_SET_TIMEOUT | unix.NFT_SET_EVAL, comment: "set id, client -> its last member"},
		sSourceLists:  {name: "source-lists", key: vip, data: one, comment: "frontend -> list of those who may use it"},
		sSourceRanges: {name: "source-ranges", key: []field{num, addr}, comment: "list and length of the range, range"},
		sClusterIPs:   {name: "cluster-ips", key: []field{addr}, comment: "addresses of kind ClusterIP"},
		sEqualBytes:   {name: "equal-bytes", key: []field{slot, slot}, comment: "each byte with itself: so rules compare addresses"},
		sReserved:     {name: "reserved", key: one, data: one, comment: "1, 2 -> set ids, members used up to here; 3 -> seed"},

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

func width(fields []field) int {
	n := 0
	for _, f := range fields {
		n += f.size
	}
	return n
}

func (d *setDef) keyLen() int  { return width(d.key) }
func (d *setDef) dataLen() int { return width(d.data) }

// byExpression reports whether the nft program knows the types of the set by expressions, as in
// "typeof meta mark . numgen random mod 1 : ip daddr . th dport". It must where a field has no type with a name.
func (d *setDef) byExpression() bool {
	for _, f := range d.key {
		if f.typ.Name == nft.TypeInteger.Name {
			return true
		}
	}
	return false
}

// dynamic sets are filled by packets; their elements are not ours to compare.
func (d *setDef) dynamic() bool { return d.flags&unix.NFT_SET_EVAL != 0 }

// nftType is the number under which the nft program knows a concatenation of types.
func nftType(fields []field) uint32 {
	var t uint32
	for _, f := range fields {
		t = t<<nft.SetConcatTypeBits | f.typ.GetNFTMagic()
	}
	return t
}

// hostOrder reports whether the nft program must print the value as a host-endian integer.
func hostOrder(fields []field) bool {
	return len(fields) == 1 && fields[0].isNumber()
}

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
func appendNum(b []byte, v uint32) []byte { return order.AppendUint32(b, v) }

func appendOctet(b []byte, n byte) []byte { return append(b, n, 0, 0, 0) }

func appendProto(b []byte, p lb.Proto) []byte { return append(b, byte(p), 0, 0, 0) }

func appendPort(b []byte, p uint16) []byte {
	b = binary.BigEndian.AppendUint16(b, p)
	return append(b, 0, 0)
}

func appendKey(b []byte, k lb.Key) []byte {
	if !k.IsNodePort() {
		b = appendAddr(b, k.Addr)
	}
	return appendPort(appendProto(b, k.Proto), k.Port)
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
	n := order.Uint32(b)
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
