package hns

import (
	"net/netip"
	"slices"
	"strings"

	"kube-proxy/lb"
	"kube-proxy/mode"
)

// kept says what load balancers make of rows, for who asks about a packet and has no HNS to ask: it has no network to know, so it takes
// HNS for one of now, and this node's address for one that answers NodePorts.
func kept(s mode.Settings) func(lb.Node, *lb.Frontend) (*lb.Frontend, string) {
	return func(node lb.Node, row *lb.Frontend) (*lb.Frontend, string) {
		f := facts{family: s.Family, node: node, wantDSR: s.Windows.EnableDSR, features: Features{V2: true, DSR: true, IPv6DualStack: true, SessionAffinity: true}}
		if i := slices.IndexFunc(node.NodePorts, func(p netip.Prefix) bool { return !p.Addr().IsLoopback() }); i >= 0 {
			f.management = node.NodePorts[i].Addr()
		}
		p := f.planned(row)
		var why []string
		for _, l := range p.lacks {
			text := lackTexts[l]
			why = append(why, strings.ToUpper(text[:1])+text[1:]+".")
		}
		if p.none() {
			if len(why) == 0 {
				why = append(why, "HNS refuses and drops nothing.")
			}
			return nil, strings.Join(why, " ")
		}
		set, _ := chosen(row, f.dsr())
		to := &lb.BackendSet{ID: set.ID}
		for _, b := range set.Backends {
			if b.Addr.Port() == p.to {
				to.Backends = append(to.Backends, b)
			}
		}
		out := *row
		out.Sources = nil
		out.Routes = []lb.Route{{From: lb.Anywhere, Do: lb.Balance, To: to, Masq: p.flags&FlagDSR == 0}}
		return &out, strings.Join(why, " ")
	}
}
