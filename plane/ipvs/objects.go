package ipvs

import (
	"net/netip"

	"kube-proxy/internal/netlink/ipset"
	"kube-proxy/internal/netlink/ipvs"
	"kube-proxy/lb"
)

// set is one of the plane's ipsets, in the order in which members are added: first the sets that
// block clients, later those that send clients to virtual servers. Removal is in reverse order.
type set uint8

const (
	setSourceCIDR set = iota
	setSourceIP
	setFirewall
	setIPs
	setLoopBack
	setClusterIP
	setExternalIP
	setExternalIPLocal
	setLoadBalancer
	setLoadBalancerLocal
	setNodePortTCP
	setNodePortLocalTCP
	setNodePortUDP
	setNodePortLocalUDP
	setNodePortSCTP
	setNodePortLocalSCTP
	setHealthCheck
	setMarksPods
	setMarksHost
	setMarksAnywhere
	setCount
)

// kinds are the names of the sets, behind KUBE- or KUBE-6-, and their types. Other software reads
// all but the last three (DP-32).
var kinds = [setCount]struct {
	name string
	typ  ipset.Type
}{
	setSourceCIDR:        {"LOAD-BALANCER-SOURCE-CIDR", ipset.HashIPPortNet},
	setSourceIP:          {"LOAD-BALANCER-SOURCE-IP", ipset.HashIPPortIP},
	setFirewall:          {"LOAD-BALANCER-FW", ipset.HashIPPort},
	setIPs:               {"IPVS-IPS", ipset.HashIP},
	setLoopBack:          {"LOOP-BACK", ipset.HashIPPortIP},
	setClusterIP:         {"CLUSTER-IP", ipset.HashIPPort},
	setExternalIP:        {"EXTERNAL-IP", ipset.HashIPPort},
	setExternalIPLocal:   {"EXTERNAL-IP-LOCAL", ipset.HashIPPort},
	setLoadBalancer:      {"LOAD-BALANCER", ipset.HashIPPort},
	setLoadBalancerLocal: {"LOAD-BALANCER-LOCAL", ipset.HashIPPort},
	setNodePortTCP:       {"NODE-PORT-TCP", ipset.BitmapPort},
	setNodePortLocalTCP:  {"NODE-PORT-LOCAL-TCP", ipset.BitmapPort},
	setNodePortUDP:       {"NODE-PORT-UDP", ipset.BitmapPort},
	setNodePortLocalUDP:  {"NODE-PORT-LOCAL-UDP", ipset.BitmapPort},
	setNodePortSCTP:      {"NODE-PORT-SCTP-HASH", ipset.HashIPPort},
	setNodePortLocalSCTP: {"NODE-PORT-LOCAL-SCTP-HASH", ipset.HashIPPort},
	setHealthCheck:       {"HEALTH-CHECK-NODE-PORT", ipset.BitmapPort},
	setMarksPods:         {"MARK-POD", ipset.HashIPPort},
	setMarksHost:         {"MARK-HOST", ipset.HashIPPort},
	setMarksAnywhere:     {"MARK-ANY", ipset.HashIPPort},
}

// name returns the name of the set; upstream also cuts names that are too long for the kernel.
func (s set) name(f lb.Family) string {
	name := "KUBE-" + kinds[s].name
	if f == lb.IPv6 {
		name = "KUBE-6-" + kinds[s].name
	}
	return name[:min(len(name), ipset.MaxName)]
}

func (s set) typ() ipset.Type { return kinds[s].typ }

// made returns the arguments to create the set.
func (s set) made(f lb.Family) ipset.Set {
	made := ipset.Set{Name: s.name(f), Type: s.typ(), SkbInfo: s.marks()}
	if s.typ() != ipset.BitmapPort {
		made.Family = ipset.Family(wireFamily(f))
	}
	return made
}

// marks reports whether the members of the set carry marks.
func (s set) marks() bool { return s >= setMarksPods }

// names reports whether the members of the set are the keys of frontends.
func (s set) names() bool {
	return s >= setClusterIP && s <= setNodePortLocalSCTP || s == setHealthCheck
}

// member is a member of an ipset, without the parts that the set does not have.
type member struct {
	set   set
	addr  netip.Addr
	port  uint16
	proto lb.Proto
	from  netip.Prefix // the third dimension
}

// mark is the mark that a member gives packets: value where mask has bits. The zero mark changes
// nothing.
type mark struct{ value, mask uint32 }

// wholeMark is the mask of marks that replace all bits: of virtual servers, and of packets to drop.
// Other marks request masquerading.
const wholeMark = ^uint32(0)

// other names a virtual server for packets of an origin with its own route. Without a set it
// rejects.
type other struct {
	set    lb.SetID
	sticky bool // session affinity
	masq   bool
}

// front are the kernel's objects for one address, port and protocol.
type front struct {
	service ipvs.Service
	set     *lb.BackendSet // its backends are the real servers; nil for none
	// The backends of set that stay without new connections, beside TCP ones; nil if set has them.
	serving *lb.BackendSet
	bind    binding
	members []member // without marks
	marks   []marked
}

// marked is a member of a set of marks.
type marked struct {
	member member
	mark   mark // for packets that go to the virtual server of the address, or are dropped
	other  *other
	// to and serving are those of other, as in front.
	to, serving *lb.BackendSet
}

// binding says whether a virtual server's address is on kube-ipvs0.
type binding uint8

const (
	// unbound: it is the node's own address, which serves NodePorts.
	unbound binding = iota
	// provisional: tenants choose it, so the owner is provisional. It stays unbound if it was a
	// backend's before, which the node could not reach any more.
	provisional
	// bound: it is a cluster IP.
	bound
)

// Place is the part of a node's addresses that a plane needs.
type Place struct {
	// Own are the node's addresses without those of loopback, of kube-ipvs0, and link-local ones;
	// sorted.
	Own []netip.Addr
	// Elsewhere are addresses that other devices have, so that kube-ipvs0 must not (DP-31).
	Elsewhere map[netip.Addr]bool
}
