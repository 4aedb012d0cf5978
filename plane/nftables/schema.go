//go:build linux

package nftables

import (
	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink"
	"kube-proxy/internal/nft/rule"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/lb"
	"kube-proxy/plane/internal/ranges"
)

// TableName is the name of the table in both families (G3, DP-20).
const TableName = "kube-proxy"

// setIndex numbers the sets and maps of the table. Their number is constant, whatever the cluster's
// size, because the kernel finds a set by walking the table's list.
type setIndex = int

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

// rowKey returns the frontend key in the key of an element, if the set is keyed by frontends.
func rowKey(i setIndex, key []byte, addrLen int) (k lb.Key, ok bool) {
	switch i {
	case sServices, sClusterSets, sLocalSets, sSourceLists:
		return wire.ParseKey(key, addrLen), true
	case sNodePorts, sNodePortClusterSets, sNodePortLocalSets:
		return wire.ParseKey(key, 0), true
	}
	return k, false
}

// numberIn returns the number of a set or list in the key of an element, or 0.
func numberIn(i setIndex, key []byte) uint32 {
	switch i {
	case sSetShapes, sBackends, sMembers:
		return netlink.Order.Uint32(key)
	case sMemberBackends:
		return netlink.Order.Uint32(key[4:])
	case sSourceRanges:
		return ranges.NumberOf(netlink.Order.Uint32(key))
	}
	return 0
}

// schema returns the sets of a family. hashes says whether the kernel can hash the addresses of
// clients, see affinity.go.
func schema(ip rule.IP, hashes bool) *[setCount]wire.Set {
	vip := wire.Fields{ip.Addr, wire.ProtoField, wire.PortField}
	nodePort := vip[1:]
	one := wire.Fields{wire.MarkField}
	setAndSlot := wire.Fields{wire.MarkField, wire.SlotField}
	member := wire.Fields{wire.ClassField}
	backend := wire.Fields{ip.Addr, wire.PortField}
	client := ip.Addr
	if hashes {
		client = wire.SlotField
	}
	return &[setCount]wire.Set{
		sServices:    {Name: "services", Key: vip, Data: one, Comment: "frontend -> class"},
		sNodePorts:   {Name: "nodeports", Key: nodePort, Data: one, Comment: "NodePort -> class"},
		sClusterSets: {Name: "cluster-sets", Key: vip, Data: one, Comment: "frontend -> set id, all backends"},
		sNodePortClusterSets: {Name: "nodeport-cluster-sets", Key: nodePort, Data: one,
			Comment: "NodePort -> set id, all backends"},
		sLocalSets: {Name: "local-sets", Key: vip, Data: one, Comment: "frontend -> set id, backends on this node"},
		sNodePortLocalSets: {Name: "nodeport-local-sets", Key: nodePort, Data: one,
			Comment: "NodePort -> set id, backends on this node"},
		sSetShapes: {Name: "set-shapes", Key: one, Data: one, Comment: "set id -> shape"},
		sBackends:  {Name: "backends", Key: setAndSlot, Data: backend, Comment: "set id, slot -> backend"},
		sMembers: {Name: "members", Key: setAndSlot, Data: member,
			Comment: "set id, slot -> member: sets with affinity"},
		sMemberBackends: {Name: "member-backends", Key: wire.Fields{wire.ClassField, wire.MarkField},
			Data: backend, Comment: "member, its set id -> backend"},
		sAffinity: {Name: "affinity", Key: wire.Fields{wire.MarkField, client}, Data: member, Size: affinityLimit,
			Flags: unix.NFT_SET_TIMEOUT | unix.NFT_SET_EVAL, Comment: "set id, client -> its last member"},
		sSourceLists: {Name: "source-lists", Key: vip, Data: one, Comment: "frontend -> list of those who may use it"},
		sSourceRanges: {Name: "source-ranges", Key: wire.Fields{wire.MarkField, ip.Addr},
			Comment: "list and length of the range, range"},
		sClusterIPs: {Name: "cluster-ips", Key: wire.Fields{ip.Addr}, Comment: "addresses of kind ClusterIP"},
		sEqualBytes: {Name: "equal-bytes", Key: wire.Fields{wire.SlotField, wire.SlotField},
			Comment: "each byte with itself: so rules compare addresses"},
		sReserved: {Name: "reserved", Key: one, Data: one, Comment: "1 -> set ids used up to here; 3 -> seed"},

		sConnections: {Name: "connections", Key: vip, Size: countersLimit,
			Flags: unix.NFT_SET_TIMEOUT | unix.NFT_SET_EVAL, Comment: "frontends in use, with their connections " +
				"(--service-metrics)"},
		sNodePortConnections: {Name: "nodeport-connections", Key: nodePort, Size: countersLimit,
			Flags: unix.NFT_SET_TIMEOUT | unix.NFT_SET_EVAL, Comment: "NodePorts in use, with their connections " +
				"(--service-metrics)"},
		sLocalhostRejected: {Name: "localhost-rejected", Key: nodePort, Size: countersLimit,
			Flags: unix.NFT_SET_EVAL, Comment: "NodePorts with the packets rejected on localhost"},

		sFilterClasses: {Name: "filter-classes", Key: one, Verdict: true, Comment: "class -> who may not pass"},
		sNATClasses:    {Name: "nat-classes", Key: one, Verdict: true, Comment: "class -> which set serves whom"},
		sClusterShapes: {Name: "cluster-shapes", Key: one, Verdict: true, Comment: "shape -> balancer"},
		sLocalShapes:   {Name: "local-shapes", Key: one, Verdict: true, Comment: "shape -> balancer"},
	}
}
