//go:build linux

package iptables

import (
	"fmt"
	"hash/crc32"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
)

// dispatched is one or more rules that a dispatcher must have for a frontend.
type dispatched struct {
	to    dispatcherIndex
	rules []string
}

// renderer turns frontends into rules. It has no side effects, and no state except its settings.
type renderer struct {
	family lb.Family
	node   lb.Node
	// localhost: NodePorts answer on 127.0.0.1 if the prefixes cover it (SV-64).
	localhost bool
	// liberal: packets out of order are not dropped (DP-09).
	liberal bool
	// plain: no comments on rules of endpoints (DP-12).
	plain bool
	// fullyRandom: this iptables knows --random-fully (DP-03).
	fullyRandom bool
	// counts: rules count packets with the match nfacct (MT-16, MT-17).
	counts bool
	mark   uint32
}

// rendered has the chains and rules that a service port needs.
type rendered struct {
	chains   []xtables.Chain                    // of this service port only
	lists    map[xtables.ChainID][]netip.Prefix // shared with others
	dispatch map[lb.Key][]dispatched            // the dispatchers' rules for each of its frontends
}

// servicePort renders a service port. Its frontends may disagree about a backend set during a
// change; the last changed ones decide.
func (r *renderer) servicePort(id portID, rows []*lb.Frontend, last ...*lb.Frontend) rendered {
	u := &portRenderer{renderer: r, id: id, sets: map[lb.Scope]*lb.BackendSet{}, masq: map[lb.Scope][]string{},
		named: map[string]string{}, lists: map[xtables.ChainID][]netip.Prefix{}, out: make(map[lb.Key][]dispatched,
			len(rows))}
	rows = slices.SortedFunc(slices.Values(rows), func(a, b *lb.Frontend) int { return a.Key.Compare(b.Key) })
	for _, f := range slices.Concat(rows, last) {
		u.decide(f)
	}
	for _, f := range rows {
		u.row(f)
	}
	for _, scope := range []lb.Scope{lb.Cluster, lb.Local} {
		if s := u.sets[scope]; s != nil {
			u.balance(s, u.masq[scope])
		}
	}
	return rendered{append(u.chains, u.variants...), u.lists, u.out}
}

type portRenderer struct {
	*renderer
	id     portID
	sticky int // seconds
	sets   map[lb.Scope]*lb.BackendSet
	masq   map[lb.Scope][]string // rules at the start of a set's chain
	named  map[string]string     // content of EXT and FW chains to their names
	// chains are those of sets and of endpoints; variants are the EXT and FW chains.
	chains, variants []xtables.Chain
	lists            map[xtables.ChainID][]netip.Prefix
	eps              map[netip.AddrPort]string
	out              map[lb.Key][]dispatched
}

// decide records the sets of a frontend, and its affinity timeout.
func (u *portRenderer) decide(f *lb.Frontend) {
	for _, route := range f.Routes {
		if route.To != nil {
			u.sets[route.To.ID.Scope] = route.To
			// A frontend that refuses has no affinity, and says nothing about the others.
			u.sticky = int(f.Affinity.Seconds())
		}
	}
}

func (u *portRenderer) row(f *lb.Frontend) {
	match := xtables.MatchKey(f.Key, "")
	if f.Accepts() { // a health check translates nothing
		u.out[f.Key] = []dispatched{{inHealthChecks, []string{match +
			xtables.Comment(f.Service, " health check node port") + "-j ACCEPT"}}}
		return
	}
	var out []dispatched
	if target := u.target(f); target != "" {
		match += xtables.Comment(f.Service, " ", titles[f.Kind])
		at := dispatched{inServices, []string{match + "-j " + target}}
		if f.Key.IsNodePort() {
			at.to = inNodePorts
			if u.counts && u.localnet() {
				at.rules = append([]string{"-d " + xtables.Loopback4.String() + " " + match +
					xtables.Counting(xtables.LocalhostAccepted) + "-j " + target}, at.rules...)
			}
		}
		out = append(out, at)
	}
	if p := u.refusal(f); len(p.rules) > 0 {
		out = append(out, p)
	}
	u.out[f.Key] = out
}

