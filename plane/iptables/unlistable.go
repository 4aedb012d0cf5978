//go:build linux

package iptables

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"kube-proxy/internal/kernel"
	"kube-proxy/internal/nftwire"
	"kube-proxy/lb"
)

// A table that has any rule which iptables cannot express, such as "ct state new accept" made with nft, is left out of what
// iptables-save prints, as a whole, while iptables-restore goes on to write it. To take it for empty would put another copy
// of each jump in front at each look. So what is in such a table is asked of the kernel: which chains there are, and which
// rules lead to ours. What our chains contain is not looked at: it counts as what was written, or as unknown at the start.

// unknown is the digest of a chain of unknown content: that of no chain.
var unknown = digest{sum: empty.sum + 1}

// complete adds what is in the tables that iptables did not show. known has what was written, if that is known.
func (s *snapshot) complete(f lb.Family, known map[chainID]digest) error {
	if s.unlistable == [tables]bool{} {
		return nil
	}
	nf, err := kernel.OpenNetfilter()
	if err != nil {
		return fmt.Errorf("list the tables that iptables cannot: %w", err)
	}
	defer nf.Close()
	chains, err := nf.Chains(nfproto(f))
	if err != nil {
		return fmt.Errorf("list the chains of tables that iptables cannot: %w", err)
	}
	for t, cannot := range s.unlistable {
		if !cannot {
			continue
		}
		t := table(t)
		for _, c := range chains {
			id := chainID{t, c.Name}
			if c.Table != t.String() {
				continue
			}
			s.kubelet = s.kubelet || isKubelets(id)
			if !ours(id) {
				continue
			}
			d, written := known[id]
			switch {
			case id.name == nodeFirewall: // which is declared, and never looked into
				d = empty
			case !written:
				d = unknown
			}
			s.chains[id] = d
		}
		for _, j := range append(jumps(), blockLocalnetJump) {
			if j.from.table != t || s.jumps[j] {
				continue
			}
			if s.jumps[j], err = hasJump(nf, f, j); err != nil {
				return fmt.Errorf("list the rules of chain %s of table %s, which iptables cannot: %w", j.from.name, t, err)
			}
		}
	}
	return nil
}

// hasJump asks whether a chain has a rule that leads to where a jump leads, or for the rule that blocks localnet one with its
// comment. Nobody else's rule has either. Where there is no chain, there is no rule.
func hasJump(nf *kernel.Netfilter, f lb.Family, j jump) (bool, error) {
	sign := []byte("block incoming localnet connections")
	if j != blockLocalnetJump {
		const verdictChain = 2 // NFTA_VERDICT_CHAIN
		ae := netlink.NewAttributeEncoder()
		ae.String(verdictChain, j.rule[strings.LastIndex(j.rule, " ")+1:])
		var err error
		if sign, err = ae.Encode(); err != nil {
			return false, err
		}
	}
	const getRule = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETRULE
	rules, err := nf.Ask(getRule, unix.NLM_F_DUMP, nfproto(f), func(ae *netlink.AttributeEncoder) {
		ae.String(unix.NFTA_RULE_TABLE, j.from.table.String())
		ae.String(unix.NFTA_RULE_CHAIN, j.from.name)
	})
	return slices.ContainsFunc(rules, func(rule []byte) bool { return bytes.Contains(rule, sign) }), err
}

// lines lists what iptables-save prints, and what the kernel holds in the tables that it leaves out.
func (t *tool) lines(ctx context.Context, each func(savedLine)) error {
	var cannot []table
	err := t.list(ctx, func(r io.Reader) error {
		for line, err := range readSaved(r) {
			if err != nil {
				return err
			}
			if line.kind != savedUnlistable {
				each(line)
			} else if t, known := tableNamed(line.table); known {
				cannot = append(cannot, t)
			}
		}
		return nil
	})
	if err != nil || len(cannot) == 0 {
		return err
	}
	nf, err := kernel.OpenNetfilter()
	if err != nil {
		return fmt.Errorf("list the tables that iptables cannot: %w", err)
	}
	h := &nftHolding{nf: nf, family: t.family}
	defer h.close()
	for _, t := range cannot {
		if err := h.lines(t, each); err != nil {
			return err
		}
	}
	return nil
}

// lines lists a table as iptables-save would, the chains first.
func (h *nftHolding) lines(t table, each func(savedLine)) error {
	all, err := h.names(t)
	if err != nil {
		return err
	}
	names := slices.Sorted(maps.Keys(all))
	for _, name := range names {
		line := savedLine{kind: savedChain, table: t.String(), chain: []byte(name), rest: []byte("-")}
		if isBuiltIn(name) {
			line.rest = []byte("ACCEPT")
		}
		each(line)
	}
	for _, name := range names {
		c, err := h.chain(chainID{t, name})
		if err != nil {
			return err
		}
		if c == nil { // deleted meanwhile
			continue
		}
		for _, r := range c.rules {
			each(savedLine{savedRule, t.String(), []byte(name), []byte(r.text), r.handle})
		}
	}
	return nil
}

// deleteHandled deletes rules by their handles, those of one table at once.
func deleteHandled(ctx context.Context, f lb.Family, rules []handled) error {
	if len(rules) == 0 {
		return nil
	}
	s, err := nftwire.Open()
	if err != nil {
		return fmt.Errorf("delete rules of nf_tables: %w", err)
	}
	defer s.Close()
	byTable := map[table]*nftwire.Transaction{}
	for _, r := range rules {
		t := r.from.table
		if byTable[t] == nil {
			byTable[t] = &nftwire.Transaction{Family: nfproto(f), Table: t.String()}
		}
		byTable[t].DeleteRule(r.from.name, r.handle)
	}
	for _, t := range slices.Sorted(maps.Keys(byTable)) {
		bufs, last := byTable[t].Buffers(nil, nil)
		if err := s.Commit(ctx, bufs, last); err != nil {
			return fmt.Errorf("delete rules of table %s of nf_tables: %w", t, err)
		}
	}
	return nil
}

// nfproto is netfilter's number of a family.
func nfproto(f lb.Family) byte {
	if f == lb.IPv6 {
		return unix.NFPROTO_IPV6
	}
	return unix.NFPROTO_IPV4
}
