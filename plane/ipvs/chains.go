//go:build linux

package ipvs

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/plane/selfwrites"
)

// Chains that do not depend on frontends. Those of nat and filter have the names of DP-33.
const (
	chainServices     = "KUBE-SERVICES"               // nat
	chainNodePort     = "KUBE-NODE-PORT"              // nat, filter
	chainLoadBalancer = "KUBE-LOAD-BALANCER"          // nat
	chainMarkMasq     = "KUBE-MARK-MASQ"              // nat
	chainPostrouting  = "KUBE-POSTROUTING"            // nat
	chainForward      = "KUBE-FORWARD"                // filter
	chainFirewall     = "KUBE-PROXY-FIREWALL"         // filter, mangle
	chainRanges       = "KUBE-SOURCE-RANGES-FIREWALL" // filter, mangle
	chainFilter       = "KUBE-IPVS-FILTER"            // filter
	chainOutFilter    = "KUBE-IPVS-OUT-FILTER"        // filter
	chainIn           = "KUBE-IPVS-IN"                // mangle
	chainOut          = "KUBE-IPVS-OUT"               // mangle
	chainSent         = "KUBE-IPVS-SENT"              // mangle
	chainOrigin       = "KUBE-IPVS-ORIGIN"            // mangle
	chainOriginPrefix = chainOrigin + "-"             // mangle: -PODS, -HOST, -ANYWHERE
)

// chainName is a chain of a table of iptables.
type chainName = [2]string

// nodeFacts are the facts that decide the rules.
type nodeFacts struct {
	family lb.Family
	masq   uint32 // the masquerading bit of the mark
	node   lb.Node
	// excluded are the networks of others' virtual servers (--ipvs-exclude-cidrs), of any family.
	excluded []netip.Prefix
	// fullyRandom: this iptables knows --random-fully.
	fullyRandom bool
}

// comment returns the match as iptables-save prints it: it quotes texts with a blank.
func comment(text string) string { return fmt.Sprintf("-m comment --comment %q ", text) }

// matches returns the match of an ipset; by is the member's parts in the packet, such as "dst,dst".
func (n *nodeFacts) matches(s set, by string) string {
	return "-m set --match-set " + s.name(n.family) + " " + by + " "
}

// protocolICMP returns the name of the family's ICMP, and of its reject message.
func (n *nodeFacts) protocolICMP() (name, refused string) {
	if n.family == lb.IPv6 {
		return "ipv6-icmp", "icmp6-port-unreachable"
	}
	return "icmp", "icmp-port-unreachable"
}

// IPVS takes the node's own packets before filter's OUTPUT, so rules for those are in mangle.
const isNew = "-m conntrack --ctstate NEW "

// isUnknown matches packets of no known connection. New ones alone would not do: IPVS also
// schedules a SYN whose flags make it invalid to conntrack.
const isUnknown = "-m conntrack ! --ctstate RELATED,ESTABLISHED "

// chainRules returns the rules of all chains.
func chainRules(n nodeFacts) map[chainName][]string {
	all := map[chainName][]string{}
	n.mangle(all)
	n.nat(all)
	n.filter(all)
	return all
}

// mangle has the chains that decide by the origin of a packet: its virtual server, masquerading,
// drops. They are in the last table before IPVS in which a set can mark packets.
func (n *nodeFacts) mangle(all map[chainName][]string) {
	m := marks{n.masq}
	value, mask := m.pattern()
	// IPVS schedules a stream by its first packet alone. It may forget a UDP flow before conntrack
	// does.
	later := "! -p udp -m conntrack --ctstate RELATED,ESTABLISHED -j RETURN"
	all[chainName{"mangle", chainIn}] = []string{later, "-j " + chainOrigin}
	all[chainName{"mangle", chainOut}] = []string{
		// IPVS sends translated packets through OUTPUT once more. Other software need not see our
		// marks.
		fmt.Sprintf("-m mark --mark %#x/%#x -g %s", value, mask, chainSent),
		later,
		"-m addrtype ! --dst-type LOCAL -j RETURN",
		// Translated by IPVS, without a mark, to an endpoint of this node: it has met its rules.
		n.matches(setIPs, "src") + strings.Replace(n.matches(setIPs, "dst"), "-m set ", "-m set ! ", 1) + "-j RETURN",
		// The kernel chooses the address of the Service as source; another node would not reply to
		// this one.
		n.matches(setIPs, "dst") + n.matches(setIPs, "src") + fmt.Sprintf("-j MARK --set-xmark %#[1]x/%#[1]x", n.masq),
		"-j " + chainOrigin,
		"-j " + chainFirewall,
	}
	all[chainName{"mangle", chainSent}] = []string{fmt.Sprintf("-j MARK --set-xmark 0x0/%#x", ^n.masq)}
	var rules []string
	for _, o := range []struct {
		name string
		set  set
		from lb.From
	}{
		{"PODS", setMarksPods, lb.Pods},
		{"HOST", setMarksHost, lb.Host},
		{"ANYWHERE", setMarksAnywhere, lb.Anywhere},
	} {
		chain := chainOriginPrefix + o.name
		for _, s := range xtables.Sources(o.from, n.node.Pods) {
			rules = append(rules, s.Before+s.After+n.matches(o.set, "dst,dst")+"-g "+chain)
		}
		all[chainName{"mangle", chain}] = []string{
			"-j SET --map-set " + o.set.name(n.family) + " dst,dst --map-mark",
			fmt.Sprintf("-m mark --mark %#x ", m.drop()) + isUnknown + "-j DROP",
		}
	}
	all[chainName{"mangle", chainOrigin}] = rules
	n.firewall("mangle", all)
}

