// Package cleanup removes the kernel objects that a kube-proxy, ours or upstream's, left in modes
// that do not run (PR-08).
//
//	Run      for --cleanup and its variants: the process ends afterwards
//	Others   after the first write of a mode: the previous mode's objects; clients notice no change
//
// Each mode knows its objects ([mode.Mode].Remove):
//
//	iptables   chains of the modes iptables and ipvs, and the jumps to them, of both back ends; not KUBE-IPVS-FILTER
//	nftables   the table kube-proxy
//	ipvs       virtual servers, the addresses of kube-ipvs0 and the device, the chain KUBE-IPVS-FILTER, ipsets
//
// While iptables or ipvs runs, it keeps chains with the other's names. It removes those of them
// that it does not need itself ([mode.Mode].RemoveStale).
//
// The modes are cleaned up in the order of the list: iptables' rules before the ipsets, which they
// use. KUBE-IPVS-FILTER keeps clients away from programs of the node at the addresses of
// kube-ipvs0, so it is removed after these (TN-67). A failure does not stop the rest. If no objects
// exist, the cleanup loads, creates and writes nothing, and runs no program.
//
// # Connections
//
// Established connections that iptables or nftables have translated live on, because conntrack
// keeps the translation as long as any NAT rule exists. After a change of the mode these are the
// new rules, after Run those of another program, such as the masquerading of a pod network. Without
// any NAT rule the kernel stops translating. Connections through IPVS end with the virtual server,
// so Others gives them time to end ([mode.Removal].Drain); Run does not.
package cleanup
