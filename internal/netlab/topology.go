package netlab

import (
	"net/netip"
	"slices"
)

// Names of the hosts that are not pods.
const (
	Node1  = "node1"
	Node2  = "node2"
	Client = "client"
	Sink   = "sink"
)

// Interface names inside a node.
const (
	// Uplink is the interface of every host; on a node it connects to the LAN.
	Uplink = "eth0"
	// PodInterfacePrefix begins the name of a node's end of each pod link.
	PodInterfacePrefix = "vethpod"
	// PodBridge is the bridge of a node's pod links if Options.Bridge is set.
	PodBridge = "cbr0"
)

// Address ranges of every lab. No host owns an address of the Service,
// LoadBalancer and External ranges.
var (
	LAN4          = netip.MustParsePrefix("172.18.0.0/24")
	LAN6          = netip.MustParsePrefix("fd00:18::/64")
	Cluster4      = netip.MustParsePrefix("10.1.0.0/16")
	Cluster6      = netip.MustParsePrefix("fd00:10:1::/48")
	Node1Pods4    = netip.MustParsePrefix("10.1.1.0/24")
	Node1Pods6    = netip.MustParsePrefix("fd00:10:1:1::/64")
	Node2Pods4    = netip.MustParsePrefix("10.1.2.0/24")
	Node2Pods6    = netip.MustParsePrefix("fd00:10:1:2::/64")
	Service4      = netip.MustParsePrefix("10.96.0.0/12")
	Service6      = netip.MustParsePrefix("fd00:10:96::/108")
	LoadBalancer4 = netip.MustParsePrefix("192.0.2.0/24")
	LoadBalancer6 = netip.MustParsePrefix("2001:db8:2::/64")
	External4     = netip.MustParsePrefix("198.51.100.0/24")
	External6     = netip.MustParsePrefix("2001:db8:51::/64")
)

// gateway4 and gateway6 are the gateways of a pod's default routes. No host owns them:
// the pod has permanent neighbour entries with the MAC of its node's end.
var (
	gateway4 = netip.MustParseAddr("169.254.1.1")
	gateway6 = netip.MustParseAddr("fe80::1")
)

// Host is one machine of the lab.
type Host struct {
	Name string
	// Node is the node of a pod, a node's own name for a node, and empty for the client and the
	// sink.
	Node   string
	V4, V6 netip.Addr
}

// Pod reports whether h is a pod.
func (h Host) Pod() bool { return h.Node != "" && h.Node != h.Name }

// Addr is the host's IPv6 address if six, else its IPv4 address.
func (h Host) Addr(six bool) netip.Addr {
	if six {
		return h.V6
	}
	return h.V4
}

var hosts = []Host{
	host("node1", "node1", "172.18.0.2", "fd00:18::2"),
	host("node2", "node2", "172.18.0.3", "fd00:18::3"),
	host("client", "", "172.18.0.100", "fd00:18::100"),
	host("sink", "", "172.18.0.254", "fd00:18::fe"),
	host("pod1", "node1", "10.1.1.11", "fd00:10:1:1::11"),
	host("pod2", "node1", "10.1.1.12", "fd00:10:1:1::12"),
	host("pod3", "node1", "10.1.1.13", "fd00:10:1:1::13"),
	host("pod4", "node2", "10.1.2.14", "fd00:10:1:2::14"),
	host("pod5", "node2", "10.1.2.15", "fd00:10:1:2::15"),
}

func host(name, node, v4, v6 string) Host {
	return Host{Name: name, Node: node, V4: netip.MustParseAddr(v4), V6: netip.MustParseAddr(v6)}
}

// Hosts returns all hosts of a full lab: node1, node2, client, sink, pod1 … pod5.
func Hosts() []Host { return slices.Clone(hosts) }

// HostByName finds a host of a full lab.
func HostByName(name string) (Host, bool) {
	for _, h := range hosts {
		if h.Name == name {
			return h, true
		}
	}
	return Host{}, false
}

// Addr is the address of a host of a full lab: IPv6 if six, else IPv4.
func Addr(host string, six bool) netip.Addr {
	h, _ := HostByName(host)
	return h.Addr(six)
}

// Owner returns the name of the host with the address, "" without one. It assigns the address of a
// node's pod bridge (Options.Bridge) to the node.
func Owner(addr netip.Addr) string {
	addr = addr.Unmap().WithZone("")
	for _, h := range hosts {
		if addr == h.V4 || addr == h.V6 {
			return h.Name
		}
	}
	for _, node := range []string{Node1, Node2} {
		if addr == podRange(node, addr.Is6()).Addr().Next() {
			return node
		}
	}
	return ""
}

// podRange returns a node's pod range of a family.
func podRange(node string, six bool) netip.Prefix {
	switch {
	case node == Node1 && six:
		return Node1Pods6
	case node == Node1:
		return Node1Pods4
	case six:
		return Node2Pods6
	}
	return Node2Pods4
}
