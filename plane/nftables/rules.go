//go:build linux

package nftables

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	nlconn "kube-proxy/internal/netlink/conn"
	"kube-proxy/internal/nft/walk"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/lb"
)

// chain is a chain with its rules.
type chain struct {
	name  string
	hook  wire.Hook // none for a chain that is only jumped to
	rules []rule
}

func (c *chain) isBase() bool { return c.hook != wire.Hook{} }

// The priorities of DP-20: connections are translated at dstnat, so that others may hook before and after.
const (
	prioDstNAT    = -100
	prioPreDstNAT = prioDstNAT - 10
	prioFilter    = 0
	prioSrcNAT    = 100
)

// rule is a rule of a chain. Its comment ends in a digest of what it does, by which a later process sees that the rule in the
// kernel is as it should be.
type rule struct {
	comment    string
	exprs      []byte // NFTA_RULE_EXPRESSIONS
	statements []statement
}

// ruleset renders the chains for one family and node. It is pure.
type ruleset struct {
	family
	sets *[setCount]wire.Set // never changed
	mark uint32              // the packet mark of connections to masquerade
	node lb.Node
	// Session affinity: whether the kernel can hash, the seed, and affinityPlaces but for tests.
	hashes       bool
	seed, places uint32
	// counts: rules count connections, see counters.go.
	counts bool
	// localhost: TCP NodePorts answer at the node's [lb.Node.Localhost], by a proxy, see localhost.go.
	localhost bool
	// uncounted: what localhost rejects is not counted, as this kernel cannot.
	uncounted bool
}

func (r *ruleset) rule(comment string, statements ...statement) rule {
	e := wire.Encoder{Encoder: nlconn.Encoder{B: make([]byte, 0, 1024)}}
	for _, s := range statements {
		for _, x := range s.exprs {
			at := e.Nest(unix.NFTA_LIST_ELEM)
			appendExpression(&e, r.proto, x)
			e.EndNest(at)
		}
	}
	sum := sha256.Sum256(e.B)
	return rule{strings.TrimSpace(comment + " [" + hex.EncodeToString(sum[:4]) + "]"), e.B, statements}
}

func appendExpression(e *wire.Encoder, proto byte, x expr.Any) {
	if x, ok := x.(*original); ok {
		x.encode(e)
		return
	}
	b, err := expr.Marshal(proto, x)
	if err != nil {
		panic(fmt.Sprintf("plane/nftables: cannot encode %T: %v", x, err)) // a mistake in statement.go
	}
	e.B = append(e.B, b...)
}

// text is the rule in the language of nft(8).
func (ru rule) text() string {
	var all []string
	for _, s := range ru.statements {
		if s.text != "" {
			all = append(all, s.text)
		}
	}
	return fmt.Sprintf("%s comment %q", strings.Join(all, " "), ru.comment)
}

// digest identifies a chain's rules.
func digest(rules []rule) string {
	var b strings.Builder
	for _, r := range rules {
		b.WriteString(r.comment)
		b.WriteByte('\n')
	}
	return b.String()
}