// titles are the kinds of frontends in comments.
var titles = map[lb.Kind]string{lb.ClusterIP: "cluster IP", lb.ExternalIP: "external IP",
	lb.LoadBalancer: "loadbalancer IP", lb.NodePort: "node port"}

// target returns the chain that translates the frontend's packets, or "".
func (u *portRenderer) target(f *lb.Frontend) string {
	if !slices.ContainsFunc(f.Routes, func(r lb.Route) bool { return r.To != nil }) {
		return ""
	}
	target, direct := "", false
	if f.Kind == lb.ClusterIP {
		target, direct = u.direct(f)
	}
	if !direct {
		target = u.variant(xtables.ExternalChain, u.routes(f))
	}
	if len(f.Sources) == 0 {
		return target
	}
	note := xtables.Comment(f.Service, " loadbalancer IP")
	others, list := u.sourceList(xtables.NAT, f)
	return u.variant(xtables.FirewallChain, []string{others + note + "-j " + list, note + "-j " + target})
}

// variant returns the name of the service port's chain with that content. Frontends of a service
// port nearly always agree; the first content has the name of DP-02.
func (u *portRenderer) variant(prefix string, rules []string) string {
	content := prefix + strings.Join(rules, "\n")
	if name := u.named[content]; name != "" {
		return name
	}
	name := u.id.chain(prefix)
	if u.named[prefix] != "" {
		name = u.id.chain(prefix, content)
	}
	u.named[prefix], u.named[content] = name, name
	u.variants = append(u.variants, xtables.Chain{ID: xtables.NAT.Chain(name), Rules: rules})
	return name
}

// direct returns the chain of the set itself if a cluster IP has only that set. The chain then
// begins with the rules for masquerading, as upstream's.
func (u *portRenderer) direct(f *lb.Frontend) (string, bool) {
	last := f.Routes[len(f.Routes)-1]
	scope := lb.Cluster
	if last.To != nil {
		scope = last.To.ID.Scope
	}
	match := func(source string) string {
		return xtables.MatchKey(f.Key, source) + xtables.Comment(f.Service, " cluster IP")
	}
	switch {
	case last.To == nil || len(f.Sources) > 0:
		return "", false
	case len(f.Routes) == 1 && last.Masq:
		u.masq[scope] = append(u.masq[scope], match("")+"-j "+xtables.MarkMasq)
	case len(f.Routes) == 1:
	case len(f.Routes) == 2 && f.Routes[0].From == lb.Pods && f.Routes[0].To == last.To && !f.Routes[0].Masq &&
		last.Masq:
		source, mark := u.notPods()
		u.masq[scope] = append(u.masq[scope], match(source)+"-j "+mark)
	default:
		return "", false
	}
	return u.setChain(scope), true
}

func (u *portRenderer) setChain(s lb.Scope) string { return u.id.chain(u.setPrefix(s)) }

func (*portRenderer) setPrefix(s lb.Scope) string {
	if s == lb.Local {
		return xtables.LocalChain
	}
	return xtables.ClusterChain
}

// notPods returns a match for sources that are not pods, and the chain that marks them.
func (r *renderer) notPods() (source, mark string) {
	switch d := r.node.Pods; {
	case d.Interface != "":
		return "! -i " + d.Interface + " ", xtables.MarkMasq
	case d.InterfacePrefix != "":
		return "! -i " + d.InterfacePrefix + "+ ", xtables.MarkMasq
	case len(d.Prefixes) > 1:
		return "", xtables.MarkOffCluster
	case len(d.Prefixes) == 1:
		return "! -s " + d.Prefixes[0].String() + " ", xtables.MarkMasq
	}
	return "", xtables.MarkMasq
}

