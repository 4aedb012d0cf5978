//go:build linux

package nftables

import (
	"fmt"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/nft/rule"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/lb"
)

// The priorities of DP-20. Connections are translated at dstnat, so that other programs may hook
// before and after.
const (
	prioDstNAT    = -100
	prioPreDstNAT = prioDstNAT - 10
	prioFilter    = 0
	prioSrcNAT    = 100
)

// layout has the parameters of a plane's table. It does not change while the plane lives, so any
// goroutine may read it.
type layout struct {
	rule.IP
	sets *[setCount]wire.Set
	mark uint32 // the packet mark of connections to masquerade
	// hashes: the kernel can hash clients for session affinity. places is affinityPlaces, except in
	// tests.
	hashes bool
	places uint32
	// counts: rules count connections, see counters.go.
	counts bool
	// localhost: a proxy serves TCP NodePorts at [lb.Node.Localhost], and rules reject the other
	// packets to NodePorts on localhost, see localhost.go.
	localhost bool
	// uncounted: localhost rejections are not counted, because this kernel cannot.
	uncounted bool
}

// ruleset renders the chains for one family and node. It is pure.
type ruleset struct {
	layout
	node lb.Node
	seed uint32 // of the client hash
}

func (r *ruleset) set(i setIndex) *wire.Set { return &r.sets[i] }

// skeleton returns the chains that do not depend on frontends.
func (r *ruleset) skeleton() []rule.Chain {
	base := func(name, typ string, num uint32, priority int32, rules ...rule.Rule) rule.Chain {
		return rule.Chain{Name: name, Hook: wire.Hook{Type: typ, Num: num, Priority: priority}, Rules: rules}
	}
	refuse := rule.Jump("filter-frontends")
	unknown := r.New("not translated", rule.NewConnection, rule.Jump("service-network"))
	translate := rule.Jump("nat-frontends")
	others := r.notTheProxy()
	nodePortClass := func(verdicts setIndex) []rule.Rule {
		return []rule.Rule{r.New("NodePort", rule.Find(rule.Number, r.set(sNodePorts), rule.NodePort...),
			rule.VMap(r.set(verdicts), rule.Number))}
	}
	chains := []rule.Chain{
		{Name: actionReject.chain(), Rules: []rule.Rule{r.New("", r.Reject())}},
		{Name: "filter-nodeports", Rules: nodePortClass(sFilterClasses)},
		// A packet from a process of the node to a backend at the node's own address enters again,
		// translated. Another tenant's Service may claim that address.
		{Name: "filter-frontends",
			Rules: append([]rule.Rule{r.New("translated on the way out", rule.DestinationTranslated, rule.GoBack)},
				r.classes(sFilterClasses, "filter-nodeports")...)},
		{Name: "nat-nodeports", Rules: nodePortClass(sNATClasses)},
		{Name: "nat-frontends", Rules: r.classes(sNATClasses, "nat-nodeports")},
		r.scope(lb.Cluster),
		r.masqThen(lb.Cluster),
		r.scope(lb.Local),
		r.masqThen(lb.Local),
		r.serviceNetwork(),
		r.hairpin(),

		base("filter-prerouting-pre-dnat", "filter", unix.NF_INET_PRE_ROUTING, prioPreDstNAT,
			r.New("before translation", rule.NewConnection, refuse)),
		base("filter-output-pre-dnat", "filter", unix.NF_INET_LOCAL_OUT, prioPreDstNAT,
			r.New("before translation", others, rule.NewConnection, refuse)),
		base("nat-prerouting", "nat", unix.NF_INET_PRE_ROUTING, prioDstNAT, r.New("translate", translate)),
		base("nat-prerouting-again", "nat", unix.NF_INET_PRE_ROUTING, prioDstNAT+1, r.New(secondLook, translate)),
		base("nat-output", "nat", unix.NF_INET_LOCAL_OUT, prioDstNAT, r.New("translate", others, translate)),
		base("nat-output-again", "nat", unix.NF_INET_LOCAL_OUT, prioDstNAT+1, r.New(secondLook, others, translate)),
		base("filter-forward", "filter", unix.NF_INET_FORWARD, prioFilter, unknown),
		base("filter-output", "filter", unix.NF_INET_LOCAL_OUT, prioFilter, unknown),
		base("nat-postrouting", "nat", unix.NF_INET_POST_ROUTING, prioSrcNAT,
			// Clearing the mark keeps a packet that is encapsulated and passes again from being
			// masqueraded twice.
			r.New("asked for on the way in", rule.NotZero(rule.PacketMark.And(r.mark)),
				rule.SetMark(rule.PacketMark.Xor(r.mark)), rule.Masquerade),
			r.New("a backend that is its own client", append(append([]rule.Statement{rule.DestinationTranslated},
				r.ToItself(r.set(sEqualBytes))...), rule.GoTo("hairpin"))...)),
	}
	if r.localhost {
		chains = append(chains, base("filter-input", "filter", unix.NF_INET_LOCAL_IN, prioFilter,
			r.localhostRules()...))
	}
	return chains
}

