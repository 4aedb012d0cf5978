//go:build linux

package iptables

import (
	"fmt"
	"slices"

	"kube-proxy/internal/kernel"
	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
)

// skeleton returns the chains that do not depend on frontends, except the roots of dispatchers.
func (r *renderer) skeleton() []xtables.Chain {
	bit := fmt.Sprintf("%#x/%#x", r.mark, r.mark)
	masquerade := xtables.Comment("kubernetes service traffic requiring SNAT") + "-j MASQUERADE"
	if r.fullyRandom {
		masquerade += " --random-fully"
	}
	chains := []xtables.Chain{
		r.marking(),
		{ID: xtables.NAT.Chain(xtables.Postrouting), Rules: []string{
			"-m mark ! --mark " + bit + " -j RETURN",
			fmt.Sprintf("-j MARK --set-xmark %#x/0x0", r.mark),
			masquerade,
		}},
		{ID: xtables.Filter.Chain(xtables.Forward), Rules: r.forward(bit)},
		// Only declared: the kubelet's rules stay.
		{ID: xtables.Filter.Chain(xtables.NodeFirewall)},
	}
	if len(r.node.Pods.Prefixes) > 1 {
		var rules []string
		for _, p := range r.node.Pods.Prefixes {
			rules = append(rules, xtables.FromPrefix(p)+"-j RETURN")
		}
		rules = append(rules, "-j "+xtables.MarkMasq)
		chains = append(chains, xtables.Chain{ID: xtables.NAT.Chain(xtables.MarkOffCluster), Rules: rules})
	}
	for t := range xtables.Tables {
		chains = append(chains, xtables.Chain{ID: t.Chain(xtables.Canary)})
	}
	return chains
}

// marking returns KUBE-MARK-MASQ, which marks packets to masquerade.
func (r *renderer) marking() xtables.Chain {
	return xtables.Chain{ID: xtables.NAT.Chain(xtables.MarkMasq),
		Rules: []string{fmt.Sprintf("-j MARK --set-xmark %#[1]x/%#[1]x", r.mark)}}
}

// forward returns KUBE-FORWARD. A packet that conntrack finds invalid would reach the client with
// the endpoint's own address, and reset its connection (DP-09).
func (r *renderer) forward(bit string) []string {
	rules := []string{
		xtables.Comment("kubernetes forwarding rules") + "-m mark --mark " + bit + " -j ACCEPT",
		xtables.Comment("kubernetes forwarding conntrack rule") +
			"-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
	}
	if r.liberal {
		return rules
	}
	count := ""
	if r.counts {
		count = xtables.Counting(xtables.InvalidDropped)
	}
	return append([]string{"-m conntrack --ctstate INVALID " + count + "-j DROP"}, rules...)
}

// toNodePorts returns the last rules of a chain, which send packets to NodePort addresses to
// another chain (DP-07).
func (r *renderer) toNodePorts(target string) []string {
	note := xtables.Comment("kubernetes service nodeports; NOTE: this must be the last rule in this chain")
	return xtables.NodePortRules(r.family, r.node.NodePorts, r.localhost, note+"-m addrtype --dst-type LOCAL -j "+
		target)
}

// jumps returns the rules that jump to our chains, in the order of their insertion (DP-01).
func jumps() []xtables.Jump {
	const isNew = "-m conntrack --ctstate NEW "
	to := func(t xtables.Table, target, cond, note string, from ...string) (all []xtables.Jump) {
		for _, f := range from {
			all = append(all, xtables.Jump{From: t.Chain(f), Rule: cond + xtables.Comment(note) + "-j " + target})
		}
		return all
	}
	return slices.Concat(
		// OUTPUT too, unlike upstream: processes of the node are refused as fast as others.
		to(xtables.Filter, xtables.ExternalServices, isNew, "kubernetes externally-visible service portals", "INPUT",
			"FORWARD", "OUTPUT"),
		to(xtables.Filter, xtables.NodePorts, "", "kubernetes health check service ports", "INPUT"),
		to(xtables.Filter, xtables.Services, isNew, "kubernetes service portals", "FORWARD", "OUTPUT"),
		to(xtables.Filter, xtables.Forward, "", "kubernetes forwarding rules", "FORWARD"),
		to(xtables.Filter, xtables.ProxyFirewall, isNew, "kubernetes load balancer firewall", "INPUT", "OUTPUT",
			"FORWARD"),
		[]xtables.Jump{{From: xtables.Filter.Chain("INPUT"), Rule: "-j " + xtables.NodeFirewall},
			{From: xtables.Filter.Chain("OUTPUT"), Rule: "-j " + xtables.NodeFirewall}},
		to(xtables.NAT, xtables.Services, "", "kubernetes service portals", "OUTPUT", "PREROUTING"),
		to(xtables.NAT, xtables.Postrouting, "", "kubernetes postrouting rules", "POSTROUTING"),
	)
}

// openLocalnet lets NodePorts answer on 127.0.0.1, and reports whether it changed the setting.
func (p *Plane) openLocalnet() (wrote bool, err error) {
	wrote, err = kernel.SetSysctl(xtables.RouteLocalnet, "1")
	if err != nil {
		err = fmt.Errorf("NodePorts on 127.0.0.1 (set --iptables-localhost-nodeports=false to disable them): %w", err)
	}
	p.opened = p.opened || wrote
	return wrote, err
}

// liberal reports whether conntrack accepts packets out of order, so that none is INVALID (DP-09).
func liberal() bool {
	value, err := kernel.Sysctl("net.netfilter.nf_conntrack_tcp_be_liberal")
	return err == nil && value != "0"
}

// localnet reports whether NodePorts answer on 127.0.0.1 (SV-64).
func (r *renderer) localnet() bool {
	return r.family == lb.IPv4 && r.localhost && slices.ContainsFunc(r.node.NodePorts, xtables.Loopback4.Overlaps)
}