// skeleton is the chains that are always there.
func (r *ruleset) skeleton() []chain {
	base := func(name, typ string, num uint32, priority int32, rules ...rule) chain {
		return chain{name, wire.Hook{Type: typ, Num: num, Priority: priority}, rules}
	}
	refuse := jump("filter-frontends")
	unknown := r.rule("not translated", newConnection, jump("service-network"))
	translate := jump("nat-frontends")
	others := r.notTheProxy()
	nodePortClass := func(verdicts setIndex) []rule {
		return []rule{r.rule("NodePort", r.find(number, sNodePorts, nodePort...), r.vmap(verdicts, number))}
	}
	return []chain{
		{name: actionReject.chain(), rules: []rule{r.rule("", r.reject())}},
		{name: "filter-nodeports", rules: nodePortClass(sFilterClasses)},
		// What a process of the node sends to a backend at the node's own address comes in again, translated. Somebody
		// else's Service may claim that address.
		{name: "filter-frontends", rules: append([]rule{r.rule("translated on the way out", destinationTranslated, goBack)},
			r.classes(sFilterClasses, "filter-nodeports")...)},
		{name: "nat-nodeports", rules: nodePortClass(sNATClasses)},
		{name: "nat-frontends", rules: r.classes(sNATClasses, "nat-nodeports")},
		r.scope(lb.Cluster),
		r.masqThen(lb.Cluster),
		r.scope(lb.Local),
		r.masqThen(lb.Local),
		r.serviceNetwork(),
		r.hairpin(),

		base("filter-prerouting-pre-dnat", "filter", unix.NF_INET_PRE_ROUTING, prioPreDstNAT, r.rule("before translation", newConnection, refuse)),
		base("filter-output-pre-dnat", "filter", unix.NF_INET_LOCAL_OUT, prioPreDstNAT,
			append(r.localhostRules(), r.rule("before translation", others, newConnection, refuse))...),
		base("nat-prerouting", "nat", unix.NF_INET_PRE_ROUTING, prioDstNAT, r.rule("translate", translate)),
		base("nat-prerouting-again", "nat", unix.NF_INET_PRE_ROUTING, prioDstNAT+1, r.rule(secondLook, translate)),
		base("nat-output", "nat", unix.NF_INET_LOCAL_OUT, prioDstNAT, r.rule("translate", others, translate)),
		base("nat-output-again", "nat", unix.NF_INET_LOCAL_OUT, prioDstNAT+1, r.rule(secondLook, others, translate)),
		base("filter-forward", "filter", unix.NF_INET_FORWARD, prioFilter, unknown),
		base("filter-output", "filter", unix.NF_INET_LOCAL_OUT, prioFilter, unknown),
		base("nat-postrouting", "nat", unix.NF_INET_POST_ROUTING, prioSrcNAT,
			// Without its mark a packet that is wrapped and comes by again is not masqueraded twice.
			r.rule("asked for on the way in", notZero(packetMark.and(r.mark)), setMark(packetMark.xor(r.mark)), masquerade),
			r.rule("a backend that is its own client", append(append([]statement{destinationTranslated}, r.toItself()...), goTo("hairpin"))...)),
	}
}

// secondLook is what the chains ...-again are for. While a transaction takes effect, a packet may meet new elements
// under old rules: it finds a chain that is still empty for it, or misses the slot that just went, and falls through.
// The rules that a packet meets are those of the moment at which it enters a base chain, so the second look has
// base chains of its own.
const secondLook = "a change came between two lookups"

// The keys of frontends.
func (r *ruleset) vip() []operand { return []operand{r.destination(), l4proto, dport} }

var nodePort = []operand{l4proto, dport}

// classes sends packets for service addresses to the chain of their class, and those for addresses that answer NodePorts to the
// chain that does the same for ports.
func (r *ruleset) classes(verdicts setIndex, nodePorts string) []rule {
	rules := []rule{r.rule("service address", r.find(number, sServices, r.vip()...), r.vmap(verdicts, number))}
	for _, p := range r.node.NodePorts {
		rules = append(rules, r.rule("this node", r.inPrefix(r.destination(), p), r.notLoopback(r.destination()), destinationIsLocal, jump(nodePorts)))
	}
	return rules
}

// notLoopback keeps NodePorts away from loopback addresses (SV-64).
func (r *ruleset) notLoopback(a operand) statement {
	if r.fam == lb.IPv6 {
		return r.notInPrefix(a, netip.PrefixFrom(netip.IPv6Loopback(), 128))
	}
	return r.notInPrefix(a, netip.PrefixFrom(netip.AddrFrom4([4]byte{127}), 8))
}

