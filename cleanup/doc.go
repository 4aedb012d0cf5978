// Package cleanup removes what a kube-proxy leaves in the kernel, ours or upstream's, in modes that do not run (PR-08).
//
//	Run      --cleanup and its like: the process ends afterwards
//	Others   after the first write of a mode: what the mode before it left, so that a change of the mode is not noticed
//
// What is removed, for each IP family:
//
//	iptables   chains of the modes iptables, ipvs and userspace, and what leads to them, of both back ends
//	ipvs       virtual servers, the addresses of kube-ipvs0 and the device, ipsets
//	nftables   the table kube-proxy
//
// A family's iptables rules go before its ipsets, which they use. Everything is tried, whatever fails. Where there is
// nothing, nothing is loaded, made, or written, and no program is run.
//
// # Whose virtual servers
//
// IPVS has no names: who made a virtual server can only be told from what else is there. A virtual server is a
// kube-proxy's if its address is on kube-ipvs0; or if its address and port, or its address alone, is in one of the
// ipsets that hold service addresses (an address that another interface has already is not bound to kube-ipvs0,
// DP-31); or if it has an address of this machine and a port that is in the ipsets of NodePorts; or if it is the one
// by which upstream tries out a scheduler, 198.51.100.0:20000 (DP-35). Never if it goes by a firewall mark, or lies in one of
// --ipvs-exclude-cidrs. All others stay and are told of; upstream would delete them.
//
// # Connections
//
// Established connections that iptables or nftables have translated live on, as conntrack keeps the translation, for
// as long as somebody has a rule of NAT: after a change of the mode the new rules, after Run another program's, such as
// the masquerading of a pod network. With the last of them the kernel ceases to translate. Connections through IPVS
// end with the virtual server, so Others gives them a while ([Running].Drain); Run does not.
package cleanup
