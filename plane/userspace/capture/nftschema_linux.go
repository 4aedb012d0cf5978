package capture

import (
	"encoding/binary"
	"net/netip"

	nft "github.com/google/nftables"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"kube-proxy/internal/nlconn"
	"kube-proxy/lb"
)

// TableName is the name of the nftables table, in both families.
const TableName = "kube-proxy-userspace"

// family holds what differs between the two IP versions.
type family struct {
	fam          lb.Family
	proto        byte   // NFPROTO_*, which is AF_* as well
	addrLen      int    // bytes of an address
	saddr, daddr uint32 // offsets in the IP header
	addr         field
}

func familyOf(f lb.Family) family {
	if f == lb.IPv6 {
		return family{f, unix.NFPROTO_IPV6, 16, 8, 24, field{nft.TypeIP6Addr, 16}}
	}
	return family{f, unix.NFPROTO_IPV4, 4, 12, 16, field{nft.TypeIPAddr, 4}}
}

// loopback is what no NodePort answers on, but for 127.0.0.1 where that is asked for (SV-64).
func (f family) loopback() netip.Prefix {
	if f.fam == lb.IPv6 {
		return netip.PrefixFrom(netip.IPv6Loopback(), 128)
	}
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{127}), 8)
}

// field is a part of a key or of data, as wide as it is in registers.
type field struct {
	typ  nft.SetDatatype
	size int
}

var (
	protoField  = field{nft.TypeInetProto, 4}
	portField   = field{nft.TypeInetService, 4}
	numberField = field{nft.TypeMark, 4}
	familyField = field{nft.TypeNFProto, 1}
	portData    = field{nft.TypeInetService, 2} // alone it is not padded
)

// setIndex numbers the sets and maps of the table, of which there are always as many.
type setIndex int

// What packets from each kind of source meet, by From and by whether the key is a NodePort: the port of a listener, or a
// refusal. Then what is looked up for all.
const (
	sPorts         setIndex = iota                       // six: see ports
	sRefusals      setIndex = sPorts + 2*setIndex(froms) // six: see refusals
	sSourceLists   setIndex = sRefusals + 2*setIndex(froms)
	sSourceRanges  setIndex = sSourceLists + 1
	sClusterIPs    setIndex = sSourceLists + 2
	sListeners     setIndex = sSourceLists + 3
	sNodeAddresses setIndex = sSourceLists + 4
	setCount       setIndex = sSourceLists + 5
)

// froms is how many kinds of sources there are.
const froms = int(lb.Anywhere)

func ports(f lb.From, nodePort bool) setIndex    { return sPorts + place(f, nodePort) }
func refusals(f lb.From, nodePort bool) setIndex { return sRefusals + place(f, nodePort) }

func place(f lb.From, nodePort bool) setIndex {
	n := setIndex(f-lb.Pods) * 2
	if nodePort {
		n++
	}
	return n
}

// setDef describes a set, or a map if it has data.
type setDef struct {
	name, comment string
	key, data     []field
	// shared elements are needed by more than one row.
	shared bool
}

func schema(f family) (all [setCount]setDef) {
	vip := []field{f.addr, protoField, portField}
	for from := lb.Pods; from <= lb.Anywhere; from++ {
		for _, np := range []bool{false, true} {
			key, name := vip, "services-"
			if np {
				key, name = vip[1:], "nodeports-"
			}
			all[ports(from, np)] = setDef{name: name + from.String(), key: key, data: []field{portData}, comment: "frontend -> port of the proxy"}
			all[refusals(from, np)] = setDef{name: "refused-" + name + from.String(), key: key, data: []field{numberField}, comment: "frontend -> 2 reject, 3 drop"}
		}
	}
	all[sSourceLists] = setDef{name: "source-lists", key: vip, data: []field{numberField}, comment: "frontend -> list of those who may use it"}
	all[sSourceRanges] = setDef{name: "source-ranges", key: []field{numberField, f.addr}, comment: "list and length of the range, range"}
	all[sClusterIPs] = setDef{name: "cluster-ips", key: []field{f.addr}, comment: "addresses of kind ClusterIP", shared: true}
	all[sListeners] = setDef{name: "listeners", key: vip[1:], comment: "ports of the proxy", shared: true}
	all[sNodeAddresses] = setDef{name: "node-addresses", key: []field{familyField}, data: []field{f.addr}, comment: "where the proxy is reached"}
	return all
}

