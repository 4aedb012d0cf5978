package main

import (
	"net/netip"

	"kube-proxy/internal/netlab"
)

// Addresses beside those of the lab: of a second uplink, and of a network behind the client.
var (
	secondNode   = [2]string{"172.19.0.2", "fd00:19::2"}
	secondClient = [2]string{"172.19.0.100", "fd00:19::100"}
	behindClient = [2]string{"100.64.0.7", "fd00:64::7"}
)

func addressOf(host string, six bool) netip.Addr { return netlab.Addr(host, six) }

// ownerOf returns the host of an address, "" without one.
func ownerOf(addr netip.Addr) string {
	for i := range 2 {
		switch addr {
		case netip.MustParseAddr(secondNode[i]):
			return "node1"
		case netip.MustParseAddr(secondClient[i]), netip.MustParseAddr(behindClient[i]):
			return "client"
		}
	}
	if addr.IsLoopback() {
		return "node1" // alone asks itself in this way
	}
	return netlab.Owner(addr)
}

func nodeOf(host string) string {
	h, _ := netlab.HostByName(host)
	return h.Node
}