// firewall drops packets from outside of a load balancer's source ranges (SV-61).
func (n *nodeFacts) firewall(table string, all map[chainName][]string) {
	all[chainName{table, chainFirewall}] = []string{isUnknown + n.matches(setFirewall, "dst,dst") + "-j " + chainRanges}
	all[chainName{table, chainRanges}] = []string{
		n.matches(setSourceCIDR, "dst,dst,src") + "-j RETURN",
		n.matches(setSourceIP, "dst,dst,src") + "-j RETURN",
		"-j DROP",
	}
}

// nat masquerades. It translates no destination, and stops others, such as hostPorts, from
// translating one that IPVS serves.
func (n *nodeFacts) nat(all map[chainName][]string) {
	var rules []string
	for _, s := range []set{setClusterIP, setExternalIP, setExternalIPLocal} {
		rules = append(rules, n.matches(s, "dst,dst")+"-j ACCEPT")
	}
	for _, s := range []set{setLoadBalancer, setLoadBalancerLocal} {
		rules = append(rules, n.matches(s, "dst,dst")+"-j "+chainLoadBalancer)
	}
	for _, p := range n.node.NodePorts {
		dst := "-d " + p.String() + " "
		if p.Bits() == 0 {
			dst = ""
		}
		rules = append(rules, dst+"-m addrtype --dst-type LOCAL -j "+chainNodePort)
	}
	all[chainName{"nat", chainServices}] = rules
	all[chainName{"nat", chainLoadBalancer}] = []string{"-j ACCEPT"}
	all[chainName{"nat", chainNodePort}] = []string{
		"-p tcp " + n.matches(setNodePortTCP, "dst") + "-j ACCEPT",
		"-p tcp " + n.matches(setNodePortLocalTCP, "dst") + "-j ACCEPT",
		"-p udp " + n.matches(setNodePortUDP, "dst") + "-j ACCEPT",
		"-p udp " + n.matches(setNodePortLocalUDP, "dst") + "-j ACCEPT",
		"-p sctp " + n.matches(setNodePortSCTP, "dst,dst") + "-j ACCEPT",
		"-p sctp " + n.matches(setNodePortLocalSCTP, "dst,dst") + "-j ACCEPT",
	}
	all[chainName{"nat", chainMarkMasq}] = []string{fmt.Sprintf("-j MARK --set-xmark %#[1]x/%#[1]x", n.masq)}
	masquerade := comment("kubernetes service traffic requiring SNAT") + "-j MASQUERADE"
	if n.fullyRandom {
		masquerade += " --random-fully"
	}
	all[chainName{"nat", chainPostrouting}] = []string{
		"! -o lo " + n.matches(setLoopBack, "dst,dst,src") + "-j MASQUERADE", // a hairpin (SV-60)
		fmt.Sprintf("-m mark ! --mark %#[1]x/%#[1]x -j RETURN", n.masq),
		fmt.Sprintf("-j MARK --set-xmark %#x/0x0", n.masq),
		masquerade,
	}
}

