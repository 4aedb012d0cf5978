//go:build linux

package xtables

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/kernel"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/lb"
	"kube-proxy/plane/selfwrites"
)

// iptables-save leaves out a whole table if it has a rule that iptables cannot express, such as "ct
// state new accept" of nft, while iptables-restore still writes to it. If such a table counted as
// empty, each audit would insert another copy of each jump. So it is read from the kernel, without
// comments.

// Lines lists the output of iptables-save, and the kernel's rules of the tables that it leaves out.
func (t *Tool) Lines(ctx context.Context, each func(SavedLine)) error {
	var cannot []Table
	err := t.save(ctx, func(r io.Reader) error {
		for line, err := range ReadSaved(r) {
			if err != nil {
				return err
			}
			if line.Kind != savedUnlistable {
				each(line)
			} else if t, known := TableNamed(line.Table); known {
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
	h := &nftHolding{nf: nf, family: t.Family}
	defer h.Close()
	for _, t := range cannot {
		if err := h.lines(t, each); err != nil {
			return err
		}
	}
	return nil
}

// lines lists a table as iptables-save would, the chains first.
func (h *nftHolding) lines(t Table, each func(SavedLine)) error {
	names, err := h.Names(t)
	if err != nil {
		return err
	}
	for _, name := range names {
		line := SavedLine{Kind: SavedChain, Table: t.String(), Chain: []byte(name), Rest: []byte("-")}
		if IsBuiltIn(name) {
			line.Rest = []byte("ACCEPT")
		}
		each(line)
	}
	for _, name := range names {
		c, err := h.Chain(ChainID{t, name})
		if err != nil {
			return err
		}
		if c == nil { // deleted meanwhile
			continue
		}
		for _, r := range c.Rules {
			each(SavedLine{SavedRule, t.String(), []byte(name), []byte(r.Text), r.Handle})
		}
	}
	return nil
}

// deleteHandled deletes rules by their handles, those of one table at once.
func deleteHandled(ctx context.Context, f lb.Family, rules []handled) error {
	if len(rules) == 0 {
		return nil
	}
	s, err := wire.Open()
	if err != nil {
		return fmt.Errorf("delete rules of nf_tables: %w", err)
	}
	defer s.Close()
	byTable := map[Table]*wire.Transaction{}
	for _, r := range rules {
		t := r.from.Table
		if byTable[t] == nil {
			byTable[t] = wire.NewTransaction(nfproto(f), t.String(), nil)
		}
		byTable[t].DeleteRule(r.from.Name, r.handle)
	}
	for _, t := range slices.Sorted(maps.Keys(byTable)) {
		if _, err := s.Commit(ctx, &selfwrites.Ledger{}, byTable[t]); err != nil {
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
