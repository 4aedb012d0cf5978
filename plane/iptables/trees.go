//go:build linux

package iptables

import (
	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
)

// dispatcherIndex says which chain finds a row's rule by the packet's destination.
type dispatcherIndex uint8

const (
	inServices          dispatcherIndex = iota // nat: addresses to chains that translate
	inNodePorts                                // nat: the same for NodePorts
	inRejected                                 // filter: cluster IPs that nobody serves
	inRejectedExternal                         // filter: other addresses that nobody serves
	inRejectedNodePorts                        // filter: NodePorts that nobody serves
	inFirewall                                 // filter: addresses with source ranges
	inHealthChecks                             // filter: ports on which this node tells of its endpoints (DP-08)
	dispatchers
)

func newDispatchers(f lb.Family) [dispatchers]*xtables.Dispatcher {
	n := 8
	if f == lb.IPv6 {
		n = 32
	}
	all := [dispatchers]*xtables.Dispatcher{
		inServices:          {Table: xtables.NAT, Root: xtables.Services, Prefix: xtables.AddressBranch, AddrNibbles: n},
		inNodePorts:         {Table: xtables.NAT, Root: xtables.NodePorts, Prefix: xtables.NodePortBranch},
		inRejected:          {Table: xtables.Filter, Root: xtables.Services, Prefix: xtables.Services + "-", AddrNibbles: n},
		inRejectedExternal:  {Table: xtables.Filter, Root: xtables.ExternalServices, Prefix: "KUBE-EXTERNAL-", AddrNibbles: n},
		inRejectedNodePorts: {Table: xtables.Filter, Root: xtables.ExternalNodePorts, Prefix: "KUBE-EXTNP-"},
		inFirewall:          {Table: xtables.Filter, Root: xtables.ProxyFirewall, Prefix: "KUBE-PROXY-FW-", AddrNibbles: n},
		inHealthChecks:      {Table: xtables.Filter, Root: xtables.NodePorts, Prefix: xtables.NodePorts + "-"},
	}
	for _, d := range all {
		d.Family, d.Nodes = f, map[string]*xtables.Node{"": {}}
	}
	// These look at destinations after translation. A backend whose address somebody else's Service claims, as an external
	// IP that nobody serves or is to serve few, must not lose what its own Service sends it.
	for _, i := range []dispatcherIndex{inRejected, inRejectedExternal, inFirewall} {
		all[i].Head = []string{xtables.Comment("translated already") + "-m conntrack --ctstate DNAT -j RETURN"}
	}
	return all
}
