//go:build linux

package iptables

import (
	"fmt"
	"net/netip"

	"kube-proxy/lb"
)

// skeleton returns the chains that do not depend on rows, but for the roots of dispatchers and KUBE-FIREWALL.
func (r *renderer) skeleton() []chain {
	bit := fmt.Sprintf("%#x/%#x", r.mark, r.mark)
	masquerade := comment("kubernetes service traffic requiring SNAT") + "-j MASQUERADE"
	if r.fullyRandom {
		masquerade += " --random-fully"
	}
	off := []string{}
	for _, p := range r.node.Pods.Prefixes {
		off = append(off, from(p)+"-j RETURN")
	}
	off = append(off, "-j "+markMasq)
	chains := []chain{
		r.marking(),
		{chainID{nat, postrouting}, []string{
			"-m mark ! --mark " + bit + " -j RETURN",
			fmt.Sprintf("-j MARK --set-xmark %#x/0x0", r.mark),
			masquerade,
		}},
		{chainID{filter, forward}, r.forward(bit)},
		{chainID{filter, nodeFirewall}, nil}, // declared alone: the kubelet's rules stay
	}
	if len(r.node.Pods.Prefixes) > 1 {
		chains = append(chains, chain{chainID{nat, markOffCluster}, off})
	}
	for t := range tables {
		chains = append(chains, chain{chainID{t, canary}, nil})
	}
	return chains
}

// marking returns KUBE-MARK-MASQ, which marks packets to masquerade.
func (r *renderer) marking() chain {
	return chain{chainID{nat, markMasq}, []string{fmt.Sprintf("-j MARK --set-xmark %#[1]x/%#[1]x", r.mark)}}
}

// forward returns KUBE-FORWARD: packets that conntrack cannot place would reach the client with the endpoint's own
// address, and reset its connection (DP-09).
func (r *renderer) forward(bit string) []string {
	rules := []string{
		comment("kubernetes forwarding rules") + "-m mark --mark " + bit + " -j ACCEPT",
		comment("kubernetes forwarding conntrack rule") + "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
	}
	if r.liberal {
		return rules
	}
	count := ""
	if r.counts {
		count = counting(invalidDropped)
	}
	return append([]string{"-m conntrack --ctstate INVALID " + count + "-j DROP"}, rules...)
}

// toNodePorts returns the last rules of a chain, which lead packets to NodePort addresses to another (DP-07).
func (r *renderer) toNodePorts(target string) []string {
	const note = "kubernetes service nodeports; NOTE: this must be the last rule in this chain"
	loop := loopback4
	if r.family == lb.IPv6 {
		loop = netip.MustParsePrefix("::1/128")
	}
	var rules []string
	for _, p := range r.node.NodePorts {
		dst := "-d " + p.String() + " "
		switch {
		case r.localnet():
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
		rules = append(rules, dst+comment(note)+"-m addrtype --dst-type LOCAL -j "+target)
	}
	return rules
}

// jumps returns the rules that lead to our chains, in the order in which they are put in front (DP-01).
func jumps() []jump {
	const isNew = "-m conntrack --ctstate NEW "
	to := func(t table, target, cond, note string, from ...string) []jump {
		var out []jump
		for _, f := range from {
			out = append(out, jump{chainID{t, f}, cond + comment(note) + "-j " + target})
		}
		return out
	}
	var out []jump
	for _, list := range [][]jump{
		// OUTPUT too, other than upstream: a process of the node learns as fast as others that nobody serves.
		to(filter, externalServices, isNew, "kubernetes externally-visible service portals", "INPUT", "FORWARD", "OUTPUT"),
		to(filter, nodePorts, "", "kubernetes health check service ports", "INPUT"),
		to(filter, services, isNew, "kubernetes service portals", "FORWARD", "OUTPUT"),
		to(filter, forward, "", "kubernetes forwarding rules", "FORWARD"),
		to(filter, proxyFirewall, isNew, "kubernetes load balancer firewall", "INPUT", "OUTPUT", "FORWARD"),
		{{chainID{filter, "INPUT"}, "-j " + nodeFirewall}, {chainID{filter, "OUTPUT"}, "-j " + nodeFirewall}},
		to(nat, services, "", "kubernetes service portals", "OUTPUT", "PREROUTING"),
		to(nat, postrouting, "", "kubernetes postrouting rules", "POSTROUTING"),
	} {
		out = append(out, list...)
	}
	return out
}