// routes returns the rules that implement a frontend's routes in order (DP-04).
func (u *portRenderer) routes(f *lb.Frontend) []string {
	var rules []string
	for _, route := range f.Routes {
		for _, m := range xtables.Sources(route.From, u.node.Pods) {
			text := m.Before + xtables.Comment(origins[route.From], " traffic for ", f.Service,
				" external destinations") + m.After
			if route.Do != lb.Balance {
				if route.From != lb.Anywhere {
					rules = append(rules, text+"-j RETURN")
				}
				continue
			}
			if route.Masq {
				rules = append(rules, text+"-j "+xtables.MarkMasq)
			}
			rules = append(rules, text+"-j "+u.setChain(route.To.ID.Scope))
		}
	}
	return rules
}

// origins are the sources of packets in comments.
var origins = map[lb.From]string{lb.Pods: "pod", lb.Host: "route LOCAL", lb.Anywhere: "masquerade or local"}

// choice is a chain to which packets go at random, by the number of backends behind it.
type choice struct {
	note, chain string
	backends    int
}

// balance writes the chains of a set and its endpoints (DP-06). A large set has a chain for each of
// its parts (TN-72).
func (u *portRenderer) balance(s *lb.BackendSet, rules []string) {
	if u.eps == nil {
		u.eps = map[netip.AddrPort]string{}
	}
	all := make([]choice, s.Backends.Len())
	for i := range all {
		b, note := s.Backends.At(i), ""
		if !u.plain {
			note = xtables.Comment(u.id.service, " -> ", b.Addr.String())
		}
		all[i] = choice{note, u.endpoint(b.Addr), 1}
	}
	if len(all) <= splitSize {
		rules = slices.Concat(rules, u.recent(all), oneOf(all))
	} else {
		rules = append(rules, u.parts(u.setPrefix(s.ID.Scope), all)...)
	}
	u.chains = append(u.chains, xtables.Chain{ID: xtables.NAT.Chain(u.setChain(s.ID.Scope)), Rules: rules})
}

// recent returns the rules for session affinity, which send clients to their previous endpoint.
func (u *portRenderer) recent(to []choice) (rules []string) {
	if u.sticky == 0 {
		return nil
	}
	for _, c := range to {
		rules = append(rules, fmt.Sprintf("%s-m recent --rcheck --seconds %d --reap --name %s %s-j %s",
			c.note, u.sticky, c.chain, u.recentMask(), c.chain))
	}
	return rules
}

// oneOf returns the rules that send packets to one of the choices.
func oneOf(to []choice) []string {
	rules, left := make([]string, len(to)), 0
	for _, c := range to {
		left += c.backends
	}
	for i, c := range to {
		rules[i] = c.note
		if left > c.backends {
			rules[i] += "-m statistic --mode random --probability " + probability(c.backends, left) + " "
		}
		rules[i] += "-j " + c.chain
		left -= c.backends
	}
	return rules
}

// parts writes a chain for each part of a set, two with session affinity, and returns the rules
// that jump there. The last endpoint of a part decides where it ends, so that a change of one
// endpoint changes one or two parts.
func (u *portRenderer) parts(prefix string, all []choice) (rules []string) {
	var to []choice
	for len(all) > 0 {
		n := min(partSize, len(all))
		for n < min(4*partSize, len(all)) && crc32.ChecksumIEEE([]byte(all[n-1].chain))%partSize != 0 {
			n++
		}
		part := choice{chain: u.id.chain(prefix, "part", all[0].chain), backends: n}
		u.chains = append(u.chains, xtables.Chain{ID: xtables.NAT.Chain(part.chain), Rules: oneOf(all[:n])})
		if u.sticky > 0 {
			recent := u.id.chain(prefix, "recent", all[0].chain)
			u.chains = append(u.chains, xtables.Chain{ID: xtables.NAT.Chain(recent), Rules: u.recent(all[:n])})
			rules = append(rules, "-j "+recent)
		}
		to, all = append(to, part), all[n:]
	}
	return append(rules, oneOf(to)...)
}

