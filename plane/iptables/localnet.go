//go:build linux

package iptables

import (
	"fmt"

	"kube-proxy/internal/kernel"
	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
)

// localnet reports whether NodePorts answer on 127.0.0.1 (SV-64).
func (r *renderer) localnet() bool {
	if r.family != lb.IPv4 || !r.localhost {
		return false
	}
	for _, p := range r.node.NodePorts {
		if p.Overlaps(xtables.Loopback4) {
			return true
		}
	}
	return false
}

// openLocalnet lets NodePorts answer on 127.0.0.1, and reports whether they did not.
func (p *Plane) openLocalnet() (wrote bool, err error) {
	if wrote, err = kernel.SetSysctl(xtables.RouteLocalnet, "1"); err != nil {
		err = fmt.Errorf("NodePorts on 127.0.0.1 (--iptables-localhost-nodeports, where false does without): %w", err)
	}
	p.opened = p.opened || wrote
	return wrote, err
}

// liberal reports whether conntrack takes packets out of order as they come, so that none is dropped as INVALID (DP-09).
func liberal() bool {
	value, err := kernel.Sysctl("net.netfilter.nf_conntrack_tcp_be_liberal")
	return err == nil && value != "0"
}
