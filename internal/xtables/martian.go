//go:build linux

package xtables

import (
	"kube-proxy/internal/kernel"
	"net/netip"
)

// RouteLocalnet is what lets a packet from or to 127.0.0.0/8 leave or come in at all. While it is set
// blockLocalnet must be in force, or others on the link reach what listens on 127.0.0.1 (CVE-2020-8558, DP-10): it is set
// after that rule is written, and ends before the rule is deleted.
const RouteLocalnet = "net.ipv4.conf.all.route_localnet"

// BlockLocalnet is the rule of DP-10, which drops what others send to 127.0.0.0/8.
const BlockLocalnet = `! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment "block incoming localnet connections" ` +
	`-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP`

var BlockLocalnetJump = Jump{ChainID{Filter, NodeFirewall}, BlockLocalnet}

var Loopback4 = netip.MustParsePrefix("127.0.0.0/8")

// CloseLocalnet ends that.
func CloseLocalnet() error {
	_, err := kernel.SetSysctl(RouteLocalnet, "0")
	return err
}