func (r *renderer) recentMask() string {
	if r.family == lb.IPv6 {
		return "--mask ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff --rsource "
	}
	return "--mask 255.255.255.255 --rsource "
}

// endpoint writes an endpoint's chain once, and returns its name. An endpoint that connects to
// itself is masqueraded (SV-60).
func (u *portRenderer) endpoint(a netip.AddrPort) string {
	if name := u.eps[a]; name != "" {
		return name
	}
	name := u.id.chain(xtables.EndpointChain, a.String())
	u.eps[a] = name
	note, proto := "", u.id.proto.String()
	if !u.plain {
		note = xtables.Comment(u.id.service)
	}
	translate := "-p " + proto + " " + note
	if u.sticky > 0 {
		translate += "-m recent --set --name " + name + " " + u.recentMask()
	}
	u.chains = append(u.chains, xtables.Chain{ID: xtables.NAT.Chain(name), Rules: []string{
		xtables.FromPrefix(netip.PrefixFrom(a.Addr(), a.Addr().BitLen())) + note + "-j " + xtables.MarkMasq,
		translate + "-m " + proto + " -j DNAT --to-destination " + a.String(),
	}})
	return name
}

// probability prints n/of as iptables-save does: the kernel keeps it in units of 2^-31.
func probability(n, of int) string {
	const one = 1 << 31
	p := strconv.FormatFloat(float64(n)/float64(of), 'f', 10, 64)
	v, _ := strconv.ParseFloat(p, 64)
	return strconv.FormatFloat(math.Round(v*one)/one, 'f', 11, 64)
}

// refusal returns the rules of the filter table for a frontend, for packets that were not
// translated (SV-50 to SV-52, SV-61).
func (u *portRenderer) refusal(f *lb.Frontend) dispatched {
	p := dispatched{to: inRejected}
	switch {
	case len(f.Sources) > 0:
		p.to = inFirewall
	case f.Key.IsNodePort():
		p.to = inRejectedNodePorts
	case f.Kind != lb.ClusterIP:
		p.to = inRejectedExternal
	}
	var rules []string
	rejects := false
	for _, route := range f.Routes {
		verdict, note := u.verdict(route.Do)
		if verdict == "" {
			continue
		}
		rejects = rejects || route.Do == lb.Reject
		for _, m := range xtables.Sources(route.From, u.node.Pods) {
			rules = append(rules, xtables.MatchKey(f.Key, m.Before)+xtables.Comment(f.Service, note)+m.After+verdict)
		}
	}
	if len(f.Sources) == 0 {
		p.rules = rules
		return p
	}
	kept := xtables.Comment(f.Service, " traffic not accepted by "+u.id.chain(xtables.FirewallChain))
	if rejects { // but only sources inside the ranges
		others, list := u.sourceList(xtables.Filter, f)
		p.rules = append([]string{xtables.MatchKey(f.Key, others) + kept + "-j " + list}, rules...)
	}
	p.rules = append(p.rules, xtables.MatchKey(f.Key, "")+kept+"-j DROP")
	return p
}

func (r *renderer) verdict(a lb.Action) (verdict, note string) {
	switch a {
	case lb.Drop:
		return "-j DROP", " has no local endpoints"
	case lb.Reject:
		if r.family == lb.IPv6 {
			return "-j REJECT --reject-with icmp6-port-unreachable", " has no endpoints"
		}
		return "-j REJECT --reject-with icmp-port-unreachable", " has no endpoints"
	}
	return "", ""
}

// portID names a service port, the owner of chains.
type portID struct {
	service string
	proto   lb.Proto
}

func (u portID) chain(prefix string, more ...string) string {
	return prefix + xtables.Hash(append([]string{u.service, u.proto.String()}, more...)...)
}