func width(fields []field) int {
	n := 0
	for _, f := range fields {
		n += f.size
	}
	return n
}

// nftType is the number under which the nft program knows a concatenation of types.
func nftType(fields []field) (t uint32) {
	for _, f := range fields {
		t = t<<nft.SetConcatTypeBits | f.typ.GetNFTMagic()
	}
	return t
}

func (d *setDef) keyLen() int  { return width(d.key) }
func (d *setDef) dataLen() int { return width(d.data) }
func (d *setDef) size() int    { return d.keyLen() + d.dataLen() }

func (d *setDef) flags() uint32 {
	if d.data != nil {
		return unix.NFT_SET_MAP
	}
	return 0
}

// userdata makes the nft program print numbers as such, and shows the comment.
func (d *setDef) userdata() []byte {
	order := func(fields []field) uint32 {
		if len(fields) == 1 && fields[0] == numberField {
			return 1
		}
		return 2
	}
	u := userdata.AppendUint32(nil, userdata.NFTNL_UDATA_SET_KEYBYTEORDER, order(d.key))
	if d.data != nil {
		u = userdata.AppendUint32(u, userdata.NFTNL_UDATA_SET_DATABYTEORDER, order(d.data))
	}
	return userdata.AppendString(u, userdata.NFTNL_UDATA_SET_COMMENT, d.comment)
}

// matches reports whether the kernel's set is as we make it.
func (d *setDef) matches(body []byte) bool {
	is := func(attr uint16, want uint32) bool { return nlconn.BE32(nlconn.Attribute(body, attr)) == want }
	return is(unix.NFTA_SET_FLAGS, d.flags()) && is(unix.NFTA_SET_KEY_TYPE, nftType(d.key)) && is(unix.NFTA_SET_KEY_LEN, uint32(d.keyLen())) &&
		is(unix.NFTA_SET_DATA_TYPE, nftType(d.data)) && is(unix.NFTA_SET_DATA_LEN, uint32(d.dataLen()))
}

// record appends an element of the kernel's to b.
func (d *setDef) record(b, element []byte) []byte {
	value := func(attr uint16) []byte {
		return nlconn.Attribute(nlconn.Attribute(element, attr), unix.NFTA_DATA_VALUE)
	}
	b = append(b, value(unix.NFTA_SET_ELEM_KEY)...)
	if d.data != nil {
		b = append(b, value(unix.NFTA_SET_ELEM_DATA)...)
	}
	return b
}

// Records are elements as bytes: the key, then the data, each as wide as in registers.

func appendNumber(b []byte, n uint32) []byte { return nlconn.Order.AppendUint32(b, n) }

func appendPortData(b []byte, p uint16) []byte { return binary.BigEndian.AppendUint16(b, p) }

func appendPort(b []byte, p uint16) []byte { return append(binary.BigEndian.AppendUint16(b, p), 0, 0) }

func appendListener(b []byte, p lb.Proto, port uint16) []byte {
	return appendPort(append(b, byte(p), 0, 0, 0), port)
}

func appendKey(b []byte, k lb.Key) []byte {
	if !k.IsNodePort() {
		b = append(b, k.Addr.AsSlice()...)
	}
	return appendListener(b, k.Proto, k.Port)
}

// parseKey is the inverse of appendKey; n is the length of the address, 0 for a NodePort.
func parseKey(b []byte, n int) (k lb.Key) {
	if n > 0 {
		k.Addr, _ = netip.AddrFromSlice(b[:n])
	}
	k.Proto, k.Port = lb.Proto(b[n]), parsePort(b[n+4:])
	return k
}

func parsePort(b []byte) uint16 { return binary.BigEndian.Uint16(b) }
