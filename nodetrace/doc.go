// Package nodetrace follows a packet and its reply through everything on this node that is not
// kube-proxy: routes, the hooks of the packet filter, neighbours, devices and sysctls.
//
//	own packet    route → output → route → postrouting → device, or lo → prerouting → input
//	other packet  prerouting → route → forward → postrouting → device, or input
//	the reply     likewise, with the addresses that conntrack restores
//
// [Ask] reads from the kernel, in the network namespace of its thread, over sockets of its own.
// The walk itself is pure: it decides from facts, which tests give as values. A fact that cannot be
// judged, such as a program of XDP, is named in the answer and never passed over.
package nodetrace
