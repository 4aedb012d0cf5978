//go:build linux

package iptables

import (
	"net/netip"
	"slices"
	"strings"

	"kube-proxy/internal/rollback"
	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
)

// list is a list of source ranges that frontends of any Service share. Its chain returns packets
// from within a range, and ends the traversal for all others.
type list struct {
	ranges []netip.Prefix
	users  int // service ports
}

// listChain returns the chain of a list. In nat, packets from other sources stay untranslated, so
// that the filter table drops them.
func listChain(id xtables.ChainID, ranges []netip.Prefix) xtables.Chain {
	c := xtables.Chain{ID: id, Rules: make([]string, 0, len(ranges)+1)}
	for _, p := range ranges {
		c.Rules = append(c.Rules, xtables.FromPrefix(p)+"-j RETURN")
	}
	verdict := "ACCEPT"
	if id.Table == xtables.Filter {
		verdict = "DROP"
	}
	c.Rules = append(c.Rules, xtables.Comment("the source is in no range")+"-j "+verdict)
	return c
}

// sourceList returns the name of the chain with a frontend's ranges, and a match for it. If the
// frontend's own address is among the ranges (SV-16), the match has it: otherwise the addresses of
// a Service could not share a chain.
func (u *portRenderer) sourceList(t xtables.Table, f *lb.Frontend) (others, name string) {
	ranges := f.Sources
	own := netip.PrefixFrom(f.Key.Addr, f.Key.Addr.BitLen())
	if i := slices.Index(ranges, own); i >= 0 {
		others, ranges = "! "+xtables.FromPrefix(own), slices.Delete(slices.Clone(ranges), i, i+1)
	}
	var text strings.Builder
	for _, p := range ranges {
		text.WriteString(p.String())
		text.WriteByte(' ')
	}
	name = xtables.SourceList + xtables.Hash(text.String())
	u.lists[t.Chain(name)] = ranges
	return others, name
}

// use records one more service port that uses a list, and writes the list if it is the first.
func (st *state) use(id xtables.ChainID, ranges []netip.Prefix, c *change) {
	l := st.lists[id]
	if l == nil {
		l = &list{ranges: ranges}
		rollback.Put(st.Log, st.lists, id, l)
		c.chains = append(c.chains, listChain(id, ranges))
	}
	rollback.Value(st.Log, &l.users)
	l.users++
}

// release counts one user less for each list, and deletes unused ones.
func (st *state) release(ids []xtables.ChainID, c *change) {
	for _, id := range ids {
		l := st.lists[id]
		rollback.Value(st.Log, &l.users)
		l.users--
		if l.users == 0 {
			rollback.Delete(st.Log, st.lists, id)
			c.drops = append(c.drops, id)
		}
	}
}
