package capture

import (
	"encoding/binary"
	"net/netip"

	nft "github.com/google/nftables"
	"golang.org/x/sys/unix"

	nlconn "kube-proxy/internal/netlink/conn"
	"kube-proxy/internal/nft/wire"
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
	addr         wire.Field
}

func familyOf(f lb.Family) family {
	if f == lb.IPv6 {
		return family{f, unix.NFPROTO_IPV6, 16, 8, 24, wire.Field{Type: nft.TypeIP6Addr, Size: 16, Text: wire.AddrText}}
	}
	return family{f, unix.NFPROTO_IPV4, 4, 12, 16, wire.Field{Type: nft.TypeIPAddr, Size: 4, Text: wire.AddrText}}
}

// loopback is what no NodePort answers on, but for 127.0.0.1 where that is asked for (SV-64).
func (f family) loopback() netip.Prefix {
	if f.fam == lb.IPv6 {
		return netip.PrefixFrom(netip.IPv6Loopback(), 128)
	}
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{127}), 8)
}

var (
	protoField  = wire.Field{Type: nft.TypeInetProto, Size: 4, Text: func(b []byte) string { return lb.Proto(b[0]).String() }}
	portField   = wire.Field{Type: nft.TypeInetService, Size: 4, Text: wire.PortText}
	numberField = wire.Field{Type: nft.TypeMark, Size: 4, Number: true, Text: wire.MarkText}
	familyField = wire.Field{Type: nft.TypeNFProto, Size: 1, Text: familyText}
	portData    = wire.Field{Type: nft.TypeInetService, Size: 2, Text: wire.PortText} // alone it is not padded
)

func familyText(b []byte) string {
	return map[byte]string{unix.NFPROTO_IPV4: "ipv4", unix.NFPROTO_IPV6: "ipv6"}[b[0]]
}

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

func schema(f family) (all [setCount]wire.Set) {
	vip := wire.Fields{f.addr, protoField, portField}
	for from := lb.Pods; from <= lb.Anywhere; from++ {
		for _, np := range []bool{false, true} {
			key, name := vip, "services-"
			if np {
				key, name = vip[1:], "nodeports-"
			}
			all[ports(from, np)] = wire.Set{Name: name + from.String(), Key: key, Data: wire.Fields{portData}, Comment: "frontend -> port of the proxy"}
			all[refusals(from, np)] = wire.Set{Name: "refused-" + name + from.String(), Key: key, Data: wire.Fields{numberField}, Comment: "frontend -> 2 reject, 3 drop"}
		}
	}
	all[sSourceLists] = wire.Set{Name: "source-lists", Key: vip, Data: wire.Fields{numberField}, Comment: "frontend -> list of those who may use it"}
	all[sSourceRanges] = wire.Set{Name: "source-ranges", Key: wire.Fields{numberField, f.addr}, Comment: "list and length of the range, range"}
	all[sClusterIPs] = wire.Set{Name: "cluster-ips", Key: wire.Fields{f.addr}, Comment: "addresses of kind ClusterIP"}
	all[sListeners] = wire.Set{Name: "listeners", Key: vip[1:], Comment: "ports of the proxy"}
	all[sNodeAddresses] = wire.Set{Name: "node-addresses", Key: wire.Fields{familyField}, Data: wire.Fields{f.addr}, Comment: "where the proxy is reached"}
	return all
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
