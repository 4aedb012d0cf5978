package ipvs

import (
	"net/netip"

	ipvswire "kube-proxy/internal/netlink/ipvs"
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

// The types of ipsets, as ipset(8) names them.
const (
	hashIP        = "hash:ip"
	hashIPPort    = "hash:ip,port"
	hashIPPortIP  = "hash:ip,port,ip"
	hashIPPortNet = "hash:ip,port,net"
	bitmapPort    = "bitmap:port"
)

// kinds are the names of the sets, behind KUBE- or KUBE-6-, and their types. All but the last three are those of DP-32, which other software reads.
var kinds = [setCount]struct{ name, typ string }{
	setSourceCIDR:        {"LOAD-BALANCER-SOURCE-CIDR", hashIPPortNet},
	setSourceIP:          {"LOAD-BALANCER-SOURCE-IP", hashIPPortIP},
	setFirewall:          {"LOAD-BALANCER-FW", hashIPPort},
	setIPs:               {"IPVS-IPS", hashIP},
	setLoopBack:          {"LOOP-BACK", hashIPPortIP},
	setClusterIP:         {"CLUSTER-IP", hashIPPort},
	setExternalIP:        {"EXTERNAL-IP", hashIPPort},
	setExternalIPLocal:   {"EXTERNAL-IP-LOCAL", hashIPPort},
	setLoadBalancer:      {"LOAD-BALANCER", hashIPPort},
	setLoadBalancerLocal: {"LOAD-BALANCER-LOCAL", hashIPPort},
	setNodePortTCP:       {"NODE-PORT-TCP", bitmapPort},
	setNodePortLocalTCP:  {"NODE-PORT-LOCAL-TCP", bitmapPort},
	setNodePortUDP:       {"NODE-PORT-UDP", bitmapPort},
	setNodePortLocalUDP:  {"NODE-PORT-LOCAL-UDP", bitmapPort},
	setNodePortSCTP:      {"NODE-PORT-SCTP-HASH", hashIPPort},
	setNodePortLocalSCTP: {"NODE-PORT-LOCAL-SCTP-HASH", hashIPPort},
	setHealthCheck:       {"HEALTH-CHECK-NODE-PORT", bitmapPort},
	setMarksPods:         {"MARK-POD", hashIPPort},
	setMarksHost:         {"MARK-HOST", hashIPPort},
	setMarksAnywhere:     {"MARK-ANY", hashIPPort},
}

// maxSetName is the longest name of an ipset, IPSET_MAXNAMELEN without its end; upstream cuts names there too.
const maxSetName = 31

// name is the name of the set.
func (s set) name(f lb.Family) string {
	name := "KUBE-" + kinds[s].name
	if f == lb.IPv6 {
		name = "KUBE-6-" + kinds[s].name
	}
	return name[:min(len(name), maxSetName)]
}

func (s set) typ() string { return kinds[s].typ }

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
	service ipvswire.Service
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
	// NodePorts are the addresses that answer NodePorts, and Own all of this node's but those of loopback; both sorted. Neither
	// has addresses of kube-ipvs0, nor such as are only valid on a link of IPv6.
	NodePorts, Own []netip.Addr
	// Elsewhere are addresses that other devices have, so that kube-ipvs0 must not (DP-31).
	Elsewhere map[netip.Addr]bool
}
