package hns

import (
	"net/netip"
	"slices"
	"strings"

	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/trace"
)

// kept returns the frontend as a load balancer implements it, for traces without an HNS. It assumes
// the newest version, the first single NodePort address as the node's, and that all local pods have
// endpoints.
func kept(s mode.Settings) func(lb.Node, *lb.Frontend, trace.Packet) (*lb.Frontend, string) {
	return func(node lb.Node, row *lb.Frontend, packet trace.Packet) (*lb.Frontend, string) {
		n := network{subnets: node.Pods.Prefixes}
		if i := slices.IndexFunc(node.NodePorts, func(p netip.Prefix) bool {
			return p.IsSingleIP() && !p.Addr().IsLoopback()
		}); i >= 0 {
			n.management = node.NodePorts[i].Addr()
		}
		return keptBy(s, n, node, row, packet)
	}
}

// keptBy is kept for a known network.
func keptBy(s mode.Settings, n network, node lb.Node, row *lb.Frontend, packet trace.Packet) (*lb.Frontend, string) {
	f := ConfigOf(s).facts(node)
	f.network, f.features = n, Features{V2: true, DSR: true, IPv6DualStack: true, SessionAffinity: true}
	p := f.planned(row)
	var why []string
	for _, l := range p.lacks {
		text := lackTexts[l]
		why = append(why, strings.ToUpper(text[:1])+text[1:]+".")
	}
	if p.none() {
		if len(why) == 0 {
			why = append(why, "HNS rejects and drops nothing.")
		}
		return nil, strings.Join(why, " ")
	}
	out := *row
	out.Sources = nil
	route := lb.Route{From: lb.Anywhere, Do: lb.Balance, Masq: p.flags&FlagDSR == 0,
		To: &lb.BackendSet{ID: lb.SetID{Service: row.Service, Proto: row.Key.Proto, Scope: lb.Cluster}}}
	outside := !route.Masq && !packet.Host && !lb.Within(n.subnets, packet.From.Addr())
	if outside {
		why = append(why, "With direct server return, clients outside reach only backends of this node.")
	}
	var reached []lb.Backend
	for _, b := range p.backends {
		if b.here || !outside {
			reached = append(reached, lb.Backend{Addr: netip.AddrPortFrom(b.addr, p.to), Local: b.here})
		}
	}
	route.To.Backends = lb.BackendsOf(reached...)
	if len(reached) == 0 {
		route = lb.Route{From: lb.Anywhere, Do: lb.Drop}
	}
	out.Routes = []lb.Route{route}
	return &out, strings.Join(why, " ")
}