func (n *nodeFacts) filter(all map[chainName][]string) {
	icmp, refused := n.protocolICMP()
	all[chainName{"filter", chainForward}] = []string{
		comment("kubernetes forwarding rules") + fmt.Sprintf("-m mark --mark %#[1]x/%#[1]x -j ACCEPT", n.masq),
		comment("kubernetes forwarding conntrack rule") + "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
	}
	healthCheck := "-p tcp " + n.matches(setHealthCheck, "dst") + comment("Kubernetes health check node port")
	all[chainName{"filter", chainNodePort}] = []string{healthCheck + "-j ACCEPT"}
	n.firewall("filter", all)
	// The node's own packet, translated and masqueraded by IPVS, to an endpoint of the node: it has
	// met its rules.
	all[chainName{"filter", chainFirewall}] = append([]string{"-i lo -m conntrack --ctstate SNAT -j RETURN"},
		all[chainName{"filter", chainFirewall}]...)

	// Packets to a service address without that port would reach a server of this node (PN-43). The
	// node answers a ping (SV-66).
	var rules []string
	for _, s := range []set{setClusterIP, setExternalIP, setExternalIPLocal, setLoadBalancer, setLoadBalancerLocal} {
		rules = append(rules, n.matches(s, "dst,dst")+"-j RETURN")
	}
	rules = append(rules, healthCheck+"-j RETURN")
	// Another program may have a virtual server at the address, which IPVS looks up after this
	// chain (CF-27).
	for _, p := range n.excluded {
		switch {
		case lb.FamilyOf(p.Addr()) != n.family:
		case p.Bits() == 0:
			rules = append(rules, "-j RETURN")
		default:
			rules = append(rules, "-d "+p.Masked().String()+" -j RETURN")
		}
	}
	rules = append(rules,
		fmt.Sprintf("! -p %s %s%s-j REJECT --reject-with %s", icmp, isNew, n.matches(setIPs, "dst"), refused))
	all[chainName{"filter", chainFilter}] = rules

	// Packets to a free address of the service network must not leave by the default route (SV-63).
	rules = []string{}
	for _, p := range n.node.ServiceCIDRs {
		rules = append(rules, "-d "+p.String()+" "+isNew+"-m addrtype ! --dst-type LOCAL -j DROP")
	}
	all[chainName{"filter", chainOutFilter}] = rules
}

// chainJumps returns the rules of built-in chains, in order.
func chainJumps() (all []xtables.ChainRule) {
	to := func(table, target, note string, from ...string) {
		for _, f := range from {
			all = append(all, xtables.ChainRule{Table: table, Chain: f, Rule: comment(note) + "-j " + target})
		}
	}
	to("mangle", chainIn, "kubernetes service portals", "INPUT")
	to("mangle", chainOut, "kubernetes service portals", "OUTPUT")
	to("nat", chainServices, "kubernetes service portals", "PREROUTING", "OUTPUT")
	to("nat", chainPostrouting, "kubernetes postrouting rules", "POSTROUTING")
	to("filter", chainFirewall, "kube-proxy firewall rules", "INPUT")
	to("filter", chainFilter, "kubernetes ipvs access filter", "INPUT")
	to("filter", chainNodePort, "kubernetes health check rules", "INPUT")
	to("filter", chainOutFilter, "kubernetes ipvs access filter", "FORWARD", "OUTPUT")
	to("filter", chainForward, "kubernetes forwarding rules", "FORWARD")
	return all
}

// chainLayout returns the constant chains. It takes over or removes leftovers of modes iptables and
// ipvs.
func chainLayout(f lb.Family, backend xtables.Backend, writes *selfwrites.Ledger) xtables.Layout {
	return xtables.Layout{Family: f, Ours: xtables.Leftover, Writes: writes, Backend: backend, Jumps: chainJumps()}
}

// chainManager keeps the chains in the kernel.
type chainManager struct {
	*xtables.Manager
	facts nodeFacts
}

// newChains finds the iptables programs, on a thread in the node's network namespace. It changes
// nothing. Errors wrap plane.ErrUnsupported without a usable iptables.
func newChains(facts nodeFacts, backend xtables.Backend, writes *selfwrites.Ledger) (*chainManager, error) {
	k, err := xtables.NewManager(chainLayout(facts.family, backend, writes))
	if err != nil {
		return nil, err
	}
	facts.fullyRandom = k.FullyRandom()
	return &chainManager{k, facts}, nil
}

// rows returns the chains of a node.
func (c *chainManager) rows(n lb.Node) xtables.Rows {
	facts := c.facts
	facts.node = n
	return xtables.Rows{Chains: chainRules(facts)}
}

// Reset makes the kernel hold exactly these chains. The ipsets, and the objects that serve, must
// exist.
func (c *chainManager) Reset(ctx context.Context, n lb.Node) error {
	return c.Manager.Reset(ctx, nil, c.rows(n))
}

// SetNode writes the chains that depend on the change.
func (c *chainManager) SetNode(ctx context.Context, n lb.Node) error { return c.Apply(ctx, c.rows(n)) }
