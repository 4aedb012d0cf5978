// Package all has the list of the modes. A new one is a folder below plane and a line here.
package all

import (
	"kube-proxy/mode"
	"kube-proxy/plane/ebpf"
	"kube-proxy/plane/hns"
	"kube-proxy/plane/iptables"
	"kube-proxy/plane/ipvs"
	"kube-proxy/plane/nftables"
	"kube-proxy/plane/userspace"
)

// Modes returns all modes, in the order in which they are tried if none is selected.
func Modes() mode.List {
	return mode.List{
		iptables.Mode(),
		nftables.Mode(),
		ipvs.Mode(),
		ebpf.Mode(nftables.Mode()),
		hns.Mode(),
		userspace.Mode(),
	}
}
