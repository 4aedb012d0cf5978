//go:build linux

package iptables

import "kube-proxy/lb"

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

func newDispatchers(f lb.Family) [dispatchers]*dispatcher {
	n := 8
	if f == lb.IPv6 {
		n = 32
	}
	all := [dispatchers]*dispatcher{
		inServices:          {table: nat, root: services, prefix: addressBranch, addrNibbles: n},
		inNodePorts:         {table: nat, root: nodePorts, prefix: nodePortBranch},
		inRejected:          {table: filter, root: services, prefix: services + "-", addrNibbles: n},
		inRejectedExternal:  {table: filter, root: externalServices, prefix: "KUBE-EXTERNAL-", addrNibbles: n},
		inRejectedNodePorts: {table: filter, root: externalNodePorts, prefix: "KUBE-EXTNP-"},
		inFirewall:          {table: filter, root: proxyFirewall, prefix: "KUBE-PROXY-FW-", addrNibbles: n},
		inHealthChecks:      {table: filter, root: nodePorts, prefix: nodePorts + "-"},
	}
	for _, d := range all {
		d.family, d.nodes = f, map[string]*node{"": {}}
	}
	// These look at destinations after translation. A backend whose address somebody else's Service claims, as an external
	// IP that nobody serves or is to serve few, must not lose what its own Service sends it.
	for _, i := range []dispatcherIndex{inRejected, inRejectedExternal, inFirewall} {
		all[i].head = []string{comment("translated already") + "-m conntrack --ctstate DNAT -j RETURN"}
	}
	return all
}