// secondLook explains the chains named ...-again. While a transaction takes effect, a packet may
// find new elements under old rules: its chain is still empty, or its slot is gone, and it falls
// through. A packet uses the rules of the moment when it enters a base chain, so the second lookup
// has its own base chains.
const secondLook = "a change came between two lookups"

// classes returns the rules that send packets for service addresses to the chain of their class,
// and those for NodePort addresses to the chain that does the same by port.
func (r *ruleset) classes(verdicts setIndex, nodePorts string) []rule.Rule {
	rules := []rule.Rule{r.New("service address", rule.Find(rule.Number, r.set(sServices), r.VIP()...),
		rule.VMap(r.set(verdicts), rule.Number))}
	for _, p := range r.node.NodePorts {
		rules = append(rules, r.New("this node", r.InPrefix(r.Destination(), p), r.NotLoopback(r.Destination()),
			rule.DestinationIsLocal, rule.Jump(nodePorts)))
	}
	return rules
}

// hairpin masquerades a backend that is its own client, if one of our frontends redirected it to
// itself (SV-60): the connection's original destination is that frontend. Other programs translate
// as well, such as CNI plugins for hostPort.
func (r *ruleset) hairpin() rule.Chain {
	to := r.OriginalDestination()
	rules := []rule.Rule{r.New("by a service address", rule.HasPorts, rule.Find(rule.Number, r.set(sServices), to,
		rule.L4Proto, rule.OriginalPort), rule.NotZero(rule.Number), rule.Masquerade)}
	for _, p := range r.node.NodePorts {
		rules = append(rules, r.New("by a NodePort", r.InPrefix(to, p), r.NotLoopback(to),
			rule.HasPorts, rule.Find(rule.Number, r.set(sNodePorts), rule.L4Proto, rule.OriginalPort),
			rule.NotZero(rule.Number), rule.Masquerade))
	}
	return rule.Chain{Name: "hairpin", Rules: rules}
}

// serviceNetwork refuses packets that reached a service address untranslated.
//
// That may be a port that the service has. The kernel never translates a connection that it tracked
// before the service existed, and each SYN from the same port, also of later connections, keeps it
// tracked for another two minutes. A refused client frees its port at once, so the next connections
// use it again and again, especially if ports are scarce. With a TCP reset the kernel (6.3 or
// later) closes the tracked connection, which then ends after 10 s (nf_conntrack_tcp_timeout_close)
// in any case; after an ICMP error it does not.
func (r *ruleset) serviceNetwork() rule.Chain {
	const note = "a port that the service does not have"
	clusterIP := rule.In(r.set(sClusterIPs), r.Destination())
	rules := []rule.Rule{r.New(note, rule.OverTCP, clusterIP, rule.TCPReset), r.New(note, clusterIP, r.Reject())}
	for _, p := range r.node.ServiceCIDRs {
		rules = append(rules, r.New("an address that no service has", r.InPrefix(r.Destination(), p), rule.Drop))
	}
	return rule.Chain{Name: "service-network", Rules: rules}
}

// byFrontend returns the rules for service addresses, and then the same for NodePorts, which have
// their own map.
func (r *ruleset) byFrontend(s lb.Scope, rules func(comment string, sets setIndex,
	key []rule.Operand) []rule.Rule) []rule.Rule {
	vips, nodePorts := sClusterSets, sNodePortClusterSets
	if s == lb.Local {
		vips, nodePorts = sLocalSets, sNodePortLocalSets
	}
	all := rules("service address", vips, r.VIP())
	// A packet that reached this point by a frontend's address stops here: a NodePort may have the
	// number of its port.
	all = append(all, r.New("no NodePort", rule.Find(rule.Number, r.set(vips), r.VIP()...), rule.NotZero(rule.Number),
		rule.GoBack))
	return append(all, rules("NodePort", nodePorts, rule.NodePort)...)
}

