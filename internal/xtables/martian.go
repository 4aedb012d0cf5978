//go:build linux

package xtables

import (
	"net/netip"

	"kube-proxy/internal/kernel"
	"kube-proxy/lb"
)

// RouteLocalnet is the sysctl that lets packets from and to 127.0.0.0/8 pass an interface. While it
// is set, BlockLocalnet must be in force, or other hosts on the link reach listeners on 127.0.0.1
// (CVE-2020-8558, DP-10). It is set after that rule is written, and reset before the rule is
// deleted.
const RouteLocalnet = "net.ipv4.conf.all.route_localnet"

// BlockLocalnet is the rule of DP-10. It drops packets of other hosts to 127.0.0.0/8.
const BlockLocalnet = `! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment "block incoming localnet connections" ` +
	`-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP`

var BlockLocalnetJump = Jump{ChainID{Filter, NodeFirewall}, BlockLocalnet}

// Loopback4 are the loopback addresses of IPv4.
var Loopback4 = netip.MustParsePrefix("127.0.0.0/8")

// Loopback returns the loopback addresses of a family.
func Loopback(f lb.Family) netip.Prefix {
	if f == lb.IPv6 {
		return netip.PrefixFrom(netip.IPv6Loopback(), 128)
	}
	return Loopback4
}

// NodePortRules returns rules that match packets to addresses of the node that answer NodePorts: a
// match on each prefix, followed by the rest of the rule (DP-07). Loopback addresses answer only
// with localhost, and only those of IPv4.
func NodePortRules(f lb.Family, prefixes []netip.Prefix, localhost bool, rest string) (rules []string) {
	loop := Loopback(f)
	for _, p := range prefixes {
		dst := "-d " + p.String() + " "
		switch {
		case localhost && f == lb.IPv4:
			if p.Bits() == 0 {
				dst = ""
			}
		case p.Bits() == 0:
			dst = "! -d " + loop.String() + " "
		case loop.Bits() <= p.Bits() && loop.Contains(p.Addr()):
			continue
		case p.Overlaps(loop):
			rules = append(rules, "-d "+loop.String()+" -j RETURN")
		}
		rules = append(rules, dst+rest)
	}
	return rules
}

// CloseLocalnet resets the sysctl.
func CloseLocalnet() error {
	_, err := kernel.SetSysctl(RouteLocalnet, "0")
	return err
}
