package iptables

import (
	"net/netip"
	"slices"
	"strings"

	"kube-proxy/lb"
)

// list is a list of source ranges that rows share, whatever Service they are of. Its chain returns packets that come from
// within a range, and takes all others out of the caller's way.
type list struct {
	ranges []netip.Prefix
	users  int // service ports
}

// listChain returns the content of a list's chain. In nat what comes from elsewhere stays as it is, and no other rule of
// the table translates it; so it is found, and dropped, by filter.
func listChain(id chainID, ranges []netip.Prefix) chain {
	c := chain{id: id, rules: make([]string, 0, len(ranges)+1)}
	for _, p := range ranges {
		c.rules = append(c.rules, from(p)+"-j RETURN")
	}
	verdict := "ACCEPT"
	if id.table == filter {
		verdict = "DROP"
	}
	c.rules = append(c.rules, comment("the source is in no range")+"-j "+verdict)
	return c
}

// sourceList returns the name of the chain with a row's ranges, and a match on those that it is to look at. If the row's own
// address is among the ranges (SV-16) it is left to the match: else the addresses of a Service could not share a chain.
func (u *portRenderer) sourceList(t table, f *lb.Frontend) (others, name string) {
	ranges := f.Sources
	own := netip.PrefixFrom(f.Key.Addr, f.Key.Addr.BitLen())
	if i := slices.Index(ranges, own); i >= 0 {
		others, ranges = "! "+from(own), slices.Delete(slices.Clone(ranges), i, i+1)
	}
	var text strings.Builder
	for _, p := range ranges {
		text.WriteString(p.String())
		text.WriteByte(' ')
	}
	name = sourceList + hash(text.String())
	u.lists[chainID{t, name}] = ranges
	return others, name
}

// listsOf counts a service port in or out of those that use each list: n is 1 or -1.
func (p *plan) listsOf(ids []chainID, n int) {
	for _, id := range ids {
		p.users[id] += n
	}
}

// settle adds the lists that nobody used before, and deletes those that nobody uses any more.
func (p *plan) settle(st *state) {
	for id, n := range p.users {
		switch old := st.lists[id]; {
		case old == nil && n > 0:
			p.chains = append(p.chains, listChain(id, p.ranges[id]))
		case old != nil && old.users+n == 0:
			p.drops = append(p.drops, id)
		}
	}
}

// keepLists makes the users of lists those of the plan.
func (st *state) keepLists(p *plan) {
	for id, n := range p.users {
		l := st.lists[id]
		if l == nil {
			l = &list{ranges: p.ranges[id]}
			st.lists[id] = l
		}
		if l.users += n; l.users == 0 {
			delete(st.lists, id)
		}
	}
}