// hairpin masquerades a backend that is its own client, if it is a frontend of ours that led it to itself (SV-60): the
// connection's first destination was one. Other programs translate as well, such as CNI plugins for hostPort.
func (r *ruleset) hairpin() chain {
	to := r.originalDestination()
	rules := []rule{r.rule("by a service address", hasPorts, r.find(number, sServices, to, l4proto, originalPort), notZero(number), masquerade)}
	for _, p := range r.node.NodePorts {
		rules = append(rules, r.rule("by a NodePort", r.inPrefix(to, p), r.notLoopback(to),
			hasPorts, r.find(number, sNodePorts, l4proto, originalPort), notZero(number), masquerade))
	}
	return chain{name: "hairpin", rules: rules}
}

// serviceNetwork refuses what reached a service address untranslated.
//
// That may be a port that the service has: a connection that the kernel tracked before the service was here is never
// translated any more, and each SYN from the same port, also of later connections, keeps it tracked for two minutes
// more. A refused client has its port free at once, so the next connections try it again and again, all the more where
// ports are scarce. With a TCP reset the kernel (from 6.3 on) closes the tracked connection, and it ends 10 s later
// (nf_conntrack_tcp_timeout_close), whatever comes; after an ICMP error it does not.
func (r *ruleset) serviceNetwork() chain {
	const note = "a port that the service does not have"
	clusterIP := r.in(sClusterIPs, r.destination())
	rules := []rule{r.rule(note, overTCP, clusterIP, tcpReset), r.rule(note, clusterIP, r.reject())}
	for _, p := range r.node.ServiceCIDRs {
		rules = append(rules, r.rule("an address that no service has", r.inPrefix(r.destination(), p), drop))
	}
	return chain{name: "service-network", rules: rules}
}

// byFrontend is rules for service addresses, and then the same for NodePorts, which have a map of their own.
func (r *ruleset) byFrontend(s lb.Scope, rules func(comment string, sets setIndex, key []operand) []rule) []rule {
	vips, nodePorts := sClusterSets, sNodePortClusterSets
	if s == lb.Local {
		vips, nodePorts = sLocalSets, sNodePortLocalSets
	}
	all := rules("service address", vips, r.vip())
	// What a frontend's address led here ends here: a NodePort may have the number of its port.
	all = append(all, r.rule("no NodePort", r.find(number, vips, r.vip()...), notZero(number), goBack))
	return append(all, rules("NodePort", nodePorts, nodePort)...)
}

// scope goes from the frontend to its set, from there to the set's shape, and on to the balancer.
//
// With session affinity a set has two balancers, see [shape]. A client who was here before gets his backend from the one that
// remembers. To others it does nothing: then the one that chooses remembers a backend for them, and the first one is asked again.
func (r *ruleset) scope(s lb.Scope) chain {
	return chain{name: s.String(), rules: r.byFrontend(s, func(comment string, sets setIndex, key []operand) []rule {
		set, shape := r.find(number, sets, key...), r.find(number, sSetShapes, number)
		step := func(comment string, part operand) rule {
			return r.rule(comment, set, shape, r.vmap(shapesOf(s), part))
		}
		steps := []rule{
			step(comment, number),
			step(comment+": a client who was here before", number.and(timePart)),
			step(comment+": choose", number.and(sizePart)),
			step(comment+": as chosen", number.and(timePart)),
		}
		if r.counts {
			return append([]rule{r.count(comment, sets, key)}, steps...)
		}
		return steps
	})}
}

func (r *ruleset) masqThen(s lb.Scope) chain {
	return chain{name: s.String() + "-masq", rules: []rule{
		r.rule("the backend shall see this node", setMark(packetMark.or(r.mark))),
		r.rule("", goTo(s.String())),
	}}
}

// balancer picks a backend of a set, or does one part of that where the set has affinity.
func (r *ruleset) balancer(s shape) chain {
	return chain{name: s.chain(), rules: r.byFrontend(s.scope, func(comment string, sets setIndex, key []operand) []rule {
		switch {
		case s.seconds > 0:
			return r.sameBackend(s.seconds, r.find(setID, sets, key...))
		case s.sticky:
			return r.choose(s, r.find(setID, sets, key...))
		}
		var rules []rule
		set := r.find(number, sets, key...)
		for _, n := range s.picks() {
			look, dnat := r.backend(sBackends, number, random(n))
			rules = append(rules, r.rule(comment, set, look, dnat))
		}
		return rules
	})}
}

