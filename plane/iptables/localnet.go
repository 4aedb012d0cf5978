//go:build linux

package iptables

import (
	"fmt"
	"net/netip"

	"kube-proxy/internal/kernel"
	"kube-proxy/lb"
)

// routeLocalnet is what lets a packet from or to 127.0.0.0/8 leave or come in at all. While it is set
// blockLocalnet must be in force, or others on the link reach what listens on 127.0.0.1 (CVE-2020-8558, DP-10): it is set
// after that rule is written, and ends before the rule is deleted.
const routeLocalnet = "net.ipv4.conf.all.route_localnet"

// blockLocalnet is the rule of DP-10, which drops what others send to 127.0.0.0/8.
const blockLocalnet = `! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment "block incoming localnet connections" ` +
	`-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP`

var blockLocalnetJump = jump{chainID{filter, nodeFirewall}, blockLocalnet}

var loopback4 = netip.MustParsePrefix("127.0.0.0/8")

// localnet reports whether NodePorts answer on 127.0.0.1 (SV-64).
func (r *renderer) localnet() bool {
	if r.family != lb.IPv4 || !r.localhost {
		return false
	}
	for _, p := range r.node.NodePorts {
		if p.Overlaps(loopback4) {
			return true
		}
	}
	return false
}

// openLocalnet lets NodePorts answer on 127.0.0.1, and reports whether they did not.
func (p *Plane) openLocalnet() (wrote bool, err error) {
	if wrote, err = kernel.SetSysctl(routeLocalnet, "1"); err != nil {
		err = fmt.Errorf("NodePorts on 127.0.0.1 (--iptables-localhost-nodeports, where false does without): %w", err)
	}
	p.opened = p.opened || wrote
	return wrote, err
}

// closeLocalnet ends that.
func closeLocalnet() error {
	_, err := kernel.SetSysctl(routeLocalnet, "0")
	return err
}

// liberal reports whether conntrack takes packets out of order as they come, so that none is dropped as INVALID (DP-09).
func liberal() bool {
	value, err := kernel.Sysctl("net.netfilter.nf_conntrack_tcp_be_liberal")
	return err == nil && value != "0"
}
