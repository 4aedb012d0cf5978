// Package cleanup removes what a kube-proxy leaves in the kernel, ours or upstream's, in modes that do not run (PR-08).
//
//	Run      --cleanup and its like: the process ends afterwards
//	Others   after the first write of a mode: what the mode before it left; clients notice no change
//
// What a mode leaves, the mode knows ([mode.Mode].Remove):
//
//	iptables   chains of the modes iptables and ipvs, and what leads to them, of both back ends; not KUBE-IPVS-FILTER
//	nftables   the table kube-proxy
//	ipvs       virtual servers, the addresses of kube-ipvs0 and the device, the chain KUBE-IPVS-FILTER, ipsets
//
// Where iptables or ipvs runs, it keeps chains with the names of the other's: of those it removes itself what it has none of
// ([mode.Mode].RemoveStale).
//
// The modes are cleaned up in the order of the list: iptables' rules go before the ipsets, which they use. KUBE-IPVS-FILTER keeps
// clients from programs of the node at the addresses of kube-ipvs0, so it goes after these (TN-67). Everything is tried, whatever fails. Where there is
// nothing, nothing is loaded, made, or written, and no program is run.
//
// # Connections
//
// Established connections that iptables or nftables have translated live on, as conntrack keeps the translation, for
// as long as somebody has a rule of NAT: after a change of the mode the new rules, after Run another program's, such as
// the masquerading of a pod network. With the last of them the kernel ceases to translate. Connections through IPVS
// end with the virtual server, so Others gives them a while ([mode.Removal].Drain); Run does not.
package cleanup