// classChains are the chains that a class needs of its own, with the verdicts that lead a packet of the class
// into the right chain: the first in the filter hooks, the second in the nat hooks.
func (r *ruleset) classChains(c class) (chains []chain, filter, nat elementVerdict) {
	if a := c.at(lb.Anywhere); c.simple() && a.balances() {
		return nil, returns, a.verdict()
	} else if c.simple() {
		return nil, a.verdict(), returns
	}
	filter, nat = returns, returns
	refuse, refuses := r.bySource(c, false)
	if c.eighths() != 0 {
		chains = append(chains, chain{name: c.sourcesChain(), rules: r.sourceRules(c)})
		refuse, refuses = append([]rule{r.rule("source ranges", jump(c.sourcesChain()))}, refuse...), true
	}
	if refuses {
		filter = verdictOf(expr.VerdictGoto, "filter."+c.String())
		chains = append(chains, chain{name: filter.Chain, rules: refuse})
	}
	if balance, balances := r.bySource(c, true); balances {
		nat = verdictOf(expr.VerdictGoto, "nat."+c.String())
		chains = append(chains, chain{name: nat.Chain, rules: balance})
	}
	return chains, filter, nat
}

// bySource is a rule for each kind of source, in the order of routes. In the nat hooks the rules balance, in the filter hooks
// they refuse; what is the other's, they let pass. It reports whether any does more than that.
func (r *ruleset) bySource(c class, balance bool) (rules []rule, needed bool) {
	add := func(a action, match statement) {
		if a.balances() == balance {
			rules, needed = append(rules, r.rule("", match, a.verdict().statement())), true
		} else {
			rules = append(rules, r.rule("", match, goBack))
		}
	}
	if a := c.at(lb.Pods); a != actionNone {
		for _, match := range r.fromPods() {
			add(a, match)
		}
	}
	if a := c.at(lb.Host); a != actionNone {
		add(a, sourceIsLocal)
	}
	if a := c.at(lb.Anywhere); a.balances() == balance { // else they return at the end of the chain
		add(a, statement{})
	}
	return rules, needed
}

// fromPods are the matches for packets from pods: one for each way in which the local-traffic detector recognises them. If it
// recognises none (SV-67), pods are treated as from anywhere.
func (r *ruleset) fromPods() []statement {
	d := r.node.Pods
	switch {
	case d.Interface != "":
		return []statement{fromInterface(d.Interface, false)}
	case d.InterfacePrefix != "":
		return []statement{fromInterface(d.InterfacePrefix, true)}
	}
	var matches []statement
	for _, p := range d.Prefixes {
		matches = append(matches, r.inPrefix(r.source(), p))
	}
	return matches
}

// wanted is the chain as it shall be, for who compares.
func (c chain) wanted() walk.Wanted {
	w := walk.Wanted{Name: c.name, Hook: c.hook}
	for _, r := range c.rules {
		w.Rules = append(w.Rules, walk.WantedRule{Text: r.text(), Comment: r.comment, Expressions: r.exprs})
	}
	return w
}

// sourceRules drop packets from sources that are in none of the frontend's ranges. There is a rule for each length of a range.
func (r *ruleset) sourceRules(c class) []rule {
	var rules []rule
	for _, n := range r.lengths(c.eighths()) {
		rules = append(rules, r.rule(fmt.Sprintf("a range of %d bits", n), r.find(number, sSourceLists, r.vip()...),
			r.in(sSourceRanges, number.or(uint32(n)), r.source().firstBits(n, r.family)), goBack))
	}
	return append(rules, r.rule("in no range", drop))
}
