package redirect

import (
	"kube-proxy/internal/nft/rule"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/lb"
)

// TableName is the name of the nftables table, in both families.
const TableName = "kube-proxy-userspace"

// setIndex numbers the sets and maps of the table.
type setIndex = int

// For each kind of source, and for NodePorts and other keys: maps to the port of a listener, or to
// a refusal. Then the sets that all of them share.
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

// froms is the number of kinds of sources.
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

func schema(ip rule.IP) (all [setCount]wire.Set) {
	vip := wire.Fields{ip.Addr, wire.ProtoField, wire.PortField}
	for from := lb.Pods; from <= lb.Anywhere; from++ {
		for _, np := range []bool{false, true} {
			key, name := vip, "services-"
			if np {
				key, name = vip[1:], "nodeports-"
			}
			all[ports(from, np)] = wire.Set{Name: name + from.String(), Key: key, Data: wire.Fields{wire.OnlyPort},
				Comment: "frontend -> port of the proxy"}
			all[refusals(from, np)] = wire.Set{Name: "refused-" + name + from.String(), Key: key,
				Data: wire.Fields{wire.MarkField}, Comment: "frontend -> 2 reject, 3 drop"}
		}
	}
	all[sSourceLists] = wire.Set{Name: "source-lists", Key: vip, Data: wire.Fields{wire.MarkField},
		Comment: "frontend -> list of those who may use it"}
	all[sSourceRanges] = wire.Set{Name: "source-ranges", Key: wire.Fields{wire.MarkField, ip.Addr},
		Comment: "list and length of the range, range"}
	all[sClusterIPs] = wire.Set{Name: "cluster-ips", Key: wire.Fields{ip.Addr}, Comment: "addresses of kind ClusterIP"}
	all[sListeners] = wire.Set{Name: "listeners", Key: vip[1:], Comment: "ports of the proxy"}
	all[sNodeAddresses] = wire.Set{Name: "node-addresses", Key: wire.Fields{wire.VersionField},
		Data: wire.Fields{ip.Addr}, Comment: "where the proxy is reached"}
	return all
}

// parseKey reads the frontend's key from a record of a set; that of a NodePort has no address.
func parseKey(d *wire.Set, rec []byte) lb.Key {
	const protocolAndPort = 8
	return wire.ParseKey(rec, d.KeyLen()-protocolAndPort)
}
