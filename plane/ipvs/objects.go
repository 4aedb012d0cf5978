package ipvs

import (
	"net/netip"

	"kube-proxy/internal/netlink/ipset"
	"kube-proxy/internal/netlink/ipvs"
	"kube-proxy/lb"
)

// set is one of the plane's ipsets. Their order is that in which members come, so that nobody passes who shall not, and
// nobody is led where nothing serves yet; they go in the reverse order.
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

// kinds are the names of the sets, behind KUBE- or KUBE-6-, and their types. All but the last three are those of DP-32, which other software reads.
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

// name is the name of the set; upstream cuts it where the kernel would not take more, too.
func (s set) name(f lb.Family) string {
	name := "KUBE-" + kinds[s].name
	if f == lb.IPv6 {
		name = "KUBE-6-" + kinds[s].name
	}
	return name[:min(len(name), ipset.MaxName)]
}

func (s set) typ() ipset.Type { return kinds[s].typ }

// made is how the set is created.
func (s set) made(f lb.Family) ipset.Set {
	made := ipset.Set{Name: s.name(f), Type: s.typ(), SkbInfo: s.marks()}
	if s.typ() != ipset.BitmapPort {
		made.Family = ipset.Family(wireFamily(f))
	}
	return made
}

// marks reports whether the members of the set carry marks.
func (s set) marks() bool { return s >= setMarksPods }

// names reports whether the members of the set are the keys of rows.
func (s set) names() bool {
	return s >= setClusterIP && s <= setNodePortLocalSCTP || s == setHealthCheck
}

// member is a member of an ipset; what the set does not hold is zero.
type member struct {
	set   set
	addr  netip.Addr
	port  uint16
	proto lb.Proto
	from  netip.Prefix // the third dimension
}

// mark is what a member has a packet marked with: value where mask has bits. The zero mark leaves a packet as it is.
type mark struct{ value, mask uint32 }

// wholeMark is the mask of a mark that leaves nothing of what a packet had: that of a virtual server, or of packets to drop. Others ask for
// masquerading.
const wholeMark = ^uint32(0)

// other names a virtual server beside those of addresses: for packets of an origin that goes elsewhere than those from
// anywhere. Without a set it rejects.
type other struct {
	set    lb.SetID
	sticky bool // clients stay with their backend
	masq   bool
}

// front is what the kernel holds for one address, port and protocol.
type front struct {
	service ipvs.Service
	set     *lb.BackendSet // whose backends are the real servers; nil for none
	serving *lb.BackendSet // of these those that stay without new connections, beside those of TCP; nil where set says it
	bind    binding
	members []member // without marks
	marks   []marked
}

// marked is a member of a set of marks.
type marked struct {
	member member
	mark   mark // of those that go to the virtual server of the address, or are dropped
	other  *other
	// to and serving are those of other, as in front.
	to, serving *lb.BackendSet
}

// binding says whether a virtual server's address is one of kube-ipvs0.
type binding uint8

const (
	// unbound: it is the node's own, by which NodePorts are served.
	unbound binding = iota
	// lent: a tenant may ask for it, so that it is not bound where it was a backend's before, which the node could not reach any more.
	lent
	// bound: it is a cluster IP.
	bound
)

// Place is what of a node's addresses matters to a plane.
type Place struct {
	// Own are all of this node's but those of loopback, of kube-ipvs0, and such as are only valid on a link of IPv6; sorted.
	Own []netip.Addr
	// Elsewhere are addresses that other devices have, so that kube-ipvs0 must not (DP-31).
	Elsewhere map[netip.Addr]bool
}