// scope returns the chain that finds the frontend's set, then the set's shape, and jumps to the
// balancer.
//
// With session affinity a set has two balancers, see [shape]. The first remembers: a known client
// gets its backend from it. For other clients it does nothing; the second then chooses and stores a
// backend for them, and the first runs again.
func (r *ruleset) scope(s lb.Scope) rule.Chain {
	return rule.Chain{Name: s.String(),
		Rules: r.byFrontend(s, func(comment string, sets setIndex, key []rule.Operand) []rule.Rule {
			set, shape := rule.Find(rule.Number, r.set(sets), key...), rule.Find(rule.Number, r.set(sSetShapes),
				rule.Number)
			step := func(comment string, part rule.Operand) rule.Rule {
				return r.New(comment, set, shape, rule.VMap(r.set(shapesOf(s)), part))
			}
			steps := []rule.Rule{
				step(comment, rule.Number),
				step(comment+": a client who was here before", rule.Number.And(timePart)),
				step(comment+": choose", rule.Number.And(sizePart)),
				step(comment+": as chosen", rule.Number.And(timePart)),
			}
			if r.counts {
				return append([]rule.Rule{r.count(comment, sets, key)}, steps...)
			}
			return steps
		})}
}

func (r *ruleset) masqThen(s lb.Scope) rule.Chain {
	return rule.Chain{Name: s.String() + "-masq", Rules: []rule.Rule{
		r.New("the backend shall see this node", rule.SetMark(rule.PacketMark.Or(r.mark))),
		r.New("", rule.GoTo(s.String())),
	}}
}

// balancer picks a backend of a set, or does one part of that for a set with affinity.
func (r *ruleset) balancer(s shape) rule.Chain {
	return rule.Chain{Name: s.chain(),
		Rules: r.byFrontend(s.scope, func(comment string, sets setIndex, key []rule.Operand) []rule.Rule {
			switch {
			case s.seconds > 0:
				return r.sameBackend(s.seconds, rule.Find(rule.SetID, r.set(sets), key...))
			case s.sticky:
				return r.choose(s, rule.Find(rule.SetID, r.set(sets), key...))
			}
			var rules []rule.Rule
			set := rule.Find(rule.Number, r.set(sets), key...)
			for _, n := range s.picks() {
				look, dnat := r.Backend(r.set(sBackends), rule.Number, rule.Random(n))
				rules = append(rules, r.New(comment, set, look, dnat))
			}
			return rules
		})}
}

// classChains returns the chains that belong to one class, with the verdicts that send a packet of
// the class to its chain: the first in the filter hooks, the second in the nat hooks.
func (r *ruleset) classChains(c class) (chains []rule.Chain, filter, nat wire.Verdict) {
	if a := c.at(lb.Anywhere); c.simple() && a.balances() {
		return nil, wire.Return, a.verdict()
	} else if c.simple() {
		return nil, a.verdict(), wire.Return
	}
	filter, nat = wire.Return, wire.Return
	refuse, refuses := r.bySource(c, false)
	if c.eighths() != 0 {
		chains = append(chains, rule.Chain{Name: c.sourcesChain(), Rules: r.sourceRules(c)})
		refuse, refuses = append([]rule.Rule{r.New("source ranges", rule.Jump(c.sourcesChain()))}, refuse...), true
	}
	if refuses {
		filter = wire.GoTo("filter." + c.String())
		chains = append(chains, rule.Chain{Name: filter.Chain, Rules: refuse})
	}
	if balance, balances := r.bySource(c, true); balances {
		nat = wire.GoTo("nat." + c.String())
		chains = append(chains, rule.Chain{Name: nat.Chain, Rules: balance})
	}
	return chains, filter, nat
}

// bySource returns a rule for each kind of source, in the order of routes. In the nat hooks the
// rules balance, in the filter hooks they refuse; each lets the other's sources pass. It reports
// whether any rule does more than that.
func (r *ruleset) bySource(c class, balance bool) (rules []rule.Rule, needed bool) {
	add := func(a action, match rule.Statement) {
		if a.balances() == balance {
			rules, needed = append(rules, r.New("", match, rule.End(a.verdict()))), true
		} else {
			rules = append(rules, r.New("", match, rule.GoBack))
		}
	}
	if a := c.at(lb.Pods); a != actionNone {
		for _, match := range r.FromPods(r.node.Pods) {
			add(a, match)
		}
	}
	if a := c.at(lb.Host); a != actionNone {
		add(a, rule.SourceIsLocal)
	}
	// Else the rules return at the end of the chain.
	if a := c.at(lb.Anywhere); a.balances() == balance {
		add(a, rule.Statement{})
	}
	return rules, needed
}

// sourceRules drop packets from sources outside the frontend's ranges. Each range length has a
// rule.
func (r *ruleset) sourceRules(c class) []rule.Rule {
	var rules []rule.Rule
	for _, n := range lengths(r.IP, c.eighths()) {
		rules = append(rules, r.New(fmt.Sprintf("a range of %d bits", n), rule.Find(rule.Number, r.set(sSourceLists),
			r.VIP()...),
			rule.In(r.set(sSourceRanges), rule.Number.Or(uint32(n)), r.Source().FirstBits(n, r.IP)), rule.GoBack))
	}
	return append(rules, r.New("in no range", rule.Drop))
}
